"""The memory that the processes of a run hold."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path

import psutil

from advsweep.sweep.executors.sizes import show_size

# Interval between two measurements of a limited worker's memory.
MEASURE_SECONDS = 0.5

# What the kernel cannot drop: pages of programs, shared pages by proportion, and what is swapped
# out. Pages of mapped files, such as the weights of a model, are dropped when others need memory.
_KEPT = ("Pss_Anon:", "Pss_Shmem:", "SwapPss:")


def end_beyond(pid: int, limit: int) -> str:
    """Kill a process and its descendants if they hold more memory than allowed.

    Args:
        limit: in bytes.

    Returns:
        The reason; empty if they do not.
    """
    processes = processes_of(pid)
    held = held_bytes(processes, limit)
    if held <= limit:
        return ""
    # Each of them: those in sessions of their own would have time to take more.
    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.kill()
    allowed = f"its limit of {show_size(limit)} (resources.memory)"
    return f"held {show_size(held)} of memory, above {allowed}"


def processes_of(pid: int) -> list[psutil.Process]:
    """Return a process of this machine and its descendants; none after its end.

    Departures: a descendant whose own parent has ended is not among them.
    """
    try:
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def held_bytes(processes: Sequence[psutil.Process], enough: float) -> int:
    """Return the memory that some processes hold together and the kernel cannot drop.

    Pages that several of them share, as after a fork, count once. Reading that takes milliseconds
    per GB, so it is skipped while the plain sum of the processes' sizes stays below `enough`.

    Departures: files in /dev/shm that no process has mapped are not counted, nor is the memory of
    GPUs. Systems other than Linux count all resident pages.
    """
    resident = 0
    for process in processes:
        with contextlib.suppress(psutil.Error):  # it has ended meanwhile
            resident += process.memory_info().rss
    if resident <= enough:
        return resident
    held = 0
    for process in processes:
        with contextlib.suppress(psutil.Error):
            held += _kept_bytes(process)
    return held


def _kept_bytes(process: psutil.Process) -> int:
    """Return the bytes of a process that the kernel cannot drop.

    Raises:
        psutil.Error: it has ended.
    """
    try:
        lines = Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return int(process.memory_info().rss)
    kilobytes = [int(line.split()[1]) for line in lines if line.startswith(_KEPT)]
    return 1024 * sum(kilobytes)
