"""Metric points and summaries: what was measured in each run."""

from __future__ import annotations

import math
import sqlite3
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
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

from advsweep.store.base import Shared, StorePart, chunks, ids_of_peers
from advsweep.store.tables import Checkpoint, Metric, Point, Run, Summary

if TYPE_CHECKING:
    from jaxtyping import Float, Int

    Series = tuple[Int[np.ndarray, " steps"], Float[np.ndarray, " steps"]]

_UPSERT = (
    "INSERT INTO points (run_id, metric_id, step, value) VALUES (?, ?, ?, ?)"
    " ON CONFLICT (run_id, metric_id, step) DO UPDATE SET value = excluded.value"
)

# A thousand rows as three arrays: parameters for each row cost thirty times as much.
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

# A curve as two texts, in as many digits as it takes: values one by one take ten times as long.
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
    """The part of a store that holds what was measured in each run."""

    def __init__(self, shared: Shared) -> None:
        super().__init__(shared)
        # Names are never removed, so what was read once stays true.
        self._metric_ids: dict[str, int] = {}

    def add(self, run_id: int, points: Sequence[tuple[str, int, float]]) -> None:
        """Adds metric points (name, step, value); of the same name and step the last counts.

        Quickest with about 1,000 at a time.
        """
        with self._write() as connection:
            self._require_lease(connection, run_id)
            ids = self._insert_points(connection, run_id, points)
        self._metric_ids.update(ids)

    def record(
        self,
        run_id: int,
        points: Sequence[tuple[str, int, float]],
        *,
        step: int | None = None,
        stage: str | None = None,
    ) -> None:
        """Adds points, as `add`, and renews the run's lease in the same transaction.

        Raises:
            LeaseLostError: another process has taken the run over.
        """
        with self._write() as connection:
            self._renew(connection, run_id, step, stage)
            ids = self._insert_points(connection, run_id, points)
        self._metric_ids.update(ids)

    def _insert_points(
        self, connection: Connection, run_id: int, points: Sequence[tuple[str, int, float]]
    ) -> dict[str, int]:
        """Returns the ids of their names, which are good once the transaction is over."""
        ids = self._name_ids(connection, {name for name, _, _ in points})
        if points:
            rows = [(ids[name], step, storable(value)) for name, step, value in points]
            self._put_points(connection, run_id, rows)
        return ids

    def _put_points(
        self, connection: Connection, run_id: int, rows: Sequence[tuple[int, int, float | None]]
    ) -> None:
        """Writes points (metric, step, value) by whichever statement is quickest."""
        if connection.dialect.name == "postgresql":
            # A statement may not touch a row twice there.
            last = {(metric, step): value for metric, step, value in rows}
            metrics, steps = zip(*last, strict=True)
            values = {"run": run_id, "metrics": [*metrics], "steps": [*steps]}
            connection.execute(_UNNESTED, values | {"values": [*last.values()]})
            return
        # Straight to the driver: SQLAlchemy's own way takes half of the time of a small commit.
        driver = connection.connection.driver_connection
        assert isinstance(driver, sqlite3.Connection)
        driver.executemany(_UPSERT, [(run_id, *row) for row in rows])

    def _name_ids(self, connection: Connection, names: Iterable[str]) -> dict[str, int]:
        ids = {name: self._metric_ids[name] for name in names if name in self._metric_ids}
        ids |= self._recorded_ids(connection, set(names) - set(ids))
        if new := sorted(set(names) - set(ids)):
            rows = [{"name": name} for name in new]
            connection.execute(self._insert_or_ignore(Metric, "name"), rows)
            ids |= self._recorded_ids(connection, new)
        return ids

    def _recorded_ids(self, connection: Connection, names: Collection[str]) -> dict[str, int]:
        if not names:
            return {}
        query = select(Metric.name, Metric.id).where(Metric.name.in_(names))
        return {row.name: row.id for row in connection.execute(query)}

    def truncate(self, run_id: int, after_step: int) -> None:
        """Forgets the metric points and checkpoints past a step, to which a run goes back."""
        with self._write() as connection:
            self._require_lease(connection, run_id)
            for model in (Point, Checkpoint):
                past = (model.run_id == run_id, model.step > after_step)
                connection.execute(delete(model).where(*past))
            ahead = (Run.id == run_id, Run.step > after_step)
            connection.execute(update(Run).where(*ahead).values(step=after_step))

    def names(self, run_id: int) -> list[str]:
        """The metrics that a run has points of, sorted."""
        has_points = select(Point.step).where(Point.run_id == run_id, Point.metric_id == Metric.id)
        with self._read() as connection:
            query = select(Metric.name).where(has_points.exists()).order_by(Metric.name)
            return list(connection.execute(query).scalars())

    def points(
        self, run_id: int, names: Sequence[str] | None = None, *, since: int | None = None
    ) -> list[tuple[str, int, float]]:
        """A run's metric points (name, step, value) by name and step; all of them by default.

        Args:
            since: those of this step and of later ones.
        """
        query = select(Metric.name, Point.step, Point.value).where(
            Metric.id == Point.metric_id, Point.run_id == run_id
        )
        if names is not None:
            query = query.where(Metric.name.in_(names))
        if since is not None:
            query = query.where(Point.step >= since)
        with self._read() as connection:
            rows = connection.execute(query.order_by(Metric.name, Point.step)).all()
        return [(name, step, _number(value)) for name, step, value in rows]

    def series(self, run_ids: Sequence[int], name: str) -> dict[int, Series]:
        """The curve of one metric for each run that has it: steps and values, by step."""
        curves: dict[int, Series] = {}
        with self._read() as connection:
            for chosen in self._chosen(connection, run_ids, name):
                if connection.dialect.name == "postgresql":
                    rows = connection.execute(_JOINED.where(*chosen))
                    curves.update((run, _parsed(steps, values)) for run, steps, values in rows)
                    continue
                query = select(Point.run_id, Point.step, Point.value).where(*chosen)
                cursor = connection.execute(query.order_by(Point.run_id, Point.step)).cursor
                assert cursor is not None
                # The driver's own tuples: making rows of them takes as long as reading them.
                curves.update(_split(cursor.fetchall()))
        return curves

    def _chosen(
        self,
        connection: Connection,
        run_ids: Sequence[int],
        name: str,
        *,
        first: int | None = None,
        last: int | None = None,
    ) -> Iterator[list[ColumnElement[bool]]]:
        """Conditions for a metric's points of some runs, in portions that a statement can take."""
        metric = connection.execute(select(Metric.id).where(Metric.name == name)).scalar()
        within: list[ColumnElement[bool]] = []
        if first is not None:
            within.append(Point.step <= first)
        if last is not None:
            within += [Run.id == Point.run_id, Point.step > Run.steps - last]
        for ids in chunks(run_ids):
            yield [Point.metric_id == metric, Point.run_id.in_(ids), *within]

    def means(
        self,
        run_ids: Sequence[int],
        name: str,
        *,
        first: int | None = None,
        last: int | None = None,
    ) -> dict[int, float]:
        """The mean of a metric over the steps of each run; runs that lack it are left out.

        Steps whose value is not a number are left out of the mean, which is rounded once: the
        same points have the same mean to the last digit, whatever database they are in.

        Args:
            first: over this many steps from the start, or as many as there are.
            last: over this many steps before the end that was planned.
        """
        found: dict[int, float] = {}
        with self._read() as connection:
            for chosen in self._chosen(connection, run_ids, name, first=first, last=last):
                if connection.dialect.name == "postgresql":
                    curves = connection.execute(_JOINED.where(*chosen))
                    rows = [(run_id, _mean(_numbers(values))) for run_id, _, values in curves]
                    found.update((run_id, mean) for run_id, mean in rows if mean is not None)
                    continue
                driver = connection.connection.driver_connection
                assert isinstance(driver, sqlite3.Connection)
                # Points that go from the database to a list of floats, and no further.
                # Its type stub knows of aggregates that are integers alone.
                driver.create_aggregate("exact_mean", 1, _ExactMean)  # type: ignore[arg-type]
                query = select(Point.run_id, func.exact_mean(Point.value)).where(*chosen)
                means = connection.execute(query.group_by(Point.run_id))
                found.update((run_id, mean) for run_id, mean in means if mean is not None)
        return found

    def last_values(
        self, run_ids: Sequence[int], names: Sequence[str]
    ) -> dict[int, dict[str, float]]:
        """The newest point of each metric in each run; what a run lacks is left out."""
        newest = (
            select(Point.value)
            .where(Point.run_id == Run.id, Point.metric_id == Metric.id)
            .order_by(Point.step.desc())
            .limit(1)
        )
        # NULL is either no point or not a number.
        exists = newest.with_only_columns(Point.step).order_by(None).exists()
        found: dict[int, dict[str, float]] = {}
        with self._read() as connection:
            for ids in chunks(run_ids):
                query = (
                    select(Run.id, Metric.name, newest.scalar_subquery())
                    .join(Metric, Metric.name.in_(names))
                    .where(Run.id.in_(ids), exists)
                )
                for run_id, name, value in connection.execute(query):
                    found.setdefault(run_id, {})[name] = _number(value)
        return found

    def set_summaries(self, run_id: int, values: Mapping[str, float]) -> None:
        """Keeps numbers about a whole run, in the place of earlier ones of the same names."""
        if not values:
            return
        with self._write() as connection:
            self._require_lease(connection, run_id)
            ids = self._name_ids(connection, values)
            rows = [(ids[name], storable(value)) for name, value in values.items()]
            self._put_summaries(connection, run_id, rows)
        self._metric_ids.update(ids)

    def _put_summaries(
        self, connection: Connection, run_id: int, rows: Sequence[tuple[int, float | None]]
    ) -> None:
        statement = self._insert_or_update(Summary, "run_id", "metric_id", update="value")
        values = [{"run_id": run_id, "metric_id": metric, "value": v} for metric, v in rows]
        connection.execute(statement, values)

    def summaries(self, run_ids: Sequence[int]) -> dict[int, dict[str, float]]:
        """The numbers about each run that has any."""
        found: dict[int, dict[str, float]] = {}
        with self._read() as connection:
            for ids in chunks(run_ids):
                query = select(Summary.run_id, Metric.name, Summary.value).where(
                    Metric.id == Summary.metric_id, Summary.run_id.in_(ids)
                )
                for run_id, name, value in connection.execute(query.order_by(Metric.name)):
                    found.setdefault(run_id, {})[name] = _number(value)
        return found

    def recent_means(
        self, run_ids: Sequence[int], names: Sequence[str], steps: int
    ) -> dict[int, dict[str, float]]:
        """The means of some metrics over each run's newest steps; what a run lacks is left out.

        Args:
            steps: how many steps, counted back from the one that the run is at.
        """
        query = (
            select(Point.run_id, Metric.name, func.avg(Point.value))
            .join(Metric, Metric.id == Point.metric_id)
            .join(Run, Run.id == Point.run_id)
            .where(Metric.name.in_(names), Point.step > Run.step - steps)
            .group_by(Point.run_id, Metric.name)
        )
        found: dict[int, dict[str, float]] = {}
        with self._read() as connection:
            for ids in chunks(run_ids):
                for run_id, name, mean in connection.execute(query.where(Run.id.in_(ids))):
                    if mean is not None:
                        found.setdefault(run_id, {})[name] = mean
        return found

    def peers_means(self, run_id: int, name: str, first: int, last: int) -> dict[int, float]:
        """The means of a metric over the steps `first` to `last`, of a run and its peers.

        Steps whose value is not finite are left out, and so are runs without any other.
        """
        query = (
            select(Point.run_id, func.avg(Point.value).label("mean"))
            .where(
                Point.run_id.in_(ids_of_peers(run_id)),
                Point.metric_id == select(Metric.id).where(Metric.name == name).scalar_subquery(),
                Point.step.between(first, last),
                Point.value.between(-sys.float_info.max, sys.float_info.max),
            )
            .group_by(Point.run_id)
        )
        with self._read() as connection:
            return {row.run_id: row.mean for row in connection.execute(query).all()}


