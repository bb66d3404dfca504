"""The typer application: its commands, and how errors become messages and exit codes.

Exit codes: 0 success, or the reader of stdout closed the pipe (`| head`); 1 a run failed; 2 an
error that the user can correct (one line on stderr states the expected value, the actual value
and the remedy); 130 interrupted.
"""

from __future__ import annotations

import os
import sys
import traceback
import warnings
from collections.abc import Callable
from types import TracebackType
from typing import Any

import typer

from advsweep import __version__
from advsweep.cli.commands import (
    claims,
    db,
    doctor,
    estimators,
    eval,
    export,
    hidden_states,
    import_,
    init,
    keys,
    logs,
    ls,
    merge,
    metrics,
    plan,
    plot,
    plugins,
    presets,
    replay,
    report,
    retry,
    rm,
    run,
    select,
    show,
    status,
    stop,
    sweep,
    sync,
    tasks,
    watch,
    weights,
    worker,
)
from advsweep.cli.shared.help import App, Group
from advsweep.cli.shared.output import (
    discard_stdout,
    echo_line,
    open_closed_streams,
    stdout_has_no_reader,
    tolerate_broken_stderr,
)
from advsweep.errors import AdvsweepError, AdvsweepWarning
from advsweep.printable import printable, printable_line


class _Group(Group):
    """Commands that report a bad option value as expected and actual value."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except typer.BadParameter as error:
            error.message = _plain_reason(error)
            raise


def _plain_reason(error: typer.BadParameter) -> str:
    """Returns the reason without the wording of pydantic, which typer validates options with."""
    message = error.message.removeprefix("Value error, ")
    if not message.startswith("Input should be ") or not isinstance(error.__cause__, ValueError):
        return message
    expected = message.removeprefix("Input should be ").split(", unable")[0]
    details: list[Any] = error.__cause__.errors()  # type: ignore[attr-defined]
    return f"expected {expected}, got {printable_line(repr(details[0]['input']))}"


app = App(
    name="advsweep",
    cls=_Group,
    no_args_is_help=True,
)

_COMMANDS: dict[str, dict[str, Callable[..., None] | typer.Typer]] = {
    "Train": {
        "init": init.init,
        "run": run.run,
        "sweep": sweep.sweep,
        "plan": plan.plan,
        "worker": worker.worker,
        "stop": stop.stop,
        "retry": retry.retry,
    },
    "Watch": {
        "ls": ls.ls,
        "status": status.status,
        "watch": watch.watch,
        "logs": logs.logs,
    },
    "Compare": {
        "report": report.report,
        "plot": plot.plot,
        "claims": claims.claims,
        "replay": replay.replay,
    },
    "Inspect": {
        "show": show.show,
        "metrics": metrics.metrics,
        "eval": eval.evaluate,
        "select": select.select,
        "weights": weights.weights,
        "hidden-states": hidden_states.hidden_states,
        "keys": keys.keys,
        "methods": presets.methods,
        "experiments": presets.experiments,
        "estimators": estimators.app,
        "tasks": tasks.app,
    },
    "Manage": {
        "doctor": doctor.doctor,
        "import": import_.import_,
        "merge": merge.merge,
        "export": export.export,
        "sync": sync.sync,
        "rm": rm.rm,
        "plugins": plugins.plugins,
        "db": db.app,
    },
}
"""The commands by panel and name, in the order of `advsweep --help`."""

for _panel, _commands in _COMMANDS.items():
    for _name, _command in _commands.items():
        if isinstance(_command, typer.Typer):
            app.add_typer(_command, name=_name, rich_help_panel=_panel)
        else:
            app.command(_name, rich_help_panel=_panel)(_command)


def _version(value: bool) -> None:
    if value:
        echo_line(f"advsweep {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Print the version and exit."
    ),
    debug: bool = typer.Option(False, "--debug", help="Show the traceback of an error."),
) -> None:
    """Compare advantage estimators for RLVR: train, record, and report with intervals.

    Examples:
        advsweep run
        advsweep sweep estimator=grpo,fade seed=0,1,2 --name first
        advsweep report first
        advsweep doctor
    """


def _format_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    line: str | None = None,
) -> str:
    return f"advsweep: {printable_line(str(message))}\n"


def _print_exception(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    """Prints a traceback with control characters escaped: error messages quote foreign data."""
    sys.stderr.write(printable("".join(traceback.format_exception(kind, error, trace))))


def main() -> None:
    """Runs the console script; an AdvsweepError or OSError becomes one line and exit code 2."""
    open_closed_streams()
    tolerate_broken_stderr()
    warnings.formatwarning = _format_warning
    if "_ADVSWEEP_COMPLETE" in os.environ:
        # A shell shows them in the middle of the line that is being typed.
        warnings.simplefilter("ignore", AdvsweepWarning)
    sys.excepthook = _print_exception
    arguments = sys.argv[1:]
    debug = "--debug" in arguments
    try:
        # Calling `app` itself would replace our exception hook by typer's.
        command = typer.main.get_command(app)
        command([a for a in arguments if a != "--debug"], prog_name="advsweep")
    except AdvsweepError as error:
        if debug:
            raise
        echo_line(f"advsweep: {error}", err=True)
        sys.exit(2)
    except SystemExit as end:
        # typer turns a broken pipe into exit code 1 without a message.
        if not isinstance(end.__context__, BrokenPipeError):
            raise
        if stdout_has_no_reader():
            sys.exit(0)
        echo_line(f"advsweep: {end.__context__}", err=True)
        raise
    except OSError as error:
        if debug:
            raise
        # A full disk or a read-only folder: a traceback would not help.
        echo_line(f"advsweep: {error}", err=True)
        discard_stdout()
        sys.exit(2)
