"""Keys: what a run's config has under a dotted name, and the order of such names."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from advsweep.components import leaves
from advsweep.store import RunRecord
from advsweep.store.imported import is_imported
from advsweep.store.sanity import HASH
from advsweep.tasks.controls import titled

HASH_KEY = "config_hash"

# The preset that sets estimator, objective and rollout policy, where a sweep was given one.
METHOD = "method"
METHOD_NODES = ("estimator", "objective", "rollout")

# The value of a key that a run's config lacks.
MISSING = object()

# The components whose keys name rows, and then the numbers that do, in the order of the names.
NODES = (
    "estimator",
    "objective",
    "rollout",
    "task",
    "model",
    "optimizer",
    "generation",
    "backend",
)
NUMBERS = ("group_size", "prompts_per_step", "steps")

# Keys that are of the run itself and not of its config; None where a run lacks one.
_OF_RUN: Mapping[str, Callable[[Any], Any]] = {
    "seed": lambda run: run.seed,
    "status": lambda run: run.status.value,
    "sweep": lambda run: run.sweeps,
    HASH_KEY: lambda run: run.config_hash[:HASH],
    METHOD: lambda run: run.method,
}


def value_of(run: Any, key: str) -> Any:
    """Return a run's value of a config key, or of `seed`, `status`, `sweep` or `config_hash`.

    The value of a component is its name; `MISSING` for a key that the config lacks.
    """
    if key in _OF_RUN:
        value = _OF_RUN[key](run)
        return MISSING if value is None else value
    value = run.config
    for part in key.split("."):
        if not isinstance(value, Mapping) or part not in value:
            return MISSING
        value = value[part]
    value = value.get("name", MISSING) if isinstance(value, Mapping) else value
    is_titled = key == "estimator" and isinstance(value, str) and not is_imported(run.config)
    return titled(value, run.config) if is_titled else value


def is_key(runs: Iterable[Any], key: str) -> bool:
    """Test whether a run has a value of a key."""
    return any(value_of(run, key) is not MISSING for run in runs)


def known_keys(runs: Iterable[RunRecord]) -> set[str]:
    """Return every config key of the runs."""
    configs = {run.config_hash: run.config for run in runs}
    return {"seed", *(key for config in configs.values() for key, _ in leaves(config, named=True))}


@functools.cache
def key_order(key: str) -> tuple[int, int, str]:
    """Return the sort key: method, estimator, other components, numbers, then parameters."""
    if key == METHOD:
        return -1, 0, key
    node, _, parameter = key.partition(".")
    order = NODES.index(node) if node in NODES else len(NODES)
    if parameter:
        return 3, order, key
    if key in NUMBERS:
        return 2, NUMBERS.index(key), key
    return (0 if key == "estimator" else 1), order, key
