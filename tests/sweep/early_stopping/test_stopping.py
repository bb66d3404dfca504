"""Requests to stop that come through the store, and starting again afterwards."""

from __future__ import annotations

import threading
import time

import pytest

from advsweep.store import Owner, Status, open_store
from advsweep.sweep.events import EventKind, RunEvent
from advsweep.sweep.planning.resume import plan_again
from advsweep.sweep.scheduler.execute import execute
from advsweep.sweep.scheduler.runs import schedule_runs


def test_a_queued_run_that_is_asked_to_stop_is_not_started(plan, store):
    events = []

    def on_event(event):
        if isinstance(event, RunEvent):
            events.append((event.run.seed, event.kind.value, event.message))
            if event.kind is EventKind.DONE and event.run.seed == 0:
                store.leases.request_stop(2)

    outcome = execute(plan("seed=0,1,2"), store, on_event=on_event)
    assert (1, "interrupted", "asked to stop") in events
    assert (1, "started", "") not in events
    assert (outcome.done, outcome.unfinished, outcome.stopped) == (2, 1, False)
    assert store.runs.select(ids=[2])[0].status is Status.PENDING
    # The next execution is a wish of its own.
    assert execute(plan("seed=0,1,2"), store).done == 1
    assert not store.leases.stops_requested([2])


def test_a_run_stopped_while_it_is_waited_for_is_not_taken_up(plan, store):
    quick = plan()
    [unit] = schedule_runs(quick, store, force=False)
    other = open_store(store.url)
    other.leases.claim(unit.run_id, Owner.current())

    def stop():
        other.leases.request_stop(unit.run_id)
        other.leases.finish(unit.run_id, Status.INTERRUPTED, error="asked to stop")

    ending = threading.Timer(0.4, stop)
    ending.start()
    kinds = []
    on_event = lambda e: kinds.append(e.kind.value) if isinstance(e, RunEvent) else None  # noqa: E731
    outcome = execute(quick, store, on_event=on_event)
    ending.join()
    assert kinds == ["waiting", "interrupted"]
    assert outcome.unfinished == 1


@pytest.mark.slow
def test_a_worker_heeds_a_request_and_goes_on_when_it_is_started_again(plan, store):
    steps = 80

    def stop_in_the_middle():
        with open_store(store.url) as other:
            while not any(run.step >= 5 for run in other.runs.select()):
                time.sleep(0.05)
            other.leases.request_stop(1)

    asking = threading.Thread(target=stop_in_the_middle)
    asking.start()
    slow = plan("executor=local", f"steps={steps}", "backend.step_seconds=0.05", name="slow")
    outcome = execute(slow, store)
    asking.join()
    [stopped] = store.runs.select()
    assert (outcome.unfinished, outcome.stopped) == (1, False)
    assert (stopped.status, stopped.error) == (Status.INTERRUPTED, "asked to stop")
    assert 5 <= stopped.step < steps
    assert store.checkpoints.select(1)[-1].step == stopped.step

    assert execute(plan_again([stopped]), store).done == 1
    points = [step for _, step, _ in store.metrics.points(1, ["reward/mean"])]
    assert points == list(range(1, steps + 1))
