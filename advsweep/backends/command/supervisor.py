"""The process between a worker and the command that it runs; a script without our package.

    python -E -P supervisor.py CONTROL STATUS GRACE SIGNAL PROGRAM [ARGUMENT ...]

CONTROL and STATUS are file descriptors. The worker holds the other end of CONTROL: a byte asks
for a stop, and its end means that the worker is gone, however it died. STATUS gets one line of
JSON when everything has ended.

The command starts in its own session. The supervisor adopts its orphans, so that a process
which went into the background, or made another session, is found and ended as well. At a stop
every process gets SIGNAL, and after GRACE seconds SIGKILL; without a worker, SIGKILL at once, as
another worker may start the same run again.
"""

import contextlib
import ctypes
import json
import math
import os
import select
import signal
import subprocess
import sys
import time

import psutil

_SET_CHILD_SUBREAPER = 36
_SET_PARENT_DEATH_SIGNAL = 1
_POLL_SECONDS = 0.2
# Time that processes have to end which the command left behind.
_LEFT_SECONDS = 2.0
# Time after which processes that survive SIGKILL, in a hung driver, are left alone.
_KILL_SECONDS = 10.0
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def main(arguments: list[str]) -> None:
    control = int(arguments[0])
    status = int(arguments[1])
    grace = float(arguments[2])
    number = int(arguments[3])
    command = arguments[4:]
    # Signals to the group are for the worker; it asks for the stop.
    for ignored in _SIGNALS:
        signal.signal(ignored, signal.SIG_IGN)
    # Without it an orphan belongs to init, and nobody here would find it.
    _prctl(_SET_CHILD_SUBREAPER, 1)
    # The command must not hold these: the worker's death could not be seen by the pipe's end.
    os.set_inheritable(control, False)
    os.set_inheritable(status, False)
    report: dict[str, object]
    try:
        child = subprocess.Popen(
            command,
            start_new_session=True,
            preexec_fn=_prepare_child,  # noqa: PLW1509 (there are no threads)
        )
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        report = {"code": 127, "error": f"{command[0]}: {reason}"}
    else:
        code, gone = _watch(child, control, grace, number)
        report = {"code": code, "left": len(_living())}
        # What the command left behind is asked to end if there is time, and then killed.
        started = time.monotonic()
        if not gone:
            _signal_all(signal.SIGTERM)
        waited = 0.0
        while _living() and waited < _LEFT_SECONDS + _KILL_SECONDS:
            if gone or waited > _LEFT_SECONDS:
                _signal_all(signal.SIGKILL)
            time.sleep(0.02)
            waited = time.monotonic() - started
    with contextlib.suppress(OSError):
        os.write(status, json.dumps(report).encode() + b"\n")


def _watch(
    child: subprocess.Popen[bytes], control: int, grace: float, number: int
) -> tuple[int, bool]:
    """Wait for the command; return its exit code and whether the worker is gone."""
    gone = False
    deadline = math.inf
    while (code := child.poll()) is None:
        _living(child.pid)
        if gone:
            time.sleep(_POLL_SECONDS)
        elif select.select([control], [], [], _POLL_SECONDS)[0]:
            # A byte asks for a stop; the end of the pipe, also during the grace, cuts the grace.
            gone = not os.read(control, 1)
            deadline = time.monotonic() + (0 if gone else grace)
            if not gone:
                _signal_all(number, child.pid)
        if time.monotonic() >= deadline:
            _signal_all(signal.SIGKILL, child.pid)
    return code, gone


def _signal_all(number: int, main_pid: int | None = None) -> None:
    # Not a signal to the process group: children may have made groups and sessions.
    for process in _living(main_pid):
        with contextlib.suppress(psutil.Error):
            process.send_signal(number)


def _living(main_pid: int | None = None) -> list[psutil.Process]:
    """Return all living descendants; reap those that have ended, but for the main process.

    The end of the main process is for `Popen`.
    """
    living = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error, ChildProcessError):
            if process.status() != psutil.STATUS_ZOMBIE:
                living.append(process)
            elif process.pid != main_pid and process.ppid() == os.getpid():
                os.waitpid(process.pid, os.WNOHANG)
    return living


def _prepare_child() -> None:
    """In the command before it starts: it dies with the supervisor."""
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    _prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)


def _prctl(option: int, value: int) -> None:
    # Other systems than Linux have no prctl; there orphans are not found.
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(option, int(value), 0, 0, 0)


if __name__ == "__main__":
    main(sys.argv[1:])
