"""PostgreSQL: URLs, connections by pg8000, the clock of the server, and what its errors mean."""

from __future__ import annotations

import getpass
import importlib.util
import logging
import math
import os
import socket
import ssl
import struct
import time
from collections.abc import Mapping
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, Engine, create_engine, event, func, select, text
from sqlalchemy.engine import URL
from sqlalchemy.exc import DBAPIError

from advsweep.errors import StoreError, nearest
from advsweep.packages import extra_command
from advsweep.store.json_columns import decode_json

if TYPE_CHECKING:
    from sqlalchemy.engine import Dialect, ExceptionContext

PORT = 5432

# Time that connecting may take.
CONNECT_SECONDS = 10

# Time after which the server cancels a statement.
STATEMENT_SECONDS = 120.0

# Additional time after which a silent server counts as dead.
ANSWER_SECONDS = 10.0

# Time after which the server ends a transaction between two statements.
#
# It frees the locks of a process that was suspended or disconnected.
IDLE_SECONDS = 60.0

# A process notices within half a minute, before its leases end, that the other machine or the
# network is gone. The server ends the transactions of such a process after `IDLE_SECONDS`.
_SOCKET_OPTIONS = {
    "TCP_KEEPIDLE": 15,
    "TCP_KEEPINTVL": 5,
    "TCP_KEEPCNT": 3,
    "TCP_USER_TIMEOUT": 30_000,
}

# The option of an engine that has the isolation level of its transactions.
_LEVEL = "advsweep_isolation_level"

# A process keeps one connection: a server has a hundred in all. Further ones are closed as soon as
# they are not needed, as when a heartbeat and a report of metrics meet.
_KEPT_CONNECTIONS = 1
_FURTHER_CONNECTIONS = 10

_TLS_MODES = ("disable", "prefer", "require", "verify-full")
# The parameters of a URL, a part of those of libpq:
# https://www.postgresql.org/docs/current/libpq-connect.html#LIBPQ-PARAMKEYWORDS
_PARAMETERS = ("host", "sslmode", "sslrootcert")

_TLS_REQUEST = struct.pack("!ii", 8, 80877103)

# Maximum age of a reading of the server's clock.
_CLOCK_SECONDS = 1.0
# Difference from the expected reading above which the server's clock was set.
_CLOCK_STEP = timedelta(seconds=5)

_CLOCK = select(func.clock_timestamp(), func.pg_postmaster_start_time())

# The advisory lock of `Database.write_alone`.
_LOCK = 0x61647673

_MEANINGS = {
    "3D000": "there is no such database; make it with `createdb`, then start again",
    "28000": "the server refuses this user",
    "28P01": "the server refuses this user or password; the URL has it, or else $PGPASSWORD does",
    "42501": "this user lacks a permission in this database; grant it",
    "53100": "the disk is full; make room on the server and start again (metrics so far are kept)",
    "53300": "the server takes no more connections; raise its max_connections",
    "57014": "the server cancelled a statement, which exceeded its time limit or was "
    "cancelled by an operator",
}

# SQL states of errors that pass: lost connections (08), lack of resources (53), interventions of
# an operator (57), rollbacks by the server, locks, idle transactions and I/O errors.
_PASSING = ("08", "53", "57", "40001", "40P01", "55P03", "25P03", "58030")
_DROPPED = "57P04"  # the database is gone


def with_driver(url: URL, name: str) -> URL:
    """Return the URL with the driver pg8000.

    Raises:
        StoreError: it is not installed, or the URL names another one.
    """
    named = url.drivername.partition("+")[2]
    if named not in ("", "pg8000"):
        raise StoreError(f"{name}: expected postgresql:// or postgresql+pg8000://")
    if importlib.util.find_spec("pg8000") is None:
        raise StoreError(
            f"{name}: PostgreSQL needs the driver pg8000, which is not installed; "
            + extra_command("postgres")
        )
    return url.set(drivername="postgresql+pg8000")


