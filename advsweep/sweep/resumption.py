"""Plans made of runs that a store has, to start them again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from advsweep.backends.run import build_run
from advsweep.errors import ConfigError
from advsweep.sweep.executors.local import LocalExecutor
from advsweep.sweep.plan import Plan, PlannedRun
from advsweep.sweep.settings import Off, Resources
from advsweep.sweep.stopping.base import Never

if TYPE_CHECKING:
    from advsweep.store import RunRecord


def plan_again(records: Sequence[RunRecord]) -> Plan:
    """A plan of these runs as they were planned before, on this machine.

    Raises:
        ConfigError: a run would be another one by now, since a component was revised.
    """
    planned = []
    for record in records:
        run = build_run(record.config)
        if run.identity != record.identity:
            raise ConfigError(
                f"run {record.id}: expected the run {record.identity[:10]} that was planned, got "
                f"{run.identity[:10]} by this version of advsweep, which has revised a part of "
                "it; start it anew with `advsweep run` or `advsweep sweep`"
            )
        planned.append(PlannedRun(run, record.config))
    executor = LocalExecutor()
    executor.prepare(Resources(), [each.run for each in planned])
    return Plan(
        name=None,
        runs=planned,
        duplicates=(),
        executor=executor,
        stopping=Never(),
        search=Off(),
        spec={},
    )
