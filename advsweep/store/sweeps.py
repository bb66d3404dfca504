"""Sweeps, the named sets of runs, and the trials of their searches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from sqlalchemy import Connection, delete, func, select

from advsweep.store.base import StorePart, insert_or_ignore, insert_or_update
from advsweep.store.owners import LEASE_COLUMNS
from advsweep.store.records import Status, SweepRecord, TrialRecord
from advsweep.store.tables import Run, Sweep, SweepRun, Trial


class Sweeps(StorePart):
    """The sweeps of a store.

    A run may be part of several sweeps. The runs of a sweep have a position each, in the order of
    its plan.
    """

    def add(self, name: str, spec: Mapping[str, Any]) -> int:
        """Adds a sweep, or replaces the spec of the sweep of that name; returns its id."""
        values = {"name": name, "spec": dict(spec), "created": self._now()}
        with self._database.write() as connection:
            connection.execute(insert_or_update(connection, Sweep, "name", update="spec"), values)
            return self._require_sweep(connection, name)

    def select(self) -> list[SweepRecord]:
        """Returns every sweep, oldest first, with the number of its runs in each status."""
        # The status of a running run depends on its lease, which no query can check.
        running = select(SweepRun.sweep_id, Run.status, *LEASE_COLUMNS).where(
            SweepRun.run_id == Run.id, Run.status == Status.RUNNING
        )
        others = (
            select(SweepRun.sweep_id, Run.status, func.count())
            .where(SweepRun.run_id == Run.id, Run.status != Status.RUNNING)
            .group_by(SweepRun.sweep_id, Run.status)
        )
        with self._database.read() as connection:
            sweeps = connection.execute(select(Sweep.__table__).order_by(Sweep.id)).all()
            counts: dict[int, Counter[Status]] = {sweep.id: Counter() for sweep in sweeps}
            for row in connection.execute(running):
                counts[row.sweep_id][self._guard.status(row)] += 1
            for sweep_id, status, count in connection.execute(others):
                counts[sweep_id][status] += count
        return [
            SweepRecord(
                id=sweep.id,
                name=sweep.name,
                spec=sweep.spec,
                created=sweep.created,
                runs={status: n for status in Status if (n := counts[sweep.id][status])},
            )
            for sweep in sweeps
        ]

    def remove(self, name: str) -> None:
        """Removes a sweep; its runs stay."""
        with self._database.write() as connection:
            sweep_id = self._require_sweep(connection, name)
            # Rows that refer to the sweep first, because of the foreign keys.
            connection.execute(delete(SweepRun).where(SweepRun.sweep_id == sweep_id))
            connection.execute(delete(Trial).where(Trial.sweep_id == sweep_id))
            connection.execute(delete(Sweep).where(Sweep.id == sweep_id))


def append_runs(connection: Connection, sweep_id: int, run_ids: Iterable[int]) -> None:
    """Appends runs to a sweep; those that are part of it keep their position."""
    query = select(func.max(SweepRun.position)).where(SweepRun.sweep_id == sweep_id)
    last = connection.execute(query).scalar()
    start = 0 if last is None else last + 1
    rows = [
        {"sweep_id": sweep_id, "run_id": run_id, "position": position}
        for position, run_id in enumerate(dict.fromkeys(run_ids), start)
    ]
    connection.execute(insert_or_ignore(connection, SweepRun, "sweep_id", "run_id"), rows)


class Trials(StorePart):
    """The trials of searches: the points that a search proposed, in order."""

    def add(self, sweep: str, number: int, params: Mapping[str, Any], config_hash: str) -> bool:
        """Adds a trial to a sweep; returns False if one of that number exists."""
        values = {"number": number, "params": dict(params), "config_hash": config_hash}
        with self._database.write() as connection:
            sweep_id = self._require_sweep(connection, sweep)
            added = connection.execute(
                insert_or_ignore(connection, Trial, "sweep_id", "number"),
                {"sweep_id": sweep_id, **values},
            )
            if added.rowcount or not self._patience.repeats:
                return bool(added.rowcount)
            # The first try may have added it before its connection broke.
            at = (Trial.sweep_id == sweep_id, Trial.number == number)
            known = connection.execute(select(Trial.params, Trial.config_hash).where(*at)).one()
            return (known.params, known.config_hash) == (values["params"], config_hash)

    def select(self, sweep: str) -> list[TrialRecord]:
        """Returns the trials of a sweep by number; empty for a sweep without a search."""
        query = select(Trial.number, Trial.params, Trial.config_hash).order_by(Trial.number)
        with self._database.read() as connection:
            sweep_id = self._require_sweep(connection, sweep)
            rows = connection.execute(query.where(Trial.sweep_id == sweep_id))
            return [TrialRecord(**row._mapping) for row in rows]