def server_engines(url: URL, name: str, seconds: float) -> tuple[Engine, Engine]:
    """Create an engine for writers and one for readers.

    Args:
        name: how messages call the store.
        seconds: how long to wait for a lock.

    Raises:
        StoreError: the URL has an unknown or invalid parameter.
    """
    connector = _Connector(url, name)
    # The pool logs the traceback of each broken connection; our own errors say what it means.
    logging.getLogger("sqlalchemy.pool").setLevel(logging.CRITICAL)
    engine = create_engine(
        url.set(query={}),
        pool_size=_KEPT_CONNECTIONS,
        max_overflow=_FURTHER_CONNECTIONS,
        json_deserializer=decode_json,
    )
    # Many rows as one statement: otherwise each row is a round trip to the server.
    engine.dialect.use_insertmanyvalues_wo_returning = True
    event.listen(engine, "do_connect", connector.connect)
    event.listen(engine, "handle_error", _notice_disconnection)
    event.listen(engine, "begin", partial(_begin, settings=_transaction_settings(seconds)))
    # A writer that waited for a lock has to see what others committed meanwhile; a reader has to
    # see one state of the store throughout.
    writer = engine.execution_options(**{_LEVEL: "READ COMMITTED"})
    reader = engine.execution_options(**{_LEVEL: "REPEATABLE READ"})
    return writer, reader


def _transaction_settings(lock_seconds: float) -> str:
    """Return the statements that set up a transaction.

    Settings of a session would not do: behind PgBouncer a transaction gets any session, also one
    of another program, and gives it back.
    """
    settings = {
        # As on SQLite, a power cut may take the last commits but damages nothing.
        "synchronous_commit": "off",
        "TimeZone": "'UTC'",
        "lock_timeout": math.ceil(1000 * lock_seconds),
        "statement_timeout": math.ceil(1000 * STATEMENT_SECONDS),
        "idle_in_transaction_session_timeout": math.ceil(1000 * IDLE_SECONDS),
    }
    return "; ".join(f"SET LOCAL {name} = {value}" for name, value in settings.items())


def _begin(connection: Connection, settings: str) -> None:
    """Begin a transaction with its isolation level and limits; the handler of the event `begin`.

    One message to the server, in place of the one by which pg8000 would begin.
    """
    level = connection.get_execution_options()[_LEVEL]
    driver: Any = connection.connection.driver_connection
    try:
        driver.execute_simple(f"BEGIN ISOLATION LEVEL {level}; {settings}")
    except Exception as error:
        # It broke while nobody used it, as when the server was restarted.
        connection.invalidate(error)
        raise DBAPIError(None, None, error) from error
    except BaseException as interruption:
        # A signal came before the answer, which the next user of the connection would take for
        # its own.
        connection.invalidate(interruption)
        raise


class _Connector:
    """Opens connections with time limits, so that no server can block a process for ever."""

    def __init__(self, url: URL, name: str) -> None:
        self._name = name
        parameters: dict[str, str] = {}
        for key, value in url.query.items():
            if key not in _PARAMETERS or not isinstance(value, str):
                raise StoreError(
                    f"{name}: unknown parameter '{key}' of the URL, or one given twice; "
                    f"{nearest(key, _PARAMETERS)}"
                )
            parameters[key] = value
        self._host = parameters.get("host") or url.host or "localhost"
        self._port = url.port or PORT
        # A Unix socket has no TLS.
        self._tls = None if self._host.startswith("/") else _tls_context(parameters, name)
        self._tls_optional = parameters.get("sslmode", "prefer") == "prefer"
        self._arguments: dict[str, Any] = {
            "user": url.username or getpass.getuser(),
            "password": url.password or os.environ.get("PGPASSWORD"),
            "database": url.database,
        }

    def connect(self, dialect: Dialect, _record: Any, _arguments: Any, _options: Any) -> Any:
        """Open a connection; the handler of SQLAlchemy's event `do_connect`."""
        # Named here, because the process may be a fork of the one that created the engines. The
        # server truncates the name to 63 bytes.
        program = f"advsweep {socket.gethostname()[:40]}:{os.getpid()}"
        try:
            sock = self._open_socket()
            # The function `connect` of the driver takes no socket.
            connection = dialect.loaded_dbapi.Connection(
                sock=sock, ssl_context=False, application_name=program, **self._arguments
            )
            # pg8000 has a timeout for connecting only. Longer than the server's own, so that a
            # slow statement ends with an error of the server, which says what happened.
            sock.settimeout(STATEMENT_SECONDS + ANSWER_SECONDS)
        except ssl.SSLCertVerificationError as error:
            raise StoreError(
                f"{self._name}: the server's certificate is refused ({error.verify_message}); "
                "expected one that sslrootcert has signed and, with sslmode=verify-full, that "
                "names the host of the URL"
            ) from error
        except OSError as error:
            raise dialect.loaded_dbapi.OperationalError(str(error)) from error
        return connection

    def _open_socket(self) -> socket.socket:
        if self._host.startswith("/"):
            local = socket.socket(socket.AF_UNIX)
            local.settimeout(CONNECT_SECONDS)
            local.connect(f"{self._host}/.s.PGSQL.{self._port}")
            return local
        sock = socket.create_connection((self._host, self._port), CONNECT_SECONDS)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _SOCKET_OPTIONS.items():
            if hasattr(socket, name):
                sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        if self._tls is not None:
            # pg8000 would do the same, and keep the only socket whose timeout can be set.
            sock.sendall(_TLS_REQUEST)
            if sock.recv(1) == b"S":
                return self._tls.wrap_socket(sock, server_hostname=self._host)
            if not self._tls_optional:
                raise OSError("the server refuses SSL")
        return sock


