"""Searches on the fake backend: trial after trial, side by side, and going on after a death."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from advsweep.errors import ConfigError
from advsweep.store import Store
from advsweep.sweep.events import Event, RunEvent, RunsAdded
from advsweep.sweep.retry_policy import Policy
from advsweep.sweep.search.optuna import TrialResult, TrialState
from advsweep.sweep.search.study import Study, execute_search

Searches = Callable[..., Study]


def points(results: list[TrialResult]) -> list[tuple[Any, ...]]:
    """What does not depend on when each run was added to the store."""
    return [(r.number, r.params, r.state, r.values) for r in results]


@dataclass
class Recorder:
    """What happened, in order; dies of the start of some run."""

    dies_at: int = 0
    said: list[str] = field(default_factory=list)

    def __call__(self, event: Event) -> None:
        if isinstance(event, RunsAdded):
            self.said.append(event.message.split(":")[0])
        elif isinstance(event, RunEvent):
            self.said.append(f"{event.kind.value} {event.run.id}")
            if self.said.count(f"started {event.run.id}") and self.dies_at == event.run.id:
                raise KeyboardInterrupt


def test_restarting_a_finished_search_does_nothing(finished: Store, study: Searches) -> None:
    recorder = Recorder()
    outcome = execute_search(study(), finished, 2, recorder)
    assert (outcome.done, outcome.skipped, outcome.exit_code) == (0, 10, 0)
    assert sorted(outcome.run_ids) == [run.id for run in finished.runs.select(newest_first=False)]
    assert recorder.said == []


def test_trials_run_one_at_a_time_if_one_fills_the_slots(store: Store, study: Searches) -> None:
    recorder = Recorder()
    execute_search(study("search.trials=2"), store, 2, recorder)
    assert recorder.said == [
        *("trial 0", "started 1", "started 2", "done 1", "done 2"),
        *("trial 1", "started 3", "started 4", "done 3", "done 4"),
    ]


def test_a_trial_starts_as_soon_as_a_slot_is_free(store: Store, study: Searches) -> None:
    recorder = Recorder()
    three = study("search.trials=3")
    outcome = execute_search(three, store, 3, recorder)
    # The third slot is for the second trial, whose second seed has to wait.
    first = ["trial 0", "started 1", "started 2", "trial 1", "started 3"]
    assert recorder.said[:5] == first
    assert recorder.said.index("started 5") < recorder.said.index("done 4")
    assert (outcome.done, outcome.exit_code) == (6, 0)
    assert [r.state for r in three.results(store)] == [TrialState.DONE] * 3


def test_a_killed_search_resumes_with_the_same_points(
    finished: Store, store: Store, study: Searches
) -> None:
    with pytest.raises(KeyboardInterrupt):
        # Of the third trial one run is done and one was never started.
        execute_search(study(), store, 2, Recorder(dies_at=5))
    states = [TrialState.DONE, TrialState.DONE, TrialState.OPEN]
    assert [r.state for r in study().results(store)] == states
    outcome = execute_search(study(), store, 2)
    assert (outcome.done, outcome.skipped) == (5, 5)
    assert points(study().results(store)) == points(study().results(finished))


@pytest.mark.parametrize("dies_at", [2, 3])
def test_a_killed_parallel_search_resumes_without_losing_or_repeating_runs(
    store: Store, dies_at: int, study: Searches
) -> None:
    three = study("search.trials=3")
    with pytest.raises(KeyboardInterrupt):
        execute_search(three, store, 3, Recorder(dies_at=dies_at))
    before = {run.id: run.finished for run in store.runs.select() if run.finished}
    asked = store.trials.select("s")
    outcome = execute_search(three, store, 3)
    assert (outcome.done, outcome.skipped) == (6 - len(before), len(before))
    assert store.trials.select("s")[: len(asked)] == asked
    assert [r.state for r in three.results(store)] == [TrialState.DONE] * 3
    after = {run.id: run.finished for run in store.runs.select()}
    assert len(after) == 6
    assert {run_id: after[run_id] for run_id in before} == before


def test_two_processes_share_the_trials(store: Store, study: Searches) -> None:
    once = []

    def meanwhile(event: Event) -> None:
        if not once:
            once.append(event)
            outcome = execute_search(two, store, 2)
            assert (outcome.done, outcome.skipped) == (4, 0)

    two = study("search.trials=2")
    outcome = execute_search(two, store, 2, meanwhile)
    assert (outcome.done, outcome.skipped) == (0, 4)
    assert len(store.trials.select("s")) == 2
    assert len(store.runs.select()) == 4


def test_a_trial_number_taken_by_another_process_is_not_used_again(
    store: Store, monkeypatch: pytest.MonkeyPatch, study: Searches
) -> None:
    two = study("search.trials=2")
    next_trial = Study.next_trial

    def overtaken(self: Study, store: Store, number: int, results: list[TrialResult]) -> Any:
        params, plan = next_trial(self, store, number, results)
        if number == 1:
            other = {"backend.learning_rate": 1.0}
            assert self.add(store, number, other, self.plan(other))
        return params, plan

    monkeypatch.setattr(Study, "next_trial", overtaken)
    assert execute_search(two, store, 2).done == 4
    results = two.results(store)
    assert results[1].params == {"backend.learning_rate": 1.0}
    assert [r.state for r in results] == [TrialState.DONE] * 2


def test_failed_trials_do_not_stop_a_search(store: Store, study: Searches) -> None:
    failing = study("backend.fail_at=choice(0,3)", "search.trials=4", "seed=0")
    outcome = execute_search(failing, store, 1)
    states = [result.state for result in failing.results(store)]
    assert states.count(TrialState.FAILED) == len(outcome.failed) >= 1
    assert len(states) == 4
    assert outcome.exit_code == 1


def test_max_failures_stops_a_search(store: Store, study: Searches) -> None:
    failing = study("backend.fail_at=3", "seed=0")
    for jobs in (1, 2):
        outcome = execute_search(failing, store, jobs, policy=Policy(max_failures=1))
        assert outcome.halted
        assert len(store.trials.select("s")) == jobs


def test_pruned_trials_resume_without_the_rule(store: Store, study: Searches) -> None:
    rule = ("stopping=acr", "stopping.first=3", "stopping.threshold=1e-9", "stopping.runs=0")
    pruning = study(*rule, "search.trials=2", "seed=0")
    outcome = execute_search(pruning, store)
    assert [r.state for r in pruning.results(store)] == [TrialState.PRUNED] * 2
    assert (len(outcome.pruned), outcome.exit_code) == (2, 0)
    again = execute_search(pruning, store)
    assert (again.pruned, again.done) == (outcome.pruned, 0)
    assert execute_search(study("search.trials=2", "seed=0"), store).done == 2


def test_an_unknown_metric_stops_a_search_after_the_first_trial(
    store: Store, study: Searches
) -> None:
    misspelt = study("search.metrics={pass@2:higher}")
    with pytest.raises(ConfigError, match=r"runs of trial 0 have no metric 'pass@2'.*'pass@1'"):
        execute_search(misspelt, store, 2)
    assert [r.state for r in misspelt.results(store)] == [TrialState.UNMEASURED]


def test_a_trial_without_a_finite_metric_is_unmeasured(store: Store, study: Searches) -> None:
    two = study("search.metrics={pass@1:higher,cost/rollouts:lower}", "search.trials=2")
    execute_search(two, store, 2)
    first = two.results(store)[0]
    store.metrics.record(first.runs[0], [("cost/rollouts", 6, float("nan"))])
    assert [r.state for r in two.results(store)] == [TrialState.UNMEASURED, TrialState.DONE]
    more = study("search.metrics={pass@1:higher,cost/rollouts:lower}", "search.trials=3")
    assert execute_search(more, store, 2).done == 2


def test_points_that_cannot_be_runs_are_skipped(store: Store, study: Searches) -> None:
    # A group must be a multiple of k: of the sizes from 4 to 8 two can be had.
    sizes = ("estimator=passk_loo", "estimator.k=4", "group_size=int(interval(4,8))")
    found = study(*sizes, "seed=0", "search.trials=3")
    assert execute_search(found, store).done == 3
    assert {r.params["group_size"] for r in found.results(store)} <= {4, 8}


def test_a_search_gives_up_without_valid_points(
    store: Store, monkeypatch: pytest.MonkeyPatch, study: Searches
) -> None:
    monkeypatch.setattr("advsweep.sweep.search.study.ATTEMPTS", 3)
    sizes = ("estimator=passk_loo", "estimator.k=1000", "group_size=int(interval(1000,8000))")
    with pytest.raises(ConfigError, match="got 3 in a row that cannot"):
        execute_search(study(*sizes), store)
    assert store.trials.select("s") == []
