"""Leases: which process trains a run, how far it is, and how it ended."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from sqlalchemy import ColumnElement, Connection, Select, false, func, select, update

from advsweep.store import owners
from advsweep.store.base import Shared, StorePart, chunks
from advsweep.store.owners import LEASE_COLUMNS, Owner, names_of_this_host, owned_by
from advsweep.store.records import Failure, Status
from advsweep.store.tables import RUNS, SWEEP_RUNS

if TYPE_CHECKING:
    from advsweep.store.owners import AnyRow

ENDS = frozenset({Status.DONE, Status.FAILED, Status.INTERRUPTED, Status.PRUNED})
"""The statuses that a process can record when it ends a run."""


class Leases(StorePart):
    """The leases of runs: each run is trained by one process at a time.

    `claim` gives a process the lease, `heartbeat` renews it and `finish` ends it. Another process
    can claim the run once the lease is over (see `LeaseGuard.is_held`). The first process gets
    `LeaseLostError` from its next write then.

    Attributes:
        held: the owner of each run that was claimed through this store object.
    """

    def __init__(self, shared: Shared) -> None:
        super().__init__(shared)
        self.held = shared.guard.held

    def claim(self, run_id: int, owner: Owner, *, holder: Owner | None = None) -> bool:
        """Claim a run for a process; return whether the process has its lease now.

        A pending, failed or interrupted run can be claimed, and a running one whose lease is
        over. A done or pruned run cannot, nor one with a valid lease.

        Args:
            holder: a process that hands the run over if it holds the lease.
        """
        # On a server, FOR UPDATE makes claims atomic. SQLite has one writer at a time anyway.
        query = select(RUNS.c.status, *LEASE_COLUMNS).where(RUNS.c.id == run_id).with_for_update()
        began = time.monotonic()
        with self._database.write() as connection:
            row = connection.execute(query).one_or_none()
            now = self._now()
            if row is None:
                raise self._no_run(run_id)
            if row.status in (Status.DONE, Status.PRUNED):
                return False
            if row.status is Status.RUNNING:
                has = Owner(row.host, row.pid, row.process_started)
                # A repeated call may find the claim of its own first try.
                hands_over = has == holder or (has == owner and self._patience.repeats)
                if not hands_over and self._guard.is_held(row, waited=time.monotonic() - began):
                    return False
            _take(connection, run_id, owner, now)
        self.held[run_id] = owner
        return True

    def claim_next(self, owner: Owner, sweep: str | None = None) -> int | None:
        """Claim the first available run for a process; return its id, or None without one.

        Available are pending, interrupted and lost runs without a stop request, in the order of
        the sweep's plan or of their ids. A failed run has to be requested again by a user. On
        PostgreSQL, runs that another process is claiming at the moment are skipped.

        Args:
            sweep: only runs of this sweep.
        """
        with self._database.write() as connection:
            now = self._now()
            query = select(RUNS.c.id).add_columns(*LEASE_COLUMNS)
            order = RUNS.c.id
            if sweep is not None:
                query = query.join(SWEEP_RUNS, SWEEP_RUNS.c.run_id == RUNS.c.id)
                query = query.where(SWEEP_RUNS.c.sweep_id == self._require_sweep(connection, sweep))
                order = SWEEP_RUNS.c.position
            query = query.order_by(order).with_for_update(of=RUNS, skip_locked=True)
            left = RUNS.c.status.in_([Status.PENDING, Status.INTERRUPTED]) & ~RUNS.c.stop_requested
            available = left | (RUNS.c.status == Status.RUNNING) & self._is_silent(now)
            # The last query is the slowest: it checks the processes of this host one by one.
            row = self._claimed_before(connection, owner)
            row = row or connection.execute(query.where(available).limit(1)).one_or_none()
            row = row or self._orphan(connection, query)
            if row is None:
                return None
            _take(connection, row.id, owner, now)
        self.held[row.id] = owner
        return int(row.id)

    def _is_silent(self, now: datetime) -> ColumnElement[bool]:
        """Return the part of `LeaseGuard.is_held` that needs clocks alone, as a condition."""
        old_is_over, future_is_over = self._guard.evidence()
        if not old_is_over:
            return false()
        silent: ColumnElement[bool] = RUNS.c.heartbeat < now - owners.LEASE
        if future_is_over:
            elsewhere = RUNS.c.host.not_in(names_of_this_host())
            silent |= (RUNS.c.heartbeat > now + owners.LEASE) & elsewhere
        return silent

    def _claimed_before(self, connection: Connection, owner: Owner) -> AnyRow | None:
        """Return the run that the first try of a repeated call has claimed."""
        if not self._patience.repeats:
            return None
        query = select(RUNS.c.id).where(
            RUNS.c.status == Status.RUNNING, *owned_by(owner), RUNS.c.id.not_in(self.held)
        )
        return connection.execute(query.limit(1)).one_or_none()

    def _orphan(self, connection: Connection, query: Select[Any]) -> AnyRow | None:
        """Return the first run whose process was on this host and has ended."""
        here = (RUNS.c.status == Status.RUNNING) & RUNS.c.host.in_(names_of_this_host())
        rows = connection.execute(query.where(here)).all()
        return next((row for row in rows if not self._guard.is_held(row)), None)

    def await_writable(self, run_ids: Sequence[int]) -> None:
        """Return once the rows of these runs can be changed.

        Until then their processes cannot renew their leases, even though they are alive.
        """
        with self._database.write() as connection:
            for ids in chunks(run_ids):
                same = update(RUNS).where(RUNS.c.id.in_(ids)).values(heartbeat=RUNS.c.heartbeat)
                connection.execute(same)

    def owner(self, run_id: int) -> Owner | None:
        """Return the process that holds, or last held, the lease; None for a fresh run."""
        query = select(RUNS.c.host, RUNS.c.pid, RUNS.c.process_started).where(RUNS.c.id == run_id)
        with self._database.read() as connection:
            row = connection.execute(query).one_or_none()
        if row is None:
            raise self._no_run(run_id)
        return None if row.pid is None else Owner(row.host, row.pid, row.process_started)

    def heartbeat(self, run_id: int, *, step: int | None = None, stage: str | None = None) -> None:
        """Renew the lease of a run that this store object holds, and record its progress.

        Raises:
            LeaseLostError: another process has taken the run over.
        """
        with self._database.write() as connection:
            self._guard.renew(connection, run_id, step=step, stage=stage)

    def renew(self, run_ids: Sequence[int]) -> list[int]:
        """Renew the leases of several runs; runs that have ended meanwhile are skipped.

        Returns:
            The runs that another process has taken over.
        """
        held = {i: owner for i in run_ids if (owner := self.held.get(i)) is not None}
        with self._database.write() as connection:
            values = {"heartbeat": self._now()}
            lost = [
                run_id
                for run_id, owner in held.items()
                if not self._guard.update_if_held(connection, run_id, owner, values)
            ]
        # Another thread may have ended some meanwhile.
        return [run_id for run_id in lost if run_id in self.held]

    def finish(
        self,
        run_id: int,
        status: Status,
        *,
        failure: Failure | None = None,
        error: str | None = None,
        traceback: str | None = None,
    ) -> None:
        """End a run that this store object holds as done, failed, interrupted or pruned.

        Args:
            failure: the class of the failure, for a failed run.

        Raises:
            LeaseLostError: another process has taken the run over.
        """
        assert status in ENDS, status
        cause = {"failure": failure, "error": error, "traceback": traceback}
        with self._database.write() as connection:
            if not (self._patience.repeats and self._has_ended(connection, run_id, status)):
                now = self._now()
                times = {"heartbeat": now, "finished": now}
                end = {"status": status, "stage": None, **cause, **times}
                self._guard.update(connection, run_id, end)
        del self.held[run_id]

    def _has_ended(self, connection: Connection, run_id: int, status: Status) -> bool:
        """Return whether the first try of a repeated call has recorded this end."""
        query = select(RUNS.c.id).where(RUNS.c.id == run_id, RUNS.c.status == status)
        own = query.where(*owned_by(self.held[run_id]))
        return connection.execute(own).scalar() is not None

    def request_stop(self, run_id: int) -> None:
        """Request that the process of a run writes a checkpoint and ends.

        The request stays until `withdraw_stops`, so that no sweep in progress starts the run
        (again).
        """
        with self._database.write() as connection:
            self._require_run(connection, run_id)
            connection.execute(update(RUNS).where(RUNS.c.id == run_id).values(stop_requested=True))

    def withdraw_stops(self, run_ids: Sequence[int]) -> None:
        """Withdraw stop requests."""
        with self._database.write() as connection:
            for ids in chunks(run_ids):
                requested = (RUNS.c.id.in_(ids), RUNS.c.stop_requested)
                connection.execute(update(RUNS).where(*requested).values(stop_requested=False))

    def stop_requested(self, run_id: int) -> bool:
        """Return whether a run has a stop request."""
        return bool(self.stops_requested([run_id]))

    def stops_requested(self, run_ids: Sequence[int]) -> set[int]:
        """Return which of these runs have a stop request."""
        found: set[int] = set()
        with self._database.read() as connection:
            for ids in chunks(run_ids):
                query = select(RUNS.c.id).where(RUNS.c.id.in_(ids), RUNS.c.stop_requested)
                found.update(connection.execute(query).scalars())
        return found


def _take(connection: Connection, run_id: int, owner: Owner, now: datetime) -> None:
    connection.execute(
        update(RUNS)
        .where(RUNS.c.id == run_id)
        .values(
            status=Status.RUNNING,
            host=owner.host,
            pid=owner.pid,
            process_started=owner.started,
            heartbeat=now,
            # A resumed run keeps the time of its first claim.
            started=func.coalesce(RUNS.c.started, now),
            finished=None,
            stage=None,
            failure=None,
            error=None,
            traceback=None,
        )
    )
