"""The settings of a sweep by name, and the groups of a whole configuration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from advsweep.backends.base import PARAMETERS
from advsweep.backends.build import NODES
from advsweep.components import Component
from advsweep.config.groups import ConfigGroups
from advsweep.estimators import ESTIMATORS
from advsweep.registry import Registry
from advsweep.tasks.controls import CONTROL, CONTROLS
from advsweep.tasks.rewards import REWARDS
from advsweep.tasks.verifiers import VERIFIERS

if TYPE_CHECKING:
    from advsweep.sweep.early_stopping import Stopping
    from advsweep.sweep.executors.base import Executor
    from advsweep.sweep.tracking.base import Tracking


EXECUTORS: Registry[Executor] = Registry(
    "executor",
    {
        "local": "advsweep.sweep.executors.local",
        "debug": "advsweep.sweep.executors.debug",
        "ray": "advsweep.sweep.executors.ray",
        "slurm": "advsweep.sweep.executors.slurm",
    },
    group="advsweep.executors",
    base="advsweep.sweep.executors.base:Executor",
)
_COMPARED_BY_RACES = (
    "no rule compares configurations any more; sweep.race ends arms that are settled, with "
    "intervals that hold (docs/race.md), and stopping=none trains every run to its last step"
)
# Closed: every executor reads exactly these fields.
RESOURCES: Registry[Component] = Registry("resources", {"default": "advsweep.sweep.executors.base"})
STOPPINGS: Registry[Stopping] = Registry(
    "stopping",
    dict.fromkeys(("none", "acr"), "advsweep.sweep.early_stopping"),
    unavailable=dict.fromkeys(("asha", "median"), _COMPARED_BY_RACES),
    group="advsweep.stoppings",
    base="advsweep.sweep.early_stopping:Stopping",
)
TRACKINGS: Registry[Tracking] = Registry(
    "tracking",
    {
        "none": "advsweep.sweep.tracking.base",
        "tensorboard": "advsweep.sweep.tracking.tensorboard",
        "trackio": "advsweep.sweep.tracking.trackio",
        "wandb": "advsweep.sweep.tracking.wandb",
    },
    group="advsweep.trackings",
    base="advsweep.sweep.tracking.base:Tracking",
)

# The config groups that set the sweep and not its runs.
SETTINGS: Mapping[str, Registry[Any]] = {
    "executor": EXECUTORS,
    "resources": RESOURCES,
    "stopping": STOPPINGS,
    "tracking": TRACKINGS,
}

# The config groups that hold components.
GROUPS: Mapping[str, Registry[Any]] = {**NODES, CONTROL: CONTROLS, **SETTINGS}

# The components that stand below the groups.
PARTS: Mapping[str, Registry[Any]] = {
    "estimator.base": ESTIMATORS,
    "optimizer.match_reference": ESTIMATORS,
    "task.verifier": VERIFIERS,
    "task.reward": REWARDS,
}


def config_groups(config_dirs: Sequence[str | Path] = ()) -> ConfigGroups:
    """Return the groups of a configuration; a context manager.

    Args:
        config_dirs: folders of the user's own groups, searched before ours.

    Raises:
        ConfigError: a config folder does not exist.
    """
    return ConfigGroups(GROUPS, PARAMETERS, [Path(folder) for folder in config_dirs], PARTS)
