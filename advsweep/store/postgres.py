"""PostgreSQL: its drivers, connection settings, clock and errors."""

from __future__ import annotations

import functools
import importlib.util
import logging
import math
import os
import socket
import ssl
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, BinaryIO

from sqlalchemy import Connection, Engine, create_engine, event, func, select, text
from sqlalchemy.engine import URL
from sqlalchemy.exc import DBAPIError

from advsweep.errors import StoreError
from advsweep.packages import extra_command
from advsweep.store.postgres_url import PORT, driver_arguments

if TYPE_CHECKING:
    from sqlalchemy.engine import Dialect, ExceptionContext
    from sqlalchemy.pool import ConnectionPoolEntry

DRIVERS = ("pg8000", "psycopg")
"""The supported drivers; the first that is installed is used."""

STATEMENT_SECONDS = 120.0
"""Time after which the server cancels a statement."""

ANSWER_SECONDS = 10.0
"""Additional time after which a silent server counts as dead."""

IDLE_SECONDS = 60.0
"""Time after which the server ends a transaction between two statements.

It frees the locks of a process that was suspended or disconnected."""

# Either side notices within half a minute that the other machine or the network is gone.
_KEEPALIVE = {"idle": 15, "interval": 5, "count": 3}
_USER_TIMEOUT_MS = 30_000
_SOCKET_OPTIONS = (
    ("TCP_KEEPIDLE", _KEEPALIVE["idle"]),
    ("TCP_KEEPINTVL", _KEEPALIVE["interval"]),
    ("TCP_KEEPCNT", _KEEPALIVE["count"]),
    ("TCP_USER_TIMEOUT", _USER_TIMEOUT_MS),
)

_CLOCK_SECONDS = 1.0
"""Maximum age of a reading of the server's clock."""
_CLOCK_STEP = timedelta(seconds=5)
"""Difference from the expected reading above which the server's clock was set."""

_CLOCK = select(func.clock_timestamp(), func.pg_postmaster_start_time())

# Skips settings that this version of the server does not know.
_SET = """
SELECT set_config(name, value, false)
FROM (VALUES {values}) AS settings (name, value)
WHERE current_setting(name, true) IS NOT NULL
"""

# Of the sessions that hold locks on the store: one that blocks others, else the oldest.
_LOCK_HOLDER = text(
    """
    SELECT pid, application_name, state, xact_start AT TIME ZONE 'UTC'
    FROM pg_stat_activity AS session
    WHERE datname = current_database() AND pid <> pg_backend_pid() AND EXISTS (
        SELECT FROM pg_locks
        WHERE pg_locks.pid = session.pid AND granted AND mode <> 'AccessShareLock'
        AND (locktype = 'advisory' OR relation IN (
            SELECT oid FROM pg_class WHERE relnamespace = current_schema()::regnamespace
        ))
    )
    ORDER BY pid IN (
        SELECT unnest(pg_blocking_pids(pid)) FROM pg_stat_activity WHERE wait_event_type = 'Lock'
    ) DESC, xact_start
    LIMIT 1
    """
)

_LOCK = 0x61647673
"""The advisory lock of `Database.write_alone`."""

_MEANINGS = {
    "3D000": "there is no such database; make it with `createdb`, then start again",
    "28000": "the server refuses this user",
    "28P01": ("the server refuses this user or password; the URL has it, or else $PGPASSWORD does"),
    "42501": "this user lacks a permission in this database; grant it",
    "53100": (
        "the disk is full; make room on the server and start again (metrics so far are kept)"
    ),
    "53200": "the server has run out of memory",
    "53300": "the server takes no more connections; raise its max_connections",
    "57014": "the server cancelled a statement, which exceeded its time limit or was "
    "cancelled by an operator",
    "57P01": "the server was shut down; start again when it is back",
    "57P02": "the server crashed; start again when it is back",
    "57P03": "the server is starting up or shutting down; try again",
}


# SQL states of errors that pass: lost connections (08), lack of resources (53), interventions of
# an operator (57), rollbacks by the server, locks, idle transactions and I/O errors.
_PASSING = ("08", "53", "57", "40001", "40P01", "55P03", "25P03", "58030")
_DROPPED = "57P04"  # the database is gone

# Exceptions of the drivers for network failures, which have no SQL state.
_NETWORK = ("InterfaceError", "OperationalError")


