"""Workers that are forked: what they are given, how they end, and what they outlive."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from advsweep.store.owners import process_started
from advsweep.sweep.executors.base import ForkedProcess
from advsweep.sweep.executors.forkserver import ForkServer, can_adopt

pytestmark = pytest.mark.skipif(not can_adopt(), reason="workers are forked on Linux alone")


def wait_for(condition: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + 60
    while not (met := condition()):
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)
    return met


def end_of(process: ForkedProcess) -> int:
    wait_for(lambda: process.poll() is not None)
    code = process.poll()
    assert code is not None
    return code


def told(log: Path) -> dict[str, Any]:
    """What a worker wrote of itself."""
    found: dict[str, Any] = json.loads(log.read_text().splitlines()[0])
    return found


@pytest.fixture
def server(stand_in: str) -> Iterator[ForkServer]:
    """A server whose workers are the stand-in's."""
    server = ForkServer([stand_in], os.environ)
    wait_for(server.is_ready)
    yield server
    server.close()


def test_a_worker_is_a_child_of_this_process_in_a_session_of_its_own(
    server: ForkServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    core = max(os.sched_getaffinity(0))
    monkeypatch.chdir(tmp_path)
    log = Path("log.txt")
    log.write_text("")
    for given in ("first", "second"):
        environment = {"GIVEN": given, "OMP_NUM_THREADS": "3"}
        assert end_of(server.fork(["--run", given], environment, log, [core])) == 12
    assert "a word to stderr" in log.read_text()
    first, _, second, _ = log.read_text().splitlines()
    assert json.loads(first) == {
        "arguments": ["--run", "first"],
        "parent": os.getpid(),
        "session": True,
        "cores": [core],
        "folder": str(tmp_path),
        "environment": {"GIVEN": "first", "OMP_NUM_THREADS": "3"},
        "input": "",
    }
    assert json.loads(second)["environment"]["GIVEN"] == "second"


def test_ends_are_told_as_of_any_child(server: ForkServer, tmp_path: Path) -> None:
    def start(does: str) -> ForkedProcess:
        return server.fork([], {"DOES": does}, tmp_path / f"{does}.txt", [])

    assert end_of(start("exit")) == 70
    assert end_of(start("raise")) == 1
    assert "RuntimeError: as told" in (tmp_path / "raise.txt").read_text()
    killed, stopped = start("stay"), start("stay")
    assert killed.poll() is None
    killed.kill()
    stopped.terminate()
    assert end_of(killed) == -signal.SIGKILL
    assert end_of(stopped) == -signal.SIGTERM
    killed.kill()  # there is nothing left to kill


def test_workers_outlive_their_server(server: ForkServer, tmp_path: Path) -> None:
    worker = server.fork([], {"DOES": "stay"}, tmp_path / "log.txt", [])
    server._process.kill()
    server._process.wait()
    with pytest.raises(OSError, match=r"has ended|Broken pipe|reset by peer"):
        server.fork([], {}, tmp_path / "other.txt", [])
    log = tmp_path / "log.txt"
    wait_for(lambda: log.exists() and "stderr" in log.read_text())
    assert told(log)["parent"] == os.getpid()
    assert worker.poll() is None
    worker.terminate()
    assert end_of(worker) == -signal.SIGTERM


def test_a_server_that_cannot_import_says_so() -> None:
    server = ForkServer(["advsweep.no_such_module"], os.environ)
    try:
        with pytest.raises(OSError, match="has ended"):
            wait_for(server.is_ready)
    finally:
        server.close()


@pytest.mark.slow
def test_a_server_ends_with_the_process_that_started_it() -> None:
    program = (
        "import os, time; from advsweep.sweep.executors.forkserver import ForkServer\n"
        "server = ForkServer([], os.environ)\n"
        "while not server.is_ready(): time.sleep(0.01)\n"
        "print(server._process.pid, flush=True); os.kill(os.getpid(), 9)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    pid = int(done.stdout)
    wait_for(lambda: process_started(pid) is None)
