"""Executes the runs of a plan: here, or by submitting them to a queue."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import TYPE_CHECKING

from advsweep.errors import ConfigError
from advsweep.sweep.events import Event, SweepResult
from advsweep.sweep.executors.base import Executor, QueueExecutor
from advsweep.sweep.retry_policy import Policy
from advsweep.sweep.scheduler.runs import schedule_runs
from advsweep.sweep.scheduler.scheduler import Scheduler
from advsweep.sweep.scheduler.submit import submit
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
) -> SweepResult:
    """Execute what is missing of a plan and return when all its runs are in a final state.

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

    Raises:
        ConfigError: the executor does not support the policy, never has room for a run, or
            cannot reach its cluster.
        StoreError: the store cannot be used.
    """
    policy = policy or Policy()
    _check_policy(policy, plan.executor)
    plan.check()
    scheduler = Scheduler(
        store=store,
        executor=plan.executor,
        slots=plan.executor.slots(jobs),
        on_event=on_event,
        policy=policy,
        runs=schedule_runs(plan, store, force=force),
    )
    if isinstance(plan.executor, QueueExecutor):
        return submit(scheduler, plan.executor)
    with handle_stop_signals(scheduler.request_stop), closing(plan.executor):
        scheduler.run()
    return scheduler.result()


def _check_policy(policy: Policy, executor: Executor) -> None:
    """Refuse a policy that cannot be enforced.

    Raises:
        ConfigError: the executor cannot enforce a limit, or counts no failures.
    """
    options = {
        "--time-limit": policy.time_limit is not None and not executor.limits_time,
        "--max-failures": policy.max_failures is not None and isinstance(executor, QueueExecutor),
    }
    for option, is_beyond in options.items():
        if is_beyond:
            raise ConfigError(
                f"{option}: executor '{executor.name}' cannot hold its runs to it; leave it out, "
                "or choose another executor"
            )
