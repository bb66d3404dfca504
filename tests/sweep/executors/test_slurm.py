"""Runs as jobs of submitit: in processes of this machine, and through stand-ins for Slurm."""

from __future__ import annotations

import json
import os
import pickle
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from advsweep.cli import execution
from advsweep.cli.app import app
from advsweep.errors import ConfigError
from advsweep.report import build_report, render
from advsweep.store import Failure, Owner, Status, Store, open_store
from advsweep.sweep import retry_policy
from advsweep.sweep.events import Event, RunEvent
from advsweep.sweep.executors.base import QueueEntry, remote_environment
from advsweep.sweep.executors.slurm import SlurmExecutor, SlurmJob
from advsweep.sweep.planning.plan import Plan
from advsweep.sweep.retry_policy import Policy
from advsweep.sweep.scheduler.execute import execute
from advsweep.sweep.scheduler.queue import QueuedRun, QueueWork
from advsweep.sweep.scheduler.runs import schedule_runs
from advsweep.sweep.status import queued_jobs

Planner = Callable[..., Plan]

ON_SLURM = ("executor=slurm", "executor.partition=gpu", "executor.account=lab")

Orders = Callable[..., list[QueuedRun]]

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
    assert messages(both, store) == [f"{seed} submitted as 100_0 to 100_1" for seed in (0, 1)]
    assert not (slurm / "squeues").exists()  # there was nothing to ask for
    assert messages(both, store) == [f"{seed} waiting a queued job has it" for seed in (0, 1)]
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
def test_a_job_takes_one_run_after_another(
    slurm: Path, plan: Planner, store: Store, undisturbed: str
) -> None:
    both = plan(*ON_SLURM, "seed=0,1", "steps=40", name="same")
    assert execute(both, store, jobs=1).submitted == 2
    wait_until(lambda: not any((slurm / "queue").iterdir()))
    assert len(list((slurm / "scripts").iterdir())) == 1
    assert table(store) == undisturbed
    # Both were trained by one worker, each with a log of its own.
    assert len({run.pid for run in store.runs.select()}) == 1
    assert all(log_of(store, run.id).count("training grpo") == 1 for run in store.runs.select())


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
    assert execute(sweep, store, jobs=3).submitted == 5
    script = (slurm / "scripts" / "100").read_text()
    for line in (
        *("#SBATCH --partition=gpu", "#SBATCH --account=lab", "#SBATCH --time=90"),
        *("#SBATCH --cpus-per-task=4", "#SBATCH --gpus-per-node=2", "#SBATCH --mem=16GB"),
        *("#SBATCH --array=0-2%3", "module load cuda"),
    ):
        assert line in script.splitlines()
    outcome = execute(plan(*ON_SLURM, "seed=range(6)"), store, jobs=3)
    assert (outcome.submitted, outcome.queued) == (1, 5)
    assert "--array" not in (slurm / "scripts" / "101").read_text()  # one job for one run
    folder = store.runs_directory / "slurm"
    assert folder.stat().st_mode & 0o077 == 0
    assert json.loads((folder / "jobs.json").read_text()) == [
        {"jobs": ["100_0", "100_1", "100_2"], "runs": [1, 2, 3, 4, 5]},
        {"jobs": ["101"], "runs": [6]},
    ]


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


@pytest.fixture
def order(plan: Planner, store: Store, monkeypatch: pytest.MonkeyPatch) -> Orders:
    """`order(*OVERRIDES)`: the runs of a plan, as the list of a job."""
    for variable in ("ADVSWEEP_STORE", "ADVSWEEP_COMMAND", "OMP_NUM_THREADS"):
        monkeypatch.setenv(variable, "")  # a job sets its own process's
    monkeypatch.setattr(retry_policy, "BACKOFF_SECONDS", 0.01)

    def make(*overrides: str) -> list[QueuedRun]:
        units = schedule_runs(plan(*overrides), store, force=False)
        records = store.runs.select(ids=[unit.run_id for unit in units])
        return [QueuedRun(record.id, record.finished) for record in records]

    return make


def work(store: Store, runs: Sequence[QueuedRun], policy: Policy | None = None) -> QueueWork:
    return QueueWork(runs, (0, 1), remote_environment(1, store.url), policy or Policy())


def log_of(store: Store, run_id: int) -> str:
    [run] = store.runs.select(ids=[run_id])
    return (run.directory / "log.txt").read_text(encoding="utf-8")


@pytest.mark.slow
def test_a_job_tries_its_runs_again_as_often_as_it_may(store: Store, order: Orders) -> None:
    [crashing] = order("backend.crash_at=13")
    # One of the two retries was made before.
    runs = [replace(crashing, retries=1), *order("seed=1")]
    assert work(store, runs, Policy(retries=2))() == "1 done, 1 failed, 0 unfinished"
    run, other = store.runs.select(ids=[runs[0].run_id, runs[1].run_id])
    assert (run.status, run.failure) == (Status.FAILED, Failure.KILLED)
    assert run.error == "killed by signal 11 (SIGSEGV)"
    assert other.status is Status.DONE
    assert log_of(store, run.id).count(" training grpo") == 2
    assert log_of(store, run.id).count("resuming after step 10") == 1


