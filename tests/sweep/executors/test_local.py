"""The executor of this machine: what its workers are given, and when there is room for one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import pytest

from advsweep.errors import AdvsweepWarning, ConfigError
from advsweep.store import Store
from advsweep.sweep.executors import allocation
from advsweep.sweep.executors.base import Executor, Handle, Job, Resources
from advsweep.sweep.executors.debug import DebugExecutor
from advsweep.sweep.executors.forkserver import can_adopt
from advsweep.sweep.executors.local import LocalExecutor
from advsweep.sweep.planning.plan import Plan
from advsweep.sweep.registry import EXECUTORS
from advsweep.sweep.scheduler.execute import execute
from advsweep.sweep.worker.environment import describe_environment

Planner = Callable[..., Plan]
Jobs = Callable[[int], Job]

CORES = sorted(os.sched_getaffinity(0))


def wait_for(condition: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + 60
    while not (met := condition()):
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)
    return met


def started(executor: Executor, job: Job) -> Handle:
    """A worker, as soon as there is room for it."""
    handle: Handle = wait_for(lambda: executor.start(job))
    return handle


def told(handle: Handle, job: Job) -> dict[str, Any]:
    """What the stand-in wrote of itself before it ended."""
    wait_for(lambda: handle.poll() is not None)
    found: dict[str, Any] = json.loads((job.directory / "log.txt").read_text().splitlines()[0])
    return found


@pytest.fixture
def executor(
    plan: Planner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., LocalExecutor]]:
    """Local executors, prepared for so many runs of the fake backend; no other sweep is seen."""
    monkeypatch.setenv("ADVSWEEP_CACHE", str(tmp_path / "cache"))
    made: list[LocalExecutor] = []

    def make(runs: int, resources: Resources | None = None, **options: Any) -> LocalExecutor:
        planned = [plan().runs[0].run] * runs
        local = LocalExecutor(**options)
        local.prepare(resources or Resources(), planned)
        made.append(local)
        return local

    yield make
    for local in made:
        local.close()


Maker = Callable[..., LocalExecutor]


@pytest.mark.parametrize("name", EXECUTORS.names())
def test_every_executor_has_room(name: str) -> None:
    assert EXECUTORS.build(name).capacity() >= 1


def test_jobs_are_the_capacity() -> None:
    assert LocalExecutor(jobs=7).capacity() == 7


def test_cores_and_gpus_are_the_capacity(
    executor: Maker, free_memory: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(12)))
    assert executor(2).capacity() == 12
    assert executor(2, Resources(cpus=5)).capacity() == 2
    assert executor(2, Resources(gpus=0.25)).capacity() == 8
    assert executor(2, Resources(gpus=0.25, cpus=3)).capacity() == 4
    assert executor(2, Resources(gpus=2)).capacity() == 1


@pytest.mark.usefixtures("other_python")
def test_a_worker_gets_its_share_of_the_machine_and_no_secrets_on_its_command_line(
    executor: Maker, job: Jobs
) -> None:
    local, first = executor(1), replace(job(3), others=(5, 8))
    found = told(started(local, first), first)
    command = found.pop("arguments")
    assert [word for last, word in pairwise(command) if last == "--run"] == ["3", "5", "8"]
    assert command[command.index("--parent-pid") + 1] == str(os.getpid()) == str(found["parent"])
    assert json.loads(command[command.index("--evaluation") + 1]) == first.evaluations[0]
    assert "secret" not in " ".join(command)
    assert found["session"] is True
    assert found["cores"] == CORES[:1]
    assert found["environment"] == {
        "ADVSWEEP_STORE": first.store_url,
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
    }


@pytest.mark.usefixtures("other_python")
@pytest.mark.slow
def test_cores_are_left_alone_when_told_so(executor: Maker, job: Jobs) -> None:
    local = executor(1, Resources(cpus=len(CORES)), pin=False)
    found = told(started(local, job(1)), job(1))
    assert found["cores"] == CORES
    assert found["environment"]["OMP_NUM_THREADS"] == str(len(CORES))


@pytest.mark.usefixtures("other_python")
@pytest.mark.slow
def test_runs_share_gpus_as_far_as_there_is_room(
    executor: Maker, job: Jobs, free_memory: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOES", "stay")
    local = executor(6, Resources(gpus=0.5))
    handles = [started(local, job(i)) for i in range(4)]
    assert local.start(job(4)) is None
    logs = [job(i).directory / "log.txt" for i in range(4)]
    wait_for(lambda: all("stderr" in log.read_text() for log in logs))
    for handle in handles:
        handle.kill()
    given = [told(handle, job(i))["environment"] for i, handle in enumerate(handles)]
    names = [environment["CUDA_VISIBLE_DEVICES"] for environment in given]
    assert sorted(names) == ["GPU-aaaa", "GPU-aaaa", "GPU-bbbb", "GPU-bbbb"]
    monkeypatch.delenv("DOES")
    told(started(local, job(4)), job(4))


@pytest.mark.usefixtures("other_python", "free_memory")
def test_a_run_on_several_gpus_sees_them_all(
    executor: Maker, job: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,GPU-aaaa")
    local = executor(2, Resources(gpus=2))
    found = told(started(local, job(1)), job(1))
    assert found["environment"]["CUDA_VISIBLE_DEVICES"] == "1,GPU-aaaa"


@pytest.mark.usefixtures("other_python")
@pytest.mark.slow
def test_runs_wait_for_memory_that_others_have(
    executor: Maker, job: Jobs, free_memory: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(allocation, "MEMORY_SECONDS", 0.0)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    free_memory(20000)
    local = executor(2, Resources(gpus=1))
    with pytest.warns(AdvsweepWarning, match="no GPU with 100% of its memory free"):
        assert local.start(job(1)) is None
    free_memory(40000)
    told(started(local, job(1)), job(1))


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["resources.gpus=3"], "resources.gpus: expected at most 2, the GPUs"),
        (["resources.gpus=1.5"], "gpus: expected whole GPUs or a share of one below 1, got 1.5"),
        (["resources.gpus=-1"], "gpus: expected >= 0, got -1"),
        (["resources.cpus=100000"], f"resources.cpus: expected at most {len(CORES)}, the cores"),
        (
            ["backend=tiny", "backend.threads=2"],
            "resources.cpus: expected at least 2, as backend 'tiny' computes with 2 threads, got 1",
        ),
    ],
)
@pytest.mark.usefixtures("free_memory")
def test_what_can_never_fit_is_refused(
    overrides: list[str], message: str, plan: Planner, store: Store
) -> None:
    with pytest.raises(ConfigError) as raised:
        execute(plan("executor=local", *overrides), store)
    assert message in str(raised.value)
    assert store.runs.select() == []


def test_a_plan_for_gpus_can_be_made_where_there_are_none(
    plan: Planner, monkeypatch: pytest.MonkeyPatch, store: Store
) -> None:
    monkeypatch.setenv("PATH", "")
    planned = plan("executor=local", "resources.gpus=0.5")
    assert planned.executor.capacity() == 1
    with pytest.raises(ConfigError, match=r"resources\.gpus: expected at most 0"):
        execute(planned, store)


@pytest.mark.skipif(not can_adopt(), reason="workers are forked on Linux alone")
class TestForked:
    """Several runs on CPUs alone are forked."""

    @pytest.fixture
    def local(self, executor: Maker, stand_in: str) -> LocalExecutor:
        local = executor(2)
        local.modules = frozenset({stand_in})
        return local

    def test_they_get_what_a_process_of_their_own_gets(
        self, local: LocalExecutor, job: Jobs
    ) -> None:
        assert local.start(job(1)) is None  # its imports take a moment
        handles = [started(local, job(i)) for i in (1, 2)]
        first, second = (told(handle, job(i)) for i, handle in enumerate(handles, 1))
        assert first["parent"] == second["parent"] == os.getpid()
        assert first["environment"] == {
            "ADVSWEEP_STORE": job(1).store_url,
            "OMP_NUM_THREADS": "1",
            "CUDA_VISIBLE_DEVICES": "",
        }
        assert [first["cores"], second["cores"]] == [CORES[:1], CORES[1:2] or CORES[:1]]
        assert second["arguments"][:2] == ["--run", "2"]

    @pytest.mark.usefixtures("other_python")
    @pytest.mark.slow
    def test_nothing_is_lost_with_the_server(self, local: LocalExecutor, job: Jobs) -> None:
        handles = [started(local, job(1))]
        server = local._server
        assert server is not None
        os.kill(server._process.pid, signal.SIGKILL)
        handles += [started(local, job(i)) for i in (2, 3)]
        assert local._server not in (None, server)
        for i, handle in enumerate(handles, 1):
            told(handle, job(i))

    @pytest.mark.usefixtures("other_python")
    @pytest.mark.slow
    def test_imports_that_fail_are_left_to_the_workers(
        self, local: LocalExecutor, job: Jobs
    ) -> None:
        local.modules = frozenset({"advsweep.no_such_module"})
        told(started(local, job(1)), job(1))
        assert local._server is None


_LATE = """
import importlib, sys
from advsweep.store import open_store
from advsweep.sweep.worker.environment import describe_environment
from advsweep.sweep.executors.local import PRELOADED
from advsweep.sweep.planning.plan import make_plan
from advsweep.sweep.scheduler.scheduled_runs import schedule_runs

