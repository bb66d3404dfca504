"""Statements behind `Runs`: conditions, records, short views of many runs, search and removal."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, Select, case, delete, func, select

from advsweep.errors import NotFoundError, StoreError, nearest
from advsweep.store.base import Shared, chunks
from advsweep.store.evaluations import remove_unused_problems
from advsweep.store.imported import is_imported
from advsweep.store.owners import LEASE_COLUMNS, LeaseGuard, host_name
from advsweep.store.records import RunLine, RunOutline, RunRecord, Status
from advsweep.store.run_folders import folder_name
from advsweep.store.tables import EVALUATIONS, METADATA, RUN_EVALUATIONS, RUNS, SWEEP_RUNS, SWEEPS
from advsweep.tasks.controls import titled

if TYPE_CHECKING:
    from advsweep.store.owners import AnyRow

_DERIVED = ("sweeps", "estimator", "status", "host", "directory")
_COPIED = tuple(field.name for field in fields(RunRecord) if field.name not in _DERIVED)

_HEX = re.compile(r"[0-9a-f]{4,64}")
_ID_DIGITS = 18  # SQLite refuses larger numbers
_SHOWN = 10  # characters of an identity in a message
_LISTED = 12  # ids among which a message suggests the nearest
_CHUNK = 64


def all_columns(status: Status | None = None) -> Select[Any]:
    """Selects whole rows of runs, of one recorded status or of all."""
    # Without environments, which are large and rarely needed.
    query: Select[Any] = select(*(c for c in RUNS.c if c is not RUNS.c.environment))
    if status is None:
        return query
    return query.where(RUNS.c.status == (Status.RUNNING if status is Status.LOST else status))


def in_sweep(query: Select[*tuple[Any, ...]], sweep_id: int | None) -> Select[*tuple[Any, ...]]:
    """Restricts a query to the runs of a sweep; None for all runs."""
    if sweep_id is None:
        return query
    return query.join(SWEEP_RUNS, SWEEP_RUNS.c.run_id == RUNS.c.id).where(
        SWEEP_RUNS.c.sweep_id == sweep_id
    )


def sweep_names(
    connection: Connection, run_ids: Sequence[int] | None = None
) -> dict[int, tuple[str, ...]]:
    """Returns the sorted names of the sweeps of each run, of some runs or of all."""
    query = select(SWEEP_RUNS.c.run_id, SWEEPS.c.name).join(
        SWEEPS, SWEEPS.c.id == SWEEP_RUNS.c.sweep_id
    )
    query = query.order_by(SWEEPS.c.name)
    queries = [query]
    if run_ids is not None:
        queries = [query.where(SWEEP_RUNS.c.run_id.in_(ids)) for ids in chunks(run_ids)]
    found: dict[int, tuple[str, ...]] = {}
    # Most runs are part of one sweep: they share one tuple.
    single: dict[str, tuple[str, ...]] = {}
    for some in queries:
        for run_id, name in connection.execute(some):
            known = found.get(run_id)
            found[run_id] = single.setdefault(name, (name,)) if known is None else (*known, name)
    return found


def to_records(shared: Shared, connection: Connection, rows: Iterable[AnyRow]) -> list[RunRecord]:
    """Converts rows of the table `runs`, in their order; errors as in `to_record`."""
    listed = list(rows)
    sweeps = sweep_names(connection, [row.id for row in listed])
    return [to_record(shared, row, sweeps.get(row.id, ())) for row in listed]


def to_record(shared: Shared, row: AnyRow, sweeps: tuple[str, ...] = ()) -> RunRecord:
    """Converts a row of the table `runs`.

    Raises:
        StoreError: the row has a value that cannot be part of the name of a folder.
    """
    try:
        folder = folder_name(
            identity=row.identity, attempt=row.attempt, estimator=row.estimator, seed=row.seed
        )
    except StoreError as error:
        raise StoreError(
            f"{shared.database.location.name}: run {row.id}: {error}; advsweep did not write "
            "this; restore the store from a copy"
        ) from error
    return RunRecord(
        **{name: getattr(row, name) for name in _COPIED},
        sweeps=sweeps,
        estimator=row.estimator if is_imported(row.config) else titled(row.estimator, row.config),
        status=shared.guard.status(row),
        host=host_name(row.host),
        directory=shared.runs_directory / folder,
    )


def select_lines(connection: Connection, guard: LeaseGuard, sweep_id: int | None) -> list[RunLine]:
    """Returns every run as a `RunLine`, newest first."""
    columns = (
        RUNS.c.id,
        RUNS.c.identity,
        RUNS.c.estimator,
        RUNS.c.seed,
        RUNS.c.status,
        RUNS.c.step,
        RUNS.c.steps,
    )
    more = (RUNS.c.stage, RUNS.c.stop_requested, RUNS.c.error, *LEASE_COLUMNS)
    query = in_sweep(select(*columns, *more), sweep_id).order_by(RUNS.c.id.desc())
    return [
        RunLine(
            id=row.id,
            identity=row.identity,
            estimator=row.estimator,
            seed=row.seed,
            status=guard.status(row),
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


def select_outlines(
    connection: Connection, guard: LeaseGuard, sweep_id: int | None
) -> list[RunOutline]:
    """Returns every run as a `RunOutline`, by id or in the order of the sweep's plan."""
    # Only running runs need a heartbeat, and converting it takes as long as the rest of a row.
    heartbeat = case((RUNS.c.status == Status.RUNNING, RUNS.c.heartbeat)).label("heartbeat")
    stored = [RUNS.c[name] for name in RunOutline._fields[:-2]]
    query = select(*stored, RUNS.c.status, *LEASE_COLUMNS[:-1], heartbeat).order_by(RUNS.c.id)
    query = in_sweep(query, sweep_id)
    sweeps = sweep_names(connection)
    # One row at a time: the texts of all configs would take most of the memory.
    outlines = [
        RunOutline._make((*row[: len(stored)], guard.status(row), sweeps.get(row.id, ())))
        for row in connection.execute(query)
    ]
    if sweep_id is None:
        return outlines
    planned = select(SWEEP_RUNS.c.run_id, SWEEP_RUNS.c.position).where(
        SWEEP_RUNS.c.sweep_id == sweep_id
    )
    positions = {row.run_id: row.position for row in connection.execute(planned)}
    # Sorted here, because SQLite would sort whole rows, configs included.
    return sorted(outlines, key=lambda run: positions[run.id])


