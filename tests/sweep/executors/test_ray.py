"""Runs as Ray actors, on a real cluster of this machine that the tests start."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from advsweep.errors import ConfigError
from advsweep.store import Status
from advsweep.sweep.scheduler.execute import execute
from tests.sweep.helpers import measured, wait_until

SLOW = ("executor=ray", "executor.jobs=2", "steps=40", "backend.step_seconds=0.05")
"""Runs that are long enough at it to be caught in the middle: two seconds."""


@pytest.fixture(scope="module")
def cluster():
    """Ray's module, and a cluster with two cores, which it keeps to the end of these tests."""
    import ray

    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    yield ray
    ray.shutdown()


def running_past(store, step):
    return [run for run in store.runs.select(status=Status.RUNNING) if run.step >= step]


def parent_of(run):
    """The actor that a run's worker is the child of."""
    assert run.pid is not None
    stat = Path(f"/proc/{run.pid}/stat").read_text()
    return int(stat.rpartition(")")[2].split()[1])


def kill(pid):
    assert pid is not None
    os.kill(pid, signal.SIGKILL)


def once(condition, do):
    """Does something at the first event at which a condition holds."""
    left = [do]

    def take(event):
        if left and condition():
            left.pop()()

    return take


@pytest.mark.slow
def test_runs_of_a_killed_actor_and_a_killed_worker_go_on(cluster, plan, store, undisturbed_store):
    def disturb():
        first, second = running_past(store, 8)
        kill(parent_of(first))
        kill(second.pid)

    on_ray = plan(*SLOW, "seed=0,1")
    events = once(lambda: len(running_past(store, 8)) == 2, disturb)
    outcome = execute(on_ray, store, on_event=events)
    # Both are tried again, as runs that were killed are, and go on from their checkpoints.
    assert (outcome.done, outcome.failed) == (2, {})
    assert measured(store) == measured(undisturbed_store)


@pytest.mark.slow
def test_a_request_to_stop_reaches_the_workers(cluster, plan, store):
    # The third actor waits for a core when the request comes.
    on_ray = plan(*SLOW, "executor.jobs=3", "seed=0,1,2", "steps=200")
    ask = once(
        lambda: len(running_past(store, 7)) == 2, lambda: os.kill(os.getpid(), signal.SIGTERM)
    )
    outcome = execute(on_ray, store, on_event=ask)
    assert (outcome.done, outcome.unfinished, outcome.exit_code) == (0, 3, 130)
    runs = sorted(store.runs.select(), key=lambda run: run.status.value)
    assert [run.status for run in runs] == [Status.INTERRUPTED] * 2 + [Status.PENDING]
    for run in runs[:2]:
        assert store.checkpoints.select(run.id)[-1].step == run.step >= 7


@pytest.mark.slow
def test_runs_on_an_existing_cluster_end_with_their_command(cluster, plan, store):
    address = cluster.get_runtime_context().gcs_address
    script = "import sys; from advsweep.cli import main; main()"
    slow = plan(*SLOW, "steps=400", f"executor.address={address}")
    command = [sys.executable, "-c", script, "sweep", *slow.spec["overrides"]]
    process = subprocess.Popen([*command, "--store", store.url])
    try:
        wait_until(lambda: store.runs.select() and running_past(store, 8))
    finally:
        process.kill()
        process.wait()
    wait_until(lambda: store.runs.select()[0].status is not Status.RUNNING)
    [run] = store.runs.select()
    # Ray kills the worker, unless that has noticed first that its actor is gone.
    assert run.status in (Status.INTERRUPTED, Status.LOST)
    assert run.step >= 8


@pytest.mark.slow
def test_what_no_machine_has_is_refused(cluster, plan, store):
    with pytest.raises(ConfigError, match="a machine with CPU 64, got none"):
        execute(plan("executor=ray", "resources.cpus=64"), store)


def test_without_ray_one_line_says_so(plan, store, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match=r"executor=ray needs ray, .* install"):
        execute(plan("executor=ray", "executor.address=auto"), store)


LISTENING = """
import json, os, pathlib, sys

from advsweep.sweep.executors.ray import RayExecutor

ray = RayExecutor()._ray
mark = f"TEST_CLUSTER={os.environ['TEST_CLUSTER']}".encode()
ours = set()
for process in pathlib.Path("/proc").iterdir():
    if process.name.isdecimal():
        try:
            if mark in (process / "environ").read_bytes().split(b"\\0"):
                ours |= {os.readlink(link) for link in (process / "fd").iterdir()}
        except OSError:
            continue  # it has ended
found = []
for table in ("tcp", "tcp6"):
    for line in pathlib.Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[3] == "0A" and f"socket:[{fields[9]}]" in ours:
            found.append(fields[1].partition(":")[0])
settings = {name: os.environ.get(name) for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN")}
print(json.dumps({"listening": found, **settings}))
ray.shutdown()
"""


@pytest.mark.security
@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="needs Linux's list of sockets")
def test_own_cluster_listens_on_this_machine_alone_and_has_a_token():
    environment = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")}
    done = subprocess.run(
        [sys.executable, "-P", "-c", LISTENING],
        env={**environment, "TEST_CLUSTER": secrets.token_hex(8)},
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    # 127.0.0.1, and that as an address of IPv6.
    loopback = {"0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000"}
    assert found["listening"]
    assert set(found["listening"]) <= loopback
    assert found["RAY_AUTH_MODE"] == "token"
    assert len(found["RAY_AUTH_TOKEN"]) >= 32