def with_driver(url: URL, name: str) -> URL:
    """Returns the URL with an installed driver.

    Raises:
        StoreError: no driver is installed, or the URL names an unsupported one.
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
        + (extra_command("psycopg" if named == "psycopg" else "postgres", "psycopg"))
    )


def server_engines(url: URL, name: str, seconds: float) -> tuple[Engine, Engine]:
    """Creates an engine for writers and one for readers.

    Args:
        name: how messages call the store.
        seconds: how long to wait for a lock.

    Raises:
        StoreError: the URL has an unknown or invalid parameter.
    """
    url, arguments = driver_arguments(url, name)
    connect = _Connector(name, seconds)
    logging.getLogger("sqlalchemy.pool.impl.QueuePool").addFilter(_shorten)
    engines = []
    # A writer that waited for a lock has to see what others committed meanwhile; a reader has to
    # see one state of the store throughout.
    for level in ("READ COMMITTED", "REPEATABLE READ"):
        engine = create_engine(
            url, connect_args=arguments, isolation_level=level, pool_pre_ping=True
        )
        # Many rows as one statement: otherwise each row is a round trip to the server.
        engine.dialect.use_insertmanyvalues_wo_returning = True
        event.listen(engine, "connect", connect.configure)
        event.listen(engine, "do_connect", connect)
        event.listen(engine, "handle_error", _notice_shutdown)
        engines.append(engine)
    writer, reader = engines
    return writer, reader


class _Connector:
    """Opens connections with time limits, so that no server can block a process for ever."""

    def __init__(self, name: str, seconds: float) -> None:
        self._name = name
        self._settings = {
            # As on SQLite, a power cut may take the last commits but damages nothing.
            "synchronous_commit": "off",
            "TimeZone": "UTC",
            "lock_timeout": _milliseconds(seconds),
            "statement_timeout": _milliseconds(STATEMENT_SECONDS),
            "idle_in_transaction_session_timeout": _milliseconds(IDLE_SECONDS),
            "tcp_user_timeout": str(_USER_TIMEOUT_MS),
            **{f"tcp_keepalives_{name}": str(value) for name, value in _KEEPALIVE.items()},
        }

    def __call__(
        self, dialect: Dialect, record: ConnectionPoolEntry, arguments: Any, options: Any
    ) -> Any:
        # Set here, because the process may be a fork of the one that created the engines.
        named = {"application_name": _application_name()} | options
        try:
            connection = dialect.connect(*arguments, **named)
        except ssl.SSLCertVerificationError as error:
            raise StoreError(
                f"{self._name}: the server's certificate is refused ({error.verify_message}); "
                "expected one that sslrootcert has signed and, with sslmode=verify-full, that "
                "names the host of the URL"
            ) from error
        except OSError as error:
            # pg8000 does not translate all network errors.
            raise dialect.loaded_dbapi.OperationalError(str(error)) from error
        if dialect.driver == "pg8000":
            _limit(connection._usock)
            connection._sock = _Wire(connection._sock, dialect.loaded_dbapi.InterfaceError)
        return connection

    def configure(self, connection: Any, _record: ConnectionPoolEntry) -> None:
        values = ", ".join(f"('{name}', '{value}')" for name, value in self._settings.items())
        cursor = connection.cursor()
        cursor.execute(_SET.format(values=values))
        cursor.close()
        connection.commit()
        if hasattr(connection, "execute_simple"):
            # pg8000 commits in three messages; one is enough.
            connection.commit = functools.partial(connection.execute_simple, "commit")


class _Wire:
    """The socket file that pg8000 reads, with pg8000's own exceptions.

    pg8000 translates the errors of some reads only. SQLAlchemy does not recognise an `OSError` as
    a broken connection.
    """

    def __init__(self, file: BinaryIO, error: type[Exception]) -> None:
        self._file = file
        self._error = error
        self.write, self.flush, self.close = file.write, file.flush, file.close

    def read(self, size: int) -> bytes:
        try:
            return self._file.read(size)
        except OSError as error:
            raise self._error(f"network error: {error}") from error


def _limit(sock: socket.socket) -> None:
    """Sets timeouts on an open connection; pg8000 has one for connecting only."""
    sock.settimeout(STATEMENT_SECONDS + ANSWER_SECONDS)
    if sock.family == socket.AF_UNIX:
        return
    for name, value in _SOCKET_OPTIONS:
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _milliseconds(seconds: float) -> str:
    return str(math.ceil(1000 * seconds))


def _application_name() -> str:
    # The server truncates it to 63 bytes.
    return f"advsweep {socket.gethostname()[:40]}:{os.getpid()}"


def _notice_shutdown(context: ExceptionContext) -> None:
    """Makes the pool replace connections that the server closed."""
    if (_sql_state(context.original_exception) or "").startswith(("57P", "25P03", "08")):
        context.is_disconnect = True


def _shorten(record: logging.LogRecord) -> bool:
    """Shortens the pool's message about a broken connection, with its traceback, to one line."""
    if record.exc_info and record.exc_info[1] is not None:
        record.msg = "a broken connection to the server is closed: %s"
        record.args = (_text(record.exc_info[1]),)
        record.exc_info = None
    return True


