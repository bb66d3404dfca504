"""What the parts of a store share: the database, the clock, the leases, and a few statements."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from types import FunctionType
from typing import TYPE_CHECKING, Any, cast

from sqlalchemy import Connection, select

from advsweep import synonyms
from advsweep.errors import NotFoundError, nearest
from advsweep.store.tables import RUNS, SWEEPS

if TYPE_CHECKING:
    from sqlalchemy import ColumnElement, Executable, Select, Table

    from advsweep.store.lease_guard import AnyRow
    from advsweep.store.store import Store

# Values in one IN (...), below the limits of SQLite and PostgreSQL.
CHUNK = 10_000


def _repeated(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def call(self: StorePart, *args: Any, **kwargs: Any) -> Any:
        return self._patience.call(lambda: method(self, *args, **kwargs))

    return call


class StorePart:
    """Base class of the parts of a store.

    Every public method is one transaction. It is repeated while the store is unavailable (see
    `Patience`). A commit whose connection broke may have taken effect, so every method has the
    same result when it runs twice.
    """

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        # Here, not in each method: a new method cannot forget to be repeated.
        for name, member in list(vars(cls).items()):
            if isinstance(member, FunctionType) and not name.startswith("_"):
                setattr(cls, name, _repeated(member))

    def __init__(self, store: Store) -> None:
        self._store = store
        self._database = store.database
        self._patience = store.patience
        self._now = store.now
        self._guard = store.guard

    def _read(self, query: Select[Any]) -> Sequence[AnyRow]:
        """Return the rows of a query, in a transaction of its own."""
        with self._database.read() as connection:
            return connection.execute(query).all()

    def _read_among(
        self, query: Select[Any], column: ColumnElement[Any], values: Iterable[Any]
    ) -> list[AnyRow]:
        """Return the rows of a query whose column has one of the values."""
        with self._database.read() as connection:
            return list(rows_among(connection, query, column, values))

    def _sweep_id(self, connection: Connection, name: str | None) -> int | None:
        """Return the id of a sweep; None for no name.

        Raises:
            NotFoundError: there is no such sweep.
        """
        return None if name is None else self._require_sweep(connection, name)

    def _require_sweep(self, connection: Connection, name: str) -> int:
        query = select(SWEEPS.c.id).where(SWEEPS.c.name == name)
        sweep_id: int | None = connection.execute(query).scalar()
        if sweep_id is None:
            names = connection.execute(select(SWEEPS.c.name)).scalars().all()
            where = self._database.location.name
            run = f"; `advsweep show {name}` shows a run" if name.isdecimal() else ""
            near = nearest(name, names, synonyms.SWEEPS)
            raise NotFoundError(f"no sweep '{name}' in {where}; {near}{run}")
        return sweep_id

    def _require_run(self, connection: Connection, run_id: int) -> None:
        if connection.execute(select(RUNS.c.id).where(RUNS.c.id == run_id)).scalar() is None:
            raise self._no_run(run_id)

    def _no_run(self, run_id: int) -> NotFoundError:
        return NotFoundError(f"no run {run_id} in {self._database.location.name}")


Rows = Mapping[str, Any] | Sequence[Mapping[str, Any]]


def put(connection: Connection, table: Table, rows: Rows, *, update: str | None = None) -> int:
    """Insert rows and return how many are new; rows whose keys exist already are left as they are.

    Args:
        update: a column that takes the new value in rows whose primary key exists already.
    """
    if not rows:
        return 0
    return int(connection.execute(_insert(table, connection.dialect.name, update), rows).rowcount)


@functools.cache
def _insert(table: Table, dialect: str, update: str | None) -> Executable:
    # Cached: building the statement takes twice as long as committing one row with it.
    # SQLite's INSERT has the same methods; importing both dialects would take long.
    statement = import_module(f"sqlalchemy.dialects.{dialect}").insert(table)
    if update is None:
        return cast("Executable", statement.on_conflict_do_nothing())
    change = {update: statement.excluded[update]}
    changing = statement.on_conflict_do_update(index_elements=list(table.primary_key), set_=change)
    return cast("Executable", changing)


def chunks(values: Iterable[Any]) -> Iterator[Sequence[Any]]:
    """Yield the values in portions that fit one statement."""
    listed = list(values)
    for start in range(0, len(listed), CHUNK):
        yield listed[start : start + CHUNK]


def rows_among(
    connection: Connection, query: Select[Any], column: ColumnElement[Any], values: Iterable[Any]
) -> Iterator[AnyRow]:
    """Yield the rows of a query whose column has one of the values."""
    for some in chunks(values):
        yield from connection.execute(query.where(column.in_(some)))
