"""Owners of runs: processes of this host and of others, and whether they have ended."""

from __future__ import annotations

import functools
import hashlib
import os
import socket
from dataclasses import dataclass
from pathlib import Path

_SEPARATOR = "#"


@dataclass(frozen=True)
class Owner:
    """A process that trains a run.

    Attributes:
        host: the host name, `#`, and a digest that distinguishes hosts of the same name (see
            `this_host`). Stores of earlier versions have the name alone.
        started: start time of the process in seconds since its host booted. It distinguishes
            a process from a later one with the same pid, and setting the clock does not change
            it. 0 on systems without /proc.
    """

    host: str
    pid: int
    started: float

    @classmethod
    def of(cls, pid: int) -> Owner:
        """Return a process of this host."""
        return cls(host=this_host(), pid=pid, started=process_started(pid) or 0.0)

    @classmethod
    def current(cls) -> Owner:
        """Return this process."""
        return cls.of(os.getpid())

    def is_here(self) -> bool:
        """Return whether it is a process of this host."""
        return self.host in (this_host(), socket.gethostname())

    def has_ended(self) -> bool:
        """Return whether the process has ended; always False for processes of other hosts."""
        return self.is_here() and process_started(self.pid) != self.started


def this_host() -> str:
    """Return the name of this host, with a digest that distinguishes hosts of the same name.

    Cloned machines and containers may share a name while their pids are unrelated. They differ
    by the boot of the kernel, or by the namespace of pids on one kernel.
    """
    digest = _boot_and_namespace()
    return f"{socket.gethostname()}{_SEPARATOR}{digest}" if digest else socket.gethostname()


def host_name(host: str | None) -> str | None:
    """Return the name of a host without its digest."""
    return None if host is None else host.partition(_SEPARATOR)[0]


@functools.cache
def _boot_and_namespace() -> str:
    """Return a digest of the kernel's boot and the pid namespace; empty without /proc."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        namespace = os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""
    return hashlib.sha256(f"{boot} {namespace}".encode()).hexdigest()[:12]


def process_started(pid: int) -> float | None:
    """Return when a process of this host started, in seconds since the host booted.

    0 on systems without /proc; None if the process does not exist or is a zombie.
    """
    # A store from elsewhere may hold any value here, and the value becomes a path.
    if not isinstance(pid, int) or pid < 1:
        return None
    if not _HAS_PROC:
        import psutil

        return 0.0 if psutil.pid_exists(pid) else None
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The second field is the program's name in parentheses, which may hold spaces and more.
    state, *fields = stat.rpartition(")")[2].split()
    # A zombie has ended; only its parent has not asked for its exit code yet.
    if state in "ZX":
        return None
    return int(fields[18]) / os.sysconf("SC_CLK_TCK")


_HAS_PROC = Path("/proc/self/stat").exists()
