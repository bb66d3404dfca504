"""`advsweep status`: summarise the progress and the failures of runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from advsweep.cli import options
from advsweep.cli.options import RecordFormat
from advsweep.cli.output import duration, echo, echo_line, warn
from advsweep.errors import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from advsweep.store import Store
    from advsweep.sweep.scheduler.queue import QueuedRun
    from advsweep.sweep.status import SweepStatus

LISTED = 20
"""Maximum number of queued runs in the table."""


def status(
    sweep: options.SweepName = None,
    failures: Annotated[
        int, typer.Option("--failures", min=0, help="Show the newest N failures.")
    ] = 10,
    store: options.Store = None,
    output: options.Record = RecordFormat.TEXT,
) -> None:
    """Prints the number of runs per status, the running runs with their step, and the errors of
    failed runs. Speed and time left count training steps only, without evaluations. For runs
    submitted to Slurm, calls squeue once to list the queued ones.

    Examples:
        advsweep status
        advsweep status demo
    """
    from advsweep.cli.output import print_json
    from advsweep.store import open_store
    from advsweep.sweep.status import read_status
    from advsweep.writing import plain_value

    with open_store(store, create=False) as opened:
        sweep_status = read_status(opened, sweep, failures=failures)
        if output is RecordFormat.TEXT:
            # Print first: squeue may take seconds to answer.
            _print(sweep, sweep_status)
            _print_queued(_queued(opened, sweep) or ())
            return
        queued = _queued(opened, sweep)
    states = {state.value: count for state, count in sweep_status.states.items()}
    print_json({"sweep": sweep, **plain_value(sweep_status), "states": states, "queued": queued})


def _queued(store: Store, sweep: str | None) -> Sequence[QueuedRun] | None:
    """Returns the queued runs; None, with a message on stderr, if the queue does not answer."""
    from advsweep.errors import ConfigError
    from advsweep.sweep.scheduler.queue import queued_runs

    try:
        return queued_runs(store, sweep)
    except ConfigError as error:
        warn(str(error))
        return None


def _print_queued(queued: Sequence[QueuedRun]) -> None:
    from collections import Counter

    from advsweep.cli.output import print_columns

    if not queued:
        return
    counts = Counter((run.executor, run.state.lower()) for run in queued)
    summary = ", ".join(f"{count} {state} in {where}" for (where, state), count in counts.items())
    echo()
    echo_line(f"jobs: {summary}")
    print_columns(
        ["run", "estimator", "seed", "job", "state", "why"],
        [
            [str(r.id), r.estimator, str(r.seed), r.job, r.state.lower(), r.reason or "-"]
            for r in queued[:LISTED]
        ],
    )
    if len(queued) > LISTED:
        echo_line(f"{len(queued) - LISTED} more not shown; --format json lists all.", err=True)


def _print(sweep: str | None, sweep_status: SweepStatus) -> None:
    from advsweep.cli.output import print_columns
    from advsweep.cli.runs import print_tuning

    states = [f"{count} {state.value}" for state, count in sweep_status.states.items() if count]
    what = f"sweep {sweep}" if sweep else "all sweeps"
    echo_line(f"{what}: {', '.join([counted(sweep_status.runs, 'run'), *states])}")
    if (tuning := sweep_status.tuning) is not None:
        echo()
        print_tuning(tuning)
    if collapsed := sweep_status.collapsed:
        listed = ", ".join(map(str, collapsed[:LISTED])) + (" ..." if collapsed[LISTED:] else "")
        echo_line(f"collapsed in training: {counted(len(collapsed), 'run')} ({listed})")
    if sweep_status.running:
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
                for r in sweep_status.running
            ],
        )
    if sweep_status.failures:
        echo()
        print_columns(
            ["run", "estimator", "seed", "step", "status", "why"],
            [
                [
                    *(str(f.id), f.estimator, str(f.seed), f"{f.step}/{f.steps}"),
                    *(f.status.value, f.error.partition("\n")[0]),
                ]
                for f in sweep_status.failures
            ],
        )
