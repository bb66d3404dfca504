"""What a run records while it trains: metric points, summaries and checkpoints."""

from __future__ import annotations

import contextlib
import itertools
import math
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlalchemy import (
    Connection,
    Select,
    delete,
    func,
    literal,
    or_,
    select,
    true,
    union_all,
    update,
)

from advsweep.store.analysis_records import CheckpointRecord
from advsweep.store.base import StorePart, chunks, put, rows_among
from advsweep.store.tables import CHECKPOINTS, METRICS, POINTS, RUNS, SUMMARIES, SWEEP_RUNS

if TYPE_CHECKING:
    import numpy as np
    from jaxtyping import Float, Int

    from advsweep.store.store import Store

    # The steps and the values of a metric of one run.
    Series = tuple[Int[np.ndarray, " steps"], Float[np.ndarray, " steps"]]

_FINITE = POINTS.c.value.between(-sys.float_info.max, sys.float_info.max)


class Metrics(StorePart):
    """Metric points and summaries of runs.

    A point is a name, a step and a value. A run has one value for each name and step: the last
    that was recorded. Values that are not a number are stored and returned as NaN.
    """

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        # Names are never removed, so that ids need no query for each batch of points.
        self._ids: dict[str, int] = {}

    def record(
        self,
        run_id: int,
        points: Sequence[tuple[str, int, float]],
        *,
        step: int | None = None,
        stage: str | None = None,
    ) -> None:
        """Record metric points (name, step, value), fastest with about 1,000 at a time.

        The same transaction renews the lease of a run that this store object holds.

        Args:
            step: the training step that the run has reached; needs the lease.
            stage: what the run is doing, such as `training`; needs the lease.

        Raises:
            LeaseLostError: another process has taken the run over.
        """
        with self._database.write() as connection:
            if run_id in self._guard.held or step is not None or stage is not None:
                self._guard.renew(connection, run_id, step=step, stage=stage)
            ids = self._ids
            if unknown := {name for name, _, _ in points} - ids.keys():
                ids = ids | metric_ids(connection, unknown)
            write_points(connection, run_id, [(ids[name], s, value) for name, s, value in points])
        # New ids are valid only once the transaction is committed.
        self._ids = ids

    def truncate(self, run_id: int, after_step: int) -> None:
        """Remove the metric points and checkpoint records after a step that a run resumes from."""
        with self._database.write() as connection:
            self._guard.require(connection, run_id)
            # The run will record these steps again.
            for table in (POINTS, CHECKPOINTS):
                connection.execute(
                    delete(table).where(table.c.run_id == run_id, table.c.step > after_step)
                )
            ahead = update(RUNS).where(RUNS.c.id == run_id, RUNS.c.step > after_step)
            connection.execute(ahead.values(step=after_step))

    def names(self, run_id: int) -> list[str]:
        """Return the sorted names of the metrics that a run has points of."""
        has_points = select(POINTS.c.step).where(
            POINTS.c.run_id == run_id, POINTS.c.metric_id == METRICS.c.id
        )
        query = select(METRICS.c.name).where(has_points.exists()).order_by(METRICS.c.name)
        return [row.name for row in self._read(query)]

    def points(
        self, run_id: int, names: Sequence[str] | None = None, *, since: int | None = None
    ) -> list[tuple[str, int, float]]:
        """Return the metric points (name, step, value) of a run, by name and step.

        Args:
            names: only these metrics.
            since: only this step and later ones.
        """
        query = select(METRICS.c.name, POINTS.c.step, POINTS.c.value).where(
            METRICS.c.id == POINTS.c.metric_id, POINTS.c.run_id == run_id
        )
        if names is not None:
            query = query.where(METRICS.c.name.in_(names))
        if since is not None:
            query = query.where(POINTS.c.step >= since)
        rows = self._read(query.order_by(METRICS.c.name, POINTS.c.step))
        return [(name, step, _from_stored(value)) for name, step, value in rows]

    def series(self, run_ids: Sequence[int], name: str) -> dict[int, Series]:
        """Return the steps and values of one metric by run, in the order of the steps."""
        import numpy as np  # takes as long to import as the rest of `ls`

        query = select(POINTS.c.run_id, POINTS.c.step, POINTS.c.value)
        rows = self._of_metric(query.order_by(POINTS.c.run_id, POINTS.c.step), run_ids, name)
        if not rows:
            return {}
        # Floats hold ids and steps exactly, as they are far below 2**53. NULL becomes NaN.
        runs, steps, values = np.array(rows, dtype=np.float64).T
        bounds = [*np.flatnonzero(np.diff(runs, prepend=-1.0)), len(runs)]
        return {
            int(runs[a]): (steps[a:b].astype(np.int64), values[a:b].copy())
            for a, b in itertools.pairwise(bounds)
        }

    def steps(self, run_ids: Sequence[int], name: str) -> list[int]:
        """Return the sorted steps at which any of some runs has a point of a metric."""
        query = select(POINTS.c.step).distinct()
        return sorted({step for (step,) in self._of_metric(query, run_ids, name)})

    def stretch_means(
        self, run_ids: Sequence[int], name: str, stretches: Sequence[tuple[int, int]]
    ) -> dict[int, Float[np.ndarray, " stretches"]]:
        """Return the mean of a metric's finite values in stretches of steps, by run.

        It is NaN in a stretch without any; runs without any are left out. The database averages,
        as reading and averaging millions of points takes three times as long.

        Args:
            stretches: the first and the last step of each; at most 500.
        """
        import numpy as np  # takes as long to import as the rest of `ls`

        selects = [
            select(
                literal(number).label("place"),
                literal(first).label("first"),
                literal(last).label("last"),
            )
            for number, (first, last) in enumerate(stretches)
        ]
        bounds = union_all(*selects).subquery()
        metric = select(METRICS.c.id).where(METRICS.c.name == name).scalar_subquery()
        # Each mean has a search of its own, as grouping would sort all points first.
        mean = select(func.avg(POINTS.c.value)).where(
            POINTS.c.run_id == RUNS.c.id,
            POINTS.c.metric_id == metric,
            POINTS.c.step.between(bounds.c.first, bounds.c.last),
            _FINITE,
        )
        query = select(RUNS.c.id, mean.scalar_subquery()).select_from(RUNS.join(bounds, true()))
        query = query.order_by(RUNS.c.id, bounds.c.place)
        means_of_runs: dict[int, Float[np.ndarray, " stretches"]] = {}
        with self._database.read() as connection:
            for ids in chunks(sorted(run_ids)):
                cursor = connection.execute(query.where(RUNS.c.id.in_(ids))).cursor
                assert cursor is not None
                rows = np.array(cursor.fetchall(), dtype=np.float64)
                by_run, means_of_rows = rows.reshape(-1, len(stretches), 2).transpose(2, 0, 1)
                run_numbers = by_run[:, 0].astype(int).tolist()
                means_of_runs |= zip(run_numbers, means_of_rows, strict=True)
        return {
            run_id: means for run_id, means in means_of_runs.items() if not np.isnan(means).all()
        }

    def means(
        self,
        run_ids: Sequence[int],
        name: str,
        *,
        first: int | None = None,
        last: int | None = None,
    ) -> dict[int, float]:
        """Return the mean of a metric over the steps of each run; runs without it are left out.

        NaN values are left out of the mean. The sum is exact and rounded once, so that the same
        points have the same mean to the last digit in every database.

        Args:
            first: only this many steps from the start.
            last: only this many steps before the planned end.
        """
        query = select(POINTS.c.run_id, POINTS.c.value).where(POINTS.c.value.is_not(None))
        if first is not None:
            query = query.where(POINTS.c.step <= first)
        if last is not None:
            query = query.join(RUNS).where(POINTS.c.step > RUNS.c.steps - last)
        values: dict[int, list[float]] = defaultdict(list)
        for run_id, value in self._of_metric(query, run_ids, name):
            values[run_id].append(value)
        means = {}
        for run_id, numbers in values.items():
            # Infinities of both signs have no mean.
            with contextlib.suppress(ValueError):
                means[run_id] = math.fsum(numbers) / len(numbers)
        return means

    def _of_metric(
        self, query: Select[Any], run_ids: Sequence[int], name: str
    ) -> list[tuple[Any, ...]]:
        """Return the rows of a query of points that are of one metric and some runs.

        They are the driver's own tuples: for millions of points, rows would take twice as long.
        """
        rows: list[tuple[Any, ...]] = []
        with self._database.read() as connection:
            metric = connection.execute(select(METRICS.c.id).where(METRICS.c.name == name)).scalar()
            query = query.where(POINTS.c.metric_id == metric)
            for ids in chunks(sorted(run_ids)):
                cursor = connection.execute(query.where(POINTS.c.run_id.in_(ids))).cursor
                assert cursor is not None
                rows += cursor.fetchall()
        return rows

    def last_values(
        self, run_ids: Sequence[int], names: Sequence[str]
    ) -> dict[int, dict[str, float]]:
        """Return the newest value of each metric in each run; missing metrics are left out."""
        newest = (
            select(POINTS.c.value)
            .where(POINTS.c.run_id == RUNS.c.id, POINTS.c.metric_id == METRICS.c.id)
            .order_by(POINTS.c.step.desc())
            .limit(1)
        )
        # A NULL could mean no point, or a point whose value is NaN.
        exists = newest.with_only_columns(POINTS.c.step).order_by(None).exists()
        query = select(RUNS.c.id, METRICS.c.name, newest.scalar_subquery())
        query = query.join(METRICS, METRICS.c.name.in_(names)).where(exists)
        return _by_run(self._read_among(query, RUNS.c.id, run_ids))

    def last_steps(self, run_ids: Sequence[int], name: str) -> dict[int, int]:
        """Return the last step at which each run has a number of a metric, not NaN."""
        newest = (
            select(POINTS.c.step)
            .where(
                POINTS.c.run_id == RUNS.c.id,
                POINTS.c.metric_id == METRICS.c.id,
                POINTS.c.value.is_not(None),
            )
            .order_by(POINTS.c.step.desc())
            .limit(1)
        )
        query = select(RUNS.c.id, newest.scalar_subquery())
        query = query.join(METRICS, METRICS.c.name == name)
        rows = self._read_among(query, RUNS.c.id, run_ids)
        return {run_id: step for run_id, step in rows if step is not None}

    def set_summaries(self, run_id: int, values: Mapping[str, float]) -> None:
        """Store numbers about a whole run; they replace earlier ones of the same names."""
        with self._database.write() as connection:
            self._guard.require(connection, run_id)
            ids = metric_ids(connection, values)
            rows = [
                {"run_id": run_id, "metric_id": ids[name], "value": _storable(value)}
                for name, value in values.items()
            ]
            put(connection, SUMMARIES, rows, update="value")

    def summaries(self, run_ids: Sequence[int]) -> dict[int, dict[str, float]]:
        """Return the numbers that `set_summaries` stored for each run."""
        query = select(SUMMARIES.c.run_id, METRICS.c.name, SUMMARIES.c.value)
        query = query.join(METRICS).order_by(METRICS.c.name)
        return _by_run(self._read_among(query, SUMMARIES.c.run_id, run_ids))

    def replicate_means(self, run_id: int, name: str, first: int, last: int) -> list[float]:
        """Return the means of a metric over steps `first` to `last` of a run and its replicates.

        Replicates share the config and a sweep with the run. Those that have not reached step
        `last` or have no finite value are left out, and so are values that are not finite.
        """
        sweeps = select(SWEEP_RUNS.c.sweep_id).where(SWEEP_RUNS.c.run_id == run_id)
        shared = select(SWEEP_RUNS.c.run_id).where(SWEEP_RUNS.c.sweep_id.in_(sweeps))
        config = select(RUNS.c.config_hash).where(RUNS.c.id == run_id).scalar_subquery()
        query = select(func.avg(POINTS.c.value)).join(METRICS).join(RUNS)
        query = query.where(
            or_(RUNS.c.id == run_id, RUNS.c.id.in_(shared)),
            RUNS.c.config_hash == config,
            RUNS.c.step >= last,
            METRICS.c.name == name,
            POINTS.c.step.between(first, last),
            _FINITE,
        )
        return [mean for (mean,) in self._read(query.group_by(RUNS.c.id))]


