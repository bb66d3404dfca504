"""`advsweep sweep --dry-run`, the first lines of a training, and the commands named at its end."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from advsweep.cli.app import app
from advsweep.cli.execution import print_result
from advsweep.cli.plans import describe_plan, print_plan, print_start
from advsweep.errors import ConfigError
from advsweep.store import open_store
from advsweep.sweep.events import SweepResult
from advsweep.sweep.planning.plan import make_plan
from advsweep.sweep.planning.words import check_words
from advsweep.sweep.strategies import PlainSweep
from tests.cli.conftest import FAKE

# Three runs that the finished sweep has, and three more, duplicates through an alias.
MORE = ["estimator=grpo,dr_grpo,mean_grpo", "seed=0,1,2", *FAKE]
UNKNOWN = "no estimate of the time before the first run of this kind on this machine"
DONE = "Everything is done already; no steps left."


@pytest.fixture
def invoke(fake_folder, monkeypatch):
    """`advsweep ARGUMENTS` within this process, in the folder of the finished sweep."""
    monkeypatch.chdir(fake_folder)

    def called(command, *arguments):
        words = ["sweep", "--dry-run"] if command == "plan" else [command]
        return CliRunner().invoke(app, [*words, *arguments])

    return called


@pytest.fixture
def planned(invoke):
    return json.loads(invoke("plan", *MORE, "--jobs=2", "--format", "json").stdout)


def test_json_has_every_run_with_its_status(planned):
    assert (planned["done"], planned["running"], planned["missing"]) == (3, 0, 3)
    assert planned["states"] == {"done": 3, "missing": 3}
    assert planned["steps_left"] == 36
    statuses = {(r["estimator"], r["seed"]): r["status"] for r in planned["runs"]}
    assert statuses == {
        **{("grpo", seed): "done" for seed in (0, 1, 2)},
        **{("dr_grpo", seed): "missing" for seed in (0, 1, 2)},
    }
    for run in planned["runs"]:
        assert run["config"]["estimator"]["name"] == run["estimator"]
        assert (run["id"] is None) == (run["status"] == "missing")
        assert run["steps_left"] == (0 if run["status"] == "done" else 12)


@pytest.mark.parametrize(
    ("values", "first", "others"),
    [
        (["optimizer.lr=1e-4,0.0001"], "optimizer.lr=1e-4", ["optimizer.lr=0.0001"]),
        (["optimizer.lr=1,1.0,1e0"], "optimizer.lr=1", ["optimizer.lr=1.0", "optimizer.lr=1e0"]),
        (
            ["optimizer.lr=.5,0.5", "seed=7,7"],
            "optimizer.lr=.5 seed=7",
            ["optimizer.lr=.5 seed=7", "optimizer.lr=0.5 seed=7", "optimizer.lr=0.5 seed=7"],
        ),
        (["estimator=dr_grpo,mean_grpo"], "estimator=dr_grpo", ["estimator=mean_grpo"]),
    ],
)
def test_duplicates_are_told_as_they_were_written(invoke, values, first, others):
    planned = json.loads(invoke("plan", *values, "--format", "json").stdout)
    assert [each["first"] for each in planned["duplicates"]] == [first] * len(others)
    assert [each["asked"] for each in planned["duplicates"]] == others


@pytest.mark.slow
def test_a_table_is_for_people(invoke, planned):
    lines = invoke("plan", *MORE, "--jobs=2").stdout.splitlines()
    assert lines[0].split() == ["identity", "status", "steps", "left", "run"]
    first, last = planned["runs"][0], planned["runs"][-1]
    assert lines[1].split() == [first["identity"][:10], "done", "12/12", "grpo", "seed=0"]
    assert lines[6].split()[:3] == [last["identity"][:10], "missing", "0/12"]
    assert lines[8] == "duplicates, each executed once (3):"
    identity = planned["runs"][3]["identity"][:10]
    assert lines[10].split()[0] == "estimator=mean_grpo"
    assert lines[10].endswith(identity)
    assert lines[-2].startswith("sweep sweep-")
    assert lines[-2].endswith(": 6 runs, 3 done, 3 missing")
    assert lines[-1].startswith("36 steps left, about ")
    assert " with 2 side by side (as measured by " in lines[-1]


def test_the_last_line_tells_gpu_hours_and_what_nothing_tells_of(fake_folder, capsys):
    store = str(fake_folder / "advsweep.db")
    plan = make_plan([*FAKE, "group_size=8,4", "seed=3,4", "resources.gpus=0.5"])
    print_plan(PlainSweep(plan).preview(None), store, 2, as_json=False)
    assert capsys.readouterr().out.splitlines()[-1] == f"48 steps left; {UNKNOWN}"
    plan = make_plan([*FAKE, "seed=3,4", "resources.gpus=0.5"])
    print_plan(PlainSweep(plan).preview(None), store, 2, as_json=False)
    # Machines without GPUs say so.
    last = (
        capsys.readouterr().out.splitlines()[-1].replace(", for which this machine has no room", "")
    )
    assert last.startswith("24 steps left, about ")
    assert " GPU-hours with 2 side by side (as measured by " in last


def test_plans_and_warns_of_missing_resources(invoke):
    done = invoke("plan", *FAKE, "seed=3", "resources.gpus=1000")
    assert done.exit_code == 0
    assert ": 1 run, 1 missing" in done.stdout
    assert "this machine cannot execute the plan: resources.gpus: expected at m" in done.stderr
    submitted = invoke("plan", *FAKE, "seed=3", "resources.gpus=1000", "executor=slurm")
    assert (submitted.exit_code, submitted.stderr) == (0, "")


def test_force_counts_what_is_done_as_work(invoke):
    done = invoke("plan", *FAKE, "seed=0,1", "--force").stdout.splitlines()
    assert done[-2].endswith(": 2 runs, 2 done")
    assert done[-1].startswith("24 steps left, about ")
    assert invoke("plan", *FAKE, "seed=0,1").stdout.splitlines()[-1] == DONE


@pytest.mark.slow
def test_without_a_store_nothing_is_made(invoke, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = json.loads(invoke("run", "--dry-run", "--format", "json", "seed=5", *FAKE).stdout)
    assert config["seed"] == 5
    for store in ([], ["--store", "other.db"]):
        done = invoke("plan", "seed=range(60)", *store, *FAKE)
        assert done.exit_code == 0
        lines = done.stdout.splitlines()
        # A header, the first 50, an empty line and two about all of them.
        assert len(lines) == 54
        assert done.stderr == "10 more not shown; --format json shows them.\n"
        assert lines[-1] == f"720 steps left; {UNKNOWN}"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_plans_and_warns_of_missing_data(invoke, tmp_path):
    data = tmp_path / "later.jsonl"
    task = ["task=file", f"task.data={data}", "task.held_out=2", "task.verifier=numeric"]
    done = invoke("plan", *FAKE, *task)
    assert done.exit_code == 0
    assert f"not on this machine: task.data={data};" in done.stderr
    assert done.stdout.splitlines()[1].startswith("?")
    assert f"task.data={data}" in invoke("run", "--dry-run", *FAKE, *task).stdout
    assert "there is no" in str(invoke("sweep", *FAKE, *task).exception)


SIX = "grpo,rloo,dr_grpo,fade,maxrl,gpg"
STARTS = {
    "no plurals": (
        [*FAKE, "steps=1", "prompts_per_step=1"],
        "Training grpo on countdown with model tiny (backend fake): 1 step of 1 prompt x 8 "
        "rollouts of at most 10 tokens",
    ),
    "what differs": (
        ["estimator=grpo,rloo", "seed=0,1", "group_size=4,8", *FAKE],
        "sweep s: 8 runs of grpo, rloo on countdown with model tiny (backend fake): 12 steps of "
        "64 prompts x 4, 8 rollouts of at most 10 tokens",
    ),
    "six": ([f"estimator={SIX}", *FAKE], f"sweep s: 6 runs of {SIX.replace(',', ', ')} on "),
    "many": ([f"estimator={SIX},psr", *FAKE], "sweep s: 7 runs of 7 estimators on "),
}


@pytest.mark.parametrize("case", STARTS)
def test_the_first_line_says_what_is_trained_and_on_what(case):
    overrides, expected = STARTS[case]
    single = expected.startswith("Training")
    plan = make_plan(overrides, single=single, name=None if single else "s")
    assert describe_plan(plan).startswith(expected)


def test_hostile_title_is_one_printable_line(capsys, tmp_path):
    plan = make_plan(["seed=0", *FAKE], single=True)
    task = plan.runs[0].run.task
    object.__setattr__(task, "title", "x\x1b[2J\nFORGED")
    with open_store(str(tmp_path / "advsweep.db")) as store:
        plan.runs[0].run.backend.completion_tokens = lambda run: 1
        print_start(plan, store, 1)
    text = capsys.readouterr().err
    assert "\x1b" not in text
    assert "\nFORGED" not in text


@pytest.mark.parametrize(
    ("store", "ending"),
    [
        (None, "`advsweep report my.sweep` prints the table."),
        ("a b.db", "`advsweep report my.sweep --store 'a b.db'` prints the table."),
        (
            "postgresql://me:hunter2@host/runs",
            "`advsweep report my.sweep --store 'postgresql://me:***@host/runs'` prints the table.",
        ),
    ],
)
def test_next_commands_name_the_store(capsys, monkeypatch, store, ending):
    monkeypatch.delenv("ADVSWEEP_STORE", raising=False)
    outcome = SweepResult(run_ids=[1], done=1, skipped=0, failed={}, unfinished=0, stopped=False)
    print_result(SimpleNamespace(name="my.sweep"), outcome, store)
    assert capsys.readouterr().err.splitlines()[-1] == ending


@pytest.mark.parametrize(
    ("given", "remedy"),
    [
        (["estimator=grpo", "estimator=fade"], "estimator=grpo,fade"),
        (["steps=2", "+seed=0", "seed=1"], "seed=0,1"),
        (["a.yaml", "b.yaml"], "+experiment=a.yaml,b.yaml"),
    ],
)
def test_key_given_twice_in_a_row_is_refused(given, remedy):
    with pytest.raises(ConfigError) as error:
        check_words(given)
    assert f"sweep over both with {remedy} " in str(error.value)


def test_other_keys_and_the_same_word_twice_are_fine():
    given = ["steps=2", "seed=0", "steps=3", "seed=1", "seed=1", "~evaluation.k", "mine.yaml"]
    assert check_words(given) == given
