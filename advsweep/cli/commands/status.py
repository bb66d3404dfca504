"""`advsweep status`: how the runs of a sweep stand, once or every second."""

from __future__ import annotations

import contextlib
import io
import itertools
import shutil
import sys
import textwrap
import time
from dataclasses import replace
from typing import Annotated

import typer

from advsweep.cli import options, runs
from advsweep.cli.output import (
    echo,
    echo_line,
    echo_rendered,
    print_columns,
    print_json,
)
from advsweep.errors import ConfigError, counted, rough_duration
from advsweep.printable import printable_line
from advsweep.store import open_store
from advsweep.store.seeds import show_seed
from advsweep.sweep.progress import SweepStatus, bar_line, read_status
from advsweep.writing import plain_value

WATCH_SECONDS = 1.0


# Collapsed runs that a table lists.
_LISTED = 20


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

    Prints the number of runs per status, the running runs with their step, and the errors of the
    ten newest failures. Speed and time left count training steps only, without
    evaluations. Jobs of Slurm are listed by squeue.
    """
    if watch and not sys.stdout.isatty():
        raise ConfigError("--watch: expected a terminal, got none; omit --watch")
    with open_store(store, create=False) as opened:
        while watch:
            shown = _Screen()
            with contextlib.redirect_stdout(shown):
                _print_status(sweep, read_status(opened, sweep, failures=10))
            # In one write, so that a terminal never shows half a table.
            echo_rendered(f"{_CLEAR}{shown.getvalue()}")
            time.sleep(WATCH_SECONDS)
        found = read_status(opened, sweep, failures=10)
    if output_format == "text":
        _print_status(sweep, found)
        return
    states = {state.value: count for state, count in found.states.items()}
    failures = [
        {**runs.run_row(run), "finished": run.finished, "error": run.error}
        for run in found.failures
    ]
    record = plain_value(replace(found, failures=(), race=None))
    record["race"] = found.race and found.race.plain()
    print_json({"sweep": sweep, **record, "states": states, "failures": failures})


def _print_status(sweep: str | None, found: SweepStatus) -> None:
    states = [f"{count} {state.value}" for state, count in found.states.items() if count]
    what = f"sweep {sweep}" if sweep else "all sweeps"
    _echo_words(f"{what}: {', '.join([counted(found.runs, 'run'), *states])}")
    if found.steps:
        left = found.seconds_left and [f"about {rough_duration(found.seconds_left)} left"]
        parts = [f"{found.trained} of {counted(found.steps, 'step')}", *(left or [])]
        echo_line(bar_line(found.trained / found.steps, parts))
    if found.tuning is not None:
        echo()
        runs.print_tuning(found.tuning)
    if found.race is not None:
        echo()
        runs.print_race(found.race)
    if collapsed := found.collapsed:
        listed = ", ".join(map(str, collapsed[:_LISTED])) + (" ..." if collapsed[_LISTED:] else "")
        _echo_words(f"collapsed in training: {counted(len(collapsed), 'run')} ({listed})")
    for failed in found.failures:
        place = f"{failed.status.value} at step {failed.step}/{failed.steps}"
        why = (failed.error or "").partition("\n")[0]
        _echo_words(
            f"run {failed.id} ({failed.estimator} seed={show_seed(failed.seed)}) {place}: {why}"
        )
    running = [
        {
            "run": str(run["id"]),
            "estimator": run["estimator"],
            "step": f"{run['step']}/{run['steps']}",
            "left": "-" if (left := run["seconds_left"]) is None else rough_duration(left),
            "stage": f"{run['stage'] or 'starting'}{', stopping' if run['stop_requested'] else ''}",
            "seed": show_seed(run["seed"]),
            "steps/s": "-" if run["steps_per_second"] is None else f"{run['steps_per_second']:.3g}",
            "heartbeat": "-"
            if (age := run["heartbeat_age"]) is None
            else f"{rough_duration(age)} ago",
            "where": f"{run['host']}:{run['pid']}",
        }
        for run in found.running
    ]
    if running:
        echo()
        wide = shutil.get_terminal_size().columns if sys.stdout.isatty() else sys.maxsize
        widths = [max(len(text), *(len(row[text]) for row in running)) + 2 for text in running[0]]
        ends = zip(running[0], itertools.accumulate(widths), strict=True)
        fitting = [column for column, end in ends if end - 2 <= wide]
        print_columns(fitting, [[row[column] for column in fitting] for row in running])


def _echo_words(text: str) -> None:
    """Print a line, which a terminal breaks between words."""
    columns = shutil.get_terminal_size().columns if sys.stdout.isatty() else sys.maxsize
    for line in textwrap.wrap(printable_line(text), columns, subsequent_indent="  "):
        echo_line(line)