plan = make_plan(sys.argv[2:])
for module in {*PRELOADED, *plan.executor.modules}:
    importlib.import_module(module)
describe_environment()
with open_store(sys.argv[1]) as store:
    schedule_runs(plan, store, force=False)
    before = set(sys.modules)
    work = sys.modules["advsweep.sweep.worker.main"].work
    assert work(store, store.runs.select()[0], (), None) == 0
    print(*sorted(set(sys.modules) - before))
"""


@pytest.mark.slow
def test_a_run_of_the_tiny_backend_finds_nearly_all_imported(tmp_path: Path) -> None:
    small = ["layers=1", "width=32", "heads=2", "mlp_width=64", "pretraining_steps=0"]
    overrides = ["backend=tiny", "executor=local", "steps=2", "prompts_per_step=4"]
    overrides += [f"model.{size}" for size in small]
    overrides += ["task.train_per_level=50", "task.held_out_per_level=2", "evaluation.n=8"]
    command = [sys.executable, "-c", _LATE, str(tmp_path / "advsweep.db"), *overrides]
    command += ["evaluation.k=[1,8]"]
    late = subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout.decode().split()
    # Torch's optimizers import a thousand modules where nobody has done so before.
    assert len(late) < 30, late


@dataclass(kw_only=True)
class Hesitant(DebugExecutor):
    """Has room for a job at the third time of asking."""

    name: ClassVar[str] = "hesitant"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.asked: list[int] = []
        self.closed = False

    def start(self, job: Job) -> Handle | None:
        self.asked.append(job.run_id)
        return super().start(job) if len(self.asked) % 3 == 0 else None

    def close(self) -> None:
        self.closed = True


@pytest.mark.slow
def test_a_run_that_there_is_no_room_for_is_offered_again(plan: Planner, store: Store) -> None:
    executor = Hesitant()
    quick = plan("seed=0,1")
    outcome = execute(replace(quick, name="hesitant", executor=executor), store)
    assert (outcome.done, outcome.exit_code) == (2, 0)
    assert executor.asked == [1, 1, 1, 2, 2, 2]
    assert executor.closed


def test_the_environment_says_with_what_and_where(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ADVSWEEP_COMMAND", "advsweep sweep +experiment=demo")
    environment = describe_environment()
    assert json.loads(json.dumps(environment)) == environment
    assert environment["command"] == "advsweep sweep +experiment=demo"
    assert environment["packages"]["torch"].startswith("2.")
    assert environment["memory_bytes"] > 1e8
    assert environment["cpu"]
