"""Estimators that the command line names by their files, from the plan to the report."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

import advsweep.cli.estimators  # noqa: F401 (forked commands then need not import torch)
from advsweep.named_code import ALLOWED
from advsweep.store import open_store

IDEA = """
def advantages(rewards, scale=1.0):
    \"\"\"Centre the rewards of a group.\"\"\"
    return scale * (rewards - rewards.mean(dim=1, keepdim=True))
"""

FAKE = ("backend=fake", "steps=2", "evaluation.n=2", "evaluation.k=[1]", "prompts_per_step=2")
# In the process of the command: a worker takes seconds to import torch.
HERE = "executor=debug"
MATCHED = ("optimizer=sgd", "optimizer.match=mass", "optimizer.match_reference=idea.py")
SWEEP = ("sweep", *FAKE, "seed=0,1", "--name=demo")

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def idea(tmp_path: Path) -> Path:
    path = tmp_path / "idea.py"
    path.write_text(IDEA)
    return path


@pytest.fixture
def run(advsweep: Run) -> Run:
    """`advsweep ARGUMENTS` as from another shell: consent of an earlier command is gone."""

    def call(*arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        done = advsweep(*arguments, **{ALLOWED: "[]"})
        assert done.returncode == code, done.stderr
        return done

    return call


@pytest.mark.slow
def test_a_sweep_over_files(run: Run, idea: Path, tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "idea.py").write_text(IDEA.replace("advantages", "halved"))
    arms = "estimator=grpo,idea.py,b/idea.py:halved"
    run(*SWEEP, HERE, arms, "estimator.scale=0.5,2")
    table = run("report", "demo", "--format=csv", "--columns=reward/mean").stdout
    rows = [line.split(",")[:2] for line in table.splitlines()[1:]]
    assert ["idea", "0.5"] in rows
    assert ["idea:halved", "2.0"] in rows
    listed = run("ls", "demo", "--format=csv").stdout
    assert listed.count(",idea:halved,") == listed.count(",idea,") == 4
    shown = run("show", "last").stdout
    assert "code of estimator: halved in idea.py" in shown
    assert "return scale * (rewards - rewards.mean(dim=1, keepdim=True))" in shown
    assert "code.text" not in shown
    again = run(*SWEEP, arms, "estimator.scale=0.5,2").stderr
    assert "10 done before" in again
    idea.rename(tmp_path / "renamed.py")
    again = run(*SWEEP, "estimator=renamed.py", "estimator.scale=0.5,2").stderr
    assert "4 done before" in again
    assert "which changes no result" not in again


@pytest.mark.slow
def test_a_sweep_file_that_the_command_line_names(run: Run, idea: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("""
sweep:
  baseline: grpo
  seeds: 2
  blocks:
    - {estimator: [grpo, idea.py]}
    - {estimator: a_grae, estimator.base: "idea.py:advantages"}
