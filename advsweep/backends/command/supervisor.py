"""The process between a worker and the command that it runs; a script of the standard library.

    python -I supervisor.py CONTROL STATUS GRACE SIGNAL PROGRAM [ARGUMENT ...]

CONTROL and STATUS are file descriptors. The worker holds the other end of CONTROL: a byte asks
for a stop, and its end means that the worker is gone, however it died. STATUS gets one line of
JSON when everything has ended.

The command starts in a session of its own. The supervisor adopts its orphans, so that a process
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

_SET_CHILD_SUBREAPER = 36
_SET_PARENT_DEATH_SIGNAL = 1
_POLL_SECONDS = 0.2
_LEFT_SECONDS = 2.0
"""Time that processes have to end which the command left behind."""
_KILL_SECONDS = 10.0
"""Time after which processes that survive SIGKILL, in a hung driver, are left alone."""
_CANNOT_START = 127


def main(arguments: list[str]) -> None:
    control, status = int(arguments[0]), int(arguments[1])
    grace, number, command = float(arguments[2]), int(arguments[3]), arguments[4:]
    # Ctrl-C is for the worker; it asks for the stop.
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    _prctl(_SET_CHILD_SUBREAPER)
    os.set_inheritable(control, False)
    os.set_inheritable(status, False)
    try:
        child = subprocess.Popen(
            command,
            start_new_session=True,
            preexec_fn=_prepare_child,  # noqa: PLW1509 (there are no threads)
        )
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        _report(status, code=_CANNOT_START, error=f"{command[0]}: {reason}")
        return
    code, asked = _watch(child, control, grace, number)
    left = _end_rest(child.pid, gone=asked == "gone")
    _report(status, code=code, asked=asked, left=left)


def _watch(
    child: subprocess.Popen[bytes], control: int, grace: float, number: int
) -> tuple[int, str | None]:
    """Wait for the command; return its exit code and whether it was asked to stop."""
    asked: str | None = None
    deadline = math.inf
    while True:
        code = child.poll()
        if code is not None:
            return code, asked
        _reap_others(child.pid)
        if asked is None and select.select([control], [], [], _POLL_SECONDS)[0]:
            asked = "stop" if os.read(control, 1) else "gone"
            deadline = time.monotonic() + (grace if asked == "stop" else 0.0)
            if asked == "stop":
                _signal_all(child.pid, number)
        elif asked is not None:
            # After a request only the worker's death matters: it cuts the grace.
            if select.select([control], [], [], _POLL_SECONDS)[0] and not os.read(control, 1):
                asked, deadline = "gone", time.monotonic()
            if time.monotonic() >= deadline:
                _signal_all(child.pid, signal.SIGKILL)


def _end_rest(main_pid: int, *, gone: bool) -> int:
    """End what the command left behind; return how many processes that were."""
    _reap_others(None)
    left = len(_descendants())
    if left and not gone:
        _signal_all(main_pid, signal.SIGTERM)
        _wait_for_none(_LEFT_SECONDS)
    deadline = time.monotonic() + _KILL_SECONDS
    while _descendants() and time.monotonic() < deadline:
        _signal_all(main_pid, signal.SIGKILL)
        _wait_for_none(_POLL_SECONDS)
    return left


def _wait_for_none(seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        _reap_others(None)
        if not _descendants():
            return
        time.sleep(0.02)


def _signal_all(main_pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(main_pid, number)
    for pid in _descendants():
        with contextlib.suppress(ProcessLookupError, PermissionError):
            # The group has had it already.
            if os.getpgid(pid) != main_pid:
                os.kill(pid, number)


def _descendants() -> list[int]:
    """Return the ids of all living descendants; none on systems without /proc."""
    parents: dict[int, int] = {}
    try:
        entries = os.listdir("/proc")
    except OSError:
        return []
    for entry in entries:
        if entry.isdecimal():
            try:
                with open(f"/proc/{entry}/stat", "rb") as file:
                    fields = file.read().rpartition(b")")[2].split()
            except OSError:
                continue
            if fields and fields[0] not in (b"Z", b"X"):
                parents[int(entry)] = int(fields[1])
            elif fields:
                parents[int(entry)] = -int(fields[1])
    own = os.getpid()
    found = []
    for pid, parent in parents.items():
        if parent < 0:
            continue
        seen: set[int] = set()
        while parent not in (own, 0) and parent not in seen:
            seen.add(parent)
            parent = abs(parents.get(parent, 0))
        if parent == own:
            found.append(pid)
    return found


def _reap_others(main_pid: int | None) -> None:
    """Reap adopted processes that have ended; the command's own end is for `Popen`."""
    for entry in _children():
        if entry != main_pid:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(entry, os.WNOHANG)


def _children() -> list[int]:
    try:
        with open(f"/proc/self/task/{os.getpid()}/children", "rb") as file:
            return [int(pid) for pid in file.read().split()]
    except OSError:
        return []


def _report(status: int, **content: object) -> None:
    with contextlib.suppress(OSError):
        os.write(status, json.dumps(content).encode() + b"\n")


def _prepare_child() -> None:
    """In the command before it starts: it dies with the supervisor."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    _prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)


def _prctl(option: int, value: int = 1) -> None:
    # Other systems than Linux have no prctl; there the process group has to do.
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(option, int(value), 0, 0, 0)


if __name__ == "__main__":
    main(sys.argv[1:])
