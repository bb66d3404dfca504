"""Runs as children of Ray's actors, on real clusters of this machine that the tests start."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from advsweep.errors import ConfigError
from advsweep.report.tables.build import build_report
from advsweep.report.tables.render import render
from advsweep.report.tables.request import ReportRequest
from advsweep.store import Failure, Status, open_store
from advsweep.sweep.executors.ray import _describe_machines, _room
from advsweep.sweep.executors.ray_cluster import ClusterFolder
from advsweep.sweep.planning.plan import make_plan
from advsweep.sweep.registry import config_groups
from advsweep.sweep.retry_policy import Policy
from advsweep.sweep.scheduler import scheduler
from advsweep.sweep.scheduler.execute import execute
from tests.sweep.helpers import log_of, measured, wait_until

# Two seconds on an idle core: long enough to be caught in the middle.
BANDIT = (
    *("backend=bandit", "task=bandit", "model=table", "optimizer=sgd", "steps=200"),
    *("evaluation.n=8", "evaluation.k=[1,8]", "evaluation.every=0", "backend.checkpoint_every=20"),
)
MARK = "TEST_CLUSTER"


@dataclass
class TwoNodes:
    """A cluster of two nodes with a core each; the second one can be replaced."""

    cluster: Any
    second: Any

    @property
    def address(self) -> str:
        return f"executor.address={self.cluster.address}"

    def kill_second(self) -> None:
        """Kill the second node as a power cut does: its raylet, and all that it has started."""
        [raylet] = self.second.all_processes["raylet"]
        for pid in [*descendants(raylet.process.pid), raylet.process.pid]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@pytest.fixture(scope="module")
def nodes():
    """A cluster of two nodes, which are processes of this machine."""
    from ray.cluster_utils import Cluster

    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    # Ray writes the cluster's address there, but makes the folder only for clusters that lie in it.
    Path("/tmp/ray").mkdir(exist_ok=True)
    folder = tempfile.mkdtemp(prefix="ray-", dir="/tmp")
    sizes = {"num_cpus": 1, "object_store_memory": 80 * 2**20, "include_dashboard": False}
    # A node that is gone counts as dead after three seconds, and not after fifteen.
    health = {"health_check_period_ms": 300, "health_check_failure_threshold": 10}
    head = {**sizes, "temp_dir": folder, "_system_config": health}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    yield TwoNodes(cluster, cluster.add_node(**sizes))
    cluster.shutdown()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def bandit():
    """`bandit(*OVERRIDES)`: a plan of runs of the bandit."""
    groups = config_groups()

    def make(*overrides):
        return make_plan([*BANDIT, *overrides], groups=groups, name="same")

    return make


def descendants(pid: int) -> list[int]:
    import psutil

    return [child.pid for child in psutil.Process(pid).children(recursive=True)]


def running_past(store, step):
    return [run for run in store.runs.select(status=Status.RUNNING) if run.step >= step]


def once(condition, do):
    """Does something at the first event at which a condition holds."""
    left = [do]

    def take(event):
        if left and condition():
            left.pop()()

    return take


def table(store):
    return render(build_report(store, ReportRequest("same")), "csv")


@pytest.mark.slow
def test_a_killed_worker_and_a_killed_node_change_no_result(nodes, bandit, store, tmp_path):
    def disturb():
        runs = running_past(store, 30)
        on_second = set(descendants(nodes.second.all_processes["raylet"][0].process.pid))
        [other] = [run for run in runs if run.pid not in on_second]
        nodes.kill_second()
        os.kill(other.pid, signal.SIGKILL)
        nodes.second = nodes.cluster.add_node(num_cpus=1)

    # Workers may start seconds apart: no run may end before both have been trained for a while.
    sizes = ("seed=0,1", "steps=1000")
    on_ray = bandit("executor=ray", nodes.address, *sizes)
    events = once(lambda: len(running_past(store, 30)) == 2, disturb)
    outcome = execute(on_ray, store, on_event=events)
    assert (outcome.done, outcome.failed) == (2, {})
    assert all("resuming after step" in log_of(run) for run in store.runs.select())

    with open_store(str(tmp_path / "undisturbed.db")) as undisturbed:
        assert execute(bandit("executor=debug", *sizes), undisturbed).exit_code == 0
        assert measured(store) == measured(undisturbed)
        assert table(store) == table(undisturbed)


@pytest.mark.slow
def test_a_request_to_stop_reaches_the_workers_and_what_waits(nodes, bandit, store):
    sizes = ("executor.jobs=3", "seed=0,1,2", "steps=4000")
    on_ray = bandit("executor=ray", nodes.address, *sizes, "backend.stack=1")
    ask = once(
        lambda: len(running_past(store, 30)) == 2, lambda: os.kill(os.getpid(), signal.SIGTERM)
    )
    outcome = execute(on_ray, store, on_event=ask)
    assert (outcome.done, outcome.unfinished, outcome.exit_code) == (0, 3, 130)
    runs = sorted(store.runs.select(), key=lambda run: run.status.value)
    # The third one waited for a core.
    assert [run.status for run in runs] == [Status.INTERRUPTED] * 2 + [Status.PENDING]
    for run in runs[:2]:
        assert store.checkpoints.select(run.id)[-1].step == run.step >= 30


@pytest.mark.slow
def test_a_run_beyond_its_memory_ends_and_says_the_limit(nodes, plan, store):
    # The process of a run of torch holds some 200 MB, and takes 8 more each 10 ms.
    greedy = plan("executor=ray", nodes.address, "resources.memory=900M", "backend.allocate_at=3")
    outcome = execute(greedy, store, policy=Policy(retries=0))
    [run] = store.runs.select()
    assert (run.status, run.failure) == (Status.FAILED, Failure.OOM)
    assert "above its limit of 900M (resources.memory)" in outcome.failed[run.id]


@pytest.mark.slow
def test_a_run_waits_for_a_machine_that_the_cluster_adds(nodes, bandit, store):
    needs = ("resources.cpus=2", "executor.jobs=1", "steps=2")
    large = bandit("executor=ray", nodes.address, *needs)
    with pytest.raises(ConfigError, match=r"with CPU 2, got a Ray cluster with 2 machines of CPU"):
        execute(large, store)
    growing = bandit("executor=ray", nodes.address, *needs, "executor.grows=true")
    added = []
    grow = once(lambda: True, lambda: added.append(nodes.cluster.add_node(num_cpus=2)))
    assert execute(growing, store, on_event=grow).done == 1
    nodes.cluster.remove_node(added[0])


@pytest.mark.slow
def test_a_machine_that_lacks_the_environment_ends_the_sweep_and_loses_no_run(
    nodes, bandit, store, monkeypatch
):
    on_ray = bandit("executor=ray", nodes.address)
    folder = Path("/proc/no/folder")  # which no machine can make
    # The command has the folder, and the machine of the actor does not.
    monkeypatch.setenv("ADVSWEEP_RUNS", str(folder))
    monkeypatch.setattr(scheduler, "claim_folder", lambda directory, identity: None)
    with (
        open_store(store.url) as with_folder,
        pytest.raises(ConfigError, match=r"expected every machine .* got: .*/proc/no"),
    ):
        execute(on_ray, with_folder)
    assert [run.status for run in store.runs.select()] == [Status.PENDING]


def processes_of(mark: str) -> set[int]:
    """The processes that have a mark in their environment."""
    marked = set()
    for process in Path("/proc").iterdir():
        if process.name.isdecimal():
            with suppress(OSError):
                if f"{MARK}={mark}".encode() in (process / "environ").read_bytes().split(b"\0"):
                    marked.add(int(process.name))
    return marked


def listening(pids: set[int]) -> list[str]:
    """The addresses, in hex, at which processes listen."""
    sockets = set()
    for pid in pids:
        with suppress(OSError):
            sockets |= {os.readlink(link) for link in Path(f"/proc/{pid}/fd").iterdir()}
    addresses = []
    for kind in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{kind}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in sockets:
                addresses.append(fields[1].partition(":")[0])
    return addresses


@pytest.fixture
def command(tmp_path):
    """`command(*OVERRIDES)`: a sweep on a cluster of its own, whose processes have a mark.

    Returns the process, the mark and the folder of Ray's files.
    """
    folder = Path(tempfile.mkdtemp(prefix="t-", dir="/tmp"))
    mark = secrets.token_hex(8)
    environment = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")}
    environment |= {MARK: mark, "RAY_TMPDIR": str(folder)}
    started = []

    def start(*overrides):
        script = "from advsweep.cli import main; main()"
        words = ["sweep", *BANDIT, "executor=ray", *overrides]
        process = subprocess.Popen(
            [sys.executable, "-P", "-c", script, *words, "--name", "same"],
            cwd=tmp_path,
            env=environment,
            start_new_session=True,
        )
        started.append(process)
        return process, mark, folder

    yield start
    for process in started:
        process.kill()
        process.wait()
    wait_until(lambda: not processes_of(mark))
    shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.security
@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="needs Linux's list of sockets")
def test_own_cluster_is_private_and_leaves_nothing_behind(command, tmp_path):
    process, mark, folder = command("steps=150")
    addresses: list[str] = []
    while process.poll() is None:
        addresses += listening(processes_of(mark))
        time.sleep(0.2)
    assert process.returncode == 0
    # 127.0.0.1, and that as an address of IPv6.
    loopback = {"0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000"}
    assert addresses
    assert set(addresses) <= loopback
    wait_until(lambda: not processes_of(mark))
    assert not any(folder.iterdir())


@pytest.mark.slow
def test_a_killed_command_takes_its_own_cluster_along(command, tmp_path):
    with open_store(str(tmp_path / "advsweep.db")) as opened:
        process, mark, folder = command("steps=4000")
        wait_until(lambda: running_past(opened, 30))
        process.kill()
        process.wait()
        wait_until(lambda: not processes_of(mark))
        [run] = opened.runs.select()
        # Its worker has written a checkpoint, unless Ray was quicker.
        assert run.status in (Status.INTERRUPTED, Status.LOST)
        assert run.step >= 30
    [left] = folder.iterdir()
    # The next cluster removes what is left of it.
    os.environ["RAY_TMPDIR"] = str(folder)
    try:
        following = ClusterFolder()
    finally:
        del os.environ["RAY_TMPDIR"]
    assert list(folder.iterdir()) == [following.path]
    assert left != following.path
    following.remove()


@pytest.fixture
def silent_port():
    """A port at which a server listens that never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_an_address_without_a_cluster_is_refused(plan, store, silent_port, monkeypatch):
    monkeypatch.setattr("advsweep.sweep.executors.ray_cluster.CONNECT_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as closed:
        unused = closed.getsockname()[1]
    refused = {
        f"127.0.0.1:{unused}": "Connection refused",
        f"127.0.0.1:{silent_port}": "timed out",
        "ray://127.0.0.1:10001": "expected HOST:PORT of a Ray cluster",
        "127.0.0.1": "expected HOST:PORT of a Ray cluster",
    }
    for address, reason in refused.items():
        with pytest.raises(ConfigError, match=rf"executor\.address: .*{reason}"):
            execute(plan("executor=ray", f"executor.address={address}"), store)


def test_an_address_of_another_server_is_refused(plan, store, tmp_path):
    command = [sys.executable, "-u", "-m", "http.server", "0", "--bind", "127.0.0.1"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=tmp_path
    ) as server:
        assert server.stdout is not None
        # Its first line is: Serving HTTP on ADDRESS port NUMBER and so on.
        port = server.stdout.readline().split()[5]
        try:
            with pytest.raises(ConfigError, match="a server of another kind listens there"):
                execute(plan("executor=ray", f"executor.address=127.0.0.1:{port}"), store)
        finally:
            server.kill()


def test_a_cluster_that_refuses_the_command_may_want_a_token(plan, store, monkeypatch):
    def refuse(address, **options):
        raise ConnectionError("Failed to connect to Ray cluster")

    def greet():
        connection, _ = server.accept()
        connection.sendall(bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]))  # as servers of gRPC do

    monkeypatch.setattr("ray.init", refuse)
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=greet)
        thread.start()
        address = f"executor.address=127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(ConfigError, match=r"Failed to connect .* needs RAY_AUTH_MODE=token"):
            execute(plan("executor=ray", address), store)
        thread.join()


