"""Metrics: the points of each run, and its summaries."""

from __future__ import annotations

import functools
import math
import sqlite3
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sqlalchemy import (
    ARRAY,
    ColumnElement,
    Connection,
    Double,
    Integer,
    Select,
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

from advsweep.store.base import (
    Shared,
    StorePart,
    chunks,
    insert_or_ignore,
    insert_or_update,
    peer_ids,
)
from advsweep.store.tables import CHECKPOINTS, METRICS, POINTS, RUNS, SUMMARIES

if TYPE_CHECKING:
    from advsweep.store.arrays import Series

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


@functools.cache
def _joined() -> Select[Any]:
    """Selects each curve as two texts on PostgreSQL.

    Of full precision: values one by one take ten times as long.
    """
    from sqlalchemy.dialects.postgresql import aggregate_order_by

    by_step = aggregate_order_by(literal(","), POINTS.c.step)
    values = func.coalesce(cast(POINTS.c.value, Text), "nan")
    return (
        select(
            POINTS.c.run_id,
            func.string_agg(cast(POINTS.c.step, Text), by_step),
            func.string_agg(values, by_step),
        )
        .group_by(POINTS.c.run_id)
        .order_by(POINTS.c.run_id)
    )


def _stretched(stretches: range) -> Select[Any]:
    """Selects the mean of the finite values in each stretch of steps."""
    first = literal(stretches.start)
    start = first + (POINTS.c.step - first) // stretches.step * stretches.step
    finite = POINTS.c.value.between(-sys.float_info.max, sys.float_info.max)
    mean = func.avg(POINTS.c.value).filter(finite)
    # By name: a server does not know that an expression with the same parameters is the same.
    key = POINTS.c.run_id, text("stretch")
    return select(POINTS.c.run_id, start.label("stretch"), mean).group_by(*key).order_by(*key)


def _driver_rows(connection: Connection, query: Select[Any]) -> Sequence[Any]:
    """Returns the driver's own tuples: converting them to rows takes as long as reading them."""
    cursor = connection.execute(query).cursor
    assert cursor is not None
    return cursor.fetchall()


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
            for table in (POINTS, CHECKPOINTS):
                connection.execute(
                    delete(table).where(table.c.run_id == run_id, table.c.step > after_step)
                )
            ahead = update(RUNS).where(RUNS.c.id == run_id, RUNS.c.step > after_step)
            connection.execute(ahead.values(step=after_step))

    def names(self, run_id: int) -> list[str]:
        """Returns the sorted names of the metrics that a run has points of."""
        has_points = select(POINTS.c.step).where(
            POINTS.c.run_id == run_id, POINTS.c.metric_id == METRICS.c.id
        )
        with self._database.read() as connection:
            query = select(METRICS.c.name).where(has_points.exists()).order_by(METRICS.c.name)
            return list(connection.execute(query).scalars())

    def points(
        self, run_id: int, names: Sequence[str] | None = None, *, since: int | None = None
    ) -> list[tuple[str, int, float]]:
        """Returns the metric points (name, step, value) of a run, by name and step.

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
        with self._database.read() as connection:
            rows = connection.execute(query.order_by(METRICS.c.name, POINTS.c.step)).all()
        return [(name, step, _from_stored(value)) for name, step, value in rows]

    def steps(self, run_ids: Sequence[int], name: str) -> list[int]:
        """Return the sorted steps at which any of some runs has a point of a metric."""
        found: set[int] = set()
        with self._database.read() as connection:
            for chosen in _conditions(connection, run_ids, name):
                query = select(POINTS.c.step).where(*chosen).distinct()
                found.update(connection.execute(query).scalars())
        return sorted(found)

    def series(
        self, run_ids: Sequence[int], name: str, *, stretches: range | None = None
    ) -> dict[int, Series]:
        """Returns the steps and values of one metric by run, in the order of the steps.

        Args:
            stretches: the first steps of stretches; the series then have the mean of the finite
                values in each, which the database computes. All points must lie in them.
        """
        from advsweep.store.arrays import parse_series, split_series

        curves: dict[int, Series] = {}
        with self._database.read() as connection:
            for chosen in _conditions(connection, run_ids, name):
                if stretches is not None:
                    query = _stretched(stretches).where(*chosen)
                    curves.update(split_series(_driver_rows(connection, query)))
                    continue
                if connection.dialect.name == "postgresql":
                    for run_id, steps, values in connection.execute(_joined().where(*chosen)):
                        curves[run_id] = parse_series(steps, values)
                    continue
                points = select(POINTS.c.run_id, POINTS.c.step, POINTS.c.value).where(*chosen)
                by_step = points.order_by(POINTS.c.run_id, POINTS.c.step)
                curves.update(split_series(_driver_rows(connection, by_step)))
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
                    curves = connection.execute(_joined().where(*chosen))
                    for run_id, _, joined in curves:
                        values = [v for v in map(float, joined.split(",")) if not math.isnan(v)]
                        if (mean := _mean(values)) is not None:
                            found[run_id] = mean
                    continue
                driver = connection.connection.driver_connection
                assert isinstance(driver, sqlite3.Connection)
                # The points become one list of floats, not rows. The stub only knows integers.
                driver.create_aggregate("exact_mean", 1, _ExactMean)  # type: ignore[arg-type]
                query = select(POINTS.c.run_id, func.exact_mean(POINTS.c.value)).where(*chosen)
                means = connection.execute(query.group_by(POINTS.c.run_id))
                found.update((run_id, mean) for run_id, mean in means if mean is not None)
        return found

    def last_values(
        self, run_ids: Sequence[int], names: Sequence[str]
    ) -> dict[int, dict[str, float]]:
        """Returns the newest value of each metric in each run; missing metrics are left out."""
        newest = (
            select(POINTS.c.value)
            .where(POINTS.c.run_id == RUNS.c.id, POINTS.c.metric_id == METRICS.c.id)
            .order_by(POINTS.c.step.desc())
            .limit(1)
        )
        # A NULL could mean no point, or a point whose value is NaN.
        exists = newest.with_only_columns(POINTS.c.step).order_by(None).exists()
        found: dict[int, dict[str, float]] = {}
        with self._database.read() as connection:
            for ids in chunks(run_ids):
                query = (
                    select(RUNS.c.id, METRICS.c.name, newest.scalar_subquery())
                    .join(METRICS, METRICS.c.name.in_(names))
                    .where(RUNS.c.id.in_(ids), exists)
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
                query = select(SUMMARIES.c.run_id, METRICS.c.name, SUMMARIES.c.value).where(
                    METRICS.c.id == SUMMARIES.c.metric_id, SUMMARIES.c.run_id.in_(ids)
                )
                for run_id, name, value in connection.execute(query.order_by(METRICS.c.name)):
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
            select(POINTS.c.run_id, METRICS.c.name, func.avg(POINTS.c.value))
            .join(METRICS, METRICS.c.id == POINTS.c.metric_id)
            .join(RUNS, RUNS.c.id == POINTS.c.run_id)
            .where(METRICS.c.name.in_(names), POINTS.c.step > RUNS.c.step - steps)
            .group_by(POINTS.c.run_id, METRICS.c.name)
        )
        found: dict[int, dict[str, float]] = {}
        with self._database.read() as connection:
            for ids in chunks(run_ids):
                for run_id, name, mean in connection.execute(query.where(RUNS.c.id.in_(ids))):
                    if mean is not None:
                        found.setdefault(run_id, {})[name] = mean
        return found

    def peers_means(self, run_id: int, name: str, first: int, last: int) -> dict[int, float]:
        """Returns the means of a metric over steps `first` to `last`, of a run and its peers.

        Values that are not finite are left out, and runs without any other value too.
        """
        query = select(POINTS.c.run_id, func.avg(POINTS.c.value).label("mean")).where(
            POINTS.c.run_id.in_(peer_ids(run_id)),
            POINTS.c.metric_id
            == select(METRICS.c.id).where(METRICS.c.name == name).scalar_subquery(),
            POINTS.c.step.between(first, last),
            POINTS.c.value.between(-sys.float_info.max, sys.float_info.max),
        )
        with self._database.read() as connection:
            rows = connection.execute(query.group_by(POINTS.c.run_id)).all()
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
    query = select(METRICS.c.name, METRICS.c.id).where(METRICS.c.name.in_(missing))
    found = {row.name: row.id for row in connection.execute(query)}
    if new := [{"name": name} for name in missing if name not in found]:
        connection.execute(insert_or_ignore(connection, METRICS, "name"), new)
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
    statement = insert_or_update(connection, SUMMARIES, "run_id", "metric_id", update="value")
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
    metric = connection.execute(select(METRICS.c.id).where(METRICS.c.name == name)).scalar()
    within: list[ColumnElement[bool]] = []
    if first is not None:
        within.append(POINTS.c.step <= first)
    if last is not None:
        within += [RUNS.c.id == POINTS.c.run_id, POINTS.c.step > RUNS.c.steps - last]
    for ids in chunks(run_ids):
        yield [POINTS.c.metric_id == metric, POINTS.c.run_id.in_(ids), *within]


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
