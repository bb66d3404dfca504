"""Connections: where a store is, how its database is opened, and what its errors mean.

A store has two engines. On SQLite, writers begin IMMEDIATE, so that a writer that reads first
waits for its turn instead of failing halfway. Readers do not, and never wait in WAL mode. On
PostgreSQL, writers see what others commit meanwhile, and readers do not.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import Connection, Engine, make_url
from sqlalchemy.engine import URL
from sqlalchemy.exc import ArgumentError, DBAPIError

from advsweep.errors import StoreError, StoreUnavailableError
from advsweep.store import postgres, sqlite
from advsweep.store.patience import Patience, is_long_wait

if TYPE_CHECKING:
    from contextlib import AbstractContextManager


DEFAULT_FILE = "advsweep.db"
# How long a transaction waits for a lock.
BUSY_SECONDS = 30


@dataclass(frozen=True)
class Location:
    """Where a store is.

    Attributes:
        name: how messages call it: the path as given, or the URL without its password.
        file: the SQLite file; None for a server.
    """

    url: URL
    name: str
    file: Path | None


def locate(text: str | None) -> Location:
    """Parse a URL or a path; None means `$ADVSWEEP_STORE`, else `advsweep.db`.

    Raises:
        StoreError: it is not a URL of a supported database.
    """
    text = text or os.environ.get("ADVSWEEP_STORE") or DEFAULT_FILE
    path = text
    if "://" in text:
        expected = "a store as a path, as sqlite:///PATH or as postgresql://USER@HOST/DATABASE"
        try:
            url = make_url(text)
        except (ArgumentError, ValueError):  # a port that is no number is a ValueError
            raise StoreError(f"{text.partition('://')[0]}://...: expected {expected}") from None
        if url.get_backend_name() != "sqlite":
            return _locate_server(url, expected)
        path = url.database or ":memory:"
        if path == ":memory:" or path.startswith("file:"):
            raise StoreError(
                f"{text}: expected a file, such as sqlite:///advsweep.db, since the processes of "
                "runs have to share it"
            )
    # The file itself: by a link the store would have another folder of runs.
    file = Path(os.path.realpath(Path(path).expanduser()))
    return Location(url=URL.create("sqlite", database=str(file)), name=path, file=file)


def _locate_server(url: URL, expected: str) -> Location:
    # The name has no parameters, because a password may be among them.
    name = url.set(query={}).render_as_string()
    if url.get_backend_name() != "postgresql":
        raise StoreError(f"{name}: expected {expected}")
    if "@" in (url.host or ""):
        # Otherwise part of the password is parsed as the host, which messages show.
        raise StoreError(
            f"{url.drivername}://...: expected one @ in the URL, got more; write an @ of the user "
            "or the password as %40"
        )
    if not url.database:
        raise StoreError(f"{name}: expected the name of a database at the end of the URL")
    return Location(url=postgres.with_driver(url, name), name=name, file=None)


@dataclass(frozen=True)
class Database:
    """The database of a store: its two engines and their transactions.

    Attributes:
        patience: how long calls are repeated while the store is unavailable.
        clock: the clock of the server; None for a SQLite file.
        opened: the SQLite file; None for a server.
    """

    location: Location
    writer: Engine
    reader: Engine
    patience: Patience
    clock: postgres.ServerClock | None
    opened: sqlite.OpenedFile | None

    def write(self) -> AbstractContextManager[Connection]:
        """Return a transaction that can write; on SQLite there is one at a time."""
        return self._begun(self.writer)

    @contextmanager
    def write_alone(self) -> Iterator[Connection]:
        """Return a transaction of which there is only one at a time, on a server too.

        For transactions that derive what they write from what they read, such as the next
        number, and for those that write rows which others may write in another order.
        """
        with self.write() as connection:
            if self.location.file is None:
                postgres.lock_alone(connection)
            yield connection

    def read(self) -> AbstractContextManager[Connection]:
        """Return a transaction that sees the store as it was at its first query."""
        return self._begun(self.reader)

    @contextmanager
    def _begun(self, engine: Engine) -> Iterator[Connection]:
        began = time.monotonic()
        if self.opened is not None:
            self.opened.check()
        with translated(self.location), engine.begin() as connection:
            if self.clock is not None:
                self.clock.refresh(connection)
            if is_long_wait(time.monotonic() - began):
                self.patience.note_long_wait()
            yield connection

    def dispose(self) -> None:
        self.reader.dispose()
        self.writer.dispose()


def connect(location: Location, patience: float | None = None) -> Database:
    """Create the engines for a store; open nothing yet.

    Args:
        patience: seconds for which a call is repeated while the store is unavailable;
            `BUSY_SECONDS` when None.

    Raises:
        StoreError: the URL has an unknown or invalid parameter.
    """
    waits = Patience(BUSY_SECONDS if patience is None else patience)
    if location.file is None:
        writer, reader = postgres.server_engines(location.url, location.name, BUSY_SECONDS)
        return Database(location, writer, reader, waits, postgres.ServerClock(), None)
    writer, reader = sqlite.file_engines(location, BUSY_SECONDS)
    return Database(location, writer, reader, waits, None, sqlite.OpenedFile(location))


@contextmanager
def translated(location: Location) -> Iterator[None]:
    """Turn errors of the database into `StoreError`s that say what to do."""
    try:
        yield
    # SQLAlchemy translates no network error of the statements that set up a new connection.
    except (DBAPIError, sqlite3.Error, ConnectionError, TimeoutError) as error:
        cause = error.orig if isinstance(error, DBAPIError) else error
        assert cause is not None
        if location.file is None:
            passes, meaning = postgres.explain(location.url, cause, BUSY_SECONDS)
        else:
            passes, meaning = sqlite.explain(location.file, cause, BUSY_SECONDS)
        kind = StoreUnavailableError if passes else StoreError
        raise kind(f"{location.name}: {meaning}") from error