def test_what_no_machine_has_is_refused_before_a_cluster_starts(plan, store):
    # Three GPUs need a machine with three, and this one is asked without starting anything.
    with pytest.raises(
        ConfigError, match=r"with CPU 4096, got a Ray cluster with 1 machine of CPU"
    ):
        execute(plan("executor=ray", "resources.cpus=4096"), store)
    assert plan("executor=ray", "resources.cpus=4096").executor.capacity() == 1


def test_a_cluster_that_grows_needs_a_number_of_jobs(plan, store):
    with pytest.raises(ConfigError, match=r"executor\.grows: expected executor\.jobs as well"):
        execute(plan("executor=ray", "executor.grows=true"), store)


def test_each_run_fits_on_a_single_machine():
    needs = {"CPU": 2.0, "GPU": 0.5}
    small = {"CPU": 3.0, "GPU": 1.0}
    assert _room([small, {"CPU": 16.0}, {"CPU": 8.0, "GPU": 1.0}], needs) == 1 + 0 + 2
    assert _describe_machines([small, small, {"CPU": 16.0}], needs) == (
        "2 machines of CPU 3, GPU 1; 1 machine of CPU 16, GPU 0"
    )
    assert _describe_machines([], needs) == "no machine"
    with_memory = {"CPU": 4.0, "memory": 2.0**31}
    assert _describe_machines([with_memory], with_memory) == "1 machine of CPU 4, memory 2G"


def test_without_ray_one_line_says_so(plan, store, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match=r"executor=ray needs ray, .* install"):
        execute(plan("executor=ray", "executor.address=auto"), store)
