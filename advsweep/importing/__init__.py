"""Makes runs of the logs of other trainers, so that reports work on them.

    from advsweep.importing import IMPORTERS

    for run in IMPORTERS.build("csv").read(Path("metrics.csv"), ImportOptions(names=...)): ...

Packages add formats through the entry point group `advsweep.importers`. Nothing of what is
imported is ever executed, and no worker claims an imported run.
"""

from __future__ import annotations

from advsweep.importing.base import ImportedRun, Importer, ImportOptions, ProblemResult
from advsweep.registry import Registry

__all__ = ["IMPORTERS", "ImportOptions", "ImportedRun", "Importer", "ProblemResult"]

_MODULES = {
    "csv": "line_files",
    "jsonl": "line_files",
    "lm-eval": "lm_eval",
    "tensorboard": "tensorboard",
    "trl": "trl",
    "verl": "verl",
    "wandb": "wandb",
}

IMPORTERS: Registry[Importer] = Registry(
    "importer",
    {name: f"advsweep.importing.{module}" for name, module in _MODULES.items()},
    group="advsweep.importers",
    base="advsweep.importing.base:Importer",
)
"""Every importer by the name of its format."""
