"""Metrics: the points of each run, and its summaries."""

from __future__ import annotations

import math
import sqlite3
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from sqlalchemy import (
    ARRAY,
    ColumnElement,
    Connection,
    Double,
    Integer,
    Text,
    bindparam,
    cast,
    delete,
    func,
    literal,
    select,
    text,
    update,
)
from sqlalchemy.dialects.postgresql import aggregate_order_by

from advsweep.store.base import (
    Shared,
    StorePart,
    chunks,
    insert_or_ignore,
    insert_or_update,
    peer_ids,
)
from advsweep.store.tables import Checkpoint, Metric, Point, Run, Summary

if TYPE_CHECKING:
    from jaxtyping import Float, Int

    Series = tuple[Int[np.ndarray, " steps"], Float[np.ndarray, " steps"]]

_UPSERT = (
    "INSERT INTO points (run_id, metric_id, step, value) VALUES (?, ?, ?, ?)"
    " ON CONFLICT (run_id, metric_id, step) DO UPDATE SET value = excluded.value"
)

# A thousand rows as three arrays: parameters for each row take thirty times as long.
_UNNESTED = text(
    "INSERT INTO points (run_id, metric_id, step, value)"
    " SELECT :run, * FROM unnest(:metrics, :steps, :values)"
    " ON CONFLICT (run_id, metric_id, step) DO UPDATE SET value = excluded.value"
).bindparams(
    bindparam("run", type_=Integer),
    bindparam("metrics", type_=ARRAY(Integer)),
    bindparam("steps", type_=ARRAY(Integer)),
    bindparam("values", type_=ARRAY(Double)),
)

# A curve as two texts of full precision: values one by one take ten times as long.
_JOINED = (
    select(
        Point.run_id,
        func.string_agg(cast(Point.step, Text), aggregate_order_by(literal(","), Point.step)),
        func.string_agg(
            func.coalesce(cast(Point.value, Text), "nan"),
            aggregate_order_by(literal(","), Point.step),
        ),
    )
    .group_by(Point.run_id)
    .order_by(Point.run_id)
)


