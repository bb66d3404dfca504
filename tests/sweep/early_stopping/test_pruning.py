"""Pruned runs: stopped with a checkpoint and a reason, left alone, and finished if asked to."""

from __future__ import annotations

import advsweep_fake as fake

from advsweep.store import Owner, Status, open_store
from advsweep.sweep.events import Event
from advsweep.sweep.scheduler.execute import execute
from tests.sweep.helpers import kinds, points_of

# The quick runs have 20 steps, a checkpoint every 5 and an evaluation every 10.
ACR = ("stopping=acr", "stopping.first=7", "stopping.threshold=1e-9")
"""Stops every run after 7 steps, as some group has no signal."""


def states(store):
    return [(run.status, run.step) for run in store.runs.select(newest_first=False)]


def test_a_run_is_pruned_with_a_reason_and_a_checkpoint(plan, store):
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


def test_without_a_rule_a_pruned_run_goes_on_to_the_same_end(plan, store):
    execute(plan(*ACR), store)
    outcome = execute(plan(), store)
    assert (outcome.run_ids, outcome.done, states(store)) == ([1], 1, [(Status.DONE, 20)])
    with open_store(f"{store.url}.undisturbed") as other:
        execute(plan(), other)
        assert points_of(store, 1) == points_of(other, 1)


def test_another_rule_takes_a_pruned_run_up(plan, store):
    execute(plan(*ACR), store)
    execute(plan(*ACR, "stopping.first=12"), store)
    # The next judgement comes at its own step.
    assert states(store) == [(Status.PRUNED, 12)]
    assert [c.step for c in store.checkpoints.select(1)] == [10, 12]


def test_a_rule_that_is_taken_back_during_the_run_stops_nothing(plan, store, monkeypatch):
    plain = fake._Trainer.step

    def step(trainer, now):
        if now == 6:
            # As another sweep does that shares the run and wants its end.
            store.runs.set_stopping([1], None)
        return plain(trainer, now)

    monkeypatch.setattr(fake._Trainer, "step", step)
    execute(plan(*ACR), store)
    assert states(store) == [(Status.DONE, 20)]
