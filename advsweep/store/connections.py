"""Connections: where a store is, how its database is opened, and what its errors mean.

A store has two engines. On SQLite, writers begin IMMEDIATE, so that a writer that reads first
waits for its turn instead of failing halfway. Readers do not, and never wait in WAL mode. On
PostgreSQL, writers see what others commit meanwhile, and readers do not.

A call that fails because the store is unreachable, locked or full is repeated with growing
pauses. The connection may break during a commit, so a repeated call may find its own effect. It
must have the same result the second time (see `Patience.repeats`).
"""

from __future__ import annotations

import logging
import os
import random
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote

from sqlalchemy import Connection, Engine, create_engine, event, make_url, pool
from sqlalchemy.engine import URL
from sqlalchemy.exc import ArgumentError, DBAPIError

from advsweep.errors import StoreError, StoreUnavailableError
from advsweep.store import postgres
from advsweep.store.json_columns import decode_json

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from sqlalchemy.engine import Dialect

DEFAULT_FILE = "advsweep.db"
# How long a transaction waits for a lock.
BUSY_SECONDS = 30

FIRST_PAUSE = 0.1
LONGEST_PAUSE = 5.0
# A process that waited for the store this long does not trust old heartbeats in it.
WAITED_SECONDS = 5.0

# How quickly `stop` ends a pause.
POLL_SECONDS = 0.2

_log = logging.getLogger(__name__)

T = TypeVar("T")


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


