"""The store, and how to open one."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Self
from weakref import WeakSet

from advsweep.errors import StoreError
from advsweep.store.changes import Changes
from advsweep.store.checks import find_damage
from advsweep.store.connections import Database, connect, locate
from advsweep.store.evaluations import Analyses, Evaluations
from advsweep.store.lease_guard import LeaseGuard
from advsweep.store.leases import Leases
from advsweep.store.metrics import Checkpoints, Metrics
from advsweep.store.runs import Runs
from advsweep.store.schema_version import HEAD, prepare
from advsweep.store.sweeps import Sweeps


def open_store(
    url: str | None = None,
    *,
    create: bool = True,
    upgrade: bool = False,
    clock: Callable[[], datetime] | None = None,
    patience: float | None = None,
    wait: bool = False,
) -> Store:
    """Open a store, and create it if it does not exist.

    Args:
        url: path of a SQLite file or a SQLAlchemy URL; by default `$ADVSWEEP_STORE`, else
            `advsweep.db` in the working folder.
        create: create a missing store. Commands that only read pass False.
        upgrade: migrate a store of an older schema.
        clock: returns the current time in UTC; by default the clock of this machine, or of the
            database server.
        patience: seconds for which a call is repeated while the store is unreachable, locked
            or, on a server, full; `connections.BUSY_SECONDS` when None.
        wait: also repeat the opening of a store on a server; otherwise an unreachable server is an
            error at once. A file that is locked is waited for in any case.

    Raises:
        StoreError: it is not a store, cannot be read or written, does not exist, or its schema
            is newer, or older, than that of this advsweep.
    """
    database = connect(locate(url), patience)

    def opened() -> list[str]:
        return prepare(database, create=create, upgrade=upgrade)

    # Commands fail at once if the server is down; workers wait for it to return. A file may be
    # locked by a process that is about to let it go, even before anything was written to it.
    repeats = wait or database.location.file is not None
    upgraded = database.patience.call(opened) if repeats else opened()
    store = Store(database, clock or database.clock or utc_now, upgraded)
    _OPENED.add(store)
    return store


_OPENED: WeakSet[Store] = WeakSet()


def explain_by_damage() -> StoreError | None:
    """Return an error that names a damaged value of an open SQLite store; None if there is none.

    Reading does not check every value, so that whatever uses a damaged one may fail anyhow.
    """
    for store in _OPENED:
        file = store.database.location.file
        if file is None:
            continue  # PostgreSQL checks values itself.
        with store.database.read() as connection:
            damage = find_damage(connection)
        if damage is not None:
            return StoreError(
                f"the store {file} is damaged: expected what advsweep writes, got {damage}; "
                f"restore the file from a copy"
            )
    return None


def utc_now() -> datetime:
    """Return the current time of this machine."""
    return datetime.now(UTC)


class Store:
    """The database of runs, metrics and evaluations; created by `open_store`.

    Its parts are its attributes, such as `store.runs.add(...)` and `store.metrics.points(...)`.
    Every method of a part keeps these guarantees:

    - It is one transaction: it takes effect as a whole or not at all. `metrics.record` renews the
      lease in the same transaction.
    - What it wrote outlives the process when it returns. A power cut may take the last commits,
      but never damages the store.
    - Any number of processes may use the same store, and threads may share a store object.
    - Claims are atomic: one of several processes that claim a run at the same time gets it.
    - A process that has lost the lease of a run gets `LeaseLostError` from its next write to
      that run, which changes nothing.
    - While the database is unreachable or locked, the call is repeated for `patience` seconds.
      A repeated call never takes effect twice.
    - `NotFoundError` means that a given run, sweep or evaluation does not exist. `StoreError`
      means that the database could not do it, for instance because its disk is full. Nothing of
      that call is stored.

    Attributes:
        runs: planned runs, their status, configs and environments.
        sweeps: named sets of runs.
        leases: which process trains a run, its progress and how it ended.
        metrics: metric points and summaries of runs.
        evaluations: correct answers per problem, behind every pass@k, and some of the answers.
        checkpoints: the checkpoints of runs.
        analyses: analyses of weights and hidden states.
        changes: whether anything was written.
        database: connections and transactions, for code that writes statements of its own.
        patience: the retries of calls to a store that is unavailable, and how to suspend them.
        url: opens the same store in another process; may contain a password.
        name: how messages call the store: the path as given, or the URL without a password.
        file: the SQLite file; None for a store on a server.
        upgraded: what `open_store(upgrade=True)` changed, one line per migration.
        now: returns the current time in UTC.
        guard: the leases that this store object holds.
        runs_directory: the parent of all run folders: `$ADVSWEEP_RUNS`, else `advsweep-runs`
            beside `advsweep.db`. For a database `advsweep` on a server it is `advsweep-runs` in
            the working folder.
    """

    def __init__(
        self, database: Database, clock: Callable[[], datetime], upgraded: list[str]
    ) -> None:
        location = database.location
        self.database = database
        self.patience = database.patience
        self.now = clock
        self.guard = LeaseGuard(clock, database.patience)
        self.url = location.url.render_as_string(hide_password=False)
        self.name = location.name
        self.file = location.file
        self.upgraded = upgraded
        if chosen := os.environ.get("ADVSWEEP_RUNS"):
            self.runs_directory = Path(chosen).absolute()
        # Named after the store, so that two stores in one folder have separate run folders.
        elif location.file is None:
            self.runs_directory = Path(f"{location.url.database}-runs").absolute()
        else:
            self.runs_directory = location.file.with_name(f"{location.file.stem}-runs")
        self.runs = Runs(self)
        self.sweeps = Sweeps(self)
        self.leases = Leases(self)
        self.metrics = Metrics(self)
        self.evaluations = Evaluations(self)
        self.checkpoints = Checkpoints(self)
        self.analyses = Analyses(self)
        self.changes = Changes(self)

    def schema_version(self) -> str:
        """Return the version of the schema, always the newest that this advsweep knows."""
        return HEAD

    def close(self) -> None:
        """Close every connection."""
        self.database.dispose()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
