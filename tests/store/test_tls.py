"""TLS to a server: which certificates are accepted, and the parameters of URLs."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from advsweep.errors import StoreError
from advsweep.store import open_store

pytestmark = pytest.mark.security

NAMED = "postgresql://advsweep@localhost:{port}/postgres?"
"""The host that the server's certificate names."""
UNNAMED = "postgresql://advsweep@127.0.0.1:{port}/postgres?"


def openssl(folder: Path, *arguments: str) -> None:
    subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)


def authority(folder: Path, name: str) -> None:
    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    subject = ["-subj", f"/CN={name}", "-days", "2"]
    openssl(folder, "req", "-x509", *key, *subject, "-keyout", f"{name}.key", "-out", f"{name}.crt")


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`ours.crt`, which has signed `server.crt` for localhost, and `other.crt`, which has not."""
    if shutil.which("openssl") is None:
        pytest.skip("no openssl on the PATH")
    folder = tmp_path_factory.mktemp("tls")
    authority(folder, "ours")
    authority(folder, "other")
    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    request = ["-subj", "/CN=localhost", "-keyout", "server.key", "-out", "server.csr"]
    openssl(folder, "req", *key, *request)
    (folder / "names").write_text("subjectAltName=DNS:localhost\n")
    signed = ["-CA", "ours.crt", "-CAkey", "ours.key", "-CAcreateserial", "-days", "2"]
    wanted = ["-in", "server.csr", "-out", "server.crt", "-extfile", "names"]
    openssl(folder, "x509", "-req", *wanted, *signed)
    return folder


@pytest.fixture(scope="module")
def tls_server(postgres_server: Any, certificates: Path) -> Iterator[Callable[[str], str]]:
    """Makes URLs of a server that has TLS."""
    server = type(postgres_server)(postgres_server.binaries)
    server.stop()
    for name in ("server.crt", "server.key"):
        path = server.folder / "data" / name
        shutil.copy(certificates / name, path)
        path.chmod(0o600)
        if os.geteuid() == 0:
            os.chown(path, 65534, 65534)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server.options = ["-c", "listen_addresses=127.0.0.1", "-c", f"port={port}", "-c", "ssl=on"]
    server.port = port
    server.start()
    yield lambda url: url.format(port=port, tls=certificates)
    server.stop()
    shutil.rmtree(server.folder)


def uses_tls(url: str) -> bool:
    with open_store(url) as store, store.database.read() as connection:
        query = "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()"
        return bool(connection.exec_driver_sql(query).scalar())


@pytest.mark.parametrize(
    ("url", "tls"),
    [
        (UNNAMED + "sslmode=disable", False),
        (UNNAMED, True),
        (UNNAMED + "sslmode=prefer", True),
        (UNNAMED + "sslmode=require", True),
        (NAMED + "sslmode=verify-full&sslrootcert={tls}/ours.crt", True),
    ],
)
def test_verified_servers_are_accepted(tls_server, url, tls):
    assert uses_tls(tls_server(url)) is tls


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        (NAMED + "sslmode=verify-full&sslrootcert={tls}/other.crt", "unable to get local issuer"),
        (NAMED + "sslmode=verify-full", "unable to get local issuer"),
        (UNNAMED + "sslmode=verify-full&sslrootcert={tls}/ours.crt", "IP address mismatch"),
    ],
)
def test_servers_with_a_wrong_certificate_are_refused(tls_server, url, reason):
    with pytest.raises(StoreError, match=f"certificate is refused .*{reason}"):
        open_store(tls_server(url), patience=60, wait=True)


def test_a_server_without_tls_is_refused_if_the_url_requires_it(postgres_proxy):
    with pytest.raises(StoreError, match=r"no connection to the server .*refuses SSL"):
        open_store(f"{postgres_proxy.url('postgres')}?sslmode=require")


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("sslmod=require", "unknown parameter 'sslmod' of the URL.* 'sslmode'"),
        ("sslmode=require&sslmode=disable", "unknown parameter 'sslmode' .* or one given twice"),
        ("sslmode=allow", "sslmode: expected one of .* got 'allow'"),
        ("sslmode=on", "sslmode: expected one of disable, prefer, require"),
        ("sslrootcert=ca.crt", "sslrootcert has no effect with sslmode=prefer"),
        ("sslmode=require&sslrootcert=ca.crt", "sslrootcert has no effect with sslmode=require"),
        ("sslmode=verify-full&sslrootcert=/none/ca.crt", "expected a PEM file, got /none/ca.crt"),
    ],
)
def test_invalid_parameters_are_refused(query, message):
    with pytest.raises(StoreError, match=message) as error:
        open_store(f"postgresql://me:secret@localhost:1/db?{query}")
    assert "secret" not in str(error.value)
