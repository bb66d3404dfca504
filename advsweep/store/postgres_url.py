"""Parameters of a PostgreSQL URL: libpq's names, translated for the drivers.

https://www.postgresql.org/docs/current/libpq-connect.html#LIBPQ-PARAMKEYWORDS
"""

from __future__ import annotations

import getpass
import os
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sqlalchemy.engine import URL

from advsweep.errors import StoreError, nearest

PORT = 5432

CONNECT_SECONDS = 10
"""Default of `connect_timeout`."""

_PARAMETERS = (
    *("application_name", "connect_timeout", "host", "options", "password", "port"),
    *("sslcert", "sslkey", "sslmode", "sslrootcert", "unix_sock", "user"),
)
_TLS_MODES = ("disable", "prefer", "require", "verify-ca", "verify-full")

_ROOT = Path("~/.postgresql/root.crt")
"""Where libpq looks for the certificate of the authority."""

_LIBPQ_DEFAULTS = {
    "connect_timeout": CONNECT_SECONDS,
    "keepalives_idle": 15,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
}


def driver_arguments(url: URL, name: str) -> tuple[URL, dict[str, Any]]:
    """Returns the URL with libpq's defaults, and the driver's arguments to connect with.

    psycopg uses libpq, which checks the parameters itself; pg8000 gets them translated.

    Args:
        name: how messages call the store.

    Raises:
        StoreError: a parameter is unknown or invalid.
    """
    url = url.set(
        username=url.username or getpass.getuser(),
        password=url.password or os.environ.get("PGPASSWORD"),
    )
    if url.get_driver_name() != "pg8000":
        defaults = {k: v for k, v in _LIBPQ_DEFAULTS.items() if k not in url.query}
        return url, defaults
    given = _checked(url.query, name)
    sock = given.pop("unix_sock", None)
    if (host := given.pop("host", None)) is not None:
        if host.startswith("/"):
            sock = f"{host}/.s.PGSQL.{given.get('port', url.port or PORT)}"
        else:
            url = url.set(host=host)
    if "port" in given:
        url = url.set(port=_number(given.pop("port"), "port", name))
    arguments: dict[str, Any] = {
        "timeout": _number(given.pop("connect_timeout", CONNECT_SECONDS), "connect_timeout", name),
        # As in libpq, a Unix socket has no TLS.
        "ssl_context": False if sock else _tls(given, name),
    }
    if sock:
        arguments["unix_sock"] = sock
    if "options" in given:
        arguments["startup_params"] = {"options": given["options"]}
    for key in ("application_name", "user", "password"):
        if key in given:
            arguments[key] = given[key]
    return url.set(query={}), arguments


def _checked(query: Mapping[str, str | tuple[str, ...]], name: str) -> dict[str, str]:
    given = {}
    for key, value in query.items():
        if key not in _PARAMETERS:
            raise StoreError(
                f"{name}: unknown parameter '{key}' of the URL; {nearest(key, _PARAMETERS)}"
            )
        if not isinstance(value, str):
            raise StoreError(f"{name}: expected {key} once in the URL, got it {len(value)} times")
        given[key] = value
    return given


def _number(value: str | int, key: str, name: str) -> int:
    if not str(value).isdecimal() or int(value) == 0:
        raise StoreError(f"{name}: {key}: expected a whole number above 0, got {value!r}")
    return int(value)


def _tls(given: Mapping[str, str], name: str) -> ssl.SSLContext | bool | None:
    """Returns pg8000's argument: a context, False for no TLS, None for TLS if the server has it."""
    mode = given.get("sslmode", "prefer")
    if mode not in _TLS_MODES:
        hint = "; use prefer, which tries TLS first" if mode == "allow" else ""
        raise StoreError(
            f"{name}: sslmode: expected one of {', '.join(_TLS_MODES)}, got {mode!r}{hint}"
        )
    if mode in ("disable", "prefer"):
        for key in ("sslrootcert", "sslcert", "sslkey"):
            if key in given:
                raise StoreError(
                    f"{name}: {key} has no effect with sslmode={mode}; expected "
                    "sslmode=verify-full, verify-ca or require beside it"
                )
        return False if mode == "disable" else None
    root = given.get("sslrootcert")
    if root is None and _ROOT.expanduser().exists():
        root = str(_ROOT)
    if mode == "require" and root is not None:
        mode = "verify-ca"  # as libpq does
    if mode == "verify-ca" and root in (None, "system"):
        raise StoreError(
            f"{name}: sslmode=verify-ca needs sslrootcert, the file of the authority's "
            "certificate, because public authorities sign certificates for anyone; give it, or "
            "use sslmode=verify-full"
        )
    try:
        return _context(mode, root, given)
    except (OSError, ssl.SSLError) as error:
        keys = [key for key in ("sslrootcert", "sslcert", "sslkey") if key in given]
        files = ", ".join(f"{key}={given[key]}" for key in keys)
        raise StoreError(
            f"{name}: a certificate or key cannot be read ({error}); expected PEM files, got "
            f"{files}"
        ) from error


def _context(mode: str, root: str | None, given: Mapping[str, str]) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = mode == "verify-full"
    if mode == "require":
        context.verify_mode = ssl.CERT_NONE
    elif root is None or root == "system":
        context.load_default_certs()
    else:
        context.load_verify_locations(Path(root).expanduser())
    if "sslcert" in given:
        key = given.get("sslkey")
        context.load_cert_chain(
            Path(given["sslcert"]).expanduser(), None if key is None else Path(key).expanduser()
        )
    return context
