"""Runs as jobs of submitit: in processes of this machine, and through stand-ins for Slurm."""

from __future__ import annotations

import json
import os
import pickle
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import advsweep_fake as fake
import pytest

from advsweep.cli import execution
from advsweep.errors import ConfigError
from advsweep.report.tables.build import build_report
from advsweep.report.tables.render import render
from advsweep.report.tables.request import ReportRequest
from advsweep.store import Failure, Owner, Status, open_store
from advsweep.sweep import retry_policy
from advsweep.sweep.events import Event, RunEvent
from advsweep.sweep.executors.debug import DebugExecutor
from advsweep.sweep.executors.processes import remote_environment
from advsweep.sweep.executors.slurm import SlurmExecutor, SlurmJob, process_name
from advsweep.sweep.retry_policy import Policy
from advsweep.sweep.scheduler import queue_work
from advsweep.sweep.scheduler.execute import execute
from advsweep.sweep.scheduler.queue_work import QueueWork
from advsweep.sweep.scheduler.runs import ScheduledRun, schedule_runs
from tests.sweep.helpers import log_of, wait_until

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
def slurm(tmp_path, monkeypatch):
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


def messages(plan, store, **options):
    events: list[Event] = []
    execute(plan, store, on_event=events.append, **options)
    return [
        f"{event.run.seed} {event.kind.value} {event.message}".strip()
        for event in events
        if isinstance(event, RunEvent)
    ]


def table(store):
    return render(build_report(store, ReportRequest("same")), "csv")


@pytest.mark.slow
def test_an_array_runs_a_sweep_once(slurm, plan, store, undisturbed_store, capsys):
    (slurm / "hold").touch()
    both = plan(*ON_SLURM, "seed=0,1", "steps=40", name="same")
    assert messages(both, store) == [f"{seed} submitted as 100_0 to 100_1" for seed in (0, 1)]
    assert not (slurm / "squeues").exists()  # there was nothing to ask for
    assert messages(both, store) == [f"{seed} waiting a queued job has it" for seed in (0, 1)]
    outcome = execute(both, store)
    assert (outcome.submitted, outcome.queued, outcome.exit_code) == (0, 2, 0)
    execution.print_result(both, outcome)
    told = capsys.readouterr().err
    assert "sweep same: 0 done, 2 queued or running of 2 runs" in told
    assert "`advsweep status same` shows their progress." in told
    assert len((slurm / "squeues").read_text().splitlines()) == 2

    (slurm / "hold").unlink()
    wait_until(lambda: not any((slurm / "queue").iterdir()))
    assert messages(both, store) == ["0 skipped", "1 skipped"]
    assert table(store) == table(undisturbed_store)


@pytest.mark.slow
def test_a_job_takes_one_run_after_another(slurm, plan, store, undisturbed_store):
    both = plan(*ON_SLURM, "seed=0,1", "steps=40", name="same")
    assert execute(both, store, jobs=1).submitted == 2
    wait_until(lambda: not any((slurm / "queue").iterdir()))
    assert len(list((slurm / "scripts").iterdir())) == 1
    assert table(store) == table(undisturbed_store)
    # Both were trained by one worker, each with a log of its own.
    assert len({run.pid for run in store.runs.select()}) == 1
    assert all(log_of(run).count("training grpo") == 1 for run in store.runs.select())


