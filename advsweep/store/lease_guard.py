"""Which leases are valid, and the leases that a store object holds.

A heartbeat renews a lease. The lease ends when its process does, or when its heartbeat is older
than `LEASE`. Processes of the same host notice the first at once; other hosts rely on the second.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, select, update

from advsweep.errors import LeaseLostError
from advsweep.store.owners import Owner
from advsweep.store.patience import Patience, is_long_wait
from advsweep.store.postgres import ServerClock
from advsweep.store.records import Status
from advsweep.store.tables import RUNS

AnyRow = Row[*tuple[Any, ...]]

# How long a lease is valid after the last heartbeat of its process.
LEASE = timedelta(seconds=60)

# The columns by which `LeaseGuard.is_held` decides.
LEASE_COLUMNS = (RUNS.c.host, RUNS.c.pid, RUNS.c.process_started, RUNS.c.heartbeat)


@dataclass(frozen=True, kw_only=True)
class LeaseEvidence:
    """What a process knows of a lease whose owner has not ended, as far as it can see.

    All times are in seconds.

    Attributes:
        is_of_this_host: whether the owner is a process of this host, and so lives.
        heartbeat_age: by the clock that the heartbeat was written by; below 0 for a heartbeat in
            the future, which was written before that clock was set back.
        undisturbed: how long this process knows the store to be available, and its clock to be
            left alone.
        observed: how long this process has watched the clock of the server; infinity where the
            clock is that of this machine.
        waited_long: whether this transaction waited long for the row of the run.
    """

    is_of_this_host: bool
    heartbeat_age: float
    undisturbed: float
    observed: float = math.inf
    waited_long: bool = False


def is_valid(evidence: LeaseEvidence) -> bool:
    """Return whether a lease is valid; it is where the evidence does not suffice to say."""
    whole = LEASE.total_seconds()
    if -whole <= evidence.heartbeat_age <= whole:
        return True
    # While the store was away, its clock was being set or this transaction waited, no process
    # could renew its lease. Each has the time of one whole lease after that.
    could_renew = evidence.undisturbed > whole and not evidence.waited_long
    if not could_renew:
        return True
    if evidence.heartbeat_age > whole:
        return False
    # The heartbeat is in the future. A living process of this host renews it soon. On another
    # host it could keep an abandoned run until that time comes; but the clock may have been set
    # back shortly before this process opened the store.
    return evidence.is_of_this_host or evidence.observed <= whole


class LeaseGuard:
    """The leases that this store object holds, and the validity of any lease.

    Attributes:
        held: the owner of each run that was claimed through this store object.
    """

    def __init__(self, now: Callable[[], datetime], patience: Patience) -> None:
        self.held: dict[int, Owner] = {}
        self._now = now
        self._patience = patience

    def status(self, row: AnyRow) -> Status:
        """Return the recorded status, or `LOST` for a running run without a valid lease."""
        status: Status = row.status
        return Status.LOST if status is Status.RUNNING and not self.is_held(row) else status

    def is_held(self, row: AnyRow, *, waited: float = 0.0) -> bool:
        """Return whether the lease of a run that is recorded as running is still valid.

        Args:
            row: has `LEASE_COLUMNS`.
            waited: seconds that this transaction waited for the row.
        """
        owner = Owner(row.host, row.pid, row.process_started)
        # What is known of a process of this host needs no time to pass.
        if row.heartbeat is None or owner.has_ended():
            return False
        ticks = time.monotonic()
        disturbed = self._patience.returned
        observed = math.inf
        if isinstance(self._now, ServerClock):
            disturbed = max(disturbed, self._now.unsettled)
            observed = ticks - self._now.opened
        evidence = LeaseEvidence(
            is_of_this_host=owner.is_here(),
            heartbeat_age=(self._now() - row.heartbeat).total_seconds(),
            undisturbed=ticks - disturbed,
            observed=observed,
            waited_long=is_long_wait(waited),
        )
        return is_valid(evidence)

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
        changed = {name: value for name, value in progress.items() if value is not None}
        self.update(connection, run_id, {"heartbeat": self._now(), **changed})


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
