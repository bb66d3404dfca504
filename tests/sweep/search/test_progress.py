"""The progress of a search."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from advsweep.store import Owner, Status, Store
from advsweep.sweep.planning.plan import Plan
from advsweep.sweep.scheduler.runs import new_run
from advsweep.sweep.search.optuna import TrialState
from advsweep.sweep.search.study import Study, plan_search, read_progress
from advsweep.sweep.worker.environment import RUN_SECONDS

QUICK = ["backend=fake", "executor=debug", "evaluation.n=4", "evaluation.k=[1,4]"]


@pytest.fixture(scope="module")
def search() -> Study:
    """A search of four trials with two seeds, of 100 or 200 steps each."""
    overrides = ("search=optuna", "search.trials=4", "steps=choice(100,200)", "seed=0,1")
    found = plan_search([*QUICK, *overrides, "group_size=choice(4,8)"], name="s")
    assert found is not None
    return found


@pytest.fixture
def add(search: Study, store: Store) -> Callable[..., None]:
    """`add(steps, *seconds)`: a trial, with a run that took so long for each number."""

    def added(steps: int, *seconds: float | None) -> None:
        store.sweeps.add(search.name, {})
        params = {"steps": steps, "group_size": 4}
        plan = search.plan(params)
        number = len(store.trials.select(search.name))
        store.trials.add(search.name, number, params, plan.runs[0].run.config_hash)
        _train(plan, store, *seconds)

    return added


def _train(plan: Plan, store: Store, *seconds: float | None) -> None:
    """Runs that are done, with how long they took, or are running where that is None."""
    owner = Owner.current()
    for planned, took in zip(plan.runs, seconds, strict=False):
        [run_id] = store.runs.add([new_run(planned)], plan.name)
        assert store.leases.claim(run_id, owner, holder=owner)
        if took is not None:
            store.metrics.set_summaries(run_id, {RUN_SECONDS: took})
            store.leases.finish(run_id, Status.DONE)


def test_without_a_store_all_is_to_come(search: Study) -> None:
    progress = read_progress(search, None)
    assert (progress.results, progress.best, progress.to_come) == ((), [], 4)


def test_trials_are_counted_by_their_state(
    search: Study, store: Store, add: Callable[..., None]
) -> None:
    add(100, 50.0, 50.0)
    add(200, 100.0, None)
    progress = read_progress(search, store)
    # No run of the first trial has the metric, though all are done.
    assert [r.state for r in progress.results] == [TrialState.UNMEASURED, TrialState.RUNNING]
    assert progress.states == {"unmeasured": 1, "running": 1}
    assert progress.to_come == 2
