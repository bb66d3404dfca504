"""The command line: one thin module per command.

Commands import heavy libraries inside their functions, so that `--help` and listings start fast.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys

__all__ = ["main"]


def main() -> None:
    """Run the console script; an interrupt at any time ends with 130 and one line."""
    try:
        # Imported here, since an interrupt before this line would be a traceback.
        import threading

        from advsweep.cli.app import main as run

        run()
    except KeyboardInterrupt:
        _exit_interrupted()
    except SystemExit as end:
        if end.code == 130:
            _say_interrupted()
        elif not any(thread.name == "advsweep tracking" for thread in threading.enumerate()):
            raise
        # A tracker may hang (sweep/tracking/base.py): exit handlers would wait for it.
        with contextlib.suppress(OSError):
            sys.stdout.flush()
        os._exit(end.code if isinstance(end.code, int) else int(bool(end.code)))
    finally:
        # The exit handlers of torch and of trackers print tracebacks when they are interrupted.
        signal.signal(signal.SIGINT, _exit_interrupted)


def _say_interrupted() -> None:
    with contextlib.suppress(OSError):
        # In place of the ^C that a terminal shows.
        start = "\r\x1b[K" if os.isatty(2) else ""
        os.write(2, f"{start}advsweep: interrupted\n".encode())


def _exit_interrupted(*_: object) -> None:
    _say_interrupted()
    os._exit(130)
