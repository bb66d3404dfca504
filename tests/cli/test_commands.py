"""The commands over a finished sweep: what they print for people and for programs."""

from __future__ import annotations

import json
import shutil

import pytest

from advsweep.store import open_store
from tests.cli.conftest import FAKE

IN_PROCESS = [*FAKE, "executor=debug"]


def test_ls_as_json_has_what_scripts_need(finished):
    runs = json.loads(finished("ls", "two", "--format", "json").stdout)
    assert len(runs) == 6
    for run in runs:
        assert run["sweep"] == "two"
        assert run["status"] == "done"
        assert run["step"] == run["steps"] == 12
        assert run["config"]["estimator"]["name"] == run["estimator"]
        assert run["config"]["seed"] == run["seed"]
        assert {"group_size", "steps", "backend", "task", "model"} <= run["config"].keys()
    assert len({r["identity"] for r in runs}) == 6


def test_ls_filters(finished):
    assert json.loads(finished("ls", "--status", "failed", "--format", "json").stdout) == []
    assert len(json.loads(finished("ls", "--limit", "2", "--format", "json").stdout)) == 2
    nothing = finished("ls", "--status", "failed")
    assert (nothing.stdout, nothing.stderr.strip()) == ("", "No runs found.")
    wrong = finished("ls", "--status", "faled")
    assert wrong.returncode == 2
    assert "failed" in wrong.stderr


def test_show_has_the_whole_record(finished):
    record = json.loads(finished("show", "last", "--format", "json").stdout)
    assert record["status"] == "done"
    assert record["config"]["backend"]["name"] == "fake"
    assert "reward/mean" in record["metrics"]
    assert [e["step"] for e in record["evaluations"]] == [0, 6, 12]
    for evaluation in record["evaluations"]:
        assert all(0 <= p["c"] <= p["n"] == 16 for p in evaluation["problems"])
        rates = [p["c"] / p["n"] for p in evaluation["problems"]]
        assert evaluation["scores"]["pass@1"] == pytest.approx(sum(rates) / len(rates))
    same = json.loads(finished("show", record["identity"][:8], "--format", "json").stdout)
    assert same["id"] == record["id"]


def test_an_unknown_run_or_sweep_is_refused(finished):
    for command in (["show", "77"], ["logs", "ffff0000"], ["report", "tow"], ["ls", "tow"]):
        done = finished(*command)
        assert (done.returncode, done.stdout) == (2, ""), command
        assert "Traceback" not in done.stderr
    assert "done" in finished("logs", "1").stdout


@pytest.mark.slow
def test_a_run_that_learned_nothing_is_named(advsweep):
    # One group of two in each of two steps: both rewards are equal with seed 0, not with seed 2.
    small = ["backend=fake", "executor=debug", "steps=2", "prompts_per_step=1", "group_size=2"]
    small += ["evaluation.n=1"]
    done = advsweep("run", *small)
    [line] = [line for line in done.stdout.splitlines() if "was learned" in line]
    assert line.startswith("run 1: nothing was learned: the rewards were equal within every group")
    assert line.endswith("`advsweep samples 1` shows what the model wrote")
    assert line in advsweep("show", "1").stdout.splitlines()
    swept = advsweep("sweep", "seed=0,1,2", *small, "--name", "few")
    assert [line for line in swept.stderr.splitlines() if "was learned" in line] == [
        line.replace("run 1", "runs 1-2")
    ]


def test_the_last_evaluation_is_shown(in_process):
    code, out, err = in_process("samples", "1")
    assert code == 0
    lines = out.splitlines()
    assert lines[0].startswith("run 1 after step 12, countdown: 8 of ")
    assert [line for line in lines if line.startswith("8. ")]
    assert not [line for line in lines if line.startswith("9. ")]
    verdicts = [line.split(",")[0] for line in lines if line.startswith("  verdict ")]
    assert len(verdicts) == 8
    assert set(verdicts) <= {"  verdict correct", "  verdict wrong"}
    assert [line[:12] for line in lines[2:5]] == [lines[2][:12], "  prompt  | ", "  answer  | "]
    assert err == "--step shows other evaluations: 0, 6\n"


def test_every_evaluation_keeps_answers_to_the_same_problems(in_process):
    kept = {}
    for step in (0, 6, 12):
        code, out, _ = in_process("samples", "1", "--step", str(step), "--format", "json")
        assert code == 0
        [evaluation] = json.loads(out)
        assert (evaluation["run"], evaluation["step"]) == (1, step)
        kept[step] = evaluation["samples"]
    problems = [[sample["problem_id"] for sample in samples] for samples in kept.values()]
    assert problems[0] == problems[1] == problems[2]
    assert len({sample["level"] for sample in kept[12]}) > 1
    for sample in kept[12]:
        assert sample["verdict"] == ("correct" if sample["reward"] == 1 else "wrong")
        assert sample["length"] == len(sample["answer"])


def test_a_step_without_an_evaluation(in_process):
    code, out, err = in_process("samples", "1", "--step", "5")
    assert (code, out) == (2, "")
    assert "run 1 (0, 6, 12), got 5" in err


def test_a_worker_with_nothing_to_do_ends(finished):
    done = finished("worker", "two")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "worker: 0 done\n")


def test_a_sweep_that_is_not_there(finished):
    done = finished("worker", "tow")
    assert done.returncode == 2
    assert "no sweep 'tow'" in done.stderr


def test_what_a_worker_cannot_take(finished):
    for arguments, words in (
        (("two", "one"), "expected one sweep at most, got two, one"),
        (("two", "executor=slurm"), "executor=slurm: expected a key of resources"),
        (("two", "resources.cpu=2"), "has no parameter 'cpu'"),
        (("two", "executor.address=auto"), "local has no parameter 'address'"),
    ):
        done = finished("worker", *arguments)
        assert (done.returncode, done.stdout) == (2, "")
        assert words in done.stderr


@pytest.mark.slow
def test_a_worker_does_what_is_left_in_the_folder_that_is_named(advsweep, fake_folder, tmp_path):
    shutil.copy(fake_folder / "advsweep.db", tmp_path / "advsweep.db")
    with open_store(str(tmp_path / "advsweep.db")) as store:
        again = store.runs.new_attempt(1)
    done = advsweep("worker", "two", "--jobs", "1", "--runs", "elsewhere")
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines()[-2:] == [f"run {again} (grpo seed=0) done", "worker: 1 done"]
    run = json.loads(advsweep("show", str(again), "--format", "json").stdout)
    assert (run["status"], run["step"]) == ("done", 12)
    assert list((tmp_path / "elsewhere").glob("grpo-*-2/checkpoints/step-000012"))
    assert not (tmp_path / "advsweep-runs").exists()
