"""The executor of this machine: what its workers are given, and when there is room for one."""

from __future__ import annotations

import json
import os
import signal
import warnings
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pytest

from advsweep.errors import AdvsweepWarning, ConfigError
from advsweep.machine import memory_bytes
from advsweep.store.owners import process_started
from advsweep.sweep.executors.base import Resources
from advsweep.sweep.executors.debug import DebugExecutor
from advsweep.sweep.executors.local import LocalExecutor
from advsweep.sweep.executors.lock_files import Holder
from advsweep.sweep.executors.reservations import (
    CorePool,
    Reservation,
    all_reserved,
    reserved_gpu,
)
from advsweep.sweep.executors.sizes import show_size
from advsweep.sweep.registry import EXECUTORS
from advsweep.sweep.scheduler.execute import execute
from tests.sweep.helpers import wait_until

CORES = sorted(os.sched_getaffinity(0))


def end_of(handle):
    assert handle is not None
    wait_until(lambda: handle.poll() is not None)
    return handle.poll()


def told(job):
    """What the stand-in wrote of the last job of a run."""
    found: dict[str, Any] = json.loads(job.log.read_text().splitlines()[-1])
    return found


@pytest.fixture
def executor():
    made: list[LocalExecutor] = []

    def make(resources=None, **options):
        local = LocalExecutor(**options)
        local.prepare(resources or Resources(), ())
        made.append(local)
        return local

    yield make
    for local in made:
        local.close()


@pytest.mark.parametrize("name", EXECUTORS.names())
def test_every_executor_has_room(name):
    assert EXECUTORS.build(name).capacity() >= 1


@pytest.mark.usefixtures("stand_in")
def test_a_worker_gets_its_share_of_the_machine_and_no_secrets_on_its_command_line(executor, job):
    local, first = executor(Resources(cpus=2)), replace(job(3), others=(5, 8))
    assert end_of(local.start(first)) == 0
    found = told(first)
    assert found["job"]["runs"] == [3, 5, 8]
    assert found["job"]["parent"] == os.getpid() == found["parent"]
    assert found["job"]["evaluations"] == list(first.evaluations)
    assert "secret" not in " ".join(found["arguments"])
    assert "secret" not in json.dumps(found["job"])
    assert found["session"] is True
    assert found["environment"] == {
        "ADVSWEEP_STORE": first.store_url,
        "OMP_NUM_THREADS": "2",
        "CUDA_VISIBLE_DEVICES": "",
    }


@pytest.mark.usefixtures("stand_in")
def test_a_worker_is_used_again_after_a_job_that_it_did_well(executor, job):
    local, pids = executor(), []
    for run_id, code in ((1, 0), (2, 0), (90, 12), (3, 0)):
        assert end_of(local.start(job(run_id))) == code
        pids.append(told(job(run_id))["pid"])
    assert len(set(pids[:3])) == 1
    assert pids[3] != pids[0]
    os.kill(pids[3], signal.SIGKILL)  # while it has nothing to do
    wait_until(lambda: process_started(pids[3]) is None)
    assert end_of(local.start(job(4))) == 0
    local.close()
    wait_until(lambda: process_started(told(job(4))["pid"]) is None)


@pytest.mark.usefixtures("stand_in")
def test_jobs_side_by_side_have_workers_of_their_own_and_end_as_any_child(
    executor, job, monkeypatch
):
    monkeypatch.setenv("DOES", "stay")
    local = executor()
    killed, stopped = local.start(job(1)), local.start(job(2))
    assert killed is not None
    assert stopped is not None
    wait_until(lambda: all(job(i).log.exists() and job(i).log.read_text() for i in (1, 2)))
    assert killed.poll() is None
    local.close()  # ends none that has a job
    killed.kill()
    stopped.stop()
    assert (end_of(killed), end_of(stopped)) == (-signal.SIGKILL, -signal.SIGTERM)
    killed.kill()  # there is nothing left to kill
    stopped.stop()


