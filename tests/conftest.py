"""Fixtures of all tests: fixed examples, one thread, no settings of the user."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from advsweep.named_code import ALLOWED
from advsweep.store import open_store
from advsweep.sweep.registry import GROUPS, PARTS
from advsweep.tasks.verifiers.base import RUN_CODE, RUN_CODE_AS_ROOT

settings.register_profile("advsweep", max_examples=60, deadline=None, derandomize=True)
settings.load_profile("advsweep")

INSTALLED = Path(__file__).parent / "installed"
"""Packages of the tests, the backend `fake` among them: here and in all processes of commands."""
sys.path.append(str(INSTALLED))
_PATH = os.pathsep.join([*filter(None, [os.environ.get("PYTHONPATH")]), str(INSTALLED)])

os.environ.update({"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "COLUMNS": "160"})
os.environ["PYTHONPATH"] = _PATH


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Refuse names of tests that differ from process to process, which stop parallel runs."""
    for item in items:
        if " at 0x" in item.name:
            raise pytest.UsageError(
                f"{item.nodeid}: expected a name that every process gives, got an address; name "
                "the cases by ids="
            )


_TESTS = itertools.count()


@pytest.fixture(scope="session")
def cache_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Cache of base models for the test session, shared by xdist's workers."""
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    directory = shared / "advsweep-cache"
    directory.mkdir(exist_ok=True)
    return directory


