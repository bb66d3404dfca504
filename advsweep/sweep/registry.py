"""The executors and the other settings of a sweep, by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from advsweep.components import Component
from advsweep.registry import Registry

if TYPE_CHECKING:
    from advsweep.sweep.early_stopping.base import Stopping
    from advsweep.sweep.executors.base import Executor
    from advsweep.sweep.tracking.base import Tracking

_SETTINGS = "advsweep.sweep.settings"

EXECUTORS: Registry[Executor] = Registry(
    "executor",
    {
        "local": "advsweep.sweep.executors.local",
        "debug": "advsweep.sweep.executors.debug",
        "ray": "advsweep.sweep.executors.ray",
        "slurm": "advsweep.sweep.executors.slurm",
    },
    group="advsweep.executors",
)
RESOURCES: Registry[Component] = Registry("resources", {"default": _SETTINGS})
SEARCHES: Registry[Component] = Registry(
    "search", {"none": _SETTINGS, "optuna": "advsweep.sweep.search.optuna"}
)
STOPPINGS: Registry[Stopping] = Registry(
    "stopping",
    {
        "none": "advsweep.sweep.early_stopping.base",
        "acr": "advsweep.sweep.early_stopping.rules",
        "asha": "advsweep.sweep.early_stopping.rules",
        "median": "advsweep.sweep.early_stopping.rules",
    },
    group="advsweep.stoppings",
)
TRACKINGS: Registry[Tracking] = Registry(
    "tracking",
    {
        "none": "advsweep.sweep.tracking.base",
        "tensorboard": "advsweep.sweep.tracking.tensorboard",
        "wandb": "advsweep.sweep.tracking.wandb",
    },
    group="advsweep.trackings",
)

SETTINGS: Mapping[str, Registry[Any]] = {
    "executor": EXECUTORS,
    "resources": RESOURCES,
    "search": SEARCHES,
    "stopping": STOPPINGS,
    "tracking": TRACKINGS,
}
"""The groups of a configuration that set the sweep and not its runs."""
