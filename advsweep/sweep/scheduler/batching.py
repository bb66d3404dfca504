"""Decides which runs one worker trains together.

The backend tells which runs fit together (`stack_key`) and how many (`stack_size`);
`worker/stacked.py` trains them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING

from advsweep.store import Status

if TYPE_CHECKING:
    from advsweep.backends.base import StackKey
    from advsweep.store import RunRecord
    from advsweep.sweep.planning.plan import Plan
    from advsweep.sweep.scheduler.scheduled_runs import ScheduledRun

_UNTRAINED = (Status.PENDING, Status.INTERRUPTED, Status.LOST)


def must_be_alone(record: RunRecord) -> bool:
    """Returns whether a run needs its own process: it failed before, or is only evaluated."""
    return record.status not in _UNTRAINED


def companions(
    scheduled: ScheduledRun, queue: Iterable[ScheduledRun], free: int
) -> list[ScheduledRun]:
    """Returns the queued runs to train together with one that is about to start.

    Runs of the same kind come first. The batch holds at most as many runs as the backend can
    stack, and leaves an equal share for each of the other free slots.

    Args:
        queue: the candidates, in the order in which they would start.
        free: number of free slots, its own included.
    """
    key = _stack_key(scheduled)
    if key is None:
        return []
    fitting = [
        (other, its) for other in queue if (its := _stack_key(other)) and its.shape == key.shape
    ]
    fitting.sort(key=lambda pair: pair[1].kind != key.kind)
    size = scheduled.planned[0].run.backend.stack_size()
    share = math.ceil((1 + len(fitting)) / free)
    return [other for other, _ in fitting[: min(size, share) - 1]]


def can_share_worker(
    first: tuple[ScheduledRun, RunRecord], second: tuple[ScheduledRun, RunRecord]
) -> bool:
    """Returns whether the second run may join the worker of the first, by their records."""
    own, other = (scheduled.evaluations(record) for scheduled, record in (first, second))
    # A worker takes one list of evaluation settings for all its runs.
    return not must_be_alone(second[1]) and own == other


def count_stackable(plan: Plan) -> int:
    """Returns how many runs of a plan can be trained together with another one of it."""
    if not plan.executor.stacks:
        return 0
    runs = {planned.run.identity: planned.run for planned in plan.runs}.values()
    keys = [run.backend.stack_key(run) for run in runs if run.backend.stack_size() > 1]
    shapes = Counter(key.shape for key in keys if key is not None)
    return sum(count for count in shapes.values() if count > 1)


def has_final_end(scheduled: ScheduledRun, record: RunRecord) -> bool:
    """Returns whether a run has ended for good while its worker trains others.

    An interruption that nobody requested is not final: the worker may have given up the whole
    stack, whose runs are then trained one by one.
    """
    interrupted = record.status is Status.INTERRUPTED and not record.stop_requested
    return scheduled.has_ended(record) and not interrupted


def _stack_key(scheduled: ScheduledRun) -> StackKey | None:
    # A retry runs alone, so that a run that fails does not take others with it again.
    return None if scheduled.alone or scheduled.retries else scheduled.stack_key
