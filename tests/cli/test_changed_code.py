"""Code that is not advsweep's changes between two calls of the same command."""

from __future__ import annotations

import json
import shutil
import sqlite3
import subprocess
from contextlib import closing

import pytest

from advsweep.store import Status, open_store
from advsweep.store.runs import SOURCES

HALVED = """
from dataclasses import dataclass
from typing import ClassVar
from advsweep.estimators import Estimator
from halved_sign import SIGN

@dataclass(kw_only=True)
class Halved(Estimator):
    name: ClassVar[str] = "halved"
    def _advantages(self, groups, info):
        return SIGN * groups.centred / 2
"""

POINTS = {"advsweep.estimators": {"halved": "halved:Halved"}}

SWEEP = (
    *("sweep", "backend=fake", "steps=3", "evaluation.n=2", "evaluation.k=[1]"),
    *("prompts_per_step=2", "seed=0,1", "--name=demo"),
)

PLUGIN = (*SWEEP, "estimator=halved,grpo")

TRAIN = """
import json, sys
from reward import reward
seed, steps, output = sys.argv[1:]
for step in range(1, int(steps) + 1):
    with open(f"{output}/metrics.jsonl", "a") as log:
        log.write(json.dumps({"step": step, "reward/mean": reward(step)}) + "\\n")
"""

COMMAND = (
    *("sweep", "backend=command", "backend.template=mine.yaml", "seed=0,1", "steps=2"),
    "--name=demo",
)


