"""`advsweep status`: how a sweep stands, at a glance."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from advsweep.cli.shared import options
from advsweep.cli.shared.options import RecordFormat
from advsweep.cli.shared.output import duration, echo, echo_line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from advsweep.store import Store
    from advsweep.sweep.scheduler.queue import QueuedRun
    from advsweep.sweep.status import SweepStatus

LISTED = 20
"""Queued runs that are named one by one."""


def status(
    sweep: options.SweepName = None,
    failures: Annotated[
        int, typer.Option("--failures", min=0, help="The newest so many failures.")
    ] = 10,
    store: options.Store = None,
    output: options.Record = RecordFormat.TEXT,
) -> None:
    """Show how many runs are in each state, which are running, and why others failed.

    Speed and time left are those of the training steps; evaluations come on top. Where runs
    were submitted to Slurm, squeue is asked once which of them are queued.
    """
    from advsweep.cli.shared.output import jsonable, print_json
    from advsweep.store import open_store
    from advsweep.sweep.status import read_status

    with open_store(store, create=False) as opened:
        standing = read_status(opened, sweep, failures=failures)
        if output is RecordFormat.TEXT:
            # What is known is there to read while a queue takes its time.
            _print(sweep, standing)
            _print_queued(_queued(opened, sweep) or ())
            return
        queued = _queued(opened, sweep)
    states = {state.value: count for state, count in standing.states.items()}
    print_json({"sweep": sweep, **jsonable(standing), "states": states, "queued": queued})


def _queued(store: Store, sweep: str | None) -> Sequence[QueuedRun] | None:
    """The runs that a queue has; None, with a word on stderr, where it cannot be asked."""
    from advsweep.errors import ConfigError
    from advsweep.sweep.scheduler.queue import queued_runs

    try:
        return queued_runs(store, sweep)
    except ConfigError as error:
        echo_line(f"advsweep: {error}", err=True)
        return None


def _print_queued(queued: Sequence[QueuedRun]) -> None:
    from collections import Counter

    from advsweep.cli.shared.output import print_columns

    if not queued:
        return
    counts = Counter((run.executor, run.state.lower()) for run in queued)
    told = ", ".join(f"{count} {state} in {where}" for (where, state), count in counts.items())
    echo()
    echo_line(f"jobs: {told}")
    print_columns(
        ["run", "estimator", "seed", "job", "state", "why"],
        [
            [str(r.id), r.estimator, str(r.seed), r.job, r.state.lower(), r.reason or "-"]
            for r in queued[:LISTED]
        ],
    )
    if len(queued) > LISTED:
        echo_line(f"... and {len(queued) - LISTED} more (--format json has them)", err=True)


def _print(sweep: str | None, standing: SweepStatus) -> None:
    from advsweep.cli.shared.output import print_columns

    states = [f"{count} {state.value}" for state, count in standing.states.items() if count]
    what = f"sweep {sweep}" if sweep else "all sweeps"
    echo_line(f"{what}: {', '.join([f'{standing.runs} runs', *states])}")
    if standing.running:
        echo()
        print_columns(
            ["run", "estimator", "seed", "step", "stage", "steps/s", "left", "heartbeat", "where"],
            [
                [
                    *(str(r.id), r.estimator, str(r.seed), f"{r.step}/{r.steps}"),
                    f"{r.stage or 'starting'}{', stopping' if r.stop_requested else ''}",
                    "-" if r.steps_per_second is None else f"{r.steps_per_second:.3g}",
                    duration(r.seconds_left),
                    f"{duration(r.heartbeat_age)} ago",
                    f"{r.host}:{r.pid}",
                ]
                for r in standing.running
            ],
        )
    if standing.failures:
        echo()
        print_columns(
            ["run", "estimator", "seed", "step", "status", "why"],
            [
                [
                    *(str(f.id), f.estimator, str(f.seed), f"{f.step}/{f.steps}"),
                    *(f.status.value, f.error.partition("\n")[0]),
                ]
                for f in standing.failures
            ],
        )
