"""Connections: where a store is, how its database is opened, and what its errors mean.

A store has two engines. On SQLite, writers begin IMMEDIATE, so that a writer that reads first
waits for its turn instead of failing halfway. Readers do not, and never wait in WAL mode. On
PostgreSQL, writers see what others commit meanwhile, and readers do not.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import gettempdir, mkdtemp
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from sqlalchemy import Connection, Engine, create_engine, event, make_url, pool
from sqlalchemy.engine import URL
from sqlalchemy.exc import ArgumentError, DBAPIError

from advsweep.errors import StoreError, StoreUnavailableError
from advsweep.store import postgres
from advsweep.store.patience import WAITED_SECONDS, Patience
from advsweep.store.tables import parse_document

if TYPE_CHECKING:
    from sqlalchemy.engine import Dialect

DEFAULT_FILE = "advsweep.db"
BUSY_SECONDS = 30
DIALECTS = ("sqlite", "postgresql")


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
    """Parses a URL or a path; None means `$ADVSWEEP_STORE`, else `advsweep.db`.

    Raises:
        StoreError: it is not a URL of a supported database.
    """
    text = text or os.environ.get("ADVSWEEP_STORE") or DEFAULT_FILE
    if "://" not in text:
        return _locate_file(text)
    try:
        url = make_url(text)
    except ArgumentError:
        raise StoreError(_no_url(text.partition("://")[0] + "://...")) from None
    if url.get_backend_name() not in DIALECTS:
        raise StoreError(_no_url(url.set(query={}).render_as_string()))
    if url.get_backend_name() == "sqlite":
        if not url.database or url.database == ":memory:" or url.database.startswith("file:"):
            raise StoreError(
                f"{text}: expected a file, such as sqlite:///advsweep.db, since the processes of "
                "runs have to share it"
            )
        return _locate_file(url.database)
    # The name has no parameters, because a password may be among them.
    name = url.set(query={}).render_as_string()
    if "@" in (url.host or ""):
        # Otherwise part of the password is parsed as the host, which messages show.
        raise StoreError(
            f"{url.drivername}://...: expected one @ in the URL, got more; write an @ of the user "
            "or the password as %40"
        )
    if not url.database:
        raise StoreError(f"{name}: expected the name of a database at the end of the URL")
    return Location(url=postgres.with_driver(url, name), name=name, file=None)


def _no_url(shown: str) -> str:
    return (
        f"{shown}: expected a store as a path, as sqlite:///PATH or as "
        "postgresql://USER@HOST/DATABASE"
    )


def _locate_file(path: str) -> Location:
    file = Path(os.path.abspath(Path(path).expanduser()))
    return Location(url=URL.create("sqlite", database=str(file)), name=path, file=file)


@dataclass(frozen=True)
class Database:
    """The database of a store: its two engines and their transactions.

    Attributes:
        patience: how long calls are repeated while the store is unavailable.
        clock: the clock of the server; None for a SQLite file.
    """

    location: Location
    writer: Engine
    reader: Engine
    patience: Patience
    clock: postgres.ServerClock | None

    def write(self) -> AbstractContextManager[Connection]:
        """Returns a transaction that can write; on SQLite there is one at a time."""
        return self._begun(self.writer)

    @contextmanager
    def write_alone(self) -> Iterator[Connection]:
        """Returns a transaction of which there is only one at a time, on a server too.

        For transactions that derive what they write from what they read, such as the next
        number, and for those that write rows which others may write in another order.
        """
        with self.write() as connection:
            if self.location.file is None:
                postgres.lock_alone(connection)
            yield connection

    def read(self) -> AbstractContextManager[Connection]:
        """Returns a transaction that sees the store as it was at its first query."""
        return self._begun(self.reader)

    def _lock_holder(self) -> str:
        return postgres.lock_holder(self.reader)

    @contextmanager
    def _begun(self, engine: Engine) -> Iterator[Connection]:
        began = time.monotonic()
        with (
            translated(self.location, self._lock_holder),
            engine.begin() as connection,
        ):
            if self.clock is not None:
                self.clock.refresh(connection)
            if time.monotonic() - began > WAITED_SECONDS:
                self.patience.delayed()
            yield connection

    @contextmanager
    def elsewhere(self, file: Path) -> Iterator[None]:
        """Returns a context in which all connections of a SQLite store use another file."""

        def connect(dialect: Dialect, _record: Any, _arguments: Any, options: Any) -> Any:
            return dialect.connect(str(file), **options)

        # Pooled connections are to the old file.
        self.dispose()
        for engine in (self.writer, self.reader):
            # `insert` puts it before the handler of read-only files.
            event.listen(engine, "do_connect", connect, insert=True)
        try:
            yield
        finally:
            self.dispose()
            for engine in (self.writer, self.reader):
                event.remove(engine, "do_connect", connect)

    def dispose(self) -> None:
        self.reader.dispose()
        self.writer.dispose()


def connect(location: Location, patience: float | None = None) -> Database:
    """Creates the engines for a store; opens nothing yet.

    Args:
        patience: seconds for which a call is repeated while the store is unavailable;
            `BUSY_SECONDS` when None.

    Raises:
        StoreError: the URL has an unknown or invalid parameter.
    """
    waits = Patience(BUSY_SECONDS if patience is None else patience)
    if location.file is None:
        writer, reader = postgres.server_engines(location.url, location.name, BUSY_SECONDS)
        return Database(location, writer, reader, waits, postgres.ServerClock())
    writer = _sqlite_engine(location.url, writes=True)
    reader = _sqlite_engine(location.url, writes=False, read_only=_is_read_only(location.file))
    return Database(location, writer, reader, waits, None)


def _sqlite_engine(url: URL, *, writes: bool, read_only: bool = False) -> Engine:
    # Autocommit in the driver, which would begin transactions late and of the wrong kind.
    arguments = {"timeout": BUSY_SECONDS, "isolation_level": None}
    engine = create_engine(
        url,
        connect_args=arguments,
        # A new connection each time, because the files may have changed.
        poolclass=pool.NullPool if read_only else None,
        json_deserializer=parse_document,
    )
    if read_only:
        assert url.database is not None
        opener = ReadOnlyFile(Path(url.database))

        @event.listens_for(engine, "do_connect")
        def _connect(_dialect: Dialect, _record: Any, _arguments: Any, options: Any) -> Any:
            return opener.connect(**options)

    @event.listens_for(engine, "connect")
    def _configure(connection: sqlite3.Connection, _record: Any) -> None:
        # In WAL mode, NORMAL cannot corrupt the store; a power cut may take the last commits.
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("PRAGMA foreign_keys = ON")
        # Views and triggers of a file from elsewhere cannot call functions with side effects.
        connection.execute("PRAGMA trusted_schema = OFF")

    begin = "BEGIN IMMEDIATE" if writes else "BEGIN"

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        # Straight to the driver: SQLAlchemy's own way takes as long as a whole small commit.
        driver = connection.connection.driver_connection
        assert isinstance(driver, sqlite3.Connection)
        driver.execute(begin)

    return engine


@contextmanager
def translated(location: Location, lock_holder: Callable[[], str] = str) -> Iterator[None]:
    """Turns errors of the database into `StoreError`s that say what to do.

    Args:
        lock_holder: describes the session that holds a lock on a server.
    """
    try:
        yield
    except (DBAPIError, sqlite3.Error) as error:
        cause = error.orig if isinstance(error, DBAPIError) else error
        assert cause is not None
        kind = StoreUnavailableError if _may_recover(location, cause) else StoreError
        raise kind(f"{location.name}: {_meaning(location, cause, lock_holder)}") from error


def _may_recover(location: Location, error: BaseException) -> bool:
    """Returns whether the same call may succeed later."""
    if location.file is None:
        return postgres.may_recover(error)
    return (getattr(error, "sqlite_errorname", "") or "").startswith("SQLITE_BUSY")


def _meaning(location: Location, error: BaseException, lock_holder: Callable[[], str]) -> str:
    if location.file is None:
        return postgres.meaning(location.url, error, BUSY_SECONDS, lock_holder)
    code = getattr(error, "sqlite_errorname", "") or ""
    if code == "SQLITE_FULL":
        return (
            "the disk is full, or the file may not grow; make room and start again (metrics so "
            "far are kept)"
        )
    if code == "SQLITE_IOERR_WRITE" and (largest := _largest_file()) is not None:
        return (
            f"the disk is full, or the file may not grow: files of this process may have {largest} "
            "bytes (ulimit -f); raise that limit and start again (metrics so far are kept)"
        )
    if code in ("SQLITE_NOTADB", "SQLITE_CORRUPT"):
        return "expected an advsweep store, got a file that is no SQLite database or a damaged one"
    if location.file.exists() and not _may(location.file, os.R_OK):
        return "it cannot be opened for reading; give this user the permission to read it"
    if code.startswith("SQLITE_READONLY") or code == "SQLITE_CANTOPEN":
        return (
            "it cannot be opened for writing; the file and its folder "
            f"{location.file.parent} must both be writable (commands that only read, such as "
            "ls, show and report, do without); make them so, or work on a copy elsewhere"
        )
    if code.startswith("SQLITE_BUSY"):
        return (
            f"another process has kept it locked for {BUSY_SECONDS} s; find and end that "
            "process, then start again"
        )
    if code.startswith("SQLITE_IOERR"):
        return f"its disk cannot be read or written ({error}); see that it is there and not full"
    return str(error).strip()


def _largest_file() -> int | None:
    """Returns the limit on the size of files (ulimit -f) in bytes; None without one."""
    import resource

    limit = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    return None if limit == resource.RLIM_INFINITY else limit


def _is_read_only(file: Path) -> bool:
    """Returns whether a file exists in a folder that this process cannot write to."""
    return file.exists() and not _may(file.parent, os.W_OK)


def _may(path: Path, access: int) -> bool:
    """Returns whether this process may read (`os.R_OK`) or write (`os.W_OK`) a path."""
    return os.access(path, access, effective_ids=os.access in os.supports_effective_ids)


class ReadOnlyFile:
    """Opens connections to a SQLite file in a folder that this process cannot write to.

    Every connection checks the files again, because another user or machine may still write to
    them.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._folder: Path | None = None

    def connect(self, **options: Any) -> sqlite3.Connection:
        """Opens a connection that reads the newest commit.

        Raises:
            sqlite3.Error: the file cannot be opened.
            StoreError: its write-ahead log can only be read in a copy, which cannot be made.
        """
        log = self._beside("-wal")
        if not log.exists() or log.stat().st_size == 0:
            # There is no writer, so SQLite needs no lock and no other file.
            return _open(self._file, "immutable=1", options)
        try:
            return _open(self._file, "mode=ro", options)
        except sqlite3.OperationalError:
            return _open(self._copy(log), "mode=rw", options)

    def _copy(self, log: Path) -> Path:
        """Returns a private copy of the database and its log, renewed when they change."""
        stats = self._file.stat(), log.stat()
        state = "-".join(f"{each.st_size:x}-{each.st_mtime_ns:x}" for each in stats)
        try:
            return self._copied_folder(state, log) / self._file.name
        except OSError as error:
            raise StoreError(
                f"{self._file}: its folder cannot be written, and its write-ahead log can only be "
                f"read in a copy, which could not be made: {error}; make room in {gettempdir()}, "
                "or name another folder with TMPDIR"
            ) from error

    def _copied_folder(self, state: str, log: Path) -> Path:
        if self._folder is None:
            self._folder = Path(mkdtemp(prefix="advsweep-"))
            weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        copies = self._folder / state
        if not copies.exists():
            for outdated in self._folder.iterdir():
                shutil.rmtree(outdated)
            unfinished = self._folder / "unfinished"
            unfinished.mkdir()
            for path in (self._file, log):
                shutil.copyfile(path, unfinished / path.name)
            unfinished.rename(copies)
        return copies

    def _beside(self, ending: str) -> Path:
        return self._file.with_name(self._file.name + ending)


def _open(file: Path, mode: str, options: dict[str, Any]) -> sqlite3.Connection:
    connection: sqlite3.Connection = sqlite3.connect(
        f"file:{quote(str(file))}?{mode}", uri=True, **options
    )
    try:
        # Opening alone reads nothing and so finds no error.
        connection.execute("SELECT name FROM sqlite_master LIMIT 1")
    except sqlite3.Error:
        connection.close()
        raise
    return connection
