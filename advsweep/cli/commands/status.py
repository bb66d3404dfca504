"""`advsweep status`: how the runs of a sweep stand, once or every second."""

from __future__ import annotations

import contextlib
import io
import shutil
import sys
import textwrap
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any

import typer

from advsweep.cli import options, runs
from advsweep.cli.output import echo, echo_line, echo_rendered, print_columns, print_json
from advsweep.errors import ConfigError, counted, rough_duration
from advsweep.printable import printable_line
from advsweep.store import Store, open_store
from advsweep.store.seeds import show_seed
from advsweep.sweep.executors.reservations import Reserved, all_reserved
from advsweep.sweep.screens import bar_line
from advsweep.sweep.status import SweepStatus, describe_failure, read_status
from advsweep.writing import plain_value, show_value

WATCH_SECONDS = 1.0

# Collapsed runs, and parts of the machine, that are listed.
_LISTED = 20

# Characters of a cell: stages, hosts and names may be somebody else's.
_CELL = 60

_RESERVED = ("what", "run", "sweep", "pid", "user", "since")

_CLEAR = "\x1b[H\x1b[2J"


class _Screen(io.StringIO):
    """Collects what is printed for a terminal, so that it appears at once."""

    def isatty(self) -> bool:
        return True


EXAMPLES = (
    "advsweep status",
    "advsweep status demo --watch",
)


def status(
    sweep: options.Sweep = None,
    watch: Annotated[
        bool,
        typer.Option(
            "--watch",
            help="Show it anew every second, until Ctrl-C, which stops no run.",
        ),
    ] = False,
    store: options.Store = None,
    output_format: options.RecordFormat = "text",
) -> None:
    """Show how many runs are done, running or failed, and why.

    Prints the number of runs per status, the running runs with their step, the errors of the
    ten newest failures, and who has which GPUs and cores of this machine. Speed counts training
    steps only; the time left has evaluations, starts and base models too, as earlier runs have
    measured them. Jobs of Slurm are listed by squeue.
    """
    if watch and not sys.stdout.isatty():
        raise ConfigError("--watch: expected a terminal, got none; omit --watch")
    with open_store(store, create=False) as opened:
        while watch:
            shown = _Screen()
            with contextlib.redirect_stdout(shown):
                _print_status(opened, sweep, read_status(opened, sweep, failures=10))
            # In one write, so that a terminal never shows half a table.
            echo_rendered(f"{_CLEAR}{shown.getvalue()}")
            time.sleep(WATCH_SECONDS)
        standing = read_status(opened, sweep, failures=10)
        named = None if sweep is None else opened.sweeps.find(sweep)
        if output_format == "text":
            _print_status(opened, sweep, standing)
            return
    states = {state.value: count for state, count in standing.states.items()}
    failures = [
        {**runs.run_row(run), "finished": run.finished, "error": run.error}
        for run in standing.failures
    ]
    record = plain_value(replace(standing, failures=(), race=None))
    record["race"] = standing.race and standing.race.plain()
    record["reserved"] = [part.plain() for part in all_reserved()]
    if named is not None:
        record |= {"note": named.note, "tags": named.tags}
    print_json({"sweep": sweep, **record, "states": states, "failures": failures})


def _print_status(store: Store, sweep: str | None, standing: SweepStatus) -> None:
    title = f"sweep {sweep}" if sweep else "all sweeps"
    _echo_words(f"{title}: {standing.counts}")
    if sweep is not None:
        for line in store.sweeps.find(sweep).head:
            _echo_words(line)
    if standing.steps:
        parts = [f"{standing.trained} of {counted(standing.steps, 'step')}"]
        if standing.seconds_left:
            parts.append(f"about {rough_duration(standing.seconds_left)} left")
        echo_line(bar_line(standing.trained / standing.steps, parts))
    if standing.tuning is not None:
        echo()
        runs.print_tuning(standing.tuning)
    if standing.race is not None:
        echo()
        runs.print_race(standing.race)
    if standing.collapsed:
        _print_collapsed(standing.collapsed)
    for run in standing.failures:
        _echo_words(describe_failure(run))
    if standing.running:
        echo()
        _print_running([_running_row(run) for run in standing.running])
    reserved = all_reserved()
    if reserved:
        echo()
        _print_reserved(reserved)


def _print_reserved(parts: Sequence[Reserved]) -> None:
    """Print who has what of this machine, also of other stores and users."""
    echo("in use on this machine:")
    rows = [part.plain() | {"what": part.what} for part in parts[:_LISTED]]
    print_columns(_RESERVED, [[show_value(row[column]) for column in _RESERVED] for row in rows])
    if len(parts) > _LISTED:
        echo(f"... and {len(parts) - _LISTED} more")


def _print_collapsed(run_ids: Sequence[int]) -> None:
    listed = ", ".join(map(str, run_ids[:_LISTED]))
    if len(run_ids) > _LISTED:
        listed += " ..."
    _echo_words(f"collapsed in training: {counted(len(run_ids), 'run')} ({listed})")


def _running_row(run: Mapping[str, Any]) -> dict[str, str]:
    """Return the texts of a running run; the columns that matter most come first."""
    stage = run["stage"] or "starting"
    if run["stop_requested"]:
        stage += ", stopping"
    left, speed, age = run["seconds_left"], run["steps_per_second"], run["heartbeat_age"]
    return {
        "run": str(run["id"]),
        "estimator": run["estimator"],
        "step": f"{run['step']}/{run['steps']}",
        "left": "-" if left is None else rough_duration(left),
        "stage": stage,
        "seed": show_seed(run["seed"]),
        "steps/s": "-" if speed is None else f"{speed:.3g}",
        "heartbeat": "-" if age is None else f"{rough_duration(age)} ago",
        "where": f"{run['host']}:{run['pid']}",
    }


def _print_running(running: Sequence[Mapping[str, str]]) -> None:
    """Print as many columns as the terminal has room for."""
    rows = [{column: _bound(text) for column, text in run.items()} for run in running]
    fitting = []
    end = 0
    for column in rows[0]:
        end += max(len(column), *(len(row[column]) for row in rows))
        if end > _width():
            break
        end += 2  # between columns
        fitting.append(column)
    print_columns(fitting, [[row[column] for column in fitting] for row in rows])


def _bound(text: str) -> str:
    """Return a text of at most `_CELL` characters, as it is printed."""
    shown = printable_line(text)
    return shown if len(shown) <= _CELL else f"{shown[: _CELL - 1]}…"


def _width() -> int:
    """Return the columns of the terminal; a file and a pipe have room for everything."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else sys.maxsize


def _echo_words(text: str) -> None:
    """Print a line, which a terminal breaks between words."""
    for line in textwrap.wrap(printable_line(text), _width(), subsequent_indent="  "):
        echo_line(line)
