"""The command line: one thin module per command.

Commands import heavy libraries inside their functions, so that `--help` and listings start fast.
"""

import contextlib
import os
import signal
import sys
import threading
from types import FrameType

__all__ = ["main"]


def main() -> None:
    """Run the console script; an interrupt before or after a command ends with 130, silently."""
    try:
        from advsweep.cli.app import main as run

        run()
    except KeyboardInterrupt:
        os._exit(130)
    except SystemExit as end:
        if not any(thread.name == "advsweep tracking" for thread in threading.enumerate()):
            raise
        # It hangs (sweep/tracking/base.py), and exit handlers of libraries would wait for it.
        with contextlib.suppress(OSError):
            sys.stdout.flush()
        os._exit(end.code if isinstance(end.code, int) else int(bool(end.code)))
    finally:
        # The exit handlers of torch and of trackers print tracebacks when they are interrupted.
        signal.signal(signal.SIGINT, _exit)


def _exit(number: int, frame: FrameType | None) -> None:
    os._exit(130)