class _ExactMean:
    """An aggregate for SQLite: the mean that `Metrics.means` describes."""

    def __init__(self) -> None:
        self._values: list[float | None] = []
        # Called for each point, so that a method of ours would take most of the time.
        self.step: Callable[[float | None], None] = self._values.append

    def finalize(self) -> float | None:
        return _mean([value for value in self._values if value is not None])


def _mean(values: Sequence[float]) -> float | None:
    """The mean, rounded once; None for no values, and for infinities of both signs."""
    try:
        return math.fsum(values) / len(values) if values else None
    except ValueError:
        return None


def _numbers(joined: str) -> list[float]:
    values = map(float, joined.split(","))
    return [value for value in values if not math.isnan(value)]


def storable(value: float) -> float | None:
    """What is not a number is kept as NULL, which means in SQL leave out."""
    return None if math.isnan(value) else value


def _number(value: float | None) -> float:
    return math.nan if value is None else value


def _parsed(steps: str, values: str) -> Series:
    return np.array(steps.split(","), np.int64), np.array(values.split(","), np.float64)


def _split(rows: Sequence[tuple[int, int, float | None]]) -> dict[int, Series]:
    """Rows of (run, step, value), in order of the run, as one curve for each run."""
    if not rows:
        return {}
    # Ids and steps are far below 2**53; NULL becomes NaN.
    runs, steps, values = np.array(rows, dtype=np.float64).T
    starts = np.flatnonzero(np.diff(runs, prepend=-1.0))
    bounds = zip(starts, [*starts[1:], len(runs)], strict=True)
    steps = steps.astype(np.int64)
    return {int(runs[a]): (steps[a:b], values[a:b].copy()) for a, b in bounds}
