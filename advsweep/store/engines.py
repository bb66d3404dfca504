"""Connections: which database a store is, how it is opened, and what its errors mean.

SQLite gets two engines. Writers begin IMMEDIATE, so that one who reads before it writes
waits for its turn instead of failing halfway; readers do not, and in WAL mode never wait.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event, make_url
from sqlalchemy.engine import URL
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError

from advsweep.errors import StoreError

DEFAULT_FILE = "advsweep.db"
BUSY_SECONDS = 30
DIALECTS = ("sqlite", "postgresql")


@dataclass(frozen=True)
class Location:
    """Where a store is.

    Attributes:
        name: what to call it in a message: the path as it was given, or the URL without its
            password.
        file: the SQLite file; None for a server.
    """

    url: URL
    name: str
    file: Path | None


def locate(text: str | None) -> Location:
    """Reads a URL or a path; None means `$ADVSWEEP_STORE`, else `advsweep.db` here.

    Raises:
        StoreError: it is no URL of a database that a store can be in.
    """
    text = text or os.environ.get("ADVSWEEP_STORE") or DEFAULT_FILE
    if "://" not in text:
        return _locate_file(text)
    try:
        url = make_url(text)
    except ArgumentError:
        raise StoreError(_no_url(text.partition("://")[0] + "://...")) from None
    if url.get_backend_name() not in DIALECTS:
        raise StoreError(_no_url(url.render_as_string()))
    if url.get_backend_name() == "sqlite":
        if not url.database or url.database == ":memory:" or url.database.startswith("file:"):
            raise StoreError(
                f"{text}: expected a file, such as sqlite:///advsweep.db, since the processes of "
                "runs have to share it"
            )
        return _locate_file(url.database)
    return Location(url=url, name=url.render_as_string(), file=None)


def _no_url(shown: str) -> str:
    return (
        f"{shown}: expected a store as a path, as sqlite:///PATH or as "
        "postgresql+psycopg://USER@HOST/DATABASE"
    )


def _locate_file(path: str) -> Location:
    file = Path(os.path.abspath(Path(path).expanduser()))
    return Location(url=URL.create("sqlite", database=str(file)), name=path, file=file)


@dataclass(frozen=True)
class Engines:
    """The two ways into a store; on a server they are the same one."""

    location: Location
    writer: Engine
    reader: Engine

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """A transaction that may change things; on SQLite it is the only one of its kind."""
        with translated(self.location), self.writer.begin() as connection:
            yield connection

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """A transaction that sees the store as it was at its first query."""
        with translated(self.location), self.reader.begin() as connection:
            yield connection

    def dispose(self) -> None:
        self.reader.dispose()
        self.writer.dispose()


def connect(location: Location) -> Engines:
    """Engines for a store; nothing is opened yet.

    Raises:
        StoreError: the database's driver is not installed.
    """
    if location.file is not None:
        writer, reader = _sqlite_engine(location.url, True), _sqlite_engine(location.url, False)
        return Engines(location, writer, reader)
    try:
        engine = create_engine(location.url, pool_pre_ping=True)
    except (NoSuchModuleError, ModuleNotFoundError) as error:
        raise StoreError(
            f"{location.name}: the driver of this database is not installed ({error}); "
            "for PostgreSQL: pip install 'psycopg[binary]' and a URL postgresql+psycopg://..."
        ) from error
    return Engines(location, engine, engine)


def _sqlite_engine(url: URL, writes: bool) -> Engine:
    # Autocommit on the driver's side: it would begin transactions late and of the wrong kind.
    arguments = {"timeout": BUSY_SECONDS, "isolation_level": None}
    engine = create_engine(url, connect_args=arguments)

    @event.listens_for(engine, "connect")
    def _configure(connection: sqlite3.Connection, _record: Any) -> None:
        # NORMAL in WAL mode cannot corrupt the store; a power cut may take the last commits.
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("PRAGMA foreign_keys = ON")

    begin = "BEGIN IMMEDIATE" if writes else "BEGIN"

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        # Straight to the driver: SQLAlchemy's own way costs as much as a whole small commit.
        driver = connection.connection.driver_connection
        assert isinstance(driver, sqlite3.Connection)
        driver.execute(begin)

    return engine


@contextmanager
def translated(location: Location) -> Iterator[None]:
    """Turns a database's errors into `StoreError`s that say what to do."""
    try:
        yield
    except (DBAPIError, sqlite3.Error) as error:
        cause = error.orig if isinstance(error, DBAPIError) else error
        raise StoreError(f"{location.name}: {_meaning(location, cause)}") from error


def _meaning(location: Location, error: BaseException | None) -> str:
    code = getattr(error, "sqlite_errorname", "") or ""
    folder = location.file.parent if location.file else None
    if code == "SQLITE_FULL":
        return (
            "the disk is full, or the file may not grow; make room and start again (metrics so "
            "far are kept)"
        )
    if code in ("SQLITE_NOTADB", "SQLITE_CORRUPT"):
        return "expected an advsweep store, got a file that is no SQLite database or a damaged one"
    if code.startswith("SQLITE_READONLY") or code == "SQLITE_CANTOPEN":
        return (
            "it cannot be opened for writing, which SQLite needs even to read; the file and its "
            f"folder {folder} must both be writable"
        )
    if code.startswith("SQLITE_BUSY"):
        return (
            f"another process has kept it locked for {BUSY_SECONDS} s; find and end that "
            "process, then start again"
        )
    if code.startswith("SQLITE_IOERR"):
        return f"its disk cannot be read or written ({error}); see that it is there and not full"
    return str(error).strip()
