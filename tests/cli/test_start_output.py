"""The first lines of `run` and `sweep`, and the commands that they name at the end."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from advsweep.cli.execution import check_overrides, print_outcome
from advsweep.cli.plans import describe_plan, print_start
from advsweep.errors import ConfigError
from advsweep.store import open_store
from advsweep.sweep.events import SweepResult
from advsweep.sweep.planning.plan import make_plan
from advsweep.tasks.base import Problem
from tests.cli.conftest import FAKE

SIX = "grpo,rloo,dr_grpo,fade,maxrl,gpg"
STARTS = {
    "one run": (
        ["estimator=fade", "steps=40"],
        "Training fade on countdown with model tiny (backend tiny): 40 steps of 64 prompts x 8 "
        "rollouts of at most 10 tokens",
    ),
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
    task = SimpleNamespace(
        title="x\x1b[2J\nFORGED",
        name="dataset",
        problems=lambda split: [Problem("0", "a problem", 0)],
    )
    plan = make_plan(["seed=0", *FAKE], single=True)
    object.__setattr__(plan.runs[0].run, "task", task)
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
    print_outcome(SimpleNamespace(name="my.sweep"), outcome, store)
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
        check_overrides(given)
    assert f"sweep over both with {remedy} " in str(error.value)


def test_other_keys_and_the_same_word_twice_are_fine():
    given = ["steps=2", "seed=0", "steps=3", "seed=1", "seed=1", "~evaluation.k", "mine.yaml"]
    assert check_overrides(given) == given