class Patience:
    """The retries of all threads that use one store.

    Attributes:
        seconds: how long a call is repeated, counted from its start.
        is_away: whether the last call of some thread failed and none has succeeded since.
        returned: when the store was last available again after a failure or a long wait, in
            seconds of the monotonic clock; minus infinity if that never happened.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.is_away = False
        self.returned = float("-inf")
        self._failed = 0.0
        self._reported = False
        self._stopped = False
        self._thread = threading.local()

    @property
    def repeats(self) -> bool:
        """Whether this thread repeats a call whose first try may have taken effect."""
        return getattr(self._thread, "repeats", False)

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """Return a context in which this thread tries every call once."""
        self._thread.suspended = True
        try:
            yield
        finally:
            self._thread.suspended = False

    def stop(self) -> None:
        """End the retries of all threads, now and later; safe in a signal handler."""
        self._stopped = True

    def call(self, function: Callable[[], T]) -> T:
        """Call a function, and repeat it while the store is unavailable.

        Raises:
            StoreUnavailableError: the store is unavailable for longer than `seconds`.
        """
        began = time.monotonic()
        nested, pause = self.repeats, FIRST_PAUSE
        try:
            while True:
                try:
                    result = function()
                except StoreUnavailableError as error:
                    if not self.is_away:
                        self.is_away, self._failed = True, began
                    # The outer call that is being repeated repeats this one too.
                    if nested:
                        raise
                    suspended = getattr(self._thread, "suspended", False)
                    over = self._stopped or time.monotonic() >= began + self.seconds
                    if over and not suspended:
                        if not self.repeats:
                            raise
                        tried = f"{error} (tried for {self.seconds:.0f} s)"
                        raise StoreUnavailableError(tried) from error
                    if not self._reported:
                        self._reported = True
                        _log.warning("%s; trying again for up to %.0f s", error, self.seconds)
                    if suspended:
                        raise
                else:
                    if self.is_away:
                        self.is_away, self.returned = False, time.monotonic()
                        away = self.returned - self._failed
                        if self._reported:
                            _log.warning("the store can be used again after %.0f s", away)
                        self._reported = False
                    return result
                # From here on the function may find the effect of its own first try.
                self._thread.repeats = True
                # Random pauses, so that processes do not return to the server all at once.
                self._sleep(
                    min(time.monotonic() + pause * random.uniform(0.5, 1), began + self.seconds)
                )
                pause = min(2 * pause, LONGEST_PAUSE)
        finally:
            self._thread.repeats = nested

    def delayed(self) -> None:
        """Note that a transaction waited long before it began.

        Other processes may have waited too, unable to renew their leases.
        """
        self.returned = time.monotonic()

    def _sleep(self, until: float) -> None:
        while not self._stopped and (left := until - time.monotonic()) > 0:
            time.sleep(min(left, POLL_SECONDS))


class OpenedFile:
    """The SQLite file that a store has opened, compared with its path before each transaction.

    A file that is deleted or replaced stays open, so that a sweep would write into a file that
    nobody can read any more, and a new connection would begin an empty one.
    """

    def __init__(self, location: Location) -> None:
        self._location = location
        self._opened: tuple[int, int] | None = None

    def check(self) -> None:
        """Compare the file at the path with the one that was there at the first call.

        Raises:
            StoreError: it is another one, or none.
        """
        file = self._location.file
        assert file is not None
        try:
            status = os.stat(file)
        except FileNotFoundError:
            current = None
        else:
            current = (status.st_dev, status.st_ino)
        if self._opened is None:
            self._opened = current
        elif current != self._opened:
            what = "deleted or moved away" if current is None else "replaced by another file"
            raise StoreError(
                f"{self._location.name}: the store was {what} while it was in use; what was "
                "written to it since is lost, and checkpoints stay in the folder of runs. Put it "
                "back, or start again with a new store"
            )


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
    opened: OpenedFile | None

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
            if time.monotonic() - began > WAITED_SECONDS:
                self.patience.delayed()
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
    file = location.file
    read_only = file.exists() and not _may(file.parent, os.W_OK)
    writer = _sqlite_engine(location, "BEGIN IMMEDIATE")
    reader = _sqlite_engine(location, "BEGIN", pool.NullPool if read_only else None)
    if read_only:

        @event.listens_for(reader, "do_connect")
        def _connect(_dialect: Dialect, _record: Any, _arguments: Any, options: Any) -> Any:
            log = file.with_name(f"{file.name}-wal")
            # Without a write-ahead log there is no writer: SQLite needs no lock and no other file.
            # Checked for each connection, as another user or machine may begin to write.
            mode = "mode=ro" if log.exists() and log.stat().st_size else "immutable=1"
            return sqlite3.connect(f"file:{quote(str(file))}?{mode}", uri=True, **options)

    return Database(location, writer, reader, waits, None, OpenedFile(location))


def _sqlite_engine(location: Location, begin: str, poolclass: Any = None) -> Engine:
    # Autocommit in the driver, which would begin transactions late and of the wrong kind.
    arguments = {"timeout": BUSY_SECONDS, "isolation_level": None}
    engine = create_engine(
        location.url,
        connect_args=arguments,
        poolclass=poolclass,
        json_deserializer=decode_json,
    )

    @event.listens_for(engine, "connect")
    def _configure(connection: sqlite3.Connection, _record: Any) -> None:
        # In WAL mode, NORMAL cannot corrupt the store; a power cut may take the last commits.
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("PRAGMA foreign_keys = ON")
        # Views and triggers of a file from elsewhere cannot call functions with side effects.
        connection.execute("PRAGMA trusted_schema = OFF")

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        connection.exec_driver_sql(begin)

    return engine


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
            passes, meaning = _explain_sqlite(location.file, cause)
        kind = StoreUnavailableError if passes else StoreError
        raise kind(f"{location.name}: {meaning}") from error


def _explain_sqlite(file: Path, error: BaseException) -> tuple[bool, str]:
    """Return whether a call that failed with this error may succeed later, and what it means."""
    import resource  # only on POSIX

    code = getattr(error, "sqlite_errorname", "") or ""
    if code.startswith("SQLITE_BUSY"):
        return True, (
            f"another process has kept it locked for {BUSY_SECONDS} s; find and end that "
            "process, then start again"
        )
    meaning = str(error).strip()
    has_limit = resource.getrlimit(resource.RLIMIT_FSIZE)[0] != resource.RLIM_INFINITY
    if code == "SQLITE_FULL" or (code == "SQLITE_IOERR_WRITE" and has_limit):
        meaning = (
            "the disk is full, or the file may not grow (ulimit -f); make room or raise that "
            "limit, and start again (metrics so far are kept)"
        )
    elif code in ("SQLITE_NOTADB", "SQLITE_CORRUPT"):
        meaning = (
            "expected an advsweep store, got a file that is no SQLite database or a damaged one"
        )
    elif file.exists() and not _may(file, os.R_OK):
        meaning = "it cannot be opened for reading; give this user the permission to read it"
    elif code.startswith("SQLITE_READONLY") or code == "SQLITE_CANTOPEN":
        meaning = (
            f"it cannot be opened for writing; the file and its folder {file.parent} must both be "
            "writable (commands that only read, such as ls, show and report, do without); make "
            "them so, or work on a copy elsewhere"
        )
    elif code.startswith("SQLITE_IOERR"):
        meaning = f"its disk cannot be read or written ({error}); see that it is there and not full"
    return False, meaning


def _may(path: Path, access: int) -> bool:
    """Return whether this process may read (`os.R_OK`) or write (`os.W_OK`) a path."""
    return os.access(path, access, effective_ids=os.access in os.supports_effective_ids)
