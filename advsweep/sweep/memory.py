"""The memory that processes of this machine hold, and those that the kernel ended for it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

_PROC = Path("/proc")


def is_measurable() -> bool:
    """Whether this system tells how much memory a process holds."""
    return (_PROC / "self" / "statm").exists()


def held_bytes(pid: int, enough: float) -> int:
    """What a process of this machine and its descendants hold in memory; 0 after its end.

    Pages that several processes share, as after a fork, count once, in parts. Finding out takes
    milliseconds for each GB, so that where the processes' sizes do not add up to more than
    `enough`, that sum is returned, in which such pages count for each of them.

    Departures: pages that no longer have a process of the run, such as files in /dev/shm, are
    left out, and so are processes whose own parent has ended.
    """
    pids = [pid, *_descendants(pid)]
    sizes = sum(map(_resident_bytes, pids))
    return sizes if sizes <= enough else sum(map(_proportional_bytes, pids))


def _descendants(pid: int) -> Iterator[int]:
    for task in (_PROC / str(pid) / "task").glob("*/children"):
        for child in map(int, (_read(task) or "").split()):
            yield child
            yield from _descendants(child)


def _resident_bytes(pid: int) -> int:
    statm = _read(_PROC / str(pid) / "statm")
    return int(statm.split()[1]) * os.sysconf("SC_PAGE_SIZE") if statm else 0


def _proportional_bytes(pid: int) -> int:
    """Its part of what it holds; all of it where the system does not tell parts."""
    rollup = _read(_PROC / str(pid) / "smaps_rollup")
    parts = (line.split() for line in (rollup or "").splitlines())
    found = next((int(part[1]) * 1024 for part in parts if part[0] == "Pss:"), None)
    return _resident_bytes(pid) if found is None else found


def _read(path: Path) -> str | None:
    """A file of /proc; None after the end of its process, or where it is another user's."""
    try:
        return path.read_text()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None


def kernel_kills() -> int:
    """How many processes the kernel has ended for want of memory since the machine started.

    Those that a container's limit ended count as well. 0 where the system does not tell.
    """
    try:
        lines = (_PROC / "vmstat").read_text().splitlines()
    except OSError:
        return 0
    counts = (line.partition(" ") for line in lines)
    return next((int(count) for name, _, count in counts if name == "oom_kill"), 0)
