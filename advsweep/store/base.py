"""What the parts of a store share: its engines, its clock, and a few statements."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import FunctionType
from typing import TYPE_CHECKING, Any

from sqlalchemy import CompoundSelect, Connection, bindparam, select, union, update
from sqlalchemy.dialects import postgresql, sqlite

from advsweep.errors import LeaseLostError, NotFoundError, StoreUnavailableError, nearest
from advsweep.store import owners, patience
from advsweep.store.connections import Engines
from advsweep.store.owners import Owner
from advsweep.store.postgres import ServerClock
from advsweep.store.records import Status
from advsweep.store.tables import Base, Run, Sweep, SweepRun

if TYPE_CHECKING:
    from sqlalchemy import Insert, Row

    AnyRow = Row[*tuple[Any, ...]]

_DIALECTS: dict[str, Any] = {"sqlite": sqlite, "postgresql": postgresql}

CHUNK = 10_000
"""Values in one IN (...), below what SQLite and PostgreSQL allow."""


def utc_now() -> datetime:
    return datetime.now(UTC)


def _patient(method: Callable[..., Any]) -> Callable[..., Any]:
    """A method that is repeated as a whole while the store cannot be used."""

    # As `Patience.call`, without the cost of one more call for each small commit.
    @functools.wraps(method)
    def call(self: StorePart, *args: Any, **kwargs: Any) -> Any:
        began = time.monotonic()
        try:
            result = method(self, *args, **kwargs)
        except StoreUnavailableError as error:
            return self._patience.repeat(lambda: method(self, *args, **kwargs), error, began)
        if self._patience.is_away:
            self._patience.succeeded()
        return result

    return call


@dataclass(kw_only=True)
class Shared:
    """What the parts of one open store have in common.

    Attributes:
        now: the time, in UTC.
        runs_directory: the folder of the runs' own folders.
        held: the runs that were claimed through this store object, and by whom.
    """

    engines: Engines
    now: Callable[[], datetime]
    runs_directory: Path
    held: dict[int, Owner] = field(default_factory=dict)


class StorePart:
    """Base of the parts that make up a store.

    Their public methods are repeated while the store cannot be used (`Patience`). A commit that
    broke off may have taken effect, so each of them has to come to the same the second time.
    """

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        for name, member in list(vars(cls).items()):
            if isinstance(member, FunctionType) and not name.startswith("_"):
                setattr(cls, name, _patient(member))

    def __init__(self, shared: Shared) -> None:
        self._engines = shared.engines
        self._patience = shared.engines.patience
        self._now = shared.now
        self._held = shared.held
        self._shared = shared

    @property
    def runs_directory(self) -> Path:
        """The folder of the runs' own folders."""
        return self._shared.runs_directory

    def _write(self) -> AbstractContextManager[Connection]:
        return self._engines.write()

    def _write_alone(self) -> AbstractContextManager[Connection]:
        return self._engines.write_alone()

    def _read(self) -> AbstractContextManager[Connection]:
        return self._engines.read()

    def _is_held(self, row: AnyRow, *, waited: float = 0.0) -> bool:
        """Whether the lease of a run that is recorded as running still holds.

        Args:
            row: has the columns of the run's lease.
            waited: seconds that this transaction has waited for the row, in which its owner
                could not renew the lease either.
        """
        owner = Owner(row.host, row.pid, row.process_started)
        settled, watched = self._lease_evidence()
        return owners.is_held(
            owner,
            row.heartbeat,
            self._now(),
            settled=settled and waited < patience.WAITED_SECONDS,
            watched=watched,
        )

    def _lease_evidence(self) -> tuple[bool, bool]:
        """Whether old heartbeats, and those from the future, mean that a lease is over.

        Nobody could renew a lease while the server was away or the clock was being set, so that
        all of them have a whole lease's time after that.
        """
        clock = self._now if isinstance(self._now, ServerClock) else None
        now, whole = time.monotonic(), owners.LEASE.total_seconds()
        unsettled = self._patience.returned if clock is None else clock.unsettled
        settled = now - max(self._patience.returned, unsettled) > whole
        return settled, clock is None or now - clock.opened > whole

    def _insert_or_ignore(self, model: type[Base], *keys: str) -> Insert:
        """An INSERT that leaves a row as it is that has these keys already."""
        return _insert_or_ignore(self._engines.writer.dialect.name, model, keys)

    def _insert_or_update(self, model: type[Base], *keys: str, update: str) -> Insert:
        """An INSERT that gives a row that has these keys already another value."""
        return _insert_or_update(self._engines.writer.dialect.name, model, keys, update)

    def _require_sweep(self, connection: Connection, name: str) -> int:
        found = connection.execute(select(Sweep.id).where(Sweep.name == name)).scalar()
        if found is None:
            names = connection.execute(select(Sweep.name)).scalars().all()
            where = self._engines.location.name
            raise NotFoundError(f"no sweep '{name}' in {where}; {nearest(name, names)}")
        return found

    def _require_run(self, connection: Connection, run_id: int) -> None:
        if connection.execute(select(Run.id).where(Run.id == run_id)).scalar() is None:
            raise NotFoundError(f"no run {run_id} in {self._engines.location.name}")

    def _require_lease(self, connection: Connection, run_id: int) -> None:
        """Keeps a process that was stopped, and taken over, from writing when it wakes up.

        A run that was never claimed through this store object is nobody's business here.

        Raises:
            LeaseLostError: another process has the run now.
        """
        owner = self._held.get(run_id)
        if owner is None:
            return
        if connection.execute(_SELECT_HELD, _held_by(run_id, owner)).scalar() is None:
            raise _lease_lost(run_id)

    def _update_own(self, connection: Connection, run_id: int, values: dict[str, Any]) -> None:
        """Changes a run that was claimed through this store object.

        Raises:
            LeaseLostError: another process has the run now.
        """
        owner = self._held.get(run_id)
        assert owner is not None, f"run {run_id} was not claimed through this store object"
        if not self._update_held(connection, run_id, owner, values):
            raise _lease_lost(run_id)

    def _renew(
        self, connection: Connection, run_id: int, step: int | None, stage: str | None
    ) -> None:
        """Renews the lease of a run that was claimed through this store object.

        Raises:
            LeaseLostError: another process has the run now.
        """
        values: dict[str, Any] = {"heartbeat": self._now()}
        if step is not None:
            values["step"] = step
        if stage is not None:
            values["stage"] = stage
        self._update_own(connection, run_id, values)

    def _update_held(
        self, connection: Connection, run_id: int, owner: Owner, values: dict[str, Any]
    ) -> bool:
        """Changes a run that a process has; False where it has it no more."""
        return connection.execute(_UPDATE_HELD, values | _held_by(run_id, owner)).rowcount > 0


