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
        False, "--version", callback=_version, is_eager=True, help="Print the version and exit."
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
    """Runs the console script; an AdvsweepError or OSError becomes one line and exit code 2."""
    open_closed_streams()
    tolerate_broken_stderr()
    warnings.formatwarning = lambda message, *_, **__: f"{stderr_line(f'advsweep: {message}')}\n"
    # A shell shows messages in the middle of the line that is being typed.
    completing = "_ADVSWEEP_COMPLETE" in os.environ
    if completing:
        warnings.simplefilter("ignore", AdvsweepWarning)
    sys.excepthook = _print_exception
    arguments = sys.argv[1:]
    debug = "--debug" in arguments
    try:
        # Calling `app` itself would replace our exception hook by typer's.
        command = typer.main.get_command(app)
        given = [a for a in arguments if a != "--debug"]
        sys.exit(command(given, prog_name="advsweep", standalone_mode=False) or 0)
    except TyperException as error:
        message = error.format_message()
        if message.startswith("Usage: "):  # the help of a group that was called alone
            echo(message, err=True)
        else:
            context = getattr(error, "ctx", None)
            name = context.command_path if context else "advsweep"
            warn(f"{message.rstrip('.')}; `{name} -h` has the options")
        sys.exit(2)
    except typer.Abort:  # a question without an answer
        sys.exit(1)
    except (AdvsweepError, OSError) as error:
        if debug:
            raise
        message = explain_os_error(error) if isinstance(error, OSError) else str(error)
        if not completing:
            warn(message)
            for line in getattr(error, "details", ()):
                echo_line(line, err=True)
        if isinstance(error, OSError):  # a full disk, say: a traceback would not help
            discard_stdout()
        sys.exit(2)
    except (MemoryError, RuntimeError) as error:
        if debug or not is_out_of_memory(error):
            raise
        reason = str(error).partition("\n")[0].rstrip(".")
        warn(f"out of memory ({reason}); a smaller model, batch or rank needs less")
        sys.exit(2)
    except SystemExit as end:
        # typer turns a broken pipe into exit code 1 without a message.
        if not isinstance(end.__context__, BrokenPipeError):
            raise
        if stdout_has_no_reader():
            sys.exit(0)
        warn(explain_os_error(end.__context__))
        raise
    except (AttributeError, LookupError, TypeError, ValueError):
        # What values of a wrong kind end in.
        if debug or "advsweep.store" not in sys.modules:
            raise
        from advsweep.store.store import explain_by_damage

        damage = explain_by_damage()
        if damage is None:
            raise
        warn(str(damage))
        sys.exit(2)
