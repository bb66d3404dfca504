"""What the kernel says about processes that it has ended."""

from __future__ import annotations

from pathlib import Path

_VMSTAT = Path("/proc/vmstat")


def memory_kills() -> int:
    """Return how many processes the kernel has killed for lack of memory since boot.

    Kills by the memory limit of a container count as well. 0 on systems without /proc.
    """
    try:
        lines = _VMSTAT.read_text().splitlines()
    except OSError:
        return 0
    counts = (line.partition(" ") for line in lines)
    return next((int(count) for name, _, count in counts if name == "oom_kill"), 0)
