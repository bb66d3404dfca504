"""Leases: which process trains a run, how far it is, and how it ended."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, func, select, update

from advsweep.errors import LeaseLostError
from advsweep.failures import Failure
from advsweep.store.base import StorePart, chunks
from advsweep.store.lease_guard import LEASE_COLUMNS, owned_by
from advsweep.store.owners import Owner
from advsweep.store.records import Status
from advsweep.store.tables import RUNS, SWEEP_RUNS

if TYPE_CHECKING:
    from advsweep.store.store import Store

# The statuses that a process can record when it ends a run.
ENDS = frozenset({Status.DONE, Status.FAILED, Status.INTERRUPTED, Status.PRUNED})


class Leases(StorePart):
    """The leases of runs: each run is trained by one process at a time.

    `claim` gives a process the lease, `heartbeat` renews it and `finish` ends it. Another process
    can claim the run once the lease is over (see `LeaseGuard.is_held`). The first process gets
    `LeaseLostError` from its next write then.

    Attributes:
        held: the owner of each run that was claimed through this store object.
    """

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.held = store.guard.held

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
            if row is None:
                raise self._no_run(run_id)
            if row.status in (Status.DONE, Status.PRUNED):
                return False
            if row.status is Status.RUNNING:
                has = Owner(row.host, row.pid, row.process_started)
                # A repeated call may find the claim of its own first try. Otherwise not even the
                # same process gets a run twice: two of its threads would train it.
                hands_over = has == holder or (has == owner and self._patience.repeats)
                if not hands_over and self._guard.is_held(row, waited=time.monotonic() - began):
                    return False
            _take(connection, run_id, owner, self._now())
        self.held[run_id] = owner
        return True

    def claim_next(self, owner: Owner, sweep: str | None = None) -> int | None:
        """Claim the first available run for a process; return its id, or None without one.

        Available are pending and interrupted runs without a stop request, in the order of the
        sweep's plan or of their ids, and then lost runs. A failed run has to be requested again
        by a user. On PostgreSQL, runs that another process is claiming at the moment are skipped.

        Args:
            sweep: only runs of this sweep.
        """
        with self._database.write() as connection:
            query, order = select(RUNS.c.id, *LEASE_COLUMNS), RUNS.c.id
            if sweep is not None:
                query = query.join(SWEEP_RUNS, SWEEP_RUNS.c.run_id == RUNS.c.id)
                query = query.where(SWEEP_RUNS.c.sweep_id == self._require_sweep(connection, sweep))
                order = SWEEP_RUNS.c.position
            query = query.order_by(order)
            # On a server, workers that claim at the same time would all wait for the first row;
            # each skips what another has locked, and so takes a run of its own.
            locking = query.with_for_update(of=RUNS, skip_locked=True)
            waiting = (
                RUNS.c.status.in_([Status.PENDING, Status.INTERRUPTED]),
                ~RUNS.c.stop_requested,
            )
            row = None
            if self._patience.repeats:
                # The commit of the first try may have taken effect although the connection broke.
                # The second would claim another run, and nobody would train the first.
                claimed = select(RUNS.c.id).where(RUNS.c.status == Status.RUNNING, *owned_by(owner))
                claimed = claimed.where(RUNS.c.id.not_in(self.held)).limit(1)
                row = connection.execute(claimed).one_or_none()
            row = row or connection.execute(locking.where(*waiting).limit(1)).one_or_none()
            if row is None:
                # Last, since no query can tell which of their processes are alive. Rows of the
                # living stay unlocked: their heartbeats must not wait.
                is_running = RUNS.c.status == Status.RUNNING
                running = connection.execute(query.where(is_running)).all()
                for lost in (each for each in running if not self._guard.is_held(each)):
                    same = locking.where(is_running, RUNS.c.id == lost.id)
                    again = connection.execute(same).one_or_none()
                    if again is not None and not self._guard.is_held(again):
                        row = again
                        break
            if row is None:
                return None
            _take(connection, row.id, owner, self._now())
        self.held[row.id] = owner
        return int(row.id)

    def await_writable(self, run_ids: Sequence[int]) -> None:
        """Return once the rows of these runs can be changed.

        Until then their processes cannot renew their leases, even though they are alive.
        """
        with self._database.write() as connection:
            for ids in chunks(run_ids):
                same = update(RUNS).where(RUNS.c.id.in_(ids)).values(heartbeat=RUNS.c.heartbeat)
                connection.execute(same)

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
        lost = []
        with self._database.write() as connection:
            for run_id in run_ids:
                # Another thread may have ended it.
                if run_id in self.held:
                    try:
                        self._guard.renew(connection, run_id)
                    except LeaseLostError:
                        lost.append(run_id)
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
        with self._database.write() as connection:
            ended = select(RUNS.c.id).where(RUNS.c.id == run_id, RUNS.c.status == status)
            ended = ended.where(*owned_by(self.held[run_id]))
            # The first try of a repeated call may have recorded this end, and with it given the
            # lease up; the second must not report it as lost.
            if not (self._patience.repeats and connection.execute(ended).scalar() is not None):
                now = self._now()
                end = {"status": status, "stage": None, "heartbeat": now, "finished": now}
                cause = {"failure": failure, "error": error, "traceback": traceback}
                self._guard.update(connection, run_id, {**end, **cause})
        del self.held[run_id]

    def release(self, run_id: int, *, error: str | None = None) -> None:
        """Give a run that this store object holds back to whoever can train it.

        It is pending again; interrupted, if it was trained before.

        Args:
            error: why this process cannot train it; kept until the next claim.

        Raises:
            LeaseLostError: another process has taken the run over.
        """
        with self._database.write() as connection:
            columns = (RUNS.c.step, RUNS.c.started, RUNS.c.status)
            row = connection.execute(select(*columns).where(RUNS.c.id == run_id)).one()
            now = self._now()
            end: dict[str, Any] = {"stage": None, "heartbeat": now, "error": error}
            if row.step > 0:
                end |= {"status": Status.INTERRUPTED, "started": row.started, "finished": now}
            else:
                end |= {"status": Status.PENDING, "started": None, "finished": None}
            # The first try of a repeated call may have given the lease up already.
            if not (self._patience.repeats and row.status is end["status"]):
                self._guard.update(connection, run_id, end)
        del self.held[run_id]

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
                change = update(RUNS).where(RUNS.c.id.in_(ids), RUNS.c.stop_requested)
                connection.execute(change.values(stop_requested=False))

    def stops_requested(self, run_ids: Sequence[int]) -> set[int]:
        """Return which of these runs have a stop request."""
        query = select(RUNS.c.id).where(RUNS.c.stop_requested)
        return {row.id for row in self._read_among(query, RUNS.c.id, run_ids)}


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
