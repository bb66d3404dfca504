"""Two sweeps that start in the same second, on a machine with two stand-in GPUs."""

from __future__ import annotations

import multiprocessing
import os
import random
import sys
import time

import pytest

from advsweep.sweep.executors.base import Resources
from advsweep.sweep.executors.local import LocalExecutor
from advsweep.sweep.executors.reservations import all_reserved

STARTS = 25

# Stays on its GPUs for a moment, and notes whom it meets there.
WORKER = """
import os, sys, time

folder = sys.argv[1]
share = sys.argv[2]
mine = str(os.getpid())
for gpu in os.environ["CUDA_VISIBLE_DEVICES"].split(","):
    place = os.path.join(folder, gpu)
    os.makedirs(place, exist_ok=True)
    open(os.path.join(place, mine), "w").close()
    for step in range(10):
        met = [pid for pid in os.listdir(place) if pid != mine and os.path.exists(f"/proc/{pid}")]
        alive = [pid for pid in met if open(f"/proc/{pid}/stat").read().split(") ")[1][0] != "Z"]
        if len(alive) * float(share) + float(share) > 1:
            print("met", alive, "on", gpu, file=open(os.path.join(folder, "overlap"), "a"))
        time.sleep(0.005)
    os.unlink(os.path.join(place, mine))
"""


@pytest.fixture
def crowd(tmp_path, monkeypatch):
    """`crowd(share)`: has each worker be the above; returns the folder where they meet."""

    def make(share):
        folder = tmp_path / "crowd"
        folder.mkdir()
        module = tmp_path / "crowd.py"
        module.write_text(WORKER)
        python = tmp_path / "python"
        python.write_text(f"#!/bin/sh\nexec {sys.executable} -S {module} {folder} {share}\n")
        python.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(python))
        return folder

    return make


def many_starts(seed, gpus, job):
    """What a sweep of many runs does, some of which somebody kills."""
    chance = random.Random(seed)
    local = LocalExecutor()
    local.prepare(Resources(gpus=gpus), ())
    handles = []
    left = STARTS
    while left or handles:
        handle = local.start(job(1000 * seed + left)) if left else None
        if handle is not None:
            handles.append(handle)
            left -= 1
        if handles and chance.random() < 0.05:
            handles[0].kill()
        handles = [each for each in handles if each.poll() is None]
        time.sleep(0.002)
    local.close()


@pytest.mark.slow
@pytest.mark.usefixtures("free_memory")
@pytest.mark.parametrize("gpus", [1, 0.5])
def test_they_never_share_more_of_a_gpu_than_there_is(gpus, crowd, job):
    folder = crowd(gpus)
    fork = multiprocessing.get_context("fork")
    sweeps = [fork.Process(target=many_starts, args=(seed, gpus, job)) for seed in (1, 2)]
    for sweep in sweeps:
        sweep.start()
    for sweep in sweeps:
        sweep.join(120)
    assert [sweep.exitcode for sweep in sweeps] == [0, 0]
    assert {path.name for path in folder.iterdir()} == {"GPU-aaaa", "GPU-bbbb"}
    assert all_reserved() == []
    logs = [job(1000 * seed + left).log for seed in (1, 2) for left in range(1, STARTS + 1)]
    assert all(log.exists() for log in logs)


@pytest.mark.slow
@pytest.mark.usefixtures("free_memory")
@pytest.mark.usefixtures("stand_in")
def test_a_sweep_that_is_killed_leaves_its_gpus_to_its_runs_and_then_to_anybody(job, monkeypatch):
    monkeypatch.setenv("DOES", "stay")
    fork = multiprocessing.get_context("fork")
    # Reserved is not started: a sweep killed in between frees the GPU of a run without a process.
    has_started = fork.Event()
    sweep = fork.Process(target=start_and_hang, args=(job, has_started))
    sweep.start()
    assert has_started.wait(60)
    sweep.kill()
    sweep.join()
    # The runs were not killed: they still have the GPUs, and nobody has the cores.
    [first, second] = all_reserved()
    assert {first.resource, second.resource} == {"GPU-aaaa", "GPU-bbbb"}
    local = LocalExecutor()
    local.prepare(Resources(gpus=1), ())
    with pytest.warns(UserWarning, match="no GPU is free for another run: GPU-aaaa: run 1 \\(pid"):
        assert local.start(job(9)) is None
    for part in (first, second):
        os.kill(part.holder.pid, 9)
    while all_reserved():
        time.sleep(0.01)
    handle = local.start(job(9))
    assert handle is not None
    handle.kill()
    while handle.poll() is None:
        time.sleep(0.01)


def start_and_hang(job, has_started):
    local = LocalExecutor()
    local.prepare(Resources(gpus=1), ())
    for run_id in (1, 2):
        assert local.start(job(run_id)) is not None
    has_started.set()
    time.sleep(600)
