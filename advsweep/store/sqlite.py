"""SQLite: the file of a store, its connections, and what its errors mean."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from sqlalchemy import Connection, Engine, create_engine, event, pool

from advsweep.errors import StoreError
from advsweep.store.json_columns import decode_json

if TYPE_CHECKING:
    from sqlalchemy.engine import Dialect

    from advsweep.store.connections import Location


def file_engines(location: Location, seconds: float) -> tuple[Engine, Engine]:
    """Create an engine for writers and one for readers.

    Args:
        seconds: how long a transaction waits for a lock.
    """
    file = location.file
    assert file is not None
    is_read_only = file.exists() and not _may(file.parent, os.W_OK)
    writer = _engine(location, "BEGIN IMMEDIATE", seconds)
    reader = _engine(location, "BEGIN", seconds, pool.NullPool if is_read_only else None)
    if is_read_only:

        @event.listens_for(reader, "do_connect")
        def _connect(_dialect: Dialect, _record: Any, _arguments: Any, options: Any) -> Any:
            log = file.with_name(f"{file.name}-wal")
            # Without a write-ahead log there is no writer: SQLite needs no lock and no other file.
            # Checked for each connection, as another user or machine may begin to write.
            mode = "mode=ro" if log.exists() and log.stat().st_size else "immutable=1"
            return sqlite3.connect(f"file:{quote(str(file))}?{mode}", uri=True, **options)

    return writer, reader


def _engine(
    location: Location, begin: str, seconds: float, poolclass: type[pool.Pool] | None = None
) -> Engine:
    # Autocommit in the driver, which would begin transactions late and of the wrong kind.
    arguments = {"timeout": seconds, "isolation_level": None}
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


def explain(file: Path, error: BaseException, seconds: float) -> tuple[bool, str]:
    """Return whether a call that failed with this error may succeed later, and what it means.

    Args:
        seconds: how long a transaction waits for a lock.
    """
    import resource  # only on POSIX

    code = getattr(error, "sqlite_errorname", "") or ""
    if code.startswith("SQLITE_BUSY"):
        return True, (
            f"another process has kept it locked for {seconds:g} s; find and end that "
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