def _tls_context(parameters: Mapping[str, str], name: str) -> ssl.SSLContext | None:
    """Return what the TLS parameters of a URL mean; None for no TLS."""
    mode, root = parameters.get("sslmode", "prefer"), parameters.get("sslrootcert")
    if mode not in _TLS_MODES:
        expected = f"expected one of {', '.join(_TLS_MODES)}, got {mode!r}"
        raise StoreError(f"{name}: sslmode: {expected}")
    if root is not None and mode != "verify-full":
        # Whoever names an authority expects the server to be verified.
        raise StoreError(
            f"{name}: sslrootcert has no effect with sslmode={mode}; expected sslmode=verify-full"
        )
    if mode == "disable":
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if mode != "verify-full":
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    elif root is None:
        context.load_default_certs()
    else:
        try:
            context.load_verify_locations(Path(root).expanduser())
        except (OSError, ssl.SSLError) as error:
            raise StoreError(
                f"{name}: sslrootcert cannot be read ({error}); expected a PEM file, got {root}"
            ) from error
    return context


def _notice_disconnection(context: ExceptionContext) -> None:
    """Make the pool replace connections that broke or that the server closed."""
    error = context.original_exception
    if isinstance(error, OSError):
        # pg8000 translates some network errors only, and SQLAlchemy knows its errors alone.
        context.is_disconnect = True
        raise DBAPIError(None, None, error)
    if (_sql_state(error) or "").startswith(("57P", "25P03", "08")):
        context.is_disconnect = True


def check_encoding(connection: Connection, name: str) -> None:
    """Refuse a database that cannot hold every character of names, errors and answers.

    Raises:
        StoreError: its encoding is not UTF8; the first other character would end a command, or
            destroy the record of a run.
    """
    encoding = connection.exec_driver_sql("SHOW server_encoding").scalar_one()
    if encoding == "UTF8":
        return
    database = connection.engine.url.database
    raise StoreError(
        f"{name}: expected a database with the encoding UTF8, got {encoding}; make another: "
        f"createdb {database}_utf8 -E UTF8 -T template0"
    )


def lock_alone(connection: Connection) -> None:
    """Take a lock that one transaction holds at a time, until its end."""
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
        """Read the clock if the last reading is too old; needs a transaction."""
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


def _fields(error: BaseException) -> dict[str, str]:
    """Return the fields of a server's message, by the letters of the protocol."""
    fields = error.args[0] if error.args else None
    return fields if isinstance(fields, dict) else {}


def _sql_state(error: BaseException | None) -> str | None:
    """Return PostgreSQL's code of an error (SQLSTATE); None for a network error."""
    # pg8000 fails on the closed connection while it reports why the server closed it.
    while error is not None:
        if (state := _fields(error).get("C")) is not None:
            return state
        error = error.__context__
    return None


def explain(url: URL, error: BaseException, seconds: float) -> tuple[bool, str]:
    """Return whether a call that failed with this error may succeed later, and what it means.

    Args:
        seconds: how long a transaction waits for a lock.
    """
    state = _sql_state(error)
    said = _fields(error).get("M") or " ".join(str(error).split())
    if state is None:
        is_network = type(error).__name__ in ("InterfaceError", "OperationalError")
        where = url.query.get("host") or f"{url.host or 'localhost'}:{url.port or PORT}"
        meaning = f"no connection to the server at {where} ({said}); see that it is running"
        return is_network or isinstance(error, OSError), meaning
    meaning = _MEANINGS.get(state) or said
    if state == "55P03":
        meaning = (
            f"another process has kept it locked for {seconds:g} s; find it in pg_stat_activity "
            "and end it"
        )
    return state.startswith(_PASSING) and state != _DROPPED, meaning
