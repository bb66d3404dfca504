"""Searches on the fake backend: trial after trial, side by side, and going on after a death."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from advsweep.errors import ConfigError
from advsweep.store import Store
from advsweep.store.records import ValueState
from advsweep.sweep.events import Event, RunEvent, SweepResult
from advsweep.sweep.planning.plan import Plan
from advsweep.sweep.retry_policy import Policy
from advsweep.sweep.scheduler.execute import execute
from advsweep.sweep.search.optuna import TrialResult
from advsweep.sweep.search.study import Study
from advsweep.sweep.search.study import execute_search as execute_rounds

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
        if isinstance(event, RunEvent):
            self.said.append(f"{event.kind.value} {event.run.id}")
            if self.said.count(f"started {event.run.id}") and self.dies_at == event.run.id:
                raise KeyboardInterrupt


def execute_search(
    study: Study,
    store: Store,
    slots: int = 1,
    on_event: Callable[[Event], None] = lambda event: None,
    policy: Policy | None = None,
) -> SweepResult:
    def run(plan: Plan, policy: Policy) -> SweepResult:
        return execute(plan, store, slots, on_event, policy=policy)

    def say(line: str) -> None:
        if isinstance(on_event, Recorder):
            on_event.said.append(line.split(":")[0])

    return execute_rounds(study, store, slots, run, policy or Policy(), say)


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


def test_as_many_trials_as_fill_the_slots_run_side_by_side(store: Store, study: Searches) -> None:
    recorder = Recorder()
    three = study("search.trials=3")
    outcome = execute_search(three, store, 3, recorder)
    assert recorder.said[:5] == ["trial 0", "trial 1", "started 1", "started 2", "started 3"]
    assert recorder.said.index("trial 2") > recorder.said.index("done 4")
    assert (outcome.done, outcome.exit_code) == (6, 0)
    assert [r.state for r in three.results(store)] == [ValueState.DONE] * 3


def test_a_killed_search_resumes_with_the_same_points(
    finished: Store, store: Store, study: Searches
) -> None:
    with pytest.raises(KeyboardInterrupt):
        # Of the third trial one run is done and one was never started.
        execute_search(study(), store, 2, Recorder(dies_at=5))
    states = [ValueState.DONE, ValueState.DONE, ValueState.OPEN]
    assert [r.state for r in study().results(store)] == states
    outcome = execute_search(study(), store, 2)
    assert (outcome.done, outcome.skipped) == (5, 5)
    assert points(study().results(store)) == points(study().results(finished))


def test_two_processes_share_the_trials(store: Store, study: Searches) -> None:
    others: list[SweepResult] = []

    def meanwhile(event: Event) -> None:
        if not others:
            others.append(SweepResult([], 0, 0, {}, 0, stopped=False))
            others.append(execute_search(two, store, 2))

    two = study("search.trials=2")
    outcome = execute_search(two, store, 2, meanwhile)
    assert outcome.done + others[-1].done == 4
    assert outcome.skipped + others[-1].skipped == 4
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
            config_hash = self.plan(other).runs[0].run.config_hash
            assert store.trials.add(self.name, number, other, config_hash)
        return params, plan

    monkeypatch.setattr(Study, "next_trial", overtaken)
    assert execute_search(two, store, 2).done == 4
    results = two.results(store)
    assert results[1].params == {"backend.learning_rate": 1.0}
    assert [r.state for r in results] == [ValueState.DONE] * 2


def test_max_failures_stops_a_search(store: Store, study: Searches) -> None:
    failing = study("backend.fail_at=3", "seed=0")
    outcome = execute_search(failing, store, policy=Policy(max_failures=2))
    assert outcome.halted
    assert len(store.trials.select("s")) == 2


def test_an_unknown_metric_stops_a_search_after_the_first_trial(
    store: Store, study: Searches
) -> None:
    misspelt = study("search.metrics={pass@2:higher}")
    with pytest.raises(ConfigError, match=r"run 1 has no metric 'pass@2'.*'pass@1'"):
        execute_search(misspelt, store, 2)
    assert [r.state for r in misspelt.results(store)] == [ValueState.UNMEASURED]


def test_a_search_gives_up_without_valid_points(
    store: Store, monkeypatch: pytest.MonkeyPatch, study: Searches
) -> None:
    monkeypatch.setattr("advsweep.sweep.search.study.ATTEMPTS", 3)
    sizes = ("estimator=passk_loo", "estimator.k=1000", "group_size=int(interval(1000,8000))")
    with pytest.raises(ConfigError, match="got 3 in a row that cannot"):
        execute_search(study(*sizes), store)
    assert store.trials.select("s") == []