class Metrics(StorePart):
    """Metric points and summaries of runs.

    A point is a name, a step and a value. A run has one value for each name and step: the last
    that was recorded. Values that are not a number are stored and returned as NaN.
    """

    def __init__(self, shared: Shared) -> None:
        super().__init__(shared)
        # Names are never removed, so this cache stays valid.
        self._ids: dict[str, int] = {}

    def record(
        self,
        run_id: int,
        points: Sequence[tuple[str, int, float]],
        *,
        step: int | None = None,
        stage: str | None = None,
    ) -> None:
        """Records metric points (name, step, value), fastest with about 1,000 at a time.

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
            ids = metric_ids(connection, {name for name, _, _ in points}, self._ids)
            if points:
                rows = [(ids[name], step, storable(value)) for name, step, value in points]
                write_points(connection, run_id, rows)
        # New ids are valid only once the transaction is committed.
        self._ids.update(ids)

    def truncate(self, run_id: int, after_step: int) -> None:
        """Removes the metric points and checkpoint records after a step that a run resumes from."""
        with self._database.write() as connection:
            self._guard.require(connection, run_id)
            # The run will record these steps again.
            for model in (Point, Checkpoint):
                connection.execute(
                    delete(model).where(model.run_id == run_id, model.step > after_step)
                )
            ahead = update(Run).where(Run.id == run_id, Run.step > after_step)
            connection.execute(ahead.values(step=after_step))

    def names(self, run_id: int) -> list[str]:
        """Returns the sorted names of the metrics that a run has points of."""
        has_points = select(Point.step).where(Point.run_id == run_id, Point.metric_id == Metric.id)
        with self._database.read() as connection:
            query = select(Metric.name).where(has_points.exists()).order_by(Metric.name)
            return list(connection.execute(query).scalars())

    def points(
        self, run_id: int, names: Sequence[str] | None = None, *, since: int | None = None
    ) -> list[tuple[str, int, float]]:
        """Returns the metric points (name, step, value) of a run, by name and step.

        Args:
            names: only these metrics.
            since: only this step and later ones.
        """
        query = select(Metric.name, Point.step, Point.value).where(
            Metric.id == Point.metric_id, Point.run_id == run_id
        )
        if names is not None:
            query = query.where(Metric.name.in_(names))
        if since is not None:
            query = query.where(Point.step >= since)
        with self._database.read() as connection:
            rows = connection.execute(query.order_by(Metric.name, Point.step)).all()
        return [(name, step, _from_stored(value)) for name, step, value in rows]

    def series(self, run_ids: Sequence[int], name: str) -> dict[int, Series]:
        """Returns the steps and values of one metric by run, in the order of the steps."""
        curves: dict[int, Series] = {}
        with self._database.read() as connection:
            for chosen in _conditions(connection, run_ids, name):
                if connection.dialect.name == "postgresql":
                    for run_id, *texts in connection.execute(_JOINED.where(*chosen)):
                        steps, values = (joined.split(",") for joined in texts)
                        curves[run_id] = np.array(steps, np.int64), np.array(values, np.float64)
                    continue
                query = select(Point.run_id, Point.step, Point.value).where(*chosen)
                cursor = connection.execute(query.order_by(Point.run_id, Point.step)).cursor
                assert cursor is not None
                # The driver's own tuples: converting them to rows takes as long as reading them.
                curves.update(_curves(cursor.fetchall()))
        return curves

    def means(
        self,
        run_ids: Sequence[int],
        name: str,
        *,
        first: int | None = None,
        last: int | None = None,
    ) -> dict[int, float]:
        """Returns the mean of a metric over the steps of each run; runs without it are left out.

        NaN values are left out of the mean. The sum is exact and rounded once, so that the same
        points have the same mean to the last digit in every database.

        Args:
            first: only this many steps from the start.
            last: only this many steps before the planned end.
        """
        found: dict[int, float] = {}
        with self._database.read() as connection:
            for chosen in _conditions(connection, run_ids, name, first=first, last=last):
                if connection.dialect.name == "postgresql":
                    curves = connection.execute(_JOINED.where(*chosen))
                    for run_id, _, joined in curves:
                        values = [v for v in map(float, joined.split(",")) if not math.isnan(v)]
                        if (mean := _mean(values)) is not None:
                            found[run_id] = mean
                    continue
                driver = connection.connection.driver_connection
                assert isinstance(driver, sqlite3.Connection)
                # The points become one list of floats, not rows. The stub only knows integers.
                driver.create_aggregate("exact_mean", 1, _ExactMean)  # type: ignore[arg-type]
                query = select(Point.run_id, func.exact_mean(Point.value)).where(*chosen)
                means = connection.execute(query.group_by(Point.run_id))
                found.update((run_id, mean) for run_id, mean in means if mean is not None)
        return found

    def last_values(
        self, run_ids: Sequence[int], names: Sequence[str]
    ) -> dict[int, dict[str, float]]:
        """Returns the newest value of each metric in each run; missing metrics are left out."""
        newest = (
            select(Point.value)
            .where(Point.run_id == Run.id, Point.metric_id == Metric.id)
            .order_by(Point.step.desc())
            .limit(1)
        )
        # A NULL could mean no point, or a point whose value is NaN.
        exists = newest.with_only_columns(Point.step).order_by(None).exists()
        found: dict[int, dict[str, float]] = {}
        with self._database.read() as connection:
            for ids in chunks(run_ids):
                query = (
                    select(Run.id, Metric.name, newest.scalar_subquery())
                    .join(Metric, Metric.name.in_(names))
                    .where(Run.id.in_(ids), exists)
                )
                for run_id, name, value in connection.execute(query):
                    found.setdefault(run_id, {})[name] = _from_stored(value)
        return found

    def set_summaries(self, run_id: int, values: Mapping[str, float]) -> None:
        """Stores numbers about a whole run; they replace earlier ones of the same names."""
        if not values:
            return
        with self._database.write() as connection:
            self._guard.require(connection, run_id)
            ids = metric_ids(connection, values, self._ids)
            rows = [(ids[name], storable(value)) for name, value in values.items()]
            write_summaries(connection, run_id, rows)
        self._ids.update(ids)

    def summaries(self, run_ids: Sequence[int]) -> dict[int, dict[str, float]]:
        """Returns the numbers that `set_summaries` stored for each run."""
        found: dict[int, dict[str, float]] = {}
        with self._database.read() as connection:
            for ids in chunks(run_ids):
                query = select(Summary.run_id, Metric.name, Summary.value).where(
                    Metric.id == Summary.metric_id, Summary.run_id.in_(ids)
                )
                for run_id, name, value in connection.execute(query.order_by(Metric.name)):
                    found.setdefault(run_id, {})[name] = _from_stored(value)
        return found

    def recent_means(
        self, run_ids: Sequence[int], names: Sequence[str], steps: int
    ) -> dict[int, dict[str, float]]:
        """Returns the means of some metrics over the newest steps of each run.

        Args:
            steps: number of steps before the current step of the run.
        """
        query = (
            select(Point.run_id, Metric.name, func.avg(Point.value))
            .join(Metric, Metric.id == Point.metric_id)
            .join(Run, Run.id == Point.run_id)
            .where(Metric.name.in_(names), Point.step > Run.step - steps)
            .group_by(Point.run_id, Metric.name)
        )
        found: dict[int, dict[str, float]] = {}
        with self._database.read() as connection:
            for ids in chunks(run_ids):
                for run_id, name, mean in connection.execute(query.where(Run.id.in_(ids))):
                    if mean is not None:
                        found.setdefault(run_id, {})[name] = mean
        return found

    def peers_means(self, run_id: int, name: str, first: int, last: int) -> dict[int, float]:
        """Returns the means of a metric over steps `first` to `last`, of a run and its peers.

        Values that are not finite are left out, and runs without any other value too.
        """
        query = select(Point.run_id, func.avg(Point.value).label("mean")).where(
            Point.run_id.in_(peer_ids(run_id)),
            Point.metric_id == select(Metric.id).where(Metric.name == name).scalar_subquery(),
            Point.step.between(first, last),
            Point.value.between(-sys.float_info.max, sys.float_info.max),
        )
        with self._database.read() as connection:
            rows = connection.execute(query.group_by(Point.run_id)).all()
        return {row.run_id: row.mean for row in rows}


def metric_ids(
    connection: Connection, names: Iterable[str], known: Mapping[str, int] | None = None
) -> dict[str, int]:
    """Returns the ids of metrics by name, and adds the names that the store lacks.

    Args:
        known: ids that need no query.
    """
    ids = {name: known[name] for name in names if name in known} if known else {}
    missing = sorted(set(names) - set(ids))
    if not missing:
        return ids
    query = select(Metric.name, Metric.id).where(Metric.name.in_(missing))
    found = {row.name: row.id for row in connection.execute(query)}
    if new := [{"name": name} for name in missing if name not in found]:
        connection.execute(insert_or_ignore(connection, Metric, "name"), new)
        found = {row.name: row.id for row in connection.execute(query)}
    return ids | found


def write_points(
    connection: Connection, run_id: int, rows: Sequence[tuple[int, int, float | None]]
) -> None:
    """Writes points (metric id, step, value) by the fastest statement of the database."""
    if connection.dialect.name == "postgresql":
        # There, one statement cannot write the same row twice.
        last = {(metric, step): value for metric, step, value in rows}
        metrics, steps = zip(*last, strict=True)
        values = {"run": run_id, "metrics": [*metrics], "steps": [*steps]}
        connection.execute(_UNNESTED, values | {"values": [*last.values()]})
        return
    # Straight to the driver: SQLAlchemy's own way takes half of the time of a small commit.
    driver = connection.connection.driver_connection
    assert isinstance(driver, sqlite3.Connection)
    driver.executemany(_UPSERT, [(run_id, *row) for row in rows])


def write_summaries(
    connection: Connection, run_id: int, rows: Sequence[tuple[int, float | None]]
) -> None:
    """Writes summaries (metric id, value)."""
    statement = insert_or_update(connection, Summary, "run_id", "metric_id", update="value")
    values = [{"run_id": run_id, "metric_id": metric, "value": v} for metric, v in rows]
    connection.execute(statement, values)


def _conditions(
    connection: Connection,
    run_ids: Sequence[int],
    name: str,
    *,
    first: int | None = None,
    last: int | None = None,
) -> Iterator[list[ColumnElement[bool]]]:
    """Yields conditions for a metric's points, in portions that fit one statement."""
    metric = connection.execute(select(Metric.id).where(Metric.name == name)).scalar()
    within: list[ColumnElement[bool]] = []
    if first is not None:
        within.append(Point.step <= first)
    if last is not None:
        within += [Run.id == Point.run_id, Point.step > Run.steps - last]
    for ids in chunks(run_ids):
        yield [Point.metric_id == metric, Point.run_id.in_(ids), *within]


