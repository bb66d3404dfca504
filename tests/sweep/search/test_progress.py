"""What is left of a search, and how long that should take."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from advsweep.store import Owner, Status, Store
from advsweep.sweep.planning.plan import Plan
from advsweep.sweep.scheduler.scheduled_runs import new_run
from advsweep.sweep.search.optuna import State
from advsweep.sweep.search.progress import Outlook, look_out
from advsweep.sweep.search.study import Study, plan_search
from advsweep.sweep.worker.environment import RUN_SECONDS

QUICK = ["backend=fake", "executor=debug", "evaluation.n=4", "evaluation.k=[1,4]"]


@pytest.fixture(scope="module")
def study() -> Study:
    """A search of four trials with two seeds, of 100 or 200 steps each."""
    search = ("search=optuna", "search.trials=4", "steps=choice(100,200)", "seed=0,1")
    found = plan_search([*QUICK, *search, "group_size=choice(4,8)"], name="s")
    assert found is not None
    return found


@pytest.fixture
def add(study: Study, store: Store) -> Callable[..., None]:
    """`add(steps, *seconds)`: a trial, with a run that took so long for each number."""

    def added(steps: int, *seconds: float | None) -> None:
        store.sweeps.add(study.name, {})
        params = {"steps": steps, "group_size": 4}
        plan = study.plan(params)
        number = len(store.trials.select(study.name))
        store.trials.add(study.name, number, params, plan.runs[0].run.config_hash)
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


def test_without_a_store_all_is_to_come(study: Study) -> None:
    outlook = look_out(study, None, 2)
    assert (outlook.results, outlook.best, outlook.to_come) == ((), [], 4)
    # Eight runs of 150 steps on average.
    assert (outlook.left.steps, outlook.left.seconds, outlook.left.untold) == (1200, None, 8)


def test_trials_are_counted_by_their_state(
    study: Study, store: Store, add: Callable[..., None]
) -> None:
    add(100, 50.0, 50.0)
    add(200, 100.0, None)
    outlook = look_out(study, store, 2)
    # No run of the first trial has the metric, though all are done.
    assert [r.state for r in outlook.results] == [State.UNMEASURED, State.RUNNING]
    assert outlook.states == {"unmeasured": 1, "running": 1}
    assert outlook.to_come == 2


def test_the_time_left_is_told_by_the_searchs_own_runs(
    study: Study, store: Store, add: Callable[..., None]
) -> None:
    add(100, 50.0, 50.0)
    add(200, 100.0)

    def left(slots: int) -> Outlook:
        return look_out(study, store, slots)

    # Half a second a step. To come are a run of 200 steps, and 2 trials of 2 runs of 150.
    assert left(2).left.steps == 200 + 2 * 2 * 150
    assert left(2).left.sources == 3
    # One trial at a time: 100 s, then twice 75 s for two runs side by side.
    assert left(2).left.seconds == pytest.approx(100 + 2 * 75)
    assert left(1).left.seconds == pytest.approx(100 + 4 * 75)
    # With more slots than seeds, all as slots are free: 100 | 75 + 75 | 75 + 75.
    assert left(3).left.seconds == pytest.approx(150)