def find_id(connection: Connection, key: str) -> int | None:
    """Returns the id of the run that a key names (see `Runs.find`); None without one.

    Raises:
        NotFoundError: the identities of several runs start with the key.
    """
    if key == "last":
        return _last_id(connection)
    if key.isascii() and key.isdigit() and len(key) <= _ID_DIGITS:
        query = select(RUNS.c.id).where(RUNS.c.id == int(key))
        by_id: int | None = connection.execute(query).scalar()
        if by_id is not None:
            return by_id
    if not _HEX.fullmatch(key):
        return None
    newest = select(RUNS.c.identity, func.max(RUNS.c.id)).where(RUNS.c.identity.startswith(key))
    found = connection.execute(newest.group_by(RUNS.c.identity).limit(6)).all()
    if len(found) > 1:
        some = ", ".join(identity[: max(_SHOWN, len(key) + 2)] for identity, _ in found[:5])
        more = ", ..." if len(found) > 5 else ""
        raise NotFoundError(
            f"'{key}' starts the identities of several runs ({some}{more}); give more of it"
        )
    return found[0][1] if found else None


def _last_id(connection: Connection) -> int | None:
    """Returns the run that was started last, or else added last; None in an empty store.

    Calibrations, which runs start on their own account, count only if there are no other runs.
    """
    newest = func.coalesce(RUNS.c.started, RUNS.c.created).desc(), RUNS.c.id.desc()
    query = select(RUNS.c.id, RUNS.c.config).order_by(*newest)
    first: int | None = None
    for start in itertools.count(step=_CHUNK):
        rows = connection.execute(query.offset(start).limit(_CHUNK)).all()
        for run_id, config in rows:
            if not is_calibration(config):
                return int(run_id)
            first = first or int(run_id)
        if len(rows) < _CHUNK:
            break
    return first


def is_calibration(config: Mapping[str, Any]) -> bool:
    """Returns whether a run only finds the learning rate of others (optimizer.calibrates)."""
    optimizer = config.get("optimizer")
    calibrates = isinstance(optimizer, Mapping) and bool(optimizer.get("calibrates"))
    return calibrates and not is_imported(config)


def not_found(connection: Connection, key: str, store: str) -> NotFoundError:
    """Returns the error for a key that names no run, with a suggestion."""
    if key == "last":
        return NotFoundError(f"there are no runs in {store} yet")
    query = select(RUNS.c.id).order_by(RUNS.c.id.desc()).limit(_LISTED + 1)
    newest = connection.execute(query).scalars().all()
    if key in connection.execute(select(SWEEPS.c.name)).scalars().all():
        hint = f"'{key}' is a sweep: `advsweep ls {key}` lists its runs"
    elif len(newest) <= _LISTED:
        hint = nearest(key, map(str, newest))
    else:
        hint = f"the newest is run {newest[0]}; `advsweep ls` lists them"
    return NotFoundError(
        f"no run '{key}' in {store}: expected an id, the first 4 or more characters of an "
        f"identity, or 'last'; {hint}"
    )


def remove_runs(connection: Connection, run_ids: Sequence[int]) -> None:
    """Removes runs and all rows about them; evaluations that other runs share stay."""
    linked = select(RUN_EVALUATIONS.c.evaluation_id).where(RUN_EVALUATIONS.c.run_id.in_(run_ids))
    evaluations = set(connection.execute(linked).scalars())
    # Children first, because of the foreign keys.
    for table in reversed(METADATA.sorted_tables):
        for column in table.columns:
            if column.references(RUNS.c.id):
                connection.execute(delete(table).where(column.in_(run_ids)))
    for ids in chunks(evaluations):
        shared = select(RUN_EVALUATIONS.c.evaluation_id)
        unshared = (EVALUATIONS.c.id.in_(ids), EVALUATIONS.c.id.not_in(shared))
        connection.execute(delete(EVALUATIONS).where(*unshared))
    if evaluations:
        remove_unused_problems(connection)
    connection.execute(delete(RUNS).where(RUNS.c.id.in_(run_ids)))