@pytest.fixture
def halved(advsweep_with, tmp_path):
    """`advsweep ARGUMENTS` with an estimator of another package, whose helper has its sign."""
    command = advsweep_with(POINTS, package="adv-halved", halved=HALVED, halved_sign="SIGN = 1\n")

    def run(*arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        done = command(*arguments)
        assert done.returncode == code, done.stderr
        return done

    run.sign = tmp_path / "site" / "halved_sign.py"  # type: ignore[attr-defined]
    return run


@pytest.fixture
def program(tmp_path, advsweep):
    """`advsweep ARGUMENTS` beside a program in a repository."""
    command = '["{python}", train.py, "{seed}", "{steps}", "{directory}"]'
    (tmp_path / "mine.yaml").write_text(f"command: {command}\nfixed: {{estimator: grpo}}\n")
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "reward.py").write_text("def reward(step): return step / 10\n")
    (tmp_path / ".gitignore").write_text("*.db*\n*runs*\n__pycache__\n")
    _git(tmp_path, "init", "-q")
    commit(tmp_path)

    def run(*arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        done = advsweep(*arguments)
        assert done.returncode == code, done.stderr
        return done

    return run


def _git(folder, *arguments):
    own = ("-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false")
    subprocess.run(["git", *own, "-C", str(folder), *arguments], check=True)


def commit(folder):
    _git(folder, "add", ".")
    _git(folder, "commit", "-q", "--allow-empty", "-m", "state")


def records(folder):
    with open_store(str(folder / "advsweep.db"), create=False) as store:
        return store.runs.select(sweep="demo", newest_first=False)


def environment(folder, run_id):
    with open_store(str(folder / "advsweep.db"), create=False) as store:
        return store.runs.environment(run_id)


@pytest.mark.slow
def test_a_plugin_whose_sign_is_swapped_is_trained_again(halved, tmp_path) -> None:
    halved(*PLUGIN)
    assert "Everything is done already" in halved(*PLUGIN).stderr
    halved.sign.write_text("SIGN = -1\n")
    shown = halved(*PLUGIN, "--dry-run")
    line = "estimator 'halved' changed since 2 runs of sweep demo (halved_sign): trained again"
    assert line in shown.stderr
    assert "4 runs, 2 done, 2 missing" in shown.stdout
    warned = json.loads(halved(*PLUGIN, "--dry-run", "--format=json").stdout)["warnings"]
    assert any(line in warning for warning in warned)
    done = halved(*PLUGIN)
    assert done.stderr.count("changed since") == 1
    assert "2 done, 2 done before of 4 runs" in done.stderr
    # The old runs stay, in rows of their own, and the report says so.
    runs = records(tmp_path)
    assert [(run.id, run.estimator) for run in runs if run.estimator == "halved"] == [
        *((1, "halved"), (3, "halved"), (5, "halved"), (6, "halved"))
    ]
    assert runs[0].config == runs[4].config
    assert len({run.config_hash for run in runs}) == 3
    report = halved("report", "demo").stdout
    assert "estimator 'halved' has several versions, whose results may differ" in report
    assert "in runs 1, 3" in report
    assert "in runs 5-6" in report
    condition = report.partition("--where '")[2].partition("'")[0]
    assert "versions" not in halved("report", "demo", "--where", condition).stdout
    # The weights of a run are those that were trained, whatever its plug-in is now.
    used = halved("eval", "1", "--set", "evaluation.n=3")
    assert "estimator 'halved' changed since run 1 was trained; its weights" in used.stderr
    shown = halved("show", "5", "--full").stdout
    assert "sources.parts.estimator.files.halved_sign" in shown
    # Back to the first source: its runs are there.
    halved.sign.write_text("SIGN = 1\n")
    assert "Everything is done already" in halved(*PLUGIN).stderr


@pytest.mark.slow
def test_runs_of_versions_that_kept_no_sources_stay_and_are_trained_again(halved, tmp_path) -> None:
    halved(*PLUGIN)
    before = halved("report", "demo", "--format", "csv").stdout
    # As earlier versions stored them: the identity is the definition, and nothing else is known.
    with closing(sqlite3.connect(tmp_path / "advsweep.db")) as database, database:
        for run_id, text in database.execute("SELECT id, environment FROM runs").fetchall():
            made = json.loads(text)
            values = (made.pop(SOURCES)["definition"], json.dumps(made), run_id)
            database.execute("UPDATE runs SET identity = ?, environment = ? WHERE id = ?", values)
    assert halved("report", "demo", "--format", "csv").stdout == before
    done = halved(*PLUGIN)
    assert "estimator 'halved': nobody knows its source in 2 runs of sweep demo" in done.stderr
    # The backend of the tests is a plug-in as well.
    assert "backend 'fake': nobody knows its source in 4 runs of sweep demo" in done.stderr
    assert "4 done of 4 runs" in done.stderr
    assert "unknown source in runs 1, 3" in halved("report", "demo").stdout


@pytest.mark.slow
def test_a_run_is_not_resumed_with_another_source(halved, tmp_path) -> None:
    halved(*PLUGIN, "backend.fail_at=2", "estimator=halved", code=1)
    halved.sign.write_text("SIGN = -1\n")
    refused = halved("retry", "demo", code=2)
    assert "one of these changed since: the source of estimator 'halved'" in refused.stderr
    with closing(sqlite3.connect(tmp_path / "advsweep.db")) as database, database:
        database.execute("UPDATE runs SET status = 'pending'")
    # Another machine may still have the source that they were planned with.
    left = halved("worker", "demo", code=2)
    assert "one of these changed since: the source of estimator 'halved'" in left.stderr
    for run in records(tmp_path):
        assert run.status in (Status.PENDING, Status.INTERRUPTED)


@pytest.mark.slow
def test_a_program_whose_module_changed_is_trained_again(program, tmp_path) -> None:
    program(*COMMAND)
    assert "Everything is done already" in program(*COMMAND).stderr
    first = environment(tmp_path, 1)
    assert first["program"]["dirty"] is False
    assert first[SOURCES]["parts"]["backend"]["files"].keys() == {"train.py", "reward"}
    (tmp_path / "reward.py").write_text("def reward(step): return -step\n")
    done = program(*COMMAND)
    assert "the program of backend 'command' changed since 2 runs of sweep demo (reward)" in (
        done.stderr
    )
    second = environment(tmp_path, 3)["program"]
    assert second["commit"] == first["program"]["commit"]
    assert (second["dirty"], len(second["diff"])) == (True, 64)
    report = program("report", "demo").stdout
    assert "the program of backend 'command' has several versions" in report


@pytest.mark.slow
def test_a_commit_that_leaves_the_program_alone_is_named_and_trains_nothing(
    program, tmp_path
) -> None:
    program(*COMMAND)
    (tmp_path / "notes.md").write_text("a text")
    commit(tmp_path)
    done = program(*COMMAND, "seed=0,1,2")
    assert "the repository of the program went from commit " in done.stderr
    assert "2 runs of it count as done; --force trains them again" in done.stderr
    assert len(records(tmp_path)) == 3
    report = program("report", "demo").stdout
    assert "the program of grpo was started in several states of its repository" in report


@pytest.mark.slow
def test_a_program_without_a_repository_counts_by_its_files(program, tmp_path) -> None:
    shutil.rmtree(tmp_path / ".git")
    program(*COMMAND)
    assert environment(tmp_path, 1)["program"] is None
    assert "Everything is done already" in program(*COMMAND).stderr
    (tmp_path / "train.py").write_text(TRAIN + "# another\n")
    assert "changed since 2 runs of sweep demo (train.py)" in program(*COMMAND).stderr
