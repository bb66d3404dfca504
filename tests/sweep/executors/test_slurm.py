"""Runs as jobs of submitit: in processes of this machine, and through stand-ins for Slurm."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from advsweep.cli import execution
from advsweep.errors import ConfigError
from advsweep.report import build_report, render
from advsweep.store import Status, Store, open_store
from advsweep.sweep.engine import execute
from advsweep.sweep.events import Event, RunEvent
from advsweep.sweep.executors.base import Job
from advsweep.sweep.executors.slurm import SlurmExecutor, _batches
from advsweep.sweep.plan import Plan

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
    "squeue": "echo $@ >> squeues; [ -e down ] && { echo 'no controller' >&2; exit 1; }; ls queue",
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
    wait_until(lambda: all(run.status is Status.DONE for run in store.runs()))
    assert table(store) == undisturbed
    for run in store.runs():
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
    assert "advsweep ls same   shows how far they are" in told
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
    wait_until(lambda: store.runs(status=Status.RUNNING) and store.runs()[0].step >= 8)
    [run] = store.runs()
    assert run.pid is not None
    job = int(Path(f"/proc/{run.pid}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(job, signal.SIGUSR2)  # what Slurm sends ahead of the end
    wait_until(lambda: store.runs()[0].status is Status.DONE)
    log = (run.directory / "log.txt").read_text(encoding="utf-8")
    assert "interrupted: asked to stop" in log
    assert "going on after step" in log
    steps = [step for _, step, _ in store.points(run.id, ["reward/mean"])]
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
    with pytest.raises(ConfigError, match=r"expected Slurm to take 1 jobs, got: .*Invalid account"):
        execute(plan(*ON_SLURM), store)
    (slurm / "refuse").unlink()
    execute(plan(*ON_SLURM), store)
    (slurm / "down").touch()
    with pytest.raises(ConfigError, match=r"expected squeue to tell .* no controller"):
        execute(plan(*ON_SLURM), store)


def test_a_job_of_this_machine_is_queued_as_long_as_it_lives() -> None:
    executor = SlurmExecutor()
    me = executor._name("100"), SlurmExecutor.build({"cluster": "local"})._name(str(os.getpid()))
    assert me[0] == "100"
    assert executor.queued([me[1], "1@0.0", "999999999@1.5"]) == {me[1]}


@pytest.mark.parametrize(("number", "sizes"), [(0, []), (3, [3]), (4, [2, 2]), (8, [2, 3, 3])])
def test_arrays_are_few_and_alike(number: int, sizes: list[int], tmp_path: Path) -> None:
    jobs = [Job(run_id=i, store_url="", directory=tmp_path) for i in range(number)]
    parts = list(_batches(jobs, 3))
    assert [len(part) for part in parts] == sizes
    assert [job for part in parts for job in part] == jobs


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