def metric_ids(connection: Connection, names: Iterable[str]) -> dict[str, int]:
    """Return the ids of metrics by name, and add the names that the store lacks."""
    wanted, ids = set(names), dict[str, int]()
    query = select(METRICS.c.name, METRICS.c.id)
    for adds in (False, True):
        missing = sorted(wanted - ids.keys())
        if adds:
            put(connection, METRICS, [{"name": name} for name in missing])
        ids.update((r.name, r.id) for r in rows_among(connection, query, METRICS.c.name, missing))
    return ids


def write_points(
    connection: Connection, run_id: int, points: Sequence[tuple[int, int, float | None]]
) -> None:
    """Write points (metric id, step, value)."""
    # PostgreSQL cannot write the same row twice in one statement.
    last = {(metric, step): value for metric, step, value in points}
    rows = [
        {"run_id": run_id, "metric_id": metric, "step": step, "value": _storable(value)}
        for (metric, step), value in last.items()
    ]
    put(connection, POINTS, rows, update="value")


def _by_run(rows: Iterable[Any]) -> dict[int, dict[str, float]]:
    """Return rows of a run, a name and a value as values by name of each run."""
    values: dict[int, dict[str, float]] = {}
    for run_id, name, value in rows:
        values.setdefault(run_id, {})[name] = _from_stored(value)
    return values