class _ExactMean:
    """An aggregate function for SQLite: the mean that `Metrics.means` describes."""

    def __init__(self) -> None:
        self._values: list[float | None] = []
        # SQLite calls it for each point: a Python method would take most of the time.
        self.step: Callable[[float | None], None] = self._values.append

    def finalize(self) -> float | None:
        return _mean([value for value in self._values if value is not None])


def _mean(values: Sequence[float]) -> float | None:
    """Returns the mean, rounded once; None without values or with infinities of both signs."""
    try:
        return math.fsum(values) / len(values) if values else None
    except ValueError:
        return None


def storable(value: float) -> float | None:
    """Returns None for NaN, which becomes NULL; SQL aggregates leave NULL out."""
    return None if math.isnan(value) else value


def _from_stored(value: float | None) -> float:
    return math.nan if value is None else value


def _curves(rows: Sequence[tuple[int, int, float | None]]) -> dict[int, Series]:
    """Splits rows of (run, step, value), sorted by run, into one curve per run."""
    if not rows:
        return {}
    # Floats hold ids and steps exactly, as they are far below 2**53. NULL becomes NaN.
    runs, steps, values = np.array(rows, dtype=np.float64).T
    starts = np.flatnonzero(np.diff(runs, prepend=-1.0))
    bounds = zip(starts, [*starts[1:], len(runs)], strict=True)
    steps = steps.astype(np.int64)
    return {int(runs[a]): (steps[a:b], values[a:b].copy()) for a, b in bounds}
