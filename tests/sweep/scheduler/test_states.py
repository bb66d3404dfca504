"""The states of runs: one each, in the order in which runs came to them."""

from __future__ import annotations

import pytest

from advsweep.sweep.events import EventKind
from advsweep.sweep.scheduler.runs import ScheduledRun
from advsweep.sweep.scheduler.states import Ended, Paused, Queued, RunStates, Waiting


def test_a_run_has_one_state() -> None:
    one, other = ScheduledRun(1, []), ScheduledRun(2, [])
    states = RunStates([one, other])
    assert list(states.having(Queued)) == [one, other]
    states.set(one, Paused(until=3.0))
    assert states.having(Paused) == {one: Paused(3.0)}
    assert list(states.having(Queued)) == [other]
    states.set(one, Queued(is_claimed=True))
    # It is the last one now, and all runs stay in the order in which they were added.
    assert list(states.having(Queued)) == [other, one]
    assert states.first(Queued) is other
    assert states.all() == {one: Queued(is_claimed=True), other: Queued()}
    assert list(states.all()) == [one, other]
    assert (states.count(Queued), states.count(Paused), states.count(Waiting)) == (2, 0, 0)


def test_a_run_is_forgotten_and_another_one_is_added() -> None:
    one, other = ScheduledRun(1, []), ScheduledRun(1, [])
    states = RunStates([one])
    states.set(other, Ended(EventKind.DONE))
    states.remove(one)
    assert states.all() == {other: Ended(EventKind.DONE)}
    assert states.count(Queued) == 0
    with pytest.raises(KeyError):
        states.of(one)