""")
    run("sweep", "mine.yaml", *FAKE, HERE)
    listed = json.loads(run("ls", "mine", "--format=json").stdout)
    assert sorted(row["estimator"] for row in listed) == [
        *("a_grae", "a_grae", "grpo", "grpo", "idea", "idea")
    ]
    run("run", *FAKE, *MATCHED, "--dry-run")
    (tmp_path / "wrong.yaml").write_text("sweep: {blocks: [{estimator: [grpo, none.py]}]}\n")
    refused = run("sweep", "wrong.yaml", *FAKE, code=2).stderr
    assert "none.py: expected a file of Python: there is no such file" in refused


@pytest.mark.slow
def test_a_changed_file_is_another_run(run: Run, idea: Path) -> None:
    run(*SWEEP, HERE, "estimator=idea.py,grpo")
    idea.write_text(IDEA.replace("return scale", "return 0.5 * scale"))
    done = run(*SWEEP, HERE, "estimator=idea.py,grpo").stderr
    assert "estimator 'idea' changed since 2 runs of sweep demo (file): trained again" in done
    assert "2 done, 2 done before of 4 runs" in done
    report = run("report", "demo", "--columns=reward/mean").stdout
    assert "estimator 'idea' has several versions" in report


@pytest.mark.slow
def test_workers_train_from_the_stored_text(run: Run, idea: Path, tmp_path: Path) -> None:
    """What is trained is what was planned, whatever became of the file."""
    interrupted = run(*SWEEP, "estimator=idea.py", "backend.fail_at=1", "--retries=0", code=1)
    assert "2 failed" in interrupted.stderr
    idea.write_text("raise SystemExit('another text')\n")
    for command in (("retry", "demo"), ("worker", "demo")):
        refused = run(*command, code=2 if command[0] == "retry" else 0).stderr
        if command[0] == "retry":
            assert "only a command line names code" in refused
    retried = run("retry", "demo", "--trust-store", "--retries=0", code=1).stderr
    assert "another text" not in retried
    assert "2 failed" in retried


@pytest.mark.security
@pytest.mark.slow
def test_a_merged_store_runs_no_code(run: Run, idea: Path, tmp_path: Path) -> None:
    witness = tmp_path / "has_run"
    idea.write_text(f"open({str(witness)!r}, 'a').write('x')\n{IDEA}")
    run(*SWEEP, HERE, "estimator=idea.py")
    shutil.copy(tmp_path / "advsweep.db", tmp_path / "theirs.db")
    for path in ("advsweep.db", "advsweep-runs"):
        target = tmp_path / path
        target.unlink() if target.is_file() else shutil.rmtree(target)
    witness.unlink()
    with open_store(str(tmp_path / "theirs.db")) as store:
        [first, _] = store.runs.select(sweep="demo")
        store.runs.new_attempt(first.id)
    run("sweep", *FAKE, HERE, "estimator=grpo", "seed=0")
    run("merge", "theirs.db")
    for command in ("ls", "report demo", "show 2", "status", "plot demo"):
        run(*command.split())
    assert "only a command line names code" in run("retry", "demo", code=2).stderr
    assert "only a command line names code" in run("worker", "demo", code=2).stderr
    assert not witness.exists()


def test_describe_a_file(run: Run, idea: Path, tmp_path: Path) -> None:
    shown = run("describe", "idea.py:scale=2").stdout
    for text in (
        "idea: A = advantages(rewards, scale)",
        "Centre the rewards of a group.",
        "scale      a number  1.0",
        "idea.py:2",
        "    return scale * (rewards",
    ):
        assert text in shown
    applied = run("describe", "idea.py:scale=2", "--rewards", "1,0,0,-").stdout
    assert "1.33333" in applied
    run("describe", "grpo,idea.py:advantages:scale=3", "-o", "masses.svg")
    assert "idea:advantages scale=3" in (tmp_path / "masses.svg").read_text()
    record = json.loads(run("describe", "estimator=idea.py", "--format=json").stdout)
    assert (record["place"], record["code"]) == ("idea.py:2", IDEA)


def test_a_file_that_does_not_fit_is_one_line(run: Run, idea: Path, tmp_path: Path) -> None:
    idea.write_text("def advantages(rewards, frequencies): return rewards\n")
    refused = run("run", *FAKE, "estimator=idea.py", code=2).stderr
    assert "'idea' needs frequencies, which backend 'fake'" in refused
    idea.write_text("def advantages(rewards): return rewards / rewards.sum()\n")
    refused = run("run", *FAKE, "estimator=idea.py", code=2).stderr
    assert refused.startswith("advsweep: idea.py:1: advantages: expected finite advantages")
    assert refused.count("\n") == 1
    assert "did you mean estimator=idea.py?" in run("run", "idea.py", code=2).stderr
    assert not (tmp_path / "advsweep.db").exists()


def test_replay_and_audition_take_files(run: Run, idea: Path, tmp_path: Path) -> None:
    rows = [
        {"step": 1, "prompt": str(prompt), "completion": "x", "reward": float(number == 0)}
        for prompt in range(4)
        for number in range(4)
    ]
    (tmp_path / "rollouts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    estimators = "--estimators=grpo,idea.py:scale=3"
    table = run("replay", "rollouts.jsonl", estimators, "--format=csv").stdout
    assert "idea scale=3" in table
