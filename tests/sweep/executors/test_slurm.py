"""Runs as jobs of submitit: in processes of this machine, and through stand-ins for Slurm."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from advsweep.cli import execution
from advsweep.cli.app import app
from advsweep.errors import ConfigError
from advsweep.report import build_report, render
from advsweep.store import Failure, Owner, Status, Store, open_store, owners
from advsweep.sweep import retry_policy
from advsweep.sweep.events import Event, RunEvent
from advsweep.sweep.executors.base import Job, QueueEntry, RemoteJob
from advsweep.sweep.executors.slurm import SlurmExecutor, SlurmJob, _batches
from advsweep.sweep.planning.plan import Plan
from advsweep.sweep.retry_policy import Policy
from advsweep.sweep.scheduler.execute import execute
from advsweep.sweep.scheduler.queue import queued_runs
from advsweep.sweep.scheduler.queue_job import QueueJob
from advsweep.sweep.scheduler.scheduled_runs import schedule_runs

Planner = Callable[..., Plan]

ON_SLURM = ("executor=slurm", "executor.partition=gpu", "executor.account=lab")

COMMANDS = {
    # Starts each task of an array in the background, once there is no file named hold.
    "sbatch": """
        id=$((100 + $(ls scripts | wc -l))); cp "$1" scripts/$id
        [ -e refuse ] && { echo "Invalid account" >&2; exit 1; }
        last=$(sed -n 's/^#SBATCH --array=0-\\([0-9]*\\)%.*/\\1/p' "$1")
        for task in $([ "$last" ] && seq 0 $last || echo alone); do
            name=$id; [ $task = alone ] || name=${id}_$task
            touch queue/$name; ./start $name > /dev/null 2>&1 &
        done
        echo "Submitted batch job $id"
    """,
    "start": """
        while [ -e hold ]; do sleep 0.05; done
        export SLURM_JOB_ID=$1 SLURM_NTASKS=1 SLURM_JOB_NUM_NODES=1
        export SLURM_NODEID=0 SLURM_PROCID=0 SLURM_LOCALID=0
        case $1 in *_*) export SLURM_ARRAY_JOB_ID=${1%_*} SLURM_ARRAY_TASK_ID=${1#*_};; esac
        bash scripts/${1%_*}
        if [ -e requeued/$1 ]; then rm requeued/$1; exec ./start $1; fi
        rm queue/$1
    """,
    "srun": """
        while [ "${1#--}" != "$1" ]; do
            case $1 in --output|--error) shift 2;; *) shift;; esac
        done
        "$@" >> output 2>&1
    """,
    "squeue": """
        echo $@ >> squeues; [ -e down ] && { echo 'no controller' >&2; exit 1; }
        [ -e hold ] && state="PENDING Nodes are busy" || state="RUNNING None"
        for name in $(ls queue); do echo "$name $state"; done
    """,
    "scontrol": "touch requeued/$2",
}
"""Stand-ins for Slurm's commands, each in the folder that they are in."""

IDLE = """#!/bin/bash
cd $(dirname $0)
while [ -e hold ]; do sleep 0.05; done
rm queue/$1
"""
"""In the place of `start`: jobs that do nothing."""


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of a Slurm that has one machine, this one; its end waits for its jobs."""
    folder = tmp_path / "slurm"
    for part in ("queue", "scripts", "requeued"):
        (folder / part).mkdir(parents=True)
    for name, body in COMMANDS.items():
        (folder / name).write_text(f"#!/bin/bash\ncd {folder}\n{body}\n")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=":")
    yield folder
    (folder / "hold").unlink(missing_ok=True)
    wait_until(lambda: not any((folder / "queue").iterdir()))


def wait_until(condition: Callable[[], object], seconds: float = 90) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)


def messages(plan: Plan, store: Store, **options: Any) -> list[str]:
    events: list[Event] = []
    execute(plan, store, on_event=events.append, **options)
    return [
        f"{event.run.seed} {event.kind.value} {event.message}".strip()
        for event in events
        if isinstance(event, RunEvent)
    ]


def table(store: Store) -> str:
    return render(build_report(store, "same"), "csv")


@pytest.fixture(scope="module")
def undisturbed(plan: Planner, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The table of two runs that were made in this very process."""
    directory = tmp_path_factory.mktemp("undisturbed")
    with open_store(str(directory / "advsweep.db")) as store:
        execute(plan("seed=0,1", "steps=40", name="same"), store)
        return table(store)