@pytest.mark.usefixtures("stand_in")
@pytest.mark.slow
def test_runs_share_gpus_as_far_as_there_is_room(executor, job, free_memory, monkeypatch):
    monkeypatch.setenv("DOES", "stay")
    local = executor(Resources(gpus=0.5))
    handles = [local.start(job(i)) for i in range(4)]
    assert local.start(job(4)) is None
    wait_until(lambda: all(job(i).log.exists() and job(i).log.read_text() for i in range(4)))
    for handle in handles:
        assert handle is not None
        handle.kill()
        end_of(handle)
    names = [told(job(i))["environment"]["CUDA_VISIBLE_DEVICES"] for i in range(4)]
    assert sorted(names) == ["GPU-aaaa", "GPU-aaaa", "GPU-bbbb", "GPU-bbbb"]
    monkeypatch.delenv("DOES")
    # A worker on GPUs has one job.
    assert end_of(local.start(job(4))) == 12


@pytest.mark.usefixtures("stand_in")
@pytest.mark.slow
def test_runs_wait_for_memory_that_others_have(executor, job, free_memory, monkeypatch):
    monkeypatch.setattr("advsweep.sweep.executors.devices.MEMORY_SECONDS", 0.0)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    free_memory(20000)
    local = executor(Resources(gpus=1))
    with pytest.warns(AdvsweepWarning, match="no GPU with 100% of its memory free"):
        assert local.start(job(1)) is None
    free_memory(40000)
    end_of(local.start(job(1)))


@pytest.mark.usefixtures("stand_in", "free_memory")
def test_a_sweep_says_once_who_has_the_gpus_and_takes_one_when_it_is_free(
    executor, job, monkeypatch
):
    monkeypatch.setattr("advsweep.sweep.executors.devices.MEMORY_SECONDS", 0.0)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    other = Reservation()
    assert other.add("GPU-bbbb", 0.5)
    other.describe(Holder(pid=77, parent=76, uid=os.getuid(), run=3, sweep="demo", since=0.0))
    local = executor(Resources(gpus=1))
    message = r"no GPU is free for another run: 1: run 3 of sweep demo \(pid 77, "
    with pytest.warns(AdvsweepWarning, match=message):
        assert local.start(job(1)) is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert local.start(job(1)) is None
    other.release()
    assert end_of(local.start(job(1))) == 12


@pytest.mark.usefixtures("stand_in", "free_memory")
def test_the_process_of_a_run_keeps_its_gpu_and_cores_are_given_back(executor, job, monkeypatch):
    monkeypatch.setenv("DOES", "stay")
    local = executor(Resources(gpus=1, cpus=1))
    handle = local.start(job(1))
    assert handle is not None
    told_of = {part.what: part.holder for part in all_reserved()}
    assert {*told_of} == {"GPU-aaaa", "1 core"}
    assert {holder.pid for holder in told_of.values()} == {handle.pid()}
    # Nothing here asks whether the run still lives.
    os.kill(handle.pid(), signal.SIGKILL)
    wait_until(lambda: not reserved_gpu("GPU-aaaa"))
    assert end_of(handle) == -signal.SIGKILL
    assert all_reserved() == []


@pytest.mark.usefixtures("stand_in")
def test_cores_of_others_are_left_to_them_unless_the_user_says_how_many_runs(executor, job):
    others = CorePool()
    taken = others.take(CORES, len(CORES), only_free=False)
    assert taken is not None
    assert taken.numbers == CORES
    local = executor()
    first = local.start(job(1))
    with pytest.warns(AdvsweepWarning, match="--jobs N starts N runs at once"):
        assert local.start(job(2)) is None
    assert end_of(first) == 0
    assert end_of(local.start(job(2))) == 0
    insisting = executor()
    assert insisting.slots(3) == 3
    handles = [insisting.start(job(run_id)) for run_id in (3, 4, 5)]
    assert [end_of(handle) for handle in handles] == [0, 0, 0]


