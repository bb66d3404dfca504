"""PostgreSQL: its driver, what is set on each connection, and what its errors mean."""

from __future__ import annotations

import functools
import getpass
import importlib.util
import os
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, Engine, create_engine, event, func, select, text
from sqlalchemy.engine import URL

from advsweep.errors import StoreError

if TYPE_CHECKING:
    from sqlalchemy.engine import Dialect, ExceptionContext
    from sqlalchemy.pool import ConnectionPoolEntry

DRIVERS = ("pg8000", "psycopg")
"""The drivers that a store can be reached by; the first that is installed is taken."""

PORT = 5432

_SETTINGS = (
    # As on SQLite a power cut of the server may take the last commits, but damages nothing.
    "SET synchronous_commit = off",
    "SET lock_timeout = '{seconds}s'",
    "SET TIME ZONE 'UTC'",
)

_LOCK = 0x61647673
"""The advisory lock of those that make something new out of what is there."""

_MEANINGS = {
    "3D000": "there is no such database; make it with `createdb`, then start again",
    "28000": "the server refuses this user",
    "28P01": ("the server refuses this user or password; the URL has it, or else $PGPASSWORD does"),
    "42501": "this user may not do that in this database; see what it was granted",
    "53100": (
        "the disk is full; make room on the server and start again (metrics so far are kept)"
    ),
    "53300": "the server takes no more connections; raise its max_connections",
    "55P03": "another process has kept it locked for {seconds} s; find and end that process",
    "57P01": "the server was shut down; start again when it is back",
    "57P02": "the server crashed; start again when it is back",
    "57P03": "the server is starting up or shutting down; try again",
}


def with_driver(url: URL, name: str) -> URL:
    """The URL with a driver that is installed.

    Raises:
        StoreError: there is none, or it names one that a store cannot be reached by.
    """
    named = url.drivername.partition("+")[2]
    if named and named not in DRIVERS:
        expected = ", ".join(f"postgresql+{driver}://" for driver in DRIVERS)
        raise StoreError(f"{name}: expected postgresql:// or one of {expected}")
    for driver in [named] if named else DRIVERS:
        if importlib.util.find_spec(driver) is not None:
            return url.set(drivername=f"postgresql+{driver}")
    raise StoreError(
        f"{name}: PostgreSQL needs the driver {named or DRIVERS[0]}, which is not installed; "
        + (f"pip install {named}" if named == "psycopg" else "pip install 'advsweep[postgres]'")
    )


def server_engines(url: URL, seconds: float) -> tuple[Engine, Engine]:
    """An engine for writers and one for readers.

    Args:
        seconds: how long to wait for a lock, and for a server that was there before.
    """
    connect = _Connector(seconds)
    engines = []
    for level in ("READ COMMITTED", "REPEATABLE READ"):
        engine = create_engine(_complete(url), isolation_level=level, pool_pre_ping=True)
        # Many rows as one statement, as each would be a message to the server and back.
        engine.dialect.use_insertmanyvalues_wo_returning = True
        event.listen(engine, "connect", connect.configure)
        event.listen(engine, "do_connect", connect)
        event.listen(engine, "handle_error", _notice_shutdown)
        engines.append(engine)
    writer, reader = engines
    return writer, reader


def _complete(url: URL) -> URL:
    """The URL with what PostgreSQL's own programs fill in, and pg8000 does not."""
    url = url.set(
        username=url.username or getpass.getuser(),
        password=url.password or os.environ.get("PGPASSWORD"),
    )
    folder = url.query.get("host")
    if url.get_driver_name() != "pg8000" or not isinstance(folder, str):
        return url
    socket = f"{folder}/.s.PGSQL.{url.query.get('port', url.port or PORT)}"
    return url.set(query={"unix_sock": socket}) if folder.startswith("/") else url.set(host=folder)


class _Connector:
    """Connects to a server, and waits for one that was there before and is restarted."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._was_there = False

    def __call__(
        self, dialect: Dialect, record: ConnectionPoolEntry, arguments: Any, options: Any
    ) -> Any:
        deadline = time.monotonic() + (self._seconds if self._was_there else 0.0)
        while True:
            try:
                connection = dialect.connect(*arguments, **options)
            except dialect.loaded_dbapi.Error:
                if time.monotonic() >= deadline:
                    raise
                time.sleep(0.2)
            else:
                self._was_there = True
                return connection

    def configure(self, connection: Any, _record: ConnectionPoolEntry) -> None:
        cursor = connection.cursor()
        for setting in _SETTINGS:
            cursor.execute(setting.format(seconds=self._seconds))
        cursor.close()
        connection.commit()
        if hasattr(connection, "execute_simple"):
            # pg8000 sends what it has to say at the end of a transaction in three messages.
            connection.commit = functools.partial(connection.execute_simple, "commit")


def _notice_shutdown(context: ExceptionContext) -> None:
    """Has connections replaced that a server closed by itself."""
    if (_sql_state(context.original_exception) or "").startswith("57P"):
        context.is_disconnect = True


def lock_alone(connection: Connection) -> None:
    """Waits until no other transaction has called this, and keeps others waiting to its end."""
    connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK})


def server_clock(connection: Connection) -> Callable[[], datetime]:
    """The server's time, so that leases do not hang on how the clocks of machines are set."""
    then: datetime = connection.execute(select(func.clock_timestamp())).scalar_one()
    asked = time.monotonic()
    return lambda: then + timedelta(seconds=time.monotonic() - asked)


def _sql_state(error: BaseException | None) -> str | None:
    """The five characters by which PostgreSQL names an error; None for one of the network."""
    # pg8000 stumbles over the closed connection while it passes on why the server closed it.
    while error is not None:
        state: str | None = getattr(error, "sqlstate", None) or _fields(error).get("C")
        if state is not None:
            return state
        error = error.__context__
    return None


def _fields(error: BaseException) -> dict[str, str]:
    """What pg8000 has of a server's message, by the letters of the protocol."""
    told = error.args[0] if error.args else None
    return told if isinstance(told, dict) else {}


def meaning(url: URL, error: BaseException, seconds: float) -> str:
    """What a server's error says to a user."""
    state = _sql_state(error)
    if state is None:
        folder = url.query.get("host")
        where = folder or f"{url.host or 'localhost'}:{url.port or PORT}"
        return f"no connection to the server at {where} ({_text(error)}); see that it is running"
    known = _MEANINGS.get(state)
    return _text(error) if known is None else known.format(seconds=f"{seconds:g}")


def _text(error: BaseException) -> str:
    return _fields(error).get("M") or " ".join(str(error).split())
