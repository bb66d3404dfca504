"""What stored configs say of their runs: whether they were imported, or are calibrations.

The config of an imported run is whatever its trainer logged, with the nodes `backend` and
`estimator` of ours, and the key `seed` where the seed is known:

    {"backend": {"name": "imported", "format": "verl"}, "estimator": {"name": "grpo"}, ...,
     "rows": ["estimator", "actor.lr"], "seed": 0}

Nothing in it is built or executed. It names folders, machines and times, which differ between
two seeds of one setting: `setting_leaves` leaves these out, and `rows` names the keys that alone
tell settings apart.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from advsweep.components import leaves

# The backend's name of every imported run; no such backend can be built.
IMPORTED = "imported"

ROWS = "rows"

_NODES = frozenset({"backend", ROWS, "seed"})

# Keys that name a folder, a machine or the like, which differ for each run.
_PER_RUN = re.compile(
    r"(?:.*[_./-])?(?:dir|directory|folder|path|file|port|host|hostname|uuid|timestamp|datetime|"
    r"(?:run|exp|experiment|trial)_?(?:name|id|group)|run|trial|replicate|wandb\w*|hub_model_id|"
    r"seeds?|rank)",
    re.IGNORECASE,
)


def is_imported(config: Mapping[str, Any]) -> bool:
    """Return whether a config is that of an imported run."""
    backend = config.get("backend")
    return isinstance(backend, Mapping) and backend.get("name") == IMPORTED


def is_calibration(config: Mapping[str, Any]) -> bool:
    """Return whether a run only finds the learning rate of others (optimizer.calibrates)."""
    optimizer = config.get("optimizer")
    calibrates = isinstance(optimizer, Mapping) and bool(optimizer.get("calibrates"))
    return calibrates and not is_imported(config)


def setting_leaves(config: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the dotted keys with values that tell the settings of imported runs apart."""
    rows = config.get(ROWS)
    # `estimator` stands for its name alone, as in the options of reports.
    chosen = None
    if isinstance(rows, list):
        chosen = {"estimator.name", *map(str, rows), *(f"{row}.name" for row in rows)}
    for key, value in leaves(config):
        if key.partition(".")[0] in _NODES:
            continue
        if chosen is not None:
            tells = key in chosen
        else:
            is_place = isinstance(value, str) and (
                value.startswith(("/", "~/", "./")) or "://" in value
            )
            tells = not is_place and _PER_RUN.fullmatch(key) is None
        if tells:
            yield key, value
