"""The clock that divides a process's time among kinds of work."""

from __future__ import annotations

import pytest

from advsweep.backends import work_clock
from advsweep.backends.work_clock import Work, WorkClock


@pytest.fixture
def now(monkeypatch):
    """A list whose last number is the time."""
    times = [100.0]
    monkeypatch.setattr(work_clock.time, "monotonic", lambda: times[-1])
    return times


def test_each_second_counts_for_one_kind_of_work(now):
    clock = WorkClock(boot=2.0)
    now.append(103.0)
    assert clock.summaries() == {}
    clock.begin(Work.TRAINING)
    with clock.doing(Work.WAITING):
        now.append(104.0)
        with clock.doing(Work.EVALUATION, units=8):
            now.append(108.0)
    for _ in range(5):
        clock.count(Work.TRAINING, 1)
    now.append(109.0)
    # Of 9 s the start has 3, with 2 s before; waiting 1, the evaluation 4, the five steps 1.
    assert clock.summaries() == {
        "time/first_start": 5.0,
        "time/evaluation_sample": 0.5,
        "time/training_step": 0.2,
    }


def test_work_that_fails_has_time_and_no_units(now):
    clock = WorkClock(runs=2)
    clock.begin(Work.TRAINING)

    def fail():
        now.append(104.0)
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"), clock.doing(Work.PRETRAINING, units=10):
        fail()
    assert clock.summaries() == {"time/start": 0.0}
    with clock.doing(Work.PRETRAINING, units=10):
        now.append(105.0)
    assert clock.summaries()["time/pretraining_update"] == 0.5
