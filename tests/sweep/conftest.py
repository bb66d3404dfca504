"""Quick plans on the fake backend, and a store to execute them in."""

from __future__ import annotations

import functools

import pytest

from advsweep.store import open_store
from advsweep.sweep.planning.plan import make_plan
from advsweep.sweep.registry import config_groups
from advsweep.sweep.scheduler.execute import execute
from tests.sweep.helpers import measured

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


@pytest.fixture(scope="session")
def plan():
    """Plans a quick sweep with further overrides; the last one of a key counts."""
    # Hydra takes longer to compose a choice of groups than most of these sweeps take to run.
    groups = config_groups()

    @functools.cache
    def make(*overrides, name=None):
        return make_plan([*QUICK, *overrides], groups=groups, name=name)

    return make


@pytest.fixture
def store(tmp_path):
    with open_store(str(tmp_path / "advsweep.db")) as opened:
        yield opened


@pytest.fixture(scope="session")
def undisturbed_store(plan, tmp_path_factory):
    """Two runs of 40 steps that nothing happens to, in this very process."""
    with open_store(str(tmp_path_factory.mktemp("undisturbed") / "advsweep.db")) as opened:
        assert execute(plan("seed=0,1", "steps=40", name="same"), opened).exit_code == 0
        yield opened


@pytest.fixture(scope="session")
def undisturbed(undisturbed_store):
    """What the two runs of 40 steps measure, by seed."""
    return measured(undisturbed_store)


@pytest.fixture(scope="session")
def quick_undisturbed(plan, tmp_path_factory):
    """What two runs of 20 steps measure that nothing happens to, by seed."""
    with open_store(str(tmp_path_factory.mktemp("quick") / "advsweep.db")) as opened:
        assert execute(plan("seed=0,1"), opened).exit_code == 0
        return measured(opened)


@pytest.fixture
def no_pause(monkeypatch):
    """Retries follow at once."""
    monkeypatch.setattr("advsweep.sweep.retry_policy.BACKOFF_SECONDS", 0.0)
