"""Who holds a run: a process, under a lease that a heartbeat renews.

A lease ends when its process does, which is seen at once on the same host, or when its
heartbeat is older than `LEASE`, which is how other hosts find out.
"""

from __future__ import annotations

import functools
import hashlib
import os
import socket
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

LEASE = timedelta(seconds=60)
"""How long a run is held after the last heartbeat of its process."""

_SEPARATOR = "#"


@dataclass(frozen=True)
class Owner:
    """A process that trains a run.

    Attributes:
        host: the name of its host and, behind `#`, a digest of what tells hosts of one name
            apart (see `this_host`); the name alone in stores of earlier versions.
        started: when the process started, in seconds after its host did; it tells a process
            from a later one that was given the same pid. Unlike a time of day it stays as it
            is when somebody sets the clock. 0 where the system does not tell.
    """

    host: str
    pid: int
    started: float

    @classmethod
    def of(cls, pid: int) -> Owner:
        """A process of this host."""
        return cls(host=this_host(), pid=pid, started=process_started(pid) or 0.0)

    @classmethod
    def current(cls) -> Owner:
        """This process."""
        return cls.of(os.getpid())

    def is_here(self) -> bool:
        """Whether it is a process of this host."""
        return self.host in names_of_this_host()

    def has_ended(self) -> bool:
        """Whether the process is known to have ended; it is not known of other hosts."""
        return self.is_here() and process_started(self.pid) != self.started


def this_host() -> str:
    """The name of this host, with what tells it from others of that name.

    Clones of a machine and containers may share a name, and each other's pids mean nothing to
    them. What differs is the boot of the kernel, or the namespace of pids on one kernel.
    """
    apart = _boot_and_namespace()
    return f"{socket.gethostname()}{_SEPARATOR}{apart}" if apart else socket.gethostname()


def names_of_this_host() -> tuple[str, str]:
    """`this_host`, and the name alone that earlier versions have recorded."""
    return this_host(), socket.gethostname()


def host_name(host: str | None) -> str | None:
    """The name alone of a host."""
    return None if host is None else host.partition(_SEPARATOR)[0]


@functools.cache
def _boot_and_namespace() -> str:
    """A digest of this boot of the kernel and of this process's pids; empty without /proc."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        namespace = os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""
    return hashlib.sha256(f"{boot} {namespace}".encode()).hexdigest()[:12]


def process_started(pid: int) -> float | None:
    """When a living process of this host started, in seconds after the host did.

    0 where the system does not tell; None if there is no such process, or only what is left
    of it until its parent takes notice.
    """
    # A store that somebody else has written may hold anything, and this becomes a path.
    if not isinstance(pid, int) or pid < 1:
        return None
    if not _has_proc():
        return 0.0 if _exists(pid) else None
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The second field is the program's name in parentheses, which may hold spaces and more.
    state, *fields = stat.rpartition(")")[2].split()
    if state in "ZX":
        return None
    return int(fields[18]) / os.sysconf("SC_CLK_TCK")


@functools.cache
def _has_proc() -> bool:
    return Path("/proc/self/stat").exists()


def _exists(pid: int) -> bool:
    if os.name != "posix":
        return True  # os.kill would end it; its heartbeat has to tell
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def is_held(
    owner: Owner | None,
    heartbeat: datetime | None,
    now: datetime,
    *,
    settled: bool = True,
    watched: bool = True,
) -> bool:
    """Whether the lease of a run that is recorded as running still holds.

    A heartbeat from the future is of a clock that was set back since. It counts for a process
    of this host, which is seen to live and beats again by the new clock; of another host it
    might keep a run that nobody has until that time comes.

    Args:
        settled: an old heartbeat ends the lease; False where nobody could beat until a moment
            ago.
        watched: a heartbeat from the future does so, on another host; False where its process
            may not have had the time to beat by the clock as it is now.
    """
    if owner is None or heartbeat is None or owner.has_ended():
        return False
    if heartbeat - now > LEASE:
        return owner.is_here() or not (settled and watched)
    return now - heartbeat <= LEASE or not settled
