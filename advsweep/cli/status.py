"""`advsweep status`: how a sweep stands, at a glance."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from advsweep.cli import options
from advsweep.cli.options import RecordFormat

if TYPE_CHECKING:
    from advsweep.sweep.standing import Standing


def status(
    sweep: options.SweepName = None,
    failures: Annotated[
        int, typer.Option("--failures", min=0, help="The newest so many failures.")
    ] = 10,
    store: options.Store = None,
    output: options.Record = RecordFormat.TEXT,
) -> None:
    """Show how many runs are in each state, which are running, and why others failed.

    Speed and time left are those of the training steps; evaluations come on top.
    """
    from advsweep.cli.output import jsonable, print_json
    from advsweep.store import open_store
    from advsweep.sweep.standing import look

    with open_store(store, create=False) as opened:
        standing = look(opened, sweep, failures=failures)
    if output is RecordFormat.JSON:
        states = {state.value: count for state, count in standing.states.items()}
        print_json({"sweep": sweep, **jsonable(standing), "states": states})
    else:
        _print(sweep, standing)


def _print(sweep: str | None, standing: Standing) -> None:
    from advsweep.cli.output import print_columns

    states = [f"{count} {state.value}" for state, count in standing.states.items() if count]
    what = f"sweep {sweep}" if sweep else "all sweeps"
    typer.echo(f"{what}: {', '.join([f'{standing.runs} runs', *states])}")
    if standing.running:
        typer.echo()
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
        typer.echo()
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


def duration(seconds: float | None) -> str:
    """A time span as 0:01:30; `-` where there is none."""
    from datetime import timedelta

    return "-" if seconds is None else str(timedelta(seconds=round(seconds)))
