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
from collections.abc import Sequence
from types import TracebackType

import typer
from typer.exceptions import TyperException

from advsweep import __version__
from advsweep.cli.groups import LazyGroup, make_app
from advsweep.cli.output import (
    discard_stdout,
    echo,
    echo_line,
    given_texts,
    open_closed_streams,
    stderr_line,
    stdout_has_no_reader,
    tolerate_broken_stderr,
    warn,
)
from advsweep.errors import AdvsweepError, AdvsweepWarning, explain_os_error
from advsweep.failures import is_out_of_memory
from advsweep.printable import printable, redacted_message

EXAMPLES = (
    "advsweep run",
    "advsweep sweep estimator=grpo,fade seed=0,1,2 --name first",
    "advsweep report first",
    "advsweep doctor",
)

app = make_app(name="advsweep", cls=LazyGroup, no_args_is_help=True, epilog="\n".join(EXAMPLES))


def _version(value: bool) -> None:
    if value:
        echo_line(f"advsweep {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: bool = typer.Option(
        False,
        "--version",
        "-V",
        callback=_version,
        is_eager=True,
        help="Print the version and exit.",
    ),
    debug: bool = typer.Option(False, "--debug", help="Show the traceback of an error."),
) -> None:
    """Compare advantage estimators for RLVR: train, record, and report with intervals."""


def _print_exception(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    """Print a traceback without control characters and secrets: errors quote foreign data."""
    text = "".join(traceback.format_exception(kind, error, trace))
    sys.stderr.write(printable(redacted_message(text, given_texts())))


def main() -> None:
    """Run the console script; an AdvsweepError or OSError becomes one line and exit code 2."""
    open_closed_streams()
    tolerate_broken_stderr()
    warnings.formatwarning = _format_warning
    if _is_completing():
        warnings.simplefilter("ignore", AdvsweepWarning)
    sys.excepthook = _print_exception
    debug = "--debug" in sys.argv[1:]
    words = [word for word in sys.argv[1:] if word != "--debug"]
    try:
        # Calling `app` itself would replace our exception hook by typer's.
        command = typer.main.get_command(app)
        sys.exit(command(words, prog_name="advsweep", standalone_mode=False) or 0)
    except typer.Abort:  # a question without an answer
        sys.exit(1)
    except SystemExit as end:
        # typer turns a broken pipe into exit code 1 without a message.
        if isinstance(end.__context__, BrokenPipeError):
            _explain_broken_pipe(end.__context__)
        raise
    except Exception as error:
        if not _explain(error, debug=debug):
            raise
        sys.exit(2)


def _is_completing() -> bool:
    """Return whether a shell asks for completion: it shows messages in the line being typed."""
    return "_ADVSWEEP_COMPLETE" in os.environ


def _format_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    line: str | None = None,
) -> str:
    return f"{stderr_line(f'advsweep: {message}')}\n"


def _explain(error: Exception, *, debug: bool) -> bool:
    """Print one line for an error that the user can correct; return whether it is one."""
    if isinstance(error, TyperException):
        _explain_usage(error)
        return True
    if debug:
        return False
    if isinstance(error, AdvsweepError):
        _warn_unless_completing(str(error), getattr(error, "details", ()))
        return True
    if isinstance(error, OSError):
        _warn_unless_completing(explain_os_error(error))
        discard_stdout()  # a full disk, say: a traceback would not help
        return True
    if is_out_of_memory(error):
        reason = str(error).partition("\n")[0].rstrip(".")
        warn(f"out of memory ({reason}); a smaller model, batch or rank needs less")
        return True
    return _explain_by_damage(error)


def _explain_usage(error: TyperException) -> None:
    message = error.format_message()
    if message.startswith("Usage: "):  # the help of a group without a command
        echo(message, err=True)
        return
    context = getattr(error, "ctx", None)
    name = context.command_path if context else "advsweep"
    listed = "the commands" if name == "advsweep" else "the options"
    warn(f"{message.rstrip('.')}{_example(error)}; `{name} -h` has {listed}")


def _example(error: TyperException) -> str:
    """Return a line to copy where an argument is missing, or one is too many; else nothing."""
    context = getattr(error, "ctx", None)
    examples = getattr(getattr(context, "command", None), "epilog", None)
    is_missing = error.message == "" or error.message.startswith("Got unexpected extra argument")
    if not examples or not is_missing:
        return ""
    return f"; for example `{examples.splitlines()[0]}`"


def _warn_unless_completing(message: str, details: Sequence[str] = ()) -> None:
    if _is_completing():
        return
    warn(message)
    for line in details:
        echo_line(line, err=True)


def _explain_by_damage(error: Exception) -> bool:
    """Report a damaged store if one caused the error; return whether it did."""
    # Values of a wrong kind in a store end in one of these.
    kinds = (AttributeError, LookupError, TypeError, ValueError)
    if not isinstance(error, kinds) or "advsweep.store" not in sys.modules:
        return False
    from advsweep.store.store import explain_by_damage

    damage = explain_by_damage()
    if damage is not None:
        warn(str(damage))
    return damage is not None


def _explain_broken_pipe(error: BrokenPipeError) -> None:
    """End well if the reader of stdout closed the pipe; else say which write failed."""
    if stdout_has_no_reader():
        sys.exit(0)
    warn(explain_os_error(error))
