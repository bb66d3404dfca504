"""Sweeps, the named sets of runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from sqlalchemy import Connection, delete, func, select, update

from advsweep.store.base import StorePart, chunks, put
from advsweep.store.lease_guard import LEASE_COLUMNS
from advsweep.store.records import Status, SweepRecord
from advsweep.store.tables import RUNS, SWEEP_RUNS, SWEEPS, TRIALS
from advsweep.store.tuning_records import TuningRecord

# The key of a sweep's spec that holds the presets of its runs by config hash.
METHODS = "methods"


class Sweeps(StorePart):
    """The sweeps of a store.

    A run may be part of several sweeps. The runs of a sweep have a position each, in the order of
    its plan.
    """

    def add(self, name: str, spec: Mapping[str, Any]) -> int:
        """Add a sweep, or replace the spec of the sweep of that name; return its id."""
        row = {"name": name, "spec": dict(spec), "created": self._now()}
        with self._database.write() as connection:
            put(connection, SWEEPS, row)
            change = update(SWEEPS).where(SWEEPS.c.name == name)
            connection.execute(change.values(spec=row["spec"]))
            return self._require_sweep(connection, name)

    def spec(self, name: str) -> dict[str, Any]:
        """Return what the store keeps of a sweep beside its runs.

        Raises:
            NotFoundError: there is no such sweep.
        """
        with self._database.read() as connection:
            sweep_id = self._require_sweep(connection, name)
            query = select(SWEEPS.c.spec).where(SWEEPS.c.id == sweep_id)
            spec: dict[str, Any] = connection.execute(query).scalar_one()
        return spec

    def select(self) -> list[SweepRecord]:
        """Return every sweep, oldest first, with the number of its runs in each status."""
        # The status of a running run depends on its lease, which no query can check.
        members = select(SWEEP_RUNS.c.sweep_id, RUNS.c.status, *LEASE_COLUMNS)
        members = members.where(SWEEP_RUNS.c.run_id == RUNS.c.id)
        with self._database.read() as connection:
            sweeps = connection.execute(select(SWEEPS).order_by(SWEEPS.c.id)).all()
            counts: dict[int, Counter[Status]] = {sweep.id: Counter() for sweep in sweeps}
            for row in connection.execute(members):
                counts[row.sweep_id][self._guard.status(row)] += 1
        return [
            SweepRecord(
                **sweep._mapping,
                runs={status: n for status in Status if (n := counts[sweep.id][status])},
            )
            for sweep in sweeps
        ]

    def methods(self, name: str | None = None) -> dict[str, str]:
        """Return the presets `method=NAME` of the runs of a sweep, or of all, by config hash.

        The nickname is the sweep's: the run itself holds what the preset sets.
        """
        query = select(SWEEPS.c.spec).order_by(SWEEPS.c.id)
        if name is not None:
            query = query.where(SWEEPS.c.name == name)
        methods: dict[str, str] = {}
        for row in self._read(query):
            stored = row.spec.get(METHODS)
            if isinstance(stored, dict):
                methods |= {str(key): str(value) for key, value in stored.items()}
        return methods

    def tuning(self, name: str) -> TuningRecord | None:
        """Return each arm's values with their scores and its choice; None if nothing was tuned."""
        rows = self._read(select(SWEEPS.c.spec).where(SWEEPS.c.name == name))
        return TuningRecord.of_spec(rows[0].spec) if rows else None

    def release(self, name: str, run_ids: Iterable[int]) -> None:
        """Take runs out of a sweep; the runs stay in the store."""
        with self._database.write() as connection:
            sweep_id = self._require_sweep(connection, name)
            members = delete(SWEEP_RUNS).where(SWEEP_RUNS.c.sweep_id == sweep_id)
            for ids in chunks(run_ids):
                connection.execute(members.where(SWEEP_RUNS.c.run_id.in_(ids)))

    def remove(self, name: str) -> None:
        """Remove a sweep; its runs stay."""
        with self._database.write() as connection:
            sweep_id = self._require_sweep(connection, name)
            # Rows that refer to the sweep first, because of the foreign keys.
            connection.execute(delete(SWEEP_RUNS).where(SWEEP_RUNS.c.sweep_id == sweep_id))
            connection.execute(delete(TRIALS).where(TRIALS.c.sweep_id == sweep_id))
            connection.execute(delete(SWEEPS).where(SWEEPS.c.id == sweep_id))


def append_runs(connection: Connection, sweep_id: int, run_ids: Iterable[int]) -> None:
    """Append runs to a sweep; those that are part of it keep their position."""
    query = select(func.max(SWEEP_RUNS.c.position)).where(SWEEP_RUNS.c.sweep_id == sweep_id)
    last = connection.execute(query).scalar()
    rows = [
        {"sweep_id": sweep_id, "run_id": run_id, "position": position}
        for position, run_id in enumerate(dict.fromkeys(run_ids), 0 if last is None else last + 1)
    ]
    put(connection, SWEEP_RUNS, rows)
