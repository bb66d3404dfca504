"""Executors: what a worker process is given."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from advsweep.sweep.environment import describe_environment
from advsweep.sweep.executors import local
from advsweep.sweep.executors.base import Job
from advsweep.sweep.executors.local import LocalExecutor
from advsweep.sweep.registry import EXECUTORS


@pytest.mark.parametrize("name", EXECUTORS.names())
def test_every_executor_has_room(name: str) -> None:
    assert EXECUTORS.build(name).capacity() >= 1


def test_jobs_are_the_capacity() -> None:
    assert LocalExecutor(jobs=7).capacity() == 7


def test_a_worker_gets_one_thread_a_session_and_no_secrets_on_its_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: dict[str, Any] = {}

    def popen(command: list[str], **options: Any) -> None:
        started.update(options, command=command)

    monkeypatch.setattr(local.subprocess, "Popen", popen)
    url = "postgresql://user:secret@host/runs"
    settings = {"name": "standard", "n": 4}
    job = Job(run_id=3, store_url=url, directory=tmp_path / "run", evaluations=(settings,))
    LocalExecutor().start(job)
    command, environment = started["command"], started["env"]
    assert command[command.index("--run") + 1] == "3"
    assert command[command.index("--parent-pid") + 1] == str(os.getpid())
    assert json.loads(command[command.index("--evaluation") + 1]) == settings
    assert "secret" not in " ".join(command)
    assert environment["ADVSWEEP_STORE"] == url
    assert environment["OMP_NUM_THREADS"] == "1"
    assert started["start_new_session"] is True
    assert (tmp_path / "run" / "log.txt").exists()


def test_the_environment_says_with_what_and_where(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ADVSWEEP_COMMAND", "advsweep sweep +experiment=demo")
    environment = describe_environment()
    assert json.loads(json.dumps(environment)) == environment
    assert environment["command"] == "advsweep sweep +experiment=demo"
    assert environment["packages"]["torch"].startswith("2.")
    assert environment["memory_bytes"] > 1e8
    assert environment["cpu"]
