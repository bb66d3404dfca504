"""The memory that processes of this machine hold, and those that the kernel ended for it."""

from __future__ import annotations

import os
from pathlib import Path

_PROC = Path("/proc")


def is_measurable() -> bool:
    """Whether this system tells how much memory a process holds."""
    return (_PROC / "self" / "statm").exists()


def resident_bytes(pid: int) -> int:
    """What a process of this machine holds in memory; 0 for one that has ended."""
    try:
        pages = int((_PROC / str(pid) / "statm").read_text().split()[1])
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


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
