"""Pruned runs: stopped with a checkpoint and a reason, left alone, and finished if asked to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import advsweep_fake as fake
import pytest

from advsweep.report import build_report, lay_out
from advsweep.store import Owner, Status, Store, open_store
from advsweep.sweep.events import Event, RunEvent
from advsweep.sweep.planning.plan import Plan
from advsweep.sweep.scheduler.execute import execute

Planner = Callable[..., Plan]

# The quick runs have 20 steps, a checkpoint every 5 and an evaluation every 10.
ACR = ("stopping=acr", "stopping.first=7", "stopping.threshold=1e-9", "stopping.runs=0")
"""Stops every run after 7 steps, as some group has no signal."""

MEDIAN = ("stopping=median", "stopping.grace=10", "stopping.every=5", "stopping.window=5")
RATES = "backend.learning_rate=8,4,0.01"


def kinds(events: list[Event]) -> list[str]:
    return [event.kind.value for event in events if isinstance(event, RunEvent)]


def states(store: Store) -> list[tuple[Status, int]]:
    return [(run.status, run.step) for run in store.runs.select(newest_first=False)]


def measured(store: Store, run_id: int) -> list[tuple[str, int, float]]:
    return [p for p in store.metrics.points(run_id) if not p[0].startswith(("time/", "memory/"))]


def test_a_run_is_pruned_with_a_reason_and_a_checkpoint(plan: Planner, store: Store) -> None:
    events: list[Event] = []
    outcome = execute(plan(*ACR, name="p"), store, on_event=events.append)
    assert kinds(events) == ["started", "pruned"]
    [run] = store.runs.select()
    assert (run.status, run.step, run.steps) == (Status.PRUNED, 7, 20)
    assert run.error is not None
    assert run.error.startswith("ACR over the first 7 steps is ")
    assert outcome.pruned == {run.id: run.error}
    assert (outcome.done, outcome.unfinished, outcome.exit_code) == (0, 0, 0)
    assert [c.step for c in store.checkpoints.select(run.id)] == [5, 7]
    assert not store.leases.claim(run.id, Owner.current())


def test_the_same_rule_leaves_a_pruned_run_alone(plan: Planner, store: Store) -> None:
    execute(plan(*ACR, name="p"), store)
    events: list[Event] = []
    outcome = execute(plan(*ACR, name="p"), store, on_event=events.append)
    assert kinds(events) == ["pruned"]
    assert (list(outcome.pruned), outcome.exit_code) == ([1], 0)


def test_without_a_rule_a_pruned_run_goes_on_to_the_same_end(plan: Planner, store: Store) -> None:
    execute(plan(*ACR), store)
    outcome = execute(plan(), store)
    assert (outcome.run_ids, outcome.done, states(store)) == ([1], 1, [(Status.DONE, 20)])
    with open_store(f"{store.url}.undisturbed") as other:
        execute(plan(), other)
        assert measured(store, 1) == measured(other, 1)


def test_a_single_run_goes_on_too(plan: Planner, store: Store) -> None:
    execute(plan(*ACR), store)
    assert execute(replace(plan(), name=None), store).done == 1


def test_another_rule_takes_a_pruned_run_up(plan: Planner, store: Store) -> None:
    execute(plan(*ACR), store)
    execute(plan(*ACR, "stopping.first=12"), store)
    # The next judgement comes at its own step.
    assert states(store) == [(Status.PRUNED, 12)]
    assert [c.step for c in store.checkpoints.select(1)] == [10, 12]


def test_force_makes_a_new_attempt(plan: Planner, store: Store) -> None:
    execute(plan(*ACR, name="p"), store)
    outcome = execute(plan(*ACR, name="p"), store, force=True)
    assert outcome.run_ids == [2]
    assert [(r.attempt, r.status, r.step) for r in store.runs.select()] == [
        (2, Status.PRUNED, 7),
        (1, Status.PRUNED, 7),
    ]


@pytest.mark.slow
def test_runs_are_compared_with_those_of_their_sweep_alone(plan: Planner, store: Store) -> None:
    two = (*MEDIAN, "stopping.minimum=2")
    execute(plan("backend.learning_rate=8,4", *two, name="apart"), store)
    execute(plan("backend.learning_rate=0.01", *two, name="alone"), store)
    assert [status for status, _ in states(store)] == [Status.DONE] * 3
    execute(plan("backend.learning_rate=8,4,0.02", *two, name="apart"), store)
    assert states(store)[3] == (Status.PRUNED, 10)


@pytest.mark.slow
def test_an_evaluation_of_the_same_step_is_judged_by(plan: Planner, store: Store) -> None:
    rule = (*MEDIAN, "stopping.minimum=2", "stopping.window=1", "stopping.metric=pass@1")
    execute(plan(RATES, *rule), store)
    assert states(store) == [(Status.DONE, 20)] * 2 + [(Status.PRUNED, 10)]
    error = store.runs.select()[0].error
    assert error is not None
    assert error.startswith("pass@1 over steps 10 to 10 is ")


def test_a_last_step_is_never_judged(plan: Planner, store: Store) -> None:
    execute(plan(*ACR, "stopping.first=20"), store)
    assert states(store) == [(Status.DONE, 20)]


def test_a_rule_that_is_taken_back_during_the_run_stops_nothing(
    plan: Planner, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = fake._Trainer.step

    def step(trainer: Any, now: int) -> Any:
        if now == 6:
            # As another sweep does that shares the run and wants its end.
            store.runs.set_stopping([1], None)
        return plain(trainer, now)

    monkeypatch.setattr(fake._Trainer, "step", step)
    execute(plan(*ACR), store)
    assert states(store) == [(Status.DONE, 20)]


def test_only_another_rule_frees_a_pruned_run(plan: Planner, store: Store) -> None:
    execute(plan(*ACR), store)
    rule = plan(*ACR).stopping.rule()
    store.runs.set_stopping([1], rule)
    assert states(store) == [(Status.PRUNED, 7)]
    store.runs.set_stopping([1], None)
    assert states(store) == [(Status.INTERRUPTED, 7)]
    assert store.runs.select()[0].stopping is None


@pytest.mark.slow
def test_a_report_says_what_was_pruned_and_whom_that_flatters(plan: Planner, store: Store) -> None:
    rule = (*MEDIAN, "stopping.minimum=2")
    execute(plan(RATES, "seed=0,1", *rule, name="m"), store)
    execute(plan("backend.learning_rate=0.01", "seed=1", name="finish"), store)
    report = build_report(store, "m")
    # The base, guessing, and the three rates.
    assert [row.n for row in report.rows] == [1, 1, 2, 2, 1]
    assert [row.pruned for row in report.rows] == [0, 0, 0, 0, 1]
    assert report.pruned == {"median": 1}
    text = "\n".join(lay_out(report).notes)
    assert "left out, as they are not done: 1 pruned\n" in text
    assert "\npruned: 1 by stopping=median; " in text
    assert "\ngrpo, backend.learning_rate=0.01: 1 of 2 runs were pruned, so that" in text
