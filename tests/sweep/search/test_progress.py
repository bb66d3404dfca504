"""The progress of a search, its time left, and its copy for Optuna."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import optuna
import pytest

from advsweep.errors import ConfigError, NotFoundError
from advsweep.store import Owner, Status, Store
from advsweep.sweep.planning.plan import Plan
from advsweep.sweep.scheduler.scheduled_runs import new_run
from advsweep.sweep.search.execution import execute_search
from advsweep.sweep.search.optuna import TrialState
from advsweep.sweep.search.progress import SearchProgress, read_progress, to_optuna
from advsweep.sweep.search.study import Study, plan_search
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
    progress = read_progress(search, None, 2)
    assert (progress.results, progress.best, progress.to_come) == ((), [], 4)
    # Eight runs of 150 steps on average.
    assert (progress.left.steps, progress.left.seconds, progress.left.unknown) == (1200, None, 8)
    assert progress.left.guess is None  # the fake backend has none


def test_first_guess_covers_the_trials_to_come() -> None:
    overrides = ("search=optuna", "search.trials=4", "steps=choice(100,200)", "seed=0,1")
    bandit = ("backend=bandit", "model=table", "task=bandit", "optimizer=sgd")
    found = plan_search([*bandit, *overrides], name="s")
    assert found is not None
    # Eight runs of 150 steps on average, two side by side; a step takes about a millisecond.
    assert read_progress(found, None, 2).left.guess == pytest.approx(8 * 150 * 1e-3 / 2)


def test_trials_are_counted_by_their_state(
    search: Study, store: Store, add: Callable[..., None]
) -> None:
    add(100, 50.0, 50.0)
    add(200, 100.0, None)
    progress = read_progress(search, store, 2)
    # No run of the first trial has the metric, though all are done.
    assert [r.state for r in progress.results] == [TrialState.UNMEASURED, TrialState.RUNNING]
    assert progress.states == {"unmeasured": 1, "running": 1}
    assert progress.to_come == 2


def test_the_time_left_is_told_by_the_searchs_own_runs(
    search: Study, store: Store, add: Callable[..., None]
) -> None:
    add(100, 50.0, 50.0)
    add(200, 100.0)

    def left(slots: int) -> SearchProgress:
        return read_progress(search, store, slots)

    # Half a second a step. To come are a run of 200 steps, and 2 trials of 2 runs of 150.
    assert left(2).left.steps == 200 + 2 * 2 * 150
    assert left(2).left.sources == 3
    # One trial at a time: 100 s, then twice 75 s for two runs side by side.
    assert left(2).left.seconds == pytest.approx(100 + 2 * 75)
    assert left(1).left.seconds == pytest.approx(100 + 4 * 75)
    # With more slots than seeds, all as slots are free: 100 | 75 + 75 | 75 + 75.
    assert left(3).left.seconds == pytest.approx(150)


def test_a_search_is_copied_to_optuna(
    store: Store, tmp_path: Path, study: Callable[..., Study], plan: Callable[..., Plan]
) -> None:
    search = study("search.trials=3", "seed=0")
    execute_search(search, store)
    results = search.results(store)
    for storage in (None, f"sqlite:///{tmp_path / 'optuna.db'}"):
        copied = to_optuna(store, "s", storage=storage)
        assert copied.study_name == "s"
        assert [(t.params, t.values) for t in copied.trials] == [
            (r.params, list(r.values)) for r in results
        ]
        assert [t.user_attrs["runs"] for t in copied.trials] == [[1], [2], [3]]
        assert copied.best_value == max(r.values[0] for r in results)
        assert copied.trials[0].distributions == {
            "backend.learning_rate": optuna.distributions.FloatDistribution(0.01, 8, log=True)
        }
    with pytest.raises(NotFoundError, match="no sweep 'z'; known: s"):
        to_optuna(store, "z")
    store.sweeps.add("plain", plan().spec)
    with pytest.raises(ConfigError, match="plain: expected a search"):
        to_optuna(store, "plain")
