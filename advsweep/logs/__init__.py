"""Readers of the logs of other trainers; nothing here knows the store.

    for run in READERS.build("tensorboard").runs(Path("runs"), ImportOptions(names=...)): ...

    log = open_metric_log("jsonl", Path("runs/1/metrics.jsonl"))
    for step in log.poll(): ...

Packages add formats through the entry point group `advsweep.importers`. Nothing of what is read
is ever executed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from advsweep.logs.base import ImportedRun, ImportOptions, ProblemCount, Reader
from advsweep.logs.names import LoggedStep
from advsweep.registry import Registry

__all__ = [
    "READERS",
    "ImportOptions",
    "ImportedRun",
    "LoggedStep",
    "ProblemCount",
    "Reader",
    "open_metric_log",
]

_MODULES = {
    "console": "console",
    "csv": "csv_file",
    "jsonl": "json_lines",
    "lm-eval": "lm_eval",
    "pattern": "pattern",
    "rollouts": "dumps",
    "tensorboard": "tensorboard",
    "trl": "trl",
    "verl": "verl",
    "wandb": "wandb",
}

# Every reader by the name of its format.
READERS: Registry[Reader] = Registry(
    "importer",
    {name: f"advsweep.logs.{module}" for name, module in _MODULES.items()},
    # The file of transformers' Trainer, which TRL writes too.
    aliases={"trainer_state": "trl"},
    group="advsweep.importers",
    base="advsweep.logs.base:Reader",
)


def open_metric_log(kind: str, path: Path, **options: Any) -> Reader:
    """Open a log that may not exist yet.

    Args:
        kind: one of `READERS`.
        options: options of the reader, such as `step_keys`; `step_key` for a single one.

    Raises:
        UnknownNameError: there is no such reader, or it has no such option.
        ConfigError: the value of an option does not fit.
    """
    if "step_key" in options:
        options["step_keys"] = (options.pop("step_key"),)
    return READERS.get(kind, where="kind").build(options, where="options").open(path)
