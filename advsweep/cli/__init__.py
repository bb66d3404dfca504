"""The command line: one thin module per command, in `advsweep.cli.commands`.

Commands import heavy libraries inside their functions, so that `--help` and listings start fast.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys

__all__ = ["main"]

# What a shell makes of an interrupt, and of SIGTERM.
INTERRUPTED = 130
TERMINATED = 143


def main() -> None:
    """Run the console script; an interrupt or SIGTERM at any time ends with one line.

    The exit codes are then 130 and 143, unless a sweep or worker is there to end in good order.
    """
    try:
        _announce_termination()
        # Imported here, since an interrupt before this line would be a traceback.
        import threading

        from advsweep.cli.app import main as run

        run()
    except KeyboardInterrupt:
        _exit_interrupted()
    except SystemExit as end:
        if end.code == INTERRUPTED:
            _say("interrupted")
        elif not any(thread.name == "advsweep tracking" for thread in threading.enumerate()):
            raise
        # A tracker may hang (sweep/tracking/base.py): exit handlers would wait for it.
        with contextlib.suppress(OSError):
            sys.stdout.flush()
        os._exit(end.code if isinstance(end.code, int) else int(bool(end.code)))
    finally:
        # The exit handlers of torch and of trackers print tracebacks when they are interrupted.
        signal.signal(signal.SIGINT, _exit_interrupted)


def _announce_termination() -> None:
    """Let SIGTERM end this process with a line, until something else handles it.

    A process that it has forked meanwhile ends as by default, without a word: verifiers and
    workers that are told to end are no news. An ignored signal stays ignored.
    """
    if signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        return
    process = os.getpid()

    def terminate(*_: object) -> None:
        if os.getpid() == process:
            _say("terminated")
            os._exit(TERMINATED)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTERM)

    # In a thread, where a notebook may call, signals cannot be handled.
    with contextlib.suppress(ValueError):
        signal.signal(signal.SIGTERM, terminate)


def _say(word: str) -> None:
    with contextlib.suppress(OSError):
        # In place of the ^C that a terminal shows.
        start = "\r\x1b[K" if os.isatty(2) else ""
        os.write(2, f"{start}advsweep: {word}\n".encode())


def _exit_interrupted(*_: object) -> None:
    _say("interrupted")
    os._exit(INTERRUPTED)
