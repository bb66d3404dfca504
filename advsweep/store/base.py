"""What the parts of a store share: the database, the clock, the leases, and a few statements."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from importlib import import_module
from pathlib import Path
from types import FunctionType
from typing import TYPE_CHECKING, Any

from sqlalchemy import CompoundSelect, Connection, select, union

from advsweep.errors import NotFoundError, nearest
from advsweep.store.connections import Database
from advsweep.store.owners import LeaseGuard
from advsweep.store.tables import RUNS, SWEEP_RUNS, SWEEPS

if TYPE_CHECKING:
    from sqlalchemy import Table
    from sqlalchemy.dialects.postgresql import Insert

CHUNK = 10_000
"""Values in one IN (...), below the limits of SQLite and PostgreSQL."""


def _repeated(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def call(self: StorePart, *args: Any, **kwargs: Any) -> Any:
        return self._patience.call(lambda: method(self, *args, **kwargs))

    return call


@dataclass(kw_only=True)
class Shared:
    """What the parts of one open store have in common.

    Attributes:
        now: returns the current time in UTC.
        runs_directory: the parent of all run folders.
        guard: the leases that this store object holds.
    """

    database: Database
    now: Callable[[], datetime]
    runs_directory: Path
    guard: LeaseGuard


class StorePart:
    """Base class of the parts of a store.

    Every public method is one transaction. It is repeated while the store is unavailable (see
    `Patience`). A commit whose connection broke may have taken effect, so every method has the
    same result when it runs twice.
    """

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        for name, member in list(vars(cls).items()):
            if isinstance(member, FunctionType) and not name.startswith("_"):
                setattr(cls, name, _repeated(member))

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._database = shared.database
        self._patience = shared.database.patience
        self._now = shared.now
        self._guard = shared.guard

    def _require_sweep(self, connection: Connection, name: str) -> int:
        """Return the id of a sweep."""
        query = select(SWEEPS.c.id).where(SWEEPS.c.name == name)
        found: int | None = connection.execute(query).scalar()
        if found is None:
            names = connection.execute(select(SWEEPS.c.name)).scalars().all()
            where = self._database.location.name
            raise NotFoundError(f"no sweep '{name}' in {where}; {nearest(name, names)}")
        return found

    def _require_run(self, connection: Connection, run_id: int) -> None:
        if connection.execute(select(RUNS.c.id).where(RUNS.c.id == run_id)).scalar() is None:
            raise self._no_run(run_id)

    def _no_run(self, run_id: int) -> NotFoundError:
        return NotFoundError(f"no run {run_id} in {self._database.location.name}")


# Building such a statement takes longer than a small commit.
@functools.cache
def _insert(dialect: str, table: Table, keys: tuple[str, ...], update: str | None) -> Insert:
    # SQLite's INSERT has the same methods; importing both dialects would take long.
    insert: Insert = import_module(f"sqlalchemy.dialects.{dialect}").insert(table)
    if update is None:
        return insert.on_conflict_do_nothing(index_elements=keys)
    changes = {update: insert.excluded[update]}
    return insert.on_conflict_do_update(index_elements=keys, set_=changes)


def insert_or_ignore(connection: Connection, table: Table, *keys: str) -> Insert:
    """Return an INSERT that skips rows whose keys exist already."""
    return _insert(connection.dialect.name, table, keys, None)


def insert_or_update(connection: Connection, table: Table, *keys: str, update: str) -> Insert:
    """Return an INSERT that updates one column of rows whose keys exist already."""
    return _insert(connection.dialect.name, table, keys, update)


def chunks(values: Iterable[Any]) -> Iterator[Sequence[Any]]:
    """Yield the values in portions that fit one statement."""
    listed = list(values)
    for start in range(0, len(listed), CHUNK):
        yield listed[start : start + CHUNK]


def peer_ids(run_id: int) -> CompoundSelect[int]:
    """Select the ids of a run and of all runs that share a sweep with it."""
    own = select(SWEEP_RUNS.c.sweep_id).where(SWEEP_RUNS.c.run_id == run_id)
    return union(
        select(SWEEP_RUNS.c.run_id).where(SWEEP_RUNS.c.sweep_id.in_(own)),
        select(RUNS.c.id).where(RUNS.c.id == run_id),
    )
