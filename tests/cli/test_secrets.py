"""Passwords and keys reach no child's command line, no store, no log, no report and no file."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from advsweep.cli import main
from advsweep.store import Status, open_store

pytestmark = [pytest.mark.security, pytest.mark.slow]

CANARY = "c4narybird"
"""A part of every secret of these tests, which nothing else has."""

SECRETS = {
    "PGPASSWORD": f"{CANARY}-environment",
    "WANDB_API_KEY": (CANARY + "0" * 40)[:40],
    "HF_TOKEN": f"hf_{CANARY}",
}

SMALL = ("backend=fake", "steps=12", "evaluation.n=4", "evaluation.k=[1]", "estimator=grpo,fade")

LOCAL = ("--jobs=2", "tracking=wandb", "tracking.mode=offline")
RAY = ("executor=ray",)
SLURM = ("executor=slurm", "executor.cluster=local")


@pytest.fixture
def url(postgres_url):
    """A store's URL with a password."""
    with_user = postgres_url.replace("advsweep@", f"advsweep:{CANARY}-url@")
    assert with_user != postgres_url
    return with_user


@pytest.fixture
def environment(monkeypatch):
    """Secrets in the environment, and a short folder for Ray's sockets and logs."""
    folder = tempfile.mkdtemp(prefix="t-", dir="/tmp")
    for name, value in {**SECRETS, "RAY_TMPDIR": folder}.items():
        monkeypatch.setenv(name, value)
    yield {**os.environ}
    shutil.rmtree(folder)


def command_lines_with_secrets() -> Iterator[str]:
    """Command lines of all processes that hold a secret, but for those that users type."""
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = process.read_bytes().decode(errors="replace")
        except OSError:
            continue
        if CANARY in line and "\0typed\0" not in line:
            yield line.replace("\0", " ")


@contextmanager
def watched(look: Callable[[], Iterable[str]], seconds: float) -> Iterator[set[str]]:
    """Yields all that a function has returned, which is called again and again meanwhile."""
    seen: set[str] = set()
    over = threading.Event()

    def watch() -> None:
        while not over.is_set():
            seen.update(look())
            over.wait(seconds)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield seen
    finally:
        over.set()
        watcher.join()


def advsweep(folder: Path, *arguments: str) -> str:
    """What a command prints on both streams. Its own command line is marked as typed."""
    program = "import sys; sys.argv.remove('typed'); from advsweep.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-P", "-c", program, "typed", *arguments],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def wait_for_runs(url: str, number: int) -> None:
    deadline = time.monotonic() + 120
    with open_store(url, create=False) as store:
        while len(store.runs.select(status=Status.DONE)) < number:
            assert time.monotonic() < deadline, store.runs.select()
            time.sleep(0.05)


def content_of(server: Any, database: str) -> str:
    """Every row of every table."""
    names = server.ask(database, "SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
    rows = [server.ask(database, f'SELECT t::text FROM "{name}" t') for [name] in names]
    return str(rows)


def leaks(folder: Path) -> list[str]:
    """Files below a folder that hold a secret, in their content or their name."""
    leaking = []
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):  # it was removed meanwhile
            if path.is_file() and (CANARY.encode() in path.read_bytes() or CANARY in str(path)):
                leaking.append(str(path))
    return leaking


@pytest.mark.parametrize("how", [LOCAL, RAY, SLURM], ids=lambda how: how[0])
def test_secrets_stay_in_the_environment(how, url, environment, tmp_path, postgres_server):
    # Ray's logs are removed with its cluster.
    ray_folder = Path(environment["RAY_TMPDIR"])
    with (
        watched(command_lines_with_secrets, seconds=0.005) as lines,
        watched(lambda: leaks(ray_folder), seconds=1) as in_logs,
    ):
        printed = advsweep(tmp_path, "sweep", *SMALL, *how, "--store", url)
        wait_for_runs(url, 2)
    with open_store(url, create=False) as store:
        command = store.runs.environment(1)["command"]
        database = str(store.file or url).partition("?")[0].rpartition("/")[2]
    # The rest of it is there: the test would pass without any.
    assert "--store" in command
    assert "advsweep:***@" in command
    assert lines == set()
    assert CANARY not in printed
    assert CANARY not in content_of(postgres_server, database)
    assert leaks(tmp_path) == []
    assert in_logs == set()
    assert list((tmp_path / "advsweep-runs").rglob("log.txt"))


def test_nothing_that_is_printed_holds_a_secret_of_an_older_store(tmp_path, monkeypatch, capsys):
    """Stores of older versions hold command lines with secrets."""
    monkeypatch.chdir(tmp_path)

    def printed(*arguments: str) -> str:
        monkeypatch.setattr("sys.argv", ["advsweep", *arguments])
        with contextlib.suppress(SystemExit):
            main()
        return "".join(capsys.readouterr())

    printed("sweep", *SMALL, "executor=debug", "--store", "old.db")
    secret = f"advsweep run --store postgresql://ann:{CANARY}@host/runs HF_TOKEN={CANARY}"
    with open_store("old.db", create=False) as store:
        store.runs.set_environment(1, {"command": secret})
        store.runs.set_environment(2, {"command": secret, "python": "3.11"})
        expected = "advsweep run --store 'postgresql://ann:***@host/runs' 'HF_TOKEN=***'"
        assert store.runs.environment(1)["command"] == expected
    monkeypatch.setenv("ADVSWEEP_STORE", "old.db")
    assert "ann:***@host" in printed("show", "1", "--full")
    for command in (
        "show 1",
        "show 1 --full",
        "show 1 --format=json",
        "ls --format=json",
        "status --format=json",
    ):
        assert CANARY not in printed(*command.split()), command
    for form in ("html", "json", "markdown"):
        page = printed("report", f"--format={form}")
        assert "grpo" in page
        assert CANARY not in page, form
        assert "advsweep run" not in page
    assert "2" in printed("merge", "old.db", "--store", "new.db")
    assert {Path(leak).name.partition(".")[0] for leak in leaks(tmp_path)} == {"old"}