# What is true of a run that a process has. Made once, as making such a statement takes several
# times as long as running it.
_HELD = (
    Run.id == bindparam("held_run"),
    Run.status == Status.RUNNING,
    Run.host == bindparam("held_host"),
    Run.pid == bindparam("held_pid"),
    # Systems without /proc do not tell it.
    Run.process_started.is_not_distinct_from(bindparam("held_since")),
)
_SELECT_HELD = select(Run.id).where(*_HELD).with_for_update()
_UPDATE_HELD = update(Run).where(*_HELD)


def _held_by(run_id: int, owner: Owner) -> dict[str, Any]:
    return {
        "held_run": run_id,
        "held_host": owner.host,
        "held_pid": owner.pid,
        "held_since": owner.started,
    }


def _lease_lost(run_id: int) -> LeaseLostError:
    return LeaseLostError(
        f"run {run_id} was taken over by another process, as this one gave no sign of "
        "life for too long; this process must leave it"
    )


# Making such a statement takes several times as long as running it.
@functools.cache
def _insert_or_ignore(dialect: str, model: type[Base], keys: tuple[str, ...]) -> Insert:
    statement: Insert = _DIALECTS[dialect].insert(model).on_conflict_do_nothing(index_elements=keys)
    return statement


@functools.cache
def _insert_or_update(
    dialect: str, model: type[Base], keys: tuple[str, ...], update: str
) -> Insert:
    insert = _DIALECTS[dialect].insert(model)
    changes = {update: getattr(insert.excluded, update)}
    statement: Insert = insert.on_conflict_do_update(index_elements=keys, set_=changes)
    return statement


def chunks(values: Iterable[Any]) -> Iterator[Sequence[Any]]:
    """The values, as many at a time as one statement takes."""
    listed = list(values)
    for start in range(0, len(listed), CHUNK):
        yield listed[start : start + CHUNK]


def ids_of_peers(run_id: int) -> CompoundSelect[int]:
    """The ids of a run and of all that share a sweep with it."""
    own = select(SweepRun.sweep_id).where(SweepRun.run_id == run_id)
    return union(
        select(SweepRun.run_id).where(SweepRun.sweep_id.in_(own)),
        select(Run.id).where(Run.id == run_id),
    )