@pytest.mark.usefixtures("stand_in")
def test_without_a_place_for_locks_runs_start_as_if_alone(executor, job, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ADVSWEEP_RUNTIME", str(tmp_path / "file"))
    local = executor()
    with pytest.warns(AdvsweepWarning, match="cores are not shared with other sweeps"):
        assert end_of(local.start(job(1))) == 0
    assert end_of(local.start(job(2))) == 0


@pytest.mark.usefixtures("stand_in")
def test_a_gpu_that_vanishes_is_a_fault_of_the_machine(
    executor, job, free_memory, tmp_path, monkeypatch
):
    monkeypatch.setattr("advsweep.sweep.executors.devices.MEMORY_SECONDS", 0.0)
    local = executor(Resources(gpus=2))
    handle = local.start(job(1))
    assert end_of(handle) == 12
    assert handle.machine_fault() == ""
    (tmp_path / "smi" / "nvidia-smi").write_text('#!/bin/sh\necho "GPU-bbbb, 40960, 40000"\n')
    with pytest.warns(AdvsweepWarning, match="GPU-aaaa: nvidia-smi lists it no longer"):
        assert handle.machine_fault() == "its GPU is gone: nvidia-smi lists GPU-aaaa no longer"
    with pytest.warns(AdvsweepWarning, match="lists 1 GPU, and a run needs 2; waiting"):
        assert local.start(job(2)) is None
    monkeypatch.setattr("advsweep.sweep.executors.local.GONE_SECONDS", 0.0)
    with pytest.raises(
        ConfigError, match="lists 1 GPU, and a run needs 2; none came back within 0 minutes"
    ):
        local.start(job(2))


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["resources.gpus=3"], "resources.gpus: expected at most 2, the GPUs"),
        (["resources.gpus=1.5"], "gpus: expected whole GPUs or a share of one below 1, got 1.5"),
        (["resources.gpus=-1"], "gpus: expected >= 0, got -1"),
        (["resources.memory=8"], "resources.memory: expected a size above 0 with its unit, such"),
        (["resources.memory=lots"], "resources.memory: expected a size above 0 with its unit, su"),
        (["resources.memory=0G"], "resources.memory: expected a size above 0 with its unit, such"),
        # The sign of Kelvin, which Python takes for a K in another case.
        (["resources.memory='8\u212a'"], "resources.memory: expected a size above 0 with its unit"),
        ([f"resources.memory={'9' * 400}G"], "resources.memory: expected a size above 0 with its"),
        (["resources.memory=900T"], "resources.memory: expected at most "),
        (["resources.memory=1G", "executor=debug"], "resources.memory: executor 'debug' cannot"),
        (["resources.cpus=100000"], f"resources.cpus: expected at most {len(CORES)}, the cores"),
        (
            ["backend=tiny", "backend.threads=2"],
            "resources.cpus: expected at least 2, as backend 'tiny' computes with 2 threads, got 1",
        ),
    ],
)
@pytest.mark.usefixtures("free_memory")
def test_what_can_never_fit_is_refused(overrides, message, plan, store):
    with pytest.raises(ConfigError) as raised:
        execute(plan("executor=local", *overrides), store)
    assert message in str(raised.value)
    assert store.runs.select() == []


def test_as_many_runs_start_as_there_is_memory_for(executor):
    half = (memory_bytes() >> 21) + 1
    assert executor(Resources(memory=f"{half}M")).capacity() == 1
    assert executor(Resources(memory=f"{half}M"), jobs=3).capacity() == 3


@pytest.mark.parametrize(
    ("text", "size"),
    [("512M", 2**29), ("8G", 2**33), ("1.5GiB", 3 * 2**29), (" 4kb ", 4096), ("1T", 2**40)],
)
def test_sizes(text, size):
    assert Resources(memory=text).memory_bytes == size


@pytest.mark.parametrize(
    ("size", "shown"), [(2**29, "512M"), (3 * 2**29, "1.5G"), (2**40, "1024G")]
)
def test_a_size_is_shown_as_it_is_written(size, shown):
    assert show_size(size) == shown


@dataclass(kw_only=True)
class Hesitant(DebugExecutor):
    """Has room for a job at the third time of asking."""

    name: ClassVar[str] = "hesitant"

    def __post_init__(self):
        super().__post_init__()
        self.asked: list[int] = []
        self.closed = False

    def start(self, job):
        self.asked.append(job.run_id)
        return super().start(job) if len(self.asked) % 3 == 0 else None

    def close(self):
        self.closed = True


@pytest.mark.slow
def test_a_run_that_there_is_no_room_for_is_offered_again(plan, store):
    executor = Hesitant()
    quick = plan("seed=0,1")
    outcome = execute(replace(quick, name="hesitant", executor=executor), store)
    assert (outcome.done, outcome.exit_code) == (2, 0)
    assert executor.asked == [1, 1, 1, 2, 2, 2]
    assert executor.closed