@pytest.mark.slow
def test_a_run_whose_time_is_up_is_queued_again_and_goes_on(slurm, plan, store):
    execute(plan(*ON_SLURM, "steps=60", "backend.step_seconds=0.05"), store)
    wait_until(
        lambda: store.runs.select(status=Status.RUNNING) and store.runs.select()[0].step >= 8
    )
    [run] = store.runs.select()
    assert run.pid is not None
    job = int(Path(f"/proc/{run.pid}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(job, signal.SIGUSR2)  # what Slurm sends ahead of the end
    wait_until(lambda: store.runs.select()[0].status is Status.DONE)
    assert "interrupted: asked to stop" in log_of(run)
    assert "resuming after step" in log_of(run)
    steps = [step for _, step, _ in store.metrics.points(run.id, ["reward/mean"])]
    assert steps == list(range(1, 61))


def test_arrays_say_what_runs_need_and_leave_out_those_that_are_queued(slurm, plan, store):
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


def test_a_job_has_room_for_the_limit_of_its_run_and_for_itself(slurm, plan, store):
    (slurm / "start").write_text(IDLE)
    assert execute(plan(*ON_SLURM, "resources.memory=3.5G"), store).submitted == 1
    assert "#SBATCH --mem=5GB" in (slurm / "scripts" / "100").read_text().splitlines()
    with pytest.raises(ConfigError, match="=8G, got 4 GB"):
        plan(*ON_SLURM, "resources.memory=8G", "executor.memory=4")


def test_a_job_of_this_machine_is_queued_as_long_as_it_lives():
    me = process_name(str(os.getpid()))
    assert SlurmExecutor().queued([me, "1@0.0", "999999999@1.5"]) == {me}


@pytest.fixture
def order(plan, store, monkeypatch):
    """`order(*OVERRIDES)`: the runs of a plan, as the list of a job."""
    for variable in ("ADVSWEEP_STORE", "ADVSWEEP_COMMAND", "OMP_NUM_THREADS"):
        monkeypatch.setenv(variable, "")  # a job sets its own process's
    monkeypatch.setattr(retry_policy, "BACKOFF_SECONDS", 0.01)

    def make(*overrides):
        units = schedule_runs(plan(*overrides), store, force=False)
        records = store.runs.select(ids=[unit.run_id for unit in units])
        return [ScheduledRun(r.id, [], finished=r.finished) for r in records]

    return make


def work(store, runs, policy=None):
    return QueueWork(runs, remote_environment(1, store.url), policy or Policy())


@pytest.mark.slow
def test_a_job_holds_its_run_to_its_time_limit(store, order):
    slow = order("backend.step_seconds=0.5")
    policy = Policy(retries=0, time_limit=3)
    assert work(store, slow, policy)() == "0 done, 1 failed, 0 unfinished"
    [run] = store.runs.select()
    assert (run.status, run.failure) == (Status.FAILED, Failure.TIMEOUT)
    assert run.error == "took longer than its time limit of 3 s"
    assert log_of(run).count(" training grpo") <= 1


@pytest.mark.slow
def test_a_job_that_is_queued_again_goes_on_with_its_list(store, order):
    runs = order("backend.step_seconds=0.1", "steps=200", "seed=0,1")
    its = work(store, runs)
    # Before it has begun there is nothing to stop.
    assert SlurmJob(its).checkpoint().function == SlurmJob(work(store, runs))

    def interrupt():
        wait_until(lambda: store.runs.select(ids=[1])[0].step >= 6)
        os.kill(os.getpid(), signal.SIGUSR2)

    again: list[Any] = []

    def take(number, frame):
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
    listed = [(r.run_id, r.finished, r.retries) for r in again[0].work.runs]
    assert listed == [(1, None, 0), (2, None, 0)]


def test_a_job_leaves_runs_that_others_have_or_that_are_to_stop(slurm, plan, store, order):
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
    assert not store.leases.stops_requested([1])


@pytest.mark.slow
def test_the_first_job_of_a_submission_makes_what_is_left_to_evaluate(plan, store):
    ids = execute(plan("seed=0,1"), store).run_ids
    settings = plan("evaluation.n=4", "evaluation.k=[1]").runs[0].config["evaluation"]
    records = store.runs.select(ids=ids)
    runs = [ScheduledRun(r.id, [], (settings,), finished=r.finished) for r in records]
    environment = remote_environment(1, store.url)
    other = QueueWork(runs, environment, Policy(), is_first=False)
    assert other() == "0 done, 0 failed, 0 unfinished"
    assert work(store, runs)() == "2 done, 0 failed, 0 unfinished"
    assert all(any(e.settings["n"] == 4 for e in store.evaluations.select([i])) for i in ids)


def test_a_job_on_a_node_that_lacks_something_leaves_its_runs(order, store, monkeypatch):
    runs = order("seed=0,1,2,3")
    with monkeypatch.context() as patch:

        def lack(_):
            raise ConfigError("its command starts in /nowhere, and this machine has no such folder")

        patch.setattr(fake.Fake, "check_machine", lack)
        with pytest.raises(ConfigError, match="run 1: its command starts in /nowhere"):
            work(store, runs)()
    assert {run.status for run in store.runs.select()} == {Status.PENDING}
    with monkeypatch.context() as patch:

        def lack_when_built(*_):
            raise ImportError("no module named of_mine")

        patch.setattr("advsweep.sweep.worker.run.make_evaluators", lack_when_built)
        patch.setattr(queue_work, "_JobExecutor", DebugJobs)
        with pytest.raises(ConfigError, match="run 1: no module named of_mine; the job ends"):
            work(store, runs)()
    assert {run.status for run in store.runs.select()} == {Status.PENDING}


class DebugJobs(DebugExecutor):
    limits_memory = True


def test_a_refusal_of_slurm_is_one_line_with_what_to_do(slurm, plan, store, capfd):
    refusal = "sbatch: error: QOSMaxSubmitJobPerUserLimit"
    (slurm / "sbatch").write_text(f"#!/bin/sh\necho '{refusal}\n{refusal}\nno' >&2\nexit 1\n")
    with pytest.raises(ConfigError) as raised:
        execute(plan(*ON_SLURM, "seed=0,1"), store)
    assert str(raised.value) == (
        "executor: expected Slurm to take 2 jobs, got: QOSMaxSubmitJobPerUserLimit; no; "
        "executor.jobs=N submits fewer jobs, which train all runs; other limits: "
        "executor.partition, executor.account and executor.minutes"
    )
    assert capfd.readouterr().err == ""
    assert {run.status for run in store.runs.select()} == {Status.PENDING}


def test_without_slurm_or_submitit_one_line_says_so(plan, store, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ConfigError, match="expected a machine of a Slurm cluster"):
        execute(plan("executor=slurm"), store)
    monkeypatch.setitem(sys.modules, "submitit", None)
    with pytest.raises(ConfigError, match=r"executor=slurm needs submitit, .* install"):
        execute(plan("executor=slurm"), store)
