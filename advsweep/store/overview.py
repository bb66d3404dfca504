"""Where many runs stand, without reading what each of them is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, Select, case, func, select

from advsweep.store.base import ids_of_peers
from advsweep.store.owners import host_name
from advsweep.store.records import Peer, RunLine, RunOutline, Status
from advsweep.store.runs import Runs
from advsweep.store.tables import Run, Sweep, SweepRun

_LEASE = (Run.host, Run.pid, Run.process_started, Run.heartbeat)


class Overview(Runs):
    """Runs, and what is asked of all of them at once."""

    def tally(self, sweep: str | None = None) -> Mapping[Status, int]:
        """How many runs are in each state, of a sweep or of the store; every state is there.

        Raises:
            NotFoundError: there is no such sweep.
        """
        counts: Counter[Status] = Counter()
        with self._read() as connection:
            sweep_id = None if sweep is None else self._require_sweep(connection, sweep)
            held = _of_sweep(select(Run.status, *_LEASE), sweep_id)
            for row in connection.execute(held.where(Run.status == Status.RUNNING)):
                counts[self._status(row)] += 1
            rest = _of_sweep(select(Run.status, func.count()), sweep_id)
            rest = rest.where(Run.status != Status.RUNNING).group_by(Run.status)
            for status, count in connection.execute(rest):
                counts[status] += count
        return {status: counts[status] for status in Status}

    def lines(self, sweep: str | None = None) -> list[RunLine]:
        """Every run, newest first, in a few words.

        Raises:
            NotFoundError: there is no such sweep.
        """
        columns = (Run.id, Run.identity, Run.estimator, Run.seed, Run.status, Run.step, Run.steps)
        more = (Run.stage, Run.stop_requested, Run.error, *_LEASE)
        with self._read() as connection:
            sweep_id = None if sweep is None else self._require_sweep(connection, sweep)
            query = _of_sweep(select(*columns, *more), sweep_id).order_by(Run.id.desc())
            return [
                RunLine(
                    id=row.id,
                    identity=row.identity,
                    estimator=row.estimator,
                    seed=row.seed,
                    status=self._status(row),
                    step=row.step,
                    steps=row.steps,
                    stage=row.stage,
                    stop_requested=row.stop_requested,
                    error=row.error,
                    host=host_name(row.host),
                    pid=row.pid,
                )
                for row in connection.execute(query)
            ]

    def outlines(self, sweep: str | None = None) -> list[RunOutline]:
        """Every run, by id, or else in the order of the sweep's plan.

        Raises:
            NotFoundError: there is no such sweep.
        """
        # Other runs need no heartbeat, and converting it takes as long as the rest of a row.
        heartbeat = case((Run.status == Status.RUNNING, Run.heartbeat)).label("heartbeat")
        stored = [getattr(Run, name) for name in RunOutline._fields[:-2]]
        query = select(*stored, Run.status, *_LEASE[:-1], heartbeat).order_by(Run.id)
        with self._read() as connection:
            positions: dict[int, int] = {}
            if sweep is not None:
                sweep_id = self._require_sweep(connection, sweep)
                positions = _positions(connection, sweep_id)
                query = _of_sweep(query, sweep_id)
            sweeps = _sweep_names(connection)
            # One row at a time: the texts of all configs would take most of the memory.
            outlines = [
                RunOutline._make((*row[: len(stored)], self._status(row), sweeps.get(row.id, ())))
                for row in connection.execute(query)
            ]
        # Sorted here, since SQLite would sort whole rows, configs included.
        return sorted(outlines, key=lambda run: positions[run.id]) if positions else outlines

    def newest_ends(self, status: Status, sweep: str | None = None, *, limit: int) -> list[int]:
        """The ids of the runs that came to this end last, the newest first."""
        with self._read() as connection:
            sweep_id = None if sweep is None else self._require_sweep(connection, sweep)
            query = _of_sweep(select(Run.id), sweep_id).where(Run.status == status)
            query = query.order_by(Run.finished.desc(), Run.id.desc()).limit(limit)
            return list(connection.execute(query).scalars())

    def peers(self, run_id: int) -> list[Peer]:
        """A run and all that share a sweep with it, by id."""
        columns = (Run.id, Run.config_hash, Run.step, Run.steps, Run.status == Status.DONE)
        query = select(*columns).where(Run.id.in_(ids_of_peers(run_id))).order_by(Run.id)
        with self._read() as connection:
            return [Peer(*row) for row in connection.execute(query).all()]


def _positions(connection: Connection, sweep_id: int) -> dict[int, int]:
    """Where in its plan each run of a sweep is, by id."""
    query = select(SweepRun.run_id, SweepRun.position).where(SweepRun.sweep_id == sweep_id)
    return {row.run_id: row.position for row in connection.execute(query)}


def _sweep_names(connection: Connection) -> dict[int, tuple[str, ...]]:
    """The names of each run's sweeps, sorted."""
    query = select(SweepRun.run_id, Sweep.name).join(Sweep, Sweep.id == SweepRun.sweep_id)
    found: dict[int, tuple[str, ...]] = {}
    alone: dict[str, tuple[str, ...]] = {}
    for run_id, name in connection.execute(query.order_by(Sweep.name)):
        known = found.get(run_id)
        found[run_id] = alone.setdefault(name, (name,)) if known is None else (*known, name)
    return found


def _of_sweep(query: Select[*tuple[Any, ...]], sweep_id: int | None) -> Select[*tuple[Any, ...]]:
    if sweep_id is None:
        return query
    return query.join(SweepRun, SweepRun.run_id == Run.id).where(SweepRun.sweep_id == sweep_id)