def _storable(value: float | None) -> float | None:
    # NaN becomes NULL; SQL aggregates leave NULL out.
    return None if value is None or math.isnan(value) else value


def _from_stored(value: float | None) -> float:
    return math.nan if value is None else value


class Checkpoints(StorePart):
    """The records of checkpoints; the files lie in the folders of the runs."""

    def add(self, run_id: int, step: int, path: Path) -> None:
        """Record a checkpoint that is complete and in its final place."""
        row = {"run_id": run_id, "path": self._stored(path), "step": step, "created": self._now()}
        with self._database.write() as connection:
            self._require_run(connection, run_id)
            self._guard.require(connection, run_id)
            put(connection, CHECKPOINTS, row, update="created")

    def remove(self, run_id: int, path: Path) -> None:
        """Remove the record of a deleted checkpoint."""
        at = (CHECKPOINTS.c.run_id == run_id, CHECKPOINTS.c.path == self._stored(path))
        with self._database.write() as connection:
            self._guard.require(connection, run_id)
            connection.execute(delete(CHECKPOINTS).where(*at))

    def select(self, run_id: int) -> list[CheckpointRecord]:
        """Return the checkpoints of a run, by step."""
        query = select(CHECKPOINTS.c.step, CHECKPOINTS.c.path, CHECKPOINTS.c.created)
        rows = self._read(query.where(CHECKPOINTS.c.run_id == run_id).order_by(CHECKPOINTS.c.step))
        folder = self._store.runs_directory
        return [
            CheckpointRecord(step=r.step, path=folder / r.path, created=r.created) for r in rows
        ]

    def _stored(self, path: Path) -> str:
        # Relative, so that the store and the folder of runs can be moved together.
        path, folder = path.absolute(), self._store.runs_directory
        return str(path.relative_to(folder) if path.is_relative_to(folder) else path)
