"""Tasks: problems with levels, and the verifiers that score answers. Never imports torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from advsweep.registry import Registry

if TYPE_CHECKING:
    from advsweep.tasks.base import Task


TASKS: Registry[Task] = Registry(
    "task",
    {
        "countdown": "advsweep.tasks.countdown",
        "routes": "advsweep.tasks.routes",
        "walks": "advsweep.tasks.walks",
        "bandit": "advsweep.tasks.bandit",
        "toy": "advsweep.tasks.bandit",
        "dataset": "advsweep.tasks.dataset",
    },
    aliases={"file": "dataset"},
    group="advsweep.tasks",
    base="advsweep.tasks.base:Task",
    adapter="advsweep.tasks.environments:environment_task",
    adapts=(
        "advsweep.tasks.environments:InEnvironmentForm",
        "a class with a method `reset`, TRL's form of an environment",
    ),
    takes_code=True,
    options_of_files="advsweep.tasks.environments:EnvironmentTask",
)
