"""Executes a plan: by a scheduler in this process, or by jobs that a queue takes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import TYPE_CHECKING

from advsweep.sweep.events import Event, SweepResult
from advsweep.sweep.executors.base import QueueExecutor
from advsweep.sweep.retry_policy import Policy
from advsweep.sweep.scheduler.limits import check_limits
from advsweep.sweep.scheduler.queue import check_policy, submit
from advsweep.sweep.scheduler.queue_job import QueueJob
from advsweep.sweep.scheduler.scheduled_runs import schedule_runs
from advsweep.sweep.scheduler.scheduler import Scheduler
from advsweep.sweep.stop_request import handle_stop_signals

if TYPE_CHECKING:
    from advsweep.store import Store
    from advsweep.sweep.planning.plan import Plan


def execute(
    plan: Plan,
    store: Store,
    jobs: int | None = None,
    on_event: Callable[[Event], None] = lambda event: None,
    *,
    force: bool = False,
    policy: Policy | None = None,
    make: Callable[..., Scheduler] | None = None,
) -> SweepResult:
    """Executes what is missing of a plan and returns when all its runs are in a final state.

    Completed runs are skipped, and so are runs that the plan's rule has stopped early.
    Interrupted runs resume from their last checkpoint, as do runs that another rule stopped.
    Failed runs are tried again; runs that another process trains are waited for. A run with a
    stop request in the store is interrupted, or not started, until the next execution.

    SIGINT, SIGTERM and SIGHUP stop all workers with a checkpoint; a second signal kills them.
    With a queue executor the runs are only submitted; their jobs apply retries and limits.

    Args:
        jobs: number of workers side by side; the executor's capacity when None.
        on_event: receives events, in the calling thread.
        force: train completed and pruned runs again, as new attempts.
        policy: retries and limits; the default policy when None.
        make: makes the scheduler, where runs are added to those of the plan later.

    Raises:
        ConfigError: the executor does not support the policy, never has room for a run, or
            cannot reach its cluster.
        StoreError: the store cannot be used.
    """
    policy = policy or Policy()
    check_limits(policy, plan.executor)
    plan.check()
    if isinstance(plan.executor, QueueExecutor):
        check_policy(policy, plan.executor)
    runs = schedule_runs(plan, store, force=force)
    slots = jobs or plan.executor.capacity()
    if isinstance(plan.executor, QueueExecutor):
        return submit(runs, store, plan.executor, slots, on_event, policy, QueueJob)
    scheduler = (make or Scheduler)(store, plan.executor, slots, on_event, policy, runs)
    with handle_stop_signals(scheduler.request_stop), closing(plan.executor):
        scheduler.run()
    return scheduler.result()