@pytest.mark.slow
def test_a_job_holds_its_run_to_its_limits_and_tries_again_by_the_class_of_failure(
    store: Store, order: Orders
) -> None:
    slow = order("backend.step_seconds=0.5")
    policy = Policy(retry_on=frozenset({Failure.OOM}), time_limit=3)
    assert work(store, slow, policy)() == "0 done, 1 failed, 0 unfinished"
    [run] = store.runs.select()
    assert (run.status, run.failure) == (Status.FAILED, Failure.TIMEOUT)
    assert run.error == "took longer than its time limit of 3s"
    assert log_of(store, run.id).count(" training grpo") <= 1


@pytest.mark.slow
def test_a_job_that_is_queued_again_takes_along_its_run_and_how_often_it_tried(
    store: Store, order: Orders
) -> None:
    first, second = order("backend.step_seconds=0.1", "steps=200", "seed=0,1")
    runs = [replace(first, retries=2), second]
    its = work(store, runs)
    # Before it has begun there is nothing to stop.
    assert SlurmJob(its).checkpoint().function == SlurmJob(work(store, runs))

    def interrupt() -> None:
        wait_until(lambda: store.runs.select(ids=[1])[0].step >= 6)
        os.kill(os.getpid(), signal.SIGUSR2)

    again: list[Any] = []

    def take(number: int, frame: object) -> None:
        again.append(pickle.loads(pickle.dumps(SlurmJob(its).checkpoint().function)))
        raise SystemExit

    before = signal.signal(signal.SIGUSR2, take)
    disturbance = threading.Thread(target=interrupt)
    disturbance.start()
    try:
        with pytest.raises(SystemExit):
            its()
    finally:
        disturbance.join()
        signal.signal(signal.SIGUSR2, before)
    run, other = store.runs.select(ids=[1, 2])
    assert (run.status, run.error) == (Status.INTERRUPTED, "asked to stop")
    assert other.status is Status.PENDING
    assert again[0].work.runs == [replace(runs[0], resumed=True), second]
    # Another job of the submission leaves it to this one.
    assert work(store, runs[:1])() == "0 done, 0 failed, 0 unfinished"


def test_a_job_leaves_runs_that_others_have_or_that_are_to_stop(
    slurm: Path, plan: Planner, store: Store, order: Orders
) -> None:
    runs = order("seed=0,1")
    store.leases.request_stop(1)
    with open_store(store.url) as other:
        other.leases.claim(2, Owner.of(os.getppid()))
        assert work(store, runs)() == "0 done, 0 failed, 0 unfinished"
    assert [run.status for run in store.runs.select(ids=[1, 2])] == [
        Status.PENDING,
        Status.RUNNING,
    ]
    assert not store.runs.select(ids=[1])[0].directory.exists()
    (slurm / "hold").touch()
    (slurm / "start").write_text(IDLE)
    execute(plan(*ON_SLURM, "seed=0,1"), store)
    assert not store.leases.stop_requested(1)


@pytest.mark.slow
def test_the_jobs_of_a_submission_share_what_is_left_to_evaluate(
    plan: Planner, store: Store
) -> None:
    ids = execute(plan("seed=0,1"), store).run_ids
    settings = plan("evaluation.n=4", "evaluation.k=[1]").runs[0].config["evaluation"]
    runs = [QueuedRun(r.id, r.finished, (settings,)) for r in store.runs.select(ids=ids)]
    for job in (0, 1):
        its = QueueWork(runs, (job, 2), remote_environment(1, store.url), Policy())
        assert its() == "1 done, 0 failed, 0 unfinished"
    assert all(any(e.settings["n"] == 4 for e in store.evaluations.select([i])) for i in ids)


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


def test_nobody_counts_the_failures_of_jobs(plan: Planner, store: Store) -> None:
    with pytest.raises(ConfigError, match="--max-failures: executor 'slurm' hands"):
        execute(plan(*ON_SLURM), store, policy=Policy(max_failures=1))
    assert store.runs.select() == []


def test_status_asks_the_queue_once_and_only_about_runs_that_are_not_at_their_end(
    slurm: Path, plan: Planner, store: Store
) -> None:
    (slurm / "hold").touch()
    (slurm / "start").write_text(IDLE)
    execute(plan(*ON_SLURM, "seed=0,1,2", name="three"), store)
    execute(plan(*ON_SLURM, "seed=5", name="one"), store)
    (slurm / "squeues").unlink()
    queued = queued_jobs(store, "three")
    assert [(q.job, q.runs) for q in queued] == [("100_0", 3), ("100_1", 3), ("100_2", 3)]
    assert {(q.executor, q.state, q.reason) for q in queued} == {
        ("slurm", "PENDING", "Nodes are busy")
    }
    assert len(queued_jobs(store)) == 4
    assert len((slurm / "squeues").read_text().splitlines()) == 2
    for run_id in (1, 2, 3):
        store.leases.claim(run_id, Owner.current())
        store.leases.finish(run_id, Status.DONE)
    assert queued_jobs(store, "three") == []
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
    assert lines[1].split() == ["job", "state", "why"]
    assert lines[3].split(maxsplit=2) == ["100_1", "pending", "Nodes are busy"]
    first, _ = json.loads(status("--format", "json").stdout)["queued"]
    assert first == {
        "executor": "slurm",
        "job": "100_0",
        "state": "PENDING",
        "reason": "Nodes are busy",
        "runs": 2,
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