def lock_holder(engine: Engine) -> str:
    """Describes the session that locks the store; empty if this user cannot see it."""
    try:
        with engine.begin() as connection:
            row = connection.execute(_LOCK_HOLDER).one_or_none()
    except (DBAPIError, StoreError):
        return ""
    if row is None:
        return ""
    pid, program, state, since = row
    known = [part for part in (program, state) if part]
    known += [f"in a transaction since {since:%Y-%m-%d %H:%M:%S} UTC"] if since else []
    return f": session {pid} ({', '.join(known)})" if known else f": session {pid}"


def lock_alone(connection: Connection) -> None:
    """Takes a lock that one transaction holds at a time, until its end."""
    connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK})


class ServerClock:
    """The clock of the server, so that leases do not depend on the clocks of machines.

    It is read again every second, because somebody may set it. Between two readings it advances
    with the monotonic clock of this machine.

    Attributes:
        opened: when it was first read, in seconds of the monotonic clock.
        unsettled: when it last turned out to be set, or the server to be restarted, likewise;
            minus infinity if neither is known. Until each process has renewed its leases
            after that, they may look older than they are.
    """

    def __init__(self) -> None:
        self.opened = math.inf
        self.unsettled = -math.inf
        self._read: tuple[datetime, float] | None = None
        self._started: datetime | None = None

    def __call__(self) -> datetime:
        assert self._read is not None, "call `refresh` in a transaction first"
        then, read = self._read
        return then + timedelta(seconds=time.monotonic() - read)

    def refresh(self, connection: Connection) -> None:
        """Reads the clock if the last reading is too old; needs a transaction."""
        if self._read is not None and time.monotonic() - self._read[1] < _CLOCK_SECONDS:
            return
        now, started = connection.execute(_CLOCK).one()
        read = time.monotonic()
        if self._read is None:
            self.opened = read
            if started <= now:
                self.unsettled = read - (now - started).total_seconds()
        elif started != self._started or abs(now - self()) > _CLOCK_STEP:
            self.unsettled = read
        self._read, self._started = (now, read), started


def _sql_state(error: BaseException | None) -> str | None:
    """Returns PostgreSQL's code of an error (SQLSTATE); None for a network error."""
    # pg8000 fails on the closed connection while it reports why the server closed it.
    while error is not None:
        state: str | None = getattr(error, "sqlstate", None) or _fields(error).get("C")
        if state is not None:
            return state
        error = error.__context__
    return None


def _fields(error: BaseException) -> dict[str, str]:
    """Returns the fields of a server's message from pg8000, by the letters of the protocol."""
    fields = error.args[0] if error.args else None
    return fields if isinstance(fields, dict) else {}


def may_recover(error: BaseException) -> bool:
    """Returns whether a call that failed with this error may succeed later."""
    state = _sql_state(error)
    if state is None:
        return type(error).__name__ in _NETWORK
    return state.startswith(_PASSING) and state != _DROPPED


def meaning(url: URL, error: BaseException, seconds: float, lock_holder: Callable[[], str]) -> str:
    """Explains a server's error to a user."""
    state = _sql_state(error)
    if state is None:
        folder = url.query.get("host")
        where = folder or f"{url.host or 'localhost'}:{url.port or PORT}"
        return f"no connection to the server at {where} ({_text(error)}); see that it is running"
    if state == "55P03":
        return _locked(seconds, lock_holder())
    return _MEANINGS.get(state) or _text(error)


def _locked(seconds: float, holder: str) -> str:
    return (
        f"another process has kept it locked for {seconds:g} s{holder}; find and end that process"
    )


def _text(error: BaseException) -> str:
    return _fields(error).get("M") or " ".join(str(error).split())
