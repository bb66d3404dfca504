"""Which runs of an execution are trained together by one worker, and what came of each of them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING

from advsweep.store import Status
from advsweep.sweep import exit_codes

if TYPE_CHECKING:
    from advsweep.backends.base import StackKey
    from advsweep.store import RunRecord
    from advsweep.sweep.planning.plan import Plan
    from advsweep.sweep.scheduler.scheduled_runs import ScheduledRun

_UNTRAINED = (Status.PENDING, Status.INTERRUPTED, Status.LOST)

CODES = {
    Status.DONE: exit_codes.DONE,
    Status.FAILED: exit_codes.FAILED,
    Status.INTERRUPTED: exit_codes.STOPPED,
    Status.PRUNED: exit_codes.PRUNED,
}
"""With what a worker would have ended that had such a run alone."""


def must_be_alone(record: RunRecord) -> bool:
    """Whether a run is to have its own process: it had failed, or is to be evaluated alone."""
    return record.status not in _UNTRAINED


def companions(
    scheduled: ScheduledRun, queue: Iterable[ScheduledRun], free: int
) -> list[ScheduledRun]:
    """Which queued runs are to be trained together with one that is about to be started.

    Those of its kind come first. They are no more than its backend trains together, and leave
    as much for each of the other slots that are free.

    Args:
        queue: the runs to choose from, in the order in which they would be started.
        free: slots that are free, its own among them.
    """
    key = _key(scheduled)
    if key is None:
        return []
    fitting = [(other, its) for other in queue if (its := _key(other)) and its.shape == key.shape]
    fitting.sort(key=lambda pair: pair[1].kind != key.kind)
    size = scheduled.wanted[0].run.backend.stack_size()
    share = math.ceil((1 + len(fitting)) / free)
    return [other for other, _ in fitting[: min(size, share) - 1]]


def are_alike(
    first: tuple[ScheduledRun, RunRecord], second: tuple[ScheduledRun, RunRecord]
) -> bool:
    """Whether one worker can be given both, as far as their records tell."""
    asked = [scheduled.evaluations(record) for scheduled, record in (first, second)]
    return not must_be_alone(second[1]) and asked[0] == asked[1]


def count_stackable(plan: Plan) -> int:
    """How many runs of a plan can be trained together with another one of it."""
    if not plan.executor.stacks:
        return 0
    runs = {planned.run.identity: planned.run for planned in plan.runs}.values()
    keys = [run.backend.stack_key(run) for run in runs if run.backend.stack_size() > 1]
    shapes = Counter(key.shape for key in keys if key is not None)
    return sum(count for count in shapes.values() if count > 1)


def has_ended(scheduled: ScheduledRun, record: RunRecord) -> bool:
    """Whether a worker recorded how the run ended."""
    return record.finished is not None and record.finished != scheduled.finished


def is_settled(scheduled: ScheduledRun, record: RunRecord) -> bool:
    """Whether a run has ended for good while its worker goes on with others.

    One that was interrupted may be so since its worker gave up all of them.
    """
    interrupted = record.status is Status.INTERRUPTED and not record.stop_requested
    return has_ended(scheduled, record) and not interrupted


def _key(scheduled: ScheduledRun) -> StackKey | None:
    return None if scheduled.alone or scheduled.retries else scheduled.stack_key
