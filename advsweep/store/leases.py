"""Claims: which process has a run, how far it is, and how it ended."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from sqlalchemy import ColumnElement, Connection, Select, false, func, select, update

from advsweep.errors import NotFoundError
from advsweep.store import owners
from advsweep.store.base import StorePart, chunks
from advsweep.store.owners import Owner, names_of_this_host
from advsweep.store.records import Failure, Status
from advsweep.store.tables import Run, SweepRun

if TYPE_CHECKING:
    from advsweep.store.base import AnyRow

_LEASE = (Run.host, Run.pid, Run.process_started, Run.heartbeat)

ENDS = frozenset({Status.DONE, Status.FAILED, Status.INTERRUPTED, Status.PRUNED})


class Leases(StorePart):
    """The part of a store that gives each run to one process at a time."""

    def claim(self, run_id: int, owner: Owner, *, holder: Owner | None = None) -> bool:
        """Takes up a run for a process; True if it is the process's own now.

        A run can be had that is pending, failed or interrupted, and one that is recorded as
        running but whose process has ended (seen at once on the same host) or has given no
        heartbeat for `lease.LEASE`. One that is done or pruned, or alive elsewhere, cannot.

        Args:
            holder: a process that hands the run over if it is the one that has it.

        Raises:
            NotFoundError: there is no such run.
        """
        query = select(Run.status, *_LEASE).where(Run.id == run_id).with_for_update()
        began = time.monotonic()
        with self._write() as connection:
            row = connection.execute(query).one_or_none()
            now = self._now()
            if row is None:
                raise NotFoundError(f"no run {run_id} in {self._engines.location.name}")
            if row.status in (Status.DONE, Status.PRUNED):
                return False
            if row.status is Status.RUNNING:
                has = Owner(row.host, row.pid, row.process_started)
                hands_over = has == holder or (has == owner and self._patience.repeats)
                if not hands_over and self._is_held(row, waited=time.monotonic() - began):
                    return False
            self._take(connection, run_id, owner, now)
        self._held[run_id] = owner
        return True

    def claim_next(self, owner: Owner, sweep: str | None = None) -> int | None:
        """Takes up the first run that nobody has; None if there is none.

        Runs can be had that are pending, interrupted or lost, in the order of the sweep's plan,
        or else in that in which they were added. Failed ones cannot, nor those that were asked
        to stop: somebody has to want them again. On PostgreSQL a run that another process is
        taking up at this moment is passed over and not waited for.

        Args:
            sweep: runs of this sweep alone.

        Raises:
            NotFoundError: there is no such sweep.
        """
        with self._write() as connection:
            now = self._now()
            query = select(Run.id).add_columns(*_LEASE)
            order = Run.id
            if sweep is not None:
                query = query.join(SweepRun, SweepRun.run_id == Run.id)
                query = query.where(SweepRun.sweep_id == self._require_sweep(connection, sweep))
                order = SweepRun.position
            query = query.order_by(order).with_for_update(of=Run, skip_locked=True)
            left = Run.status.in_([Status.PENDING, Status.INTERRUPTED]) & ~Run.stop_requested
            fit = left | (Run.status == Status.RUNNING) & self._is_silent(now)
            row = self._claimed_before(connection, owner)
            row = row or connection.execute(query.where(fit).limit(1)).one_or_none()
            row = row or self._orphan(connection, query)
            if row is None:
                return None
            self._take(connection, row.id, owner, now)
        self._held[row.id] = owner
        return int(row.id)

    def _is_silent(self, now: datetime) -> ColumnElement[bool]:
        """What `is_held` decides by clocks alone, as a query."""
        settled, watched = self._lease_evidence()
        if not settled:
            return false()
        silent: ColumnElement[bool] = Run.heartbeat < now - owners.LEASE
        if watched:
            elsewhere = Run.host.not_in(names_of_this_host())
            silent |= (Run.heartbeat > now + owners.LEASE) & elsewhere
        return silent

    def _claimed_before(self, connection: Connection, owner: Owner) -> AnyRow | None:
        """The run that the first try of a call has claimed which is repeated."""
        if not self._patience.repeats:
            return None
        query = select(Run.id).where(
            Run.status == Status.RUNNING,
            Run.host == owner.host,
            Run.pid == owner.pid,
            Run.process_started.is_not_distinct_from(owner.started),
            Run.id.not_in(self._held),
        )
        return connection.execute(query.limit(1)).one_or_none()

    def _orphan(self, connection: Connection, query: Select[Any]) -> AnyRow | None:
        """The first run whose process is known to have ended, as it was on this very host."""
        here = (Run.status == Status.RUNNING) & Run.host.in_(names_of_this_host())
        for row in connection.execute(query.where(here)).all():
            if not self._is_held(row):
                return row
        return None

    def await_writable(self, run_ids: Sequence[int]) -> None:
        """Returns once the records of these runs can be changed.

        Until then their processes cannot renew their leases, however much they are alive.
        """
        with self._write() as connection:
            for ids in chunks(run_ids):
                same = update(Run).where(Run.id.in_(ids)).values(heartbeat=Run.heartbeat)
                connection.execute(same)

    def _take(self, connection: Connection, run_id: int, owner: Owner, now: datetime) -> None:
        connection.execute(
            update(Run)
            .where(Run.id == run_id)
            .values(
                status=Status.RUNNING,
                host=owner.host,
                pid=owner.pid,
                process_started=owner.started,
                heartbeat=now,
                started=func.coalesce(Run.started, now),
                finished=None,
                stage=None,
                failure=None,
                error=None,
                traceback=None,
            )
        )

    def owner(self, run_id: int) -> Owner | None:
        """The process that has, or last had, a run; None for one that was never taken up.

        Raises:
            NotFoundError: there is no such run.
        """
        query = select(Run.host, Run.pid, Run.process_started).where(Run.id == run_id)
        with self._read() as connection:
            self._require_run(connection, run_id)
            row = connection.execute(query).one()
        return None if row.pid is None else Owner(row.host, row.pid, row.process_started)

    def heartbeat(
        self,
        run_id: int,
        *,
        step: int | None = None,
        stage: str | None = None,
    ) -> None:
        """Renews the lease of a run that this store object has claimed, and records its progress.

        Raises:
            LeaseLostError: another process has taken the run over; this one must let go.
        """
        with self._write() as connection:
            self._renew(connection, run_id, step, stage)

    def beat(self, run_ids: Sequence[int]) -> list[int]:
        """Signs of life for runs that this store object has claimed, those that have ended apart.

        Returns:
            Those that another process has taken over.
        """
        held = {i: owner for i in run_ids if (owner := self._held.get(i)) is not None}
        with self._write() as connection:
            news = {"heartbeat": self._now()}
            lost = [i for i, own in held.items() if not self._update_held(connection, i, own, news)]
        # Another thread may have ended some meanwhile.
        return [run_id for run_id in lost if run_id in self._held]

    def finish(
        self,
        run_id: int,
        status: Status,
        *,
        failure: Failure | None = None,
        error: str | None = None,
        traceback: str | None = None,
    ) -> None:
        """Ends a run that this store object has claimed, as done, failed, interrupted or pruned.

        Args:
            failure: the class of what it failed of, for one that failed.

        Raises:
            LeaseLostError: another process has taken the run over.
        """
        assert status in ENDS, status
        why = {"failure": failure, "error": error, "traceback": traceback}
        with self._write() as connection:
            if not (self._patience.repeats and self._has_ended(connection, run_id, status)):
                now = self._now()
                times = {"heartbeat": now, "finished": now}
                end = {"status": status, "stage": None, **why, **times}
                self._update_own(connection, run_id, end)
        del self._held[run_id]

    def _has_ended(self, connection: Connection, run_id: int, status: Status) -> bool:
        """Whether this process, which has claimed a run, has recorded this end of it."""
        query = select(Run.id).where(Run.id == run_id, Run.status == status)
        owner = self._held[run_id]
        own = query.where(
            Run.host == owner.host,
            Run.pid == owner.pid,
            Run.process_started.is_not_distinct_from(owner.started),
        )
        return connection.execute(own).scalar() is not None

    def request_stop(self, run_id: int) -> None:
        """Asks the process that has a run to write a checkpoint and end.

        The request stays, so that no execution that is under way takes the run up (again),
        until `withdraw_stops`.
        """
        with self._write() as connection:
            self._require_run(connection, run_id)
            connection.execute(update(Run).where(Run.id == run_id).values(stop_requested=True))

    def withdraw_stops(self, run_ids: Sequence[int]) -> None:
        """Takes back requests to stop."""
        with self._write() as connection:
            for ids in chunks(run_ids):
                asked = (Run.id.in_(ids), Run.stop_requested)
                connection.execute(update(Run).where(*asked).values(stop_requested=False))

    def stop_requested(self, run_id: int) -> bool:
        """Whether a run was asked to stop, and nobody has taken that back."""
        return bool(self.stops_requested([run_id]))

    def stops_requested(self, run_ids: Sequence[int]) -> set[int]:
        """Which of these runs were asked to stop."""
        found: set[int] = set()
        with self._read() as connection:
            for ids in chunks(run_ids):
                query = select(Run.id).where(Run.id.in_(ids), Run.stop_requested)
                found.update(connection.execute(query).scalars())
        return found
