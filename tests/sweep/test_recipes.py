"""The recipes of docs/tutorials/machines.md for workers elsewhere, as far as one can try."""

from __future__ import annotations

import configparser
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import page_blocks
import pytest
import yaml

from advsweep.store import Status
from advsweep.sweep.events import SweepResult
from advsweep.sweep.scheduler.runs import schedule_runs
from advsweep.sweep.scheduler.workers import STOP_SECONDS
from tests.sweep.helpers import wait_until

PAGE = Path(__file__).parents[2] / "docs" / "tutorials" / "machines.md"
ADVSWEEP = Path(sys.executable).with_name("advsweep")
SSHD = shutil.which("sshd") or "/usr/sbin/sshd"


@pytest.fixture(scope="module")
def files():
    """The files of the page by name."""
    blocks = page_blocks.blocks(PAGE.read_text("utf-8"))
    return {block.title: block.code for block in blocks if block.title}


@pytest.fixture
def add_runs(plan, store):
    """`add_runs()`: a sweep `demo` of two runs that nobody trains yet."""

    def add():
        schedule_runs(plan("seed=0,1", name="demo"), store, force=False)

    return add


def all_done(store):
    return [run.status for run in store.runs.select()] == [Status.DONE] * 2


def command_of(container, store, folder):
    """A container's command and its environment, with the store and the volume of the test."""
    environment = {"PATH": f"{folder}:{ADVSWEEP.parent}:{os.environ['PATH']}"}
    environment["PYTHONPATH"] = os.environ["PYTHONPATH"]
    for variable in container["env"]:
        environment[variable["name"]] = variable.get("value", "")
    assert environment["ADVSWEEP_STORE"].startswith("postgresql://")
    environment["ADVSWEEP_STORE"] = store.url
    environment["ADVSWEEP_RUNS"] = str(store.runs_directory)
    return {"args": container["command"], "env": environment}


@pytest.mark.slow
def test_pods_wait_for_their_sweep_and_train_it(files, store, add_runs, tmp_path):
    job = yaml.safe_load(files["workers.yaml"])
    template = job["spec"]["template"]["spec"]
    [first] = template["initContainers"]
    [worker] = template["containers"]
    # A quick `sleep`, for a loop that sleeps for seconds.
    (tmp_path / "sleep").write_text("#!/bin/sh\nexec /bin/sleep 0.1\n")
    (tmp_path / "sleep").chmod(0o755)
    waiting = subprocess.Popen(**command_of(first, store, tmp_path), stderr=subprocess.PIPE)
    assert waiting.stderr is not None
    assert b"demo" in waiting.stderr.readline()  # there is no such sweep
    assert waiting.poll() is None
    add_runs()
    waiting.stderr.close()
    assert waiting.wait(120) == 0
    assert subprocess.run(**command_of(worker, store, tmp_path), check=False).returncode == 0
    assert all_done(store)


def test_the_job_of_pods_is_one_that_kubernetes_takes(files):
    job = yaml.safe_load(files["workers.yaml"])
    assert (job["apiVersion"], job["kind"]) == ("batch/v1", "Job")
    template = job["spec"]["template"]["spec"]
    # Only then a Job takes a policy for failures of Pods.
    assert template["restartPolicy"] == "Never"
    for rule in job["spec"]["podFailurePolicy"]["rules"]:
        assert all({"type", "status"} <= each.keys() for each in rule["onPodConditions"])
    # Time for a checkpoint, and for the worker to record it.
    assert template["terminationGracePeriodSeconds"] > STOP_SECONDS
    volumes = {volume["name"] for volume in template["volumes"]}
    for container in (*template["initContainers"], *template["containers"]):
        assert {mount["name"] for mount in container.get("volumeMounts", ())} <= volumes


def test_a_unit_of_systemd_restarts_a_worker_and_takes_its_stop_for_success(files, tmp_path):
    unit = configparser.ConfigParser(interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read_string(files["advsweep-worker.service"])
    service = unit["Service"]
    stopped = SweepResult(run_ids=[], done=0, skipped=0, failed={}, unfinished=0, stopped=True)
    assert int(service["SuccessExitStatus"]) == stopped.exit_code
    assert int(service["TimeoutStopSec"]) > STOP_SECONDS
    assert service["Restart"] == "always"
    if shutil.which("systemd-analyze") is None:
        return
    file = tmp_path / "advsweep-worker.service"
    # The program of this environment: a unit without its program is refused.
    program = service["ExecStart"].partition(" ")[0]
    file.write_text(files[file.name].replace(program, str(ADVSWEEP)))
    done = subprocess.run(
        ["systemd-analyze", "verify", str(file)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.fixture
def ssh(tmp_path):
    """A folder with a command `ssh` that reaches this machine as gpu1 and as gpu2."""
    if not os.path.exists(SSHD):
        pytest.skip("no sshd is installed")
    for name in ("host", "user"):
        command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / name)]
        subprocess.run(command, check=True)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    (tmp_path / "sshd_config").write_text(
        f"Port {port}\nListenAddress 127.0.0.1\nHostKey {tmp_path}/host\nUsePAM no\n"
        f"AuthorizedKeysFile {tmp_path}/user.pub\nStrictModes no\nPidFile none\n"
        "PermitRootLogin yes\n"
    )
    (tmp_path / "config").write_text(
        f"Host gpu1 gpu2\nHostName 127.0.0.1\nPort {port}\nIdentityFile {tmp_path}/user\n"
        "StrictHostKeyChecking no\nUserKnownHostsFile /dev/null\nLogLevel ERROR\n"
    )
    if os.geteuid() == 0:
        os.makedirs("/run/sshd", mode=0o755, exist_ok=True)
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "ssh").write_text(
        f'#!/bin/sh\nexec {shutil.which("ssh")} -F {tmp_path}/config "$@"\n'
    )
    (folder / "ssh").chmod(0o755)
    server = subprocess.Popen([SSHD, "-D", "-e", "-f", str(tmp_path / "sshd_config")])
    wait_until(lambda: socket.socket().connect_ex(("127.0.0.1", port)) == 0)
    yield folder
    server.kill()
    server.wait()


@pytest.mark.slow
def test_a_loop_over_ssh_starts_workers_that_outlive_it(files, store, add_runs, ssh, tmp_path):
    add_runs()
    folder = tmp_path / "sweeps"
    folder.mkdir()
    (folder / ".venv").symlink_to(sys.prefix)
    known = {"ADVSWEEP_STORE": store.url, "ADVSWEEP_RUNS": str(store.runs_directory)}
    lines = []
    for line in files["store.env"].splitlines():
        name = line.partition("=")[0]
        lines.append(f"{name}={known.get(name, '')}")
    lines.append(f"PYTHONPATH={os.environ['PYTHONPATH']}")  # for the backend of the tests
    (folder / "store.env").write_text("\n".join(lines) + "\n")
    script = files["start_workers.sh"].replace("/srv/sweeps", str(folder))
    path = f"{ssh}:{os.environ['PATH']}"
    subprocess.run(["sh", "-e", "-c", script], env={**os.environ, "PATH": path}, check=True)
    wait_until(lambda: all_done(store))
    [log] = folder.glob("worker-*.log")  # both machines are this one, and have its name
    wait_until(lambda: log.read_text().count("worker: ") == 2)
    assert log.read_text().count(") done") == 2
