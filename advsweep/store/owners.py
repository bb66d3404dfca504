"""Owners of runs: which process holds the lease of a run, and whether that lease is still valid.

A heartbeat renews a lease. The lease ends when its process does, or when its heartbeat is older
than `LEASE`. Processes of the same host notice the first at once; other hosts rely on the second.
"""

from __future__ import annotations

import functools
import hashlib
import math
import os
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlalchemy import ColumnElement, Connection, select, update

from advsweep.errors import LeaseLostError
from advsweep.store import connections
from advsweep.store.postgres import ServerClock
from advsweep.store.records import Status
from advsweep.store.tables import RUNS

if TYPE_CHECKING:
    from sqlalchemy import Row

    AnyRow = Row[*tuple[Any, ...]]

# How long a lease is valid after the last heartbeat of its process.
LEASE = timedelta(seconds=60)

# The columns by which `LeaseGuard.is_held` decides.
LEASE_COLUMNS = (RUNS.c.host, RUNS.c.pid, RUNS.c.process_started, RUNS.c.heartbeat)

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


class LeaseGuard:
    """The leases that this store object holds, and the rules by which any lease is valid.

    Attributes:
        held: the owner of each run that was claimed through this store object.
    """

    def __init__(self, now: Callable[[], datetime], patience: connections.Patience) -> None:
        self.held: dict[int, Owner] = {}
        self._now = now
        self._patience = patience

    def status(self, row: AnyRow) -> Status:
        """Return the recorded status, or `LOST` for a running run without a valid lease."""
        status: Status = row.status
        return Status.LOST if status is Status.RUNNING and not self.is_held(row) else status

    def is_held(self, row: AnyRow, *, waited: float = 0.0) -> bool:
        """Return whether the lease of a run that is recorded as running is still valid.

        A heartbeat in the future was written before a clock was set back. It counts for a
        living process of this host, which renews it soon. On another host it could keep an
        abandoned run until that time comes.

        Args:
            row: has `LEASE_COLUMNS`.
            waited: seconds that this transaction waited for the row. Its owner could not renew
                the lease in that time either.
        """
        owner = Owner(row.host, row.pid, row.process_started)
        # What is known of a process of this host needs no time to pass.
        if row.heartbeat is None or owner.has_ended():
            return False
        # While the server is away or its clock is being set, no process can renew its lease.
        # Each process therefore has the time of one whole lease after that, in which no old
        # heartbeat counts against it.
        clock = self._now if isinstance(self._now, ServerClock) else None
        ticks, whole = time.monotonic(), LEASE.total_seconds()
        disturbed = max(self._patience.returned, -math.inf if clock is None else clock.unsettled)
        old_is_over = ticks - disturbed > whole and waited < connections.WAITED_SECONDS
        now = self._now()
        if row.heartbeat - now <= LEASE:
            return now - row.heartbeat <= LEASE or not old_is_over
        # The clock may have been set back shortly before this process opened the store.
        future_is_over = clock is None or ticks - clock.opened > whole
        return owner.is_here() or not (old_is_over and future_is_over)

    def require(self, connection: Connection, run_id: int) -> None:
        """Lock the row of a run and check that this store object still holds its lease.

        It stops a process that was suspended, and replaced, from writing when it wakes up.
        Runs that were never claimed through this store object pass.

        Raises:
            LeaseLostError: another process has taken the run over.
        """
        owner = self.held.get(run_id)
        if owner is None:
            return
        held = select(RUNS.c.id).where(*_held_by(run_id, owner)).with_for_update()
        if connection.execute(held).scalar() is None:
            raise _lease_lost(run_id)

    def update(self, connection: Connection, run_id: int, values: dict[str, Any]) -> None:
        """Change the row of a run that was claimed through this store object.

        Raises:
            LeaseLostError: another process has taken the run over.
        """
        owner = self.held.get(run_id)
        assert owner is not None, f"run {run_id} was not claimed through this store object"
        # The condition and the change are one statement, so that nobody can claim in between.
        change = update(RUNS).where(*_held_by(run_id, owner)).values(values)
        if connection.execute(change).rowcount == 0:
            raise _lease_lost(run_id)

    def renew(self, connection: Connection, run_id: int, **progress: int | str | None) -> None:
        """Renew the lease of a run that was claimed through this store object.

        Args:
            progress: new values of `step` and `stage`; None changes nothing.

        Raises:
            LeaseLostError: another process has taken the run over.
        """
        known = {name: value for name, value in progress.items() if value is not None}
        self.update(connection, run_id, {"heartbeat": self._now(), **known})


def owned_by(owner: Owner) -> tuple[ColumnElement[bool], ...]:
    """Return conditions for the runs whose lease a process holds, or last held."""
    return (
        RUNS.c.host == owner.host,
        RUNS.c.pid == owner.pid,
        # NULL where the system does not say when a process started.
        RUNS.c.process_started.is_not_distinct_from(owner.started),
    )


def _held_by(run_id: int, owner: Owner) -> tuple[ColumnElement[bool], ...]:
    return (RUNS.c.id == run_id, RUNS.c.status == Status.RUNNING, *owned_by(owner))


def _lease_lost(run_id: int) -> LeaseLostError:
    return LeaseLostError(
        f"run {run_id} was taken over by another process, since this one sent no heartbeat for "
        "too long; this process must stop"
    )