@pytest.fixture(autouse=True)
def _own_environment(
    cache_directory: Path,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ADVSWEEP_CACHE", str(cache_directory))
    # Another test must not have to wait for the cores of this one.
    locks = tmp_path_factory.getbasetemp() / f"locks-{next(_TESTS)}"
    monkeypatch.setenv("ADVSWEEP_RUNTIME", str(locks))
    for name in ("ADVSWEEP_STORE", "ADVSWEEP_RUNS", "ADVSWEEP_STORE_PATIENCE"):
        monkeypatch.delenv(name, raising=False)
    # Set, so that consent given in a test ends with the test.
    monkeypatch.setenv(RUN_CODE, "")
    monkeypatch.setenv(ALLOWED, "[]")
    monkeypatch.setenv(RUN_CODE_AS_ROOT, "1" if os.geteuid() == 0 else "")


@pytest.fixture(autouse=True)
def _own_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """What registries are told of files ends with the test: the next may have a file of that name.

    A command in this process tells them, too.
    """
    for registry in (*GROUPS.values(), *PARTS.values()):
        monkeypatch.setattr(registry, "_named", {})
        monkeypatch.setattr(registry, "_loaded", dict(registry._loaded))


@pytest.fixture
def write_code(tmp_path: Path) -> Callable[..., str]:
    """`write_code(text, "idea.py")` writes a file and returns its path, for a command line."""

    def write(text: str, name: str = "idea.py") -> str:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return str(path)

    return write


@pytest.fixture(scope="session")
def empty_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty store: copying it is quicker than running the migrations for each test."""
    path = tmp_path_factory.mktemp("empty") / "advsweep.db"
    open_store(str(path)).close()
    return path


Install = Callable[..., Path]


@pytest.fixture
def install(tmp_path: Path) -> Install:
    """`install(package, entry_points, **modules)` returns a folder with an installed package.

    The folder, for PYTHONPATH, has the modules and a `.dist-info` as pip creates it. The entry
    points map a group to names and objects.
    """

    def installed(
        package: str, entry_points: Mapping[str, Mapping[str, str]], **modules: str
    ) -> Path:
        folder = tmp_path / "site"
        metadata = folder / f"{package.replace('-', '_')}-1.0.dist-info"
        metadata.mkdir(parents=True)
        (metadata / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n"
        )
        lines = [
            line
            for group, points in entry_points.items()
            for line in (f"[{group}]", *(f"{name} = {value}" for name, value in points.items()))
        ]
        (metadata / "entry_points.txt").write_text("\n".join(lines) + "\n")
        for name, source in modules.items():
            (folder / f"{name}.py").write_text(source, encoding="utf-8")
        return folder

    return installed


class PostgresServer:
    """A PostgreSQL server for the tests, on a socket in a temporary folder."""

    def __init__(self, binaries: Path) -> None:
        self.binaries = binaries
        self.port = 5432
        self.options = ["-c", "listen_addresses="]
        # Short, as the path of a socket may have but a hundred characters.
        self.folder = Path(tempfile.mkdtemp(prefix="advsweep-pg-"))
        # It refuses to run as root, who can be any other user.
        self._user: dict[str, object] = {}
        if os.geteuid() == 0:
            os.chown(self.folder, 65534, 65534)
            self._user = {"user": 65534, "group": 65534, "extra_groups": []}
        initdb = [str(binaries / "initdb"), "-D", str(self.folder / "data"), "-U", "advsweep"]
        self._call([*initdb, "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync"])
        self.start()

    def url(self, database: str) -> str:
        return f"postgresql://advsweep@/{database}?host={self.folder}"

    def start(self) -> None:
        log = open(self.folder / "log.txt", "ab")  # noqa: SIM115 (the server's until it ends)
        self._process = subprocess.Popen(
            [
                *(str(self.binaries / "postgres"), "-D", str(self.folder / "data")),
                *("-k", str(self.folder), "-c", "fsync=off", *self.options),
            ],
            cwd=self.folder,
            stdout=log,
            stderr=log,
            **self._user,  # type: ignore[call-overload]
        )
        log.close()
        deadline = time.monotonic() + 60
        while self.ask("postgres", "SELECT 1") is None:
            assert self._process.poll() is None, (self.folder / "log.txt").read_text()
            assert time.monotonic() < deadline, "the server does not answer"
            time.sleep(0.05)

    def stop(self) -> None:
        """Stops the server immediately, even with open connections."""
        self._process.send_signal(signal.SIGINT)
        self._process.wait()

    def ask(self, database: str, query: str) -> list[object] | None:
        """Returns the rows of a query; None if the server does not answer."""
        import pg8000.dbapi

        socket = str(self.folder / f".s.PGSQL.{self.port}")
        try:
            connection = pg8000.dbapi.connect("advsweep", unix_sock=socket, database=database)
        except (pg8000.dbapi.Error, OSError):
            return None
        connection.autocommit = True
        try:
            cursor = connection.cursor()
            cursor.execute(query)
            return list(cursor.fetchall()) if cursor.description else []
        finally:
            connection.close()

    def _call(self, command: list[str]) -> None:
        done = subprocess.run(
            command,
            check=False,
            cwd=self.folder,
            capture_output=True,
            text=True,
            **self._user,  # type: ignore[call-overload]
        )
        assert done.returncode == 0, done.stderr


class PostgresProxy:
    """A TCP proxy in front of a server's socket, as a separate process (`tcp_proxy.py`)."""

    def __init__(self, server: PostgresServer) -> None:
        program = Path(__file__).with_name("tcp_proxy.py")
        self._process = subprocess.Popen(
            [sys.executable, str(program), str(server.folder / ".s.PGSQL.5432")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())

    def url(self, database: str) -> str:
        return f"postgresql://advsweep@127.0.0.1:{self.port}/{database}"

    def order(self, order: str) -> None:
        """`hold` stops forwarding, `go` resumes it, `reset` resets every connection."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{order}\n")
        self._process.stdin.flush()
        assert self._process.stdout.readline() == f"{order}\n"

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


def postgres_binaries() -> Path | None:
    found = shutil.which("initdb")
    places = [Path(found).resolve().parent] if found else []
    places += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    return next((place for place in places if (place / "postgres").exists()), None)


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """A PostgreSQL server; skips the test if none is installed, except in CI."""
    binaries = postgres_binaries()
    if binaries is None:
        reason = "no PostgreSQL server is installed (no initdb on the PATH)"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    server = PostgresServer(binaries)
    yield server
    server.stop()
    shutil.rmtree(server.folder)


@pytest.fixture
def postgres_proxy(postgres_server: PostgresServer) -> Iterator[PostgresProxy]:
    """A TCP connection to the server that a test can disturb."""
    proxy = PostgresProxy(postgres_server)
    yield proxy
    proxy.close()


@pytest.fixture(scope="session")
def _postgres_databases(postgres_server: PostgresServer) -> Callable[[], str]:
    """Creates databases with an empty store by copying a template, which is fastest."""
    from advsweep.store import open_store

    server, numbers = postgres_server, itertools.count()
    server.ask("postgres", "CREATE DATABASE template")
    open_store(server.url("template")).close()

    def make() -> str:
        name = f"store{next(numbers)}"
        server.ask("postgres", f"CREATE DATABASE {name} TEMPLATE template")
        return name

    return make


@pytest.fixture
def postgres_url(
    postgres_server: PostgresServer,
    _postgres_databases: Callable[[], str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> Iterator[str]:
    """URL of an empty store on a PostgreSQL server; its runs are in the test's folder."""
    monkeypatch.setenv("ADVSWEEP_RUNS", str(tmp_path / "advsweep-runs"))
    name = _postgres_databases()
    yield postgres_server.url(name)
    postgres_server.ask("postgres", f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """The system's Chromium; where there is none the test is skipped, but never in CI.

    For no longer than a module: while it is open this thread has a running event loop, beside
    which other tests could not run their own.
    """
    names = ("chromium", "chromium-browser", "google-chrome")
    found = next((path for name in names if (path := shutil.which(name))), None)
    if found is None:
        reason = f"no browser is installed (none of {', '.join(names)} on the PATH)"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=found, timeout=120_000)
        yield opened
        opened.close()