@pytest.mark.slow
def test_processes_of_submitit_give_the_same_table(
    plan: Planner, store: Store, undisturbed: str
) -> None:
    local = plan("seed=0,1", "steps=40", "executor=slurm", "executor.cluster=local", name="same")
    outcome = execute(local, store)
    assert (outcome.submitted, outcome.done, outcome.exit_code) == (2, 0, 0)
    again = execute(local, store)
    assert (again.submitted, again.queued + again.skipped) == (0, 2)
    wait_until(lambda: all(run.status is Status.DONE for run in store.runs.select()))
    assert table(store) == undisturbed
    for run in store.runs.select():
        assert "done" in (run.directory / "log.txt").read_text(encoding="utf-8")


@pytest.mark.slow
def test_an_array_runs_a_sweep_once(
    slurm: Path, plan: Planner, store: Store, undisturbed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (slurm / "hold").touch()
    both = plan(*ON_SLURM, "seed=0,1", "steps=40", name="same")
    assert messages(both, store) == ["0 submitted as 100_0", "1 submitted as 100_1"]
    assert not (slurm / "squeues").exists()  # there was nothing to ask for
    assert messages(both, store) == ["0 waiting queued as 100_0", "1 waiting queued as 100_1"]
    outcome = execute(both, store)
    assert (outcome.submitted, outcome.queued, outcome.exit_code) == (0, 2, 0)
    execution.print_outcome(both, outcome)
    told = capsys.readouterr().err
    assert "sweep same: 0 done, 2 queued or running of 2 runs" in told
    assert "`advsweep status same` shows their progress." in told
    assert len((slurm / "squeues").read_text().splitlines()) == 2

    (slurm / "hold").unlink()
    wait_until(lambda: not any((slurm / "queue").iterdir()))
    assert messages(both, store) == ["0 skipped", "1 skipped"]
    assert table(store) == undisturbed


@pytest.mark.slow
def test_a_run_whose_time_is_up_is_queued_again_and_goes_on(
    slurm: Path, plan: Planner, store: Store
) -> None:
    execute(plan(*ON_SLURM, "steps=60", "backend.step_seconds=0.05"), store)
    wait_until(
        lambda: store.runs.select(status=Status.RUNNING) and store.runs.select()[0].step >= 8
    )
    [run] = store.runs.select()
    assert run.pid is not None
    job = int(Path(f"/proc/{run.pid}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(job, signal.SIGUSR2)  # what Slurm sends ahead of the end
    wait_until(lambda: store.runs.select()[0].status is Status.DONE)
    log = (run.directory / "log.txt").read_text(encoding="utf-8")
    assert "interrupted: asked to stop" in log
    assert "resuming after step" in log
    steps = [step for _, step, _ in store.metrics.points(run.id, ["reward/mean"])]
    assert steps == list(range(1, 61))


def test_arrays_say_what_runs_need_and_leave_out_those_that_are_queued(
    slurm: Path, plan: Planner, store: Store
) -> None:
    (slurm / "hold").touch()
    (slurm / "start").write_text(IDLE)
    needs = ["minutes=90", "memory=16", "setup=['module load cuda']"]
    sizes = ("resources.cpus=4", "resources.gpus=2")
    sweep = plan(*ON_SLURM, *sizes, *(f"executor.{need}" for need in needs), "seed=range(5)")
    more = plan(*ON_SLURM, "executor.array_size=2", "seed=range(10)")
    assert execute(sweep, store, jobs=3).submitted == 5
    script = (slurm / "scripts" / "100").read_text()
    for line in (
        *("#SBATCH --partition=gpu", "#SBATCH --account=lab", "#SBATCH --time=90"),
        *("#SBATCH --cpus-per-task=4", "#SBATCH --gpus-per-node=2", "#SBATCH --mem=16GB"),
        *("#SBATCH --array=0-4%3", "module load cuda"),
    ):
        assert line in script.splitlines()
    # Three arrays of at most two share the three that may run side by side.
    outcome = execute(more, store, jobs=3)
    assert (outcome.submitted, outcome.queued) == (5, 5)
    arrays = [(slurm / "scripts" / str(number)).read_text() for number in (101, 102, 103)]
    assert ["--array=0-1%1" in array for array in arrays] == [False, True, True]
    assert "--array" not in arrays[0]  # the one that is alone
    folder = store.runs_directory / "slurm"
    assert folder.stat().st_mode & 0o077 == 0
    assert set(json.loads((folder / "jobs.json").read_text()).values()) >= {"100_4", "101", "102_1"}


def test_a_queue_that_cannot_be_asked_is_given_nothing(
    slurm: Path, plan: Planner, store: Store
) -> None:
    (slurm / "hold").touch()
    (slurm / "start").write_text(IDLE)
    (slurm / "refuse").touch()
    with pytest.raises(ConfigError, match=r"expected Slurm to take 1 job, got: .*Invalid account"):
        execute(plan(*ON_SLURM), store)
    (slurm / "refuse").unlink()
    execute(plan(*ON_SLURM), store)
    (slurm / "down").touch()
    with pytest.raises(ConfigError, match=r"expected squeue to list .* no controller"):
        execute(plan(*ON_SLURM), store)


def test_a_job_of_this_machine_is_queued_as_long_as_it_lives() -> None:
    executor = SlurmExecutor()
    me = executor._name("100"), SlurmExecutor.build({"cluster": "local"})._name(str(os.getpid()))
    assert me[0] == "100"
    assert executor.queued([me[1], "1@0.0", "999999999@1.5"]) == {me[1]: QueueEntry("RUNNING")}


@pytest.mark.parametrize(("number", "sizes"), [(0, []), (3, [3]), (4, [2, 2]), (8, [2, 3, 3])])
def test_arrays_are_few_and_alike(number: int, sizes: list[int], tmp_path: Path) -> None:
    jobs = [Job(run_id=i, store_url="", directory=tmp_path) for i in range(number)]
    parts = list(_batches(jobs, 3))
    assert [len(part) for part in parts] == sizes
    assert [job for part in parts for job in part] == jobs


@pytest.fixture
def order(
    plan: Planner, store: Store, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[int, RemoteJob]]:
    """`order(*OVERRIDES)`: a run of the store by its id, and the order for its job."""
    for variable in ("ADVSWEEP_STORE", "ADVSWEEP_COMMAND", "OMP_NUM_THREADS"):
        monkeypatch.setenv(variable, "")  # a job sets its own process's
    monkeypatch.setattr(retry_policy, "BACKOFF_SECONDS", 0.01)

    def make(*overrides: str) -> tuple[int, RemoteJob]:
        [unit] = schedule_runs(plan(*overrides), store, force=False)
        [record] = store.runs.select(ids=[unit.run_id])
        job = Job(run_id=record.id, store_url=store.url, directory=record.directory)
        return record.id, RemoteJob.of(job, 1)

    return make


Orders = Callable[..., tuple[int, RemoteJob]]


def log_of(store: Store, run_id: int) -> str:
    [run] = store.runs.select(ids=[run_id])
    return (run.directory / "log.txt").read_text(encoding="utf-8")


@pytest.mark.slow
def test_a_job_tries_its_run_again_as_often_as_it_may(store: Store, order: Orders) -> None:
    run_id, crashing = order("backend.crash_at=13")
    assert SlurmJob(crashing, Policy(retries=2), QueueJob, retries=1)() == "failed"
    [run] = store.runs.select()
    assert (run.status, run.failure) == (Status.FAILED, Failure.KILLED)
    assert run.error == "killed by signal 11 (SIGSEGV)"
    # One of its two retries was made before.
    assert log_of(store, run_id).count(" training grpo") == 2
    assert log_of(store, run_id).count("resuming after step 10") == 1


@pytest.mark.slow
def test_a_job_holds_its_run_to_its_limits_and_tries_again_by_the_class_of_failure(
    store: Store, order: Orders
) -> None:
    run_id, slow = order("backend.step_seconds=0.5")
    assert (
        SlurmJob(slow, Policy(retry_on=frozenset({Failure.OOM}), time_limit=3), QueueJob)()
        == "failed"
    )
    [run] = store.runs.select()
    assert (run.status, run.failure) == (Status.FAILED, Failure.TIMEOUT)
    assert run.error == "took longer than its time limit of 3s"
    assert log_of(store, run_id).count(" training grpo") <= 1


@pytest.mark.slow
def test_a_job_that_is_queued_again_takes_along_how_often_it_tried(
    store: Store, order: Orders
) -> None:
    _, slow = order("backend.step_seconds=0.1", "steps=200")
    works = [SlurmJob(slow, Policy(retries=3), QueueJob, retries=1)]
    # Before it has begun there is nothing to stop.
    works.append(works[0].checkpoint().function)
    assert works[1] == works[0]

    def kill_and_interrupt() -> None:
        wait_until(lambda: store.runs.select()[0].step >= 6)
        first = store.runs.select()[0].pid
        assert first is not None
        os.kill(first, signal.SIGKILL)
        wait_until(
            lambda: store.runs.select()[0].pid != first and store.runs.select()[0].stage is not None
        )
        os.kill(os.getpid(), signal.SIGUSR2)

    def take(number: int, frame: object) -> None:
        works.append(works[0].checkpoint().function)
        raise SystemExit

    before = signal.signal(signal.SIGUSR2, take)
    disturbance = threading.Thread(target=kill_and_interrupt)
    disturbance.start()
    try:
        with pytest.raises(SystemExit):
            works[0]()
    finally:
        disturbance.join()
        signal.signal(signal.SIGUSR2, before)
    [run] = store.runs.select()
    assert (run.status, run.error) == (Status.INTERRUPTED, "asked to stop")
    # Its worker was killed once before it was interrupted.
    assert works[2] == SlurmJob(slow, Policy(retries=3), QueueJob, retries=2)


@pytest.mark.slow
def test_a_job_leaves_a_run_that_was_asked_to_stop_until_it_is_submitted_again(
    slurm: Path, plan: Planner, store: Store, order: Orders
) -> None:
    run_id, its = order("steps=20")
    store.leases.request_stop(run_id)
    assert SlurmJob(its, Policy(), QueueJob)() == "interrupted"
    assert store.runs.select()[0].status is Status.PENDING
    assert not store.runs.select()[0].directory.exists()
    (slurm / "hold").touch()
    (slurm / "start").write_text(IDLE)
    execute(plan(*ON_SLURM, "steps=20"), store)
    assert not store.leases.stop_requested(run_id)


def test_a_job_gives_up_a_run_that_another_process_keeps(
    store: Store, order: Orders, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owners, "LEASE", timedelta(seconds=0.6))
    run_id, its = order()
    store.leases.claim(run_id, Owner.of(os.getppid()))

    def beat(self: object, sofar: object = None) -> None:
        store.leases.heartbeat(run_id)

    monkeypatch.setattr(QueueJob, "_emit_progress", beat)
    assert SlurmJob(its, Policy(), QueueJob)() == "elsewhere"


def test_runs_that_were_pruned_are_not_submitted(slurm: Path, plan: Planner, store: Store) -> None:
    rule = ("stopping=acr", "stopping.last=5")
    sweep = plan(*ON_SLURM, *rule, "seed=0,1")
    ids = [unit.run_id for unit in schedule_runs(sweep, store, force=False)]
    store.leases.claim(ids[0], Owner.current())
    store.leases.finish(ids[0], Status.PRUNED, error="its ACR is high")
    (slurm / "hold").touch()
    (slurm / "start").write_text(IDLE)
    outcome = execute(sweep, store)
    assert (outcome.pruned, outcome.submitted, outcome.queued) == (
        {ids[0]: "its ACR is high"},
        1,
        0,
    )


@pytest.mark.parametrize("option", ["max_failures", "fail_fast"])
def test_nobody_counts_the_failures_of_jobs(option: str, plan: Planner, store: Store) -> None:
    asked = Policy(**{option: 1})
    with pytest.raises(ConfigError, match=f"--{option.replace('_', '-')}: executor 'slurm' hands"):
        execute(plan(*ON_SLURM), store, policy=asked)
    assert store.runs.select() == []


def test_status_asks_the_queue_once_and_only_about_runs_that_are_not_at_their_end(
    slurm: Path, plan: Planner, store: Store
) -> None:
    (slurm / "hold").touch()
    (slurm / "start").write_text(IDLE)
    execute(plan(*ON_SLURM, "seed=0,1,2", name="three"), store)
    execute(plan(*ON_SLURM, "seed=5", name="one"), store)
    (slurm / "squeues").unlink()
    queued = queued_runs(store, "three")
    assert [(q.id, q.job, q.seed) for q in queued] == [
        (1, "100_0", 0),
        (2, "100_1", 1),
        (3, "100_2", 2),
    ]
    assert {(q.executor, q.estimator, q.state, q.reason) for q in queued} == {
        ("slurm", "grpo", "PENDING", "Nodes are busy")
    }
    assert len(queued_runs(store)) == 4
    assert len((slurm / "squeues").read_text().splitlines()) == 2
    for run_id in (1, 2, 3):
        store.leases.claim(run_id, Owner.current())
        store.leases.finish(run_id, Status.DONE)
    assert queued_runs(store, "three") == []
    assert len((slurm / "squeues").read_text().splitlines()) == 2


def test_status_says_what_is_queued_and_does_without_a_queue(
    slurm: Path, plan: Planner, store: Store
) -> None:
    def status(*arguments: str) -> Any:
        command = ["status", *arguments, "--store", store.url]
        return CliRunner().invoke(app, command, catch_exceptions=False)

    (slurm / "hold").touch()
    (slurm / "start").write_text(IDLE)
    execute(plan(*ON_SLURM, "seed=0,1", name="two"), store)
    done = status("two")
    assert done.exit_code == 0
    head, blank, *lines = done.stdout.splitlines()
    assert (head, blank) == ("sweep two: 2 runs, 2 pending", "")
    assert lines[0] == "jobs: 2 pending in slurm"
    assert lines[1].split() == ["run", "estimator", "seed", "job", "state", "why"]
    assert lines[3].split(maxsplit=5) == ["2", "grpo", "1", "100_1", "pending", "Nodes are busy"]
    first, _ = json.loads(status("--format", "json").stdout)["queued"]
    assert first == {
        "id": 1,
        "estimator": "grpo",
        "seed": 0,
        "executor": "slurm",
        "job": "100_0",
        "state": "PENDING",
        "reason": "Nodes are busy",
    }
    (slurm / "down").touch()
    done = status("two")
    assert (done.exit_code, done.stdout) == (0, head + "\n")
    assert "advsweep: executor: expected squeue to list" in done.stderr
    assert json.loads(status("two", "--format", "json").stdout)["queued"] is None


def test_shares_of_a_gpu_are_refused(plan: Planner) -> None:
    with pytest.raises(ConfigError, match=r"resources\.gpus: expected whole GPUs, .* got 0\.5"):
        plan(*ON_SLURM, "resources.gpus=0.5")


def test_without_slurm_or_submitit_one_line_says_so(
    plan: Planner, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ConfigError, match="expected a machine of a Slurm cluster"):
        execute(plan("executor=slurm"), store)
    monkeypatch.setitem(sys.modules, "submitit", None)
    with pytest.raises(ConfigError, match=r"package submitit.* install advsweep\[slurm\]"):
        execute(plan("executor=slurm"), store)
