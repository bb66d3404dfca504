"""Quick plans on the fake backend, and a store to execute them in."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from advsweep.store import Store, open_store
from advsweep.sweep.planning.plan import Plan, make_plan
from advsweep.sweep.registry import config_groups

QUICK = [
    "backend=fake",
    "executor=debug",
    "steps=20",
    "prompts_per_step=8",
    "task.held_out_per_level=2",
    "task.train_per_level=50",
    "evaluation.n=8",
    "evaluation.k=[1,8]",
    "evaluation.every=10",
    "backend.checkpoint_every=5",
]

Planner = Callable[..., Plan]


@pytest.fixture(scope="session")
def plan() -> Planner:
    """Plans a quick sweep with further overrides; the last one of a key counts."""
    # Hydra takes longer to compose a choice of groups than most of these sweeps take to run.
    groups = config_groups()

    @functools.cache
    def make(*overrides: str, name: str | None = None) -> Plan:
        return make_plan([*QUICK, *overrides], groups=groups, name=name)

    return make


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(str(tmp_path / "advsweep.db")) as opened:
        yield opened
