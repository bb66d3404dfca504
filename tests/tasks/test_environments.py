"""Tasks of environments in files: problems, what they give, and what a plan refuses."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from advsweep.backends.build import build_run
from advsweep.cli.defaults import default_config
from advsweep.errors import AdvsweepWarning, ConfigError, TrainingError
from advsweep.tasks import TASKS
from advsweep.tasks.base import Split

ROOT = Path(__file__).parents[2]
WALK = (ROOT / "examples" / "trl_agent" / "walk.py").read_text("utf-8")
ROWS = [{"start": "a", "goal": goal, "closed": "h", "prompt": "Walk."} for goal in "cde"]
NO_STATE = WALK.replace("turn_state", "_place")
TOOL = "    def step(self, word: str) -> str:"

Make = Callable[..., Any]


@pytest.fixture
def make_task(tmp_path: Path) -> Make:
    """`make_task(text, rows, **options)`: the task of an environment with this text."""

    def make(text: str = WALK, rows: list[dict[str, Any]] = ROWS, **options: Any) -> Any:
        (tmp_path / "mine.py").write_text(text)
        (tmp_path / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        name = TASKS.resolve(str(tmp_path / "mine.py"))
        node = {"name": name, "data": str(tmp_path / "rows.jsonl"), "held_out": 1, **options}
        return TASKS.build(node)

    return make


@pytest.fixture
def make_run(make_task: Make) -> Make:
    """`make_run(text, **keys)`: a run on such a task, which needs no model to be planned."""

    def make(text: str = WALK, **keys: Any) -> Any:
        task = make_task(text, **keys.pop("task", {}))
        config = {
            "estimator": "grpo",
            "objective": "clipped",
            "rollout": "plain",
            "task": task.plain(),
            "model": {"name": "hf", "path": "someone/model"},
            "optimizer": "adamw",
            "generation": "transformers",
            "evaluation": "standard",
            "backend": "trl",
            "group_size": 4,
            "prompts_per_step": 2,
            "steps": 2,
            "seed": 0,
        }
        return build_run({**config, **keys})

    return make


def test_each_row_begins_an_episode(make_task: Make) -> None:
    task = make_task()
    problems = [*task.problems(Split.TRAIN), *task.problems(Split.HELD_OUT)]
    assert sorted(problem.columns["goal"] for problem in problems) == ["c", "d", "e"]
    assert {problem.prompt for problem in problems} == {"Walk."}
    assert len({problem.id for problem in problems}) == 3
    assert make_task(prompt="Go.").problems(Split.TRAIN)[0].prompt == "Go."
    with pytest.warns(AdvsweepWarning, match="left out 1 row of the data, the same as others"):
        same = make_task(rows=[*ROWS, ROWS[0]]).identity()
    assert same == task.identity()


def test_what_an_environment_tells_is_given_to_estimators(make_task: Make) -> None:
    assert make_task().provides == {"turn_of_token", "turn_states", "turn_rewards"}
    assert make_task(NO_STATE).provides == {"turn_of_token", "turn_rewards"}


def test_the_text_and_the_rows_are_the_identity(make_task: Make) -> None:
    from advsweep.components import identity_of

    one, other = make_task(), make_task(WALK.replace("1.0", "0.9"))
    assert identity_of(one) != identity_of(other)
    assert one.protocol() != other.protocol()
    assert identity_of(TASKS.build(one.plain())) == identity_of(one)
    assert identity_of(make_task(tool_turns=2)) != identity_of(one)


def test_an_episode_is_right_from_a_reward_on(make_task: Make) -> None:
    task = make_task(success=0.7)
    # As TRL keeps them, in 32 bits: 0.7 is 0.69999999.
    rewards = np.array([0.0, 0.7, 1.0, np.nan], dtype=np.float32).astype(float)
    assert task.verdicts(rewards).tolist()[:3] == [0, 1, 1]
    assert np.isnan(task.verdicts(rewards)[3])
    with pytest.raises(TrainingError, match=r"expected a reward .* 0 and 1, got 1\.5"):
        task.verdicts(np.array([1.5]))
    with pytest.raises(TrainingError, match=r"0 or 1, as task\.binary says, .* got 0\.5"):
        make_task(binary=True).verdicts(np.array([0.5]))


def test_parameters_of_the_class_are_options(make_task: Make) -> None:
    text = WALK.replace(
        "    def reset(", "    def __init__(self, worth=1.0):\n        ...\n\n    def reset("
    )
    assert make_task(text, worth=2.0).plain()["worth"] == 2.0
    with pytest.raises(ConfigError, match=r"mine\.py:\d+: Walk: expected a default .* 'worth'"):
        make_task(text.replace("worth=1.0", "worth"))
    with pytest.raises(ConfigError, match="'seed' is an option of every task"):
        make_task(text.replace("worth=1.0", "seed=1"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("class Walk:\n    def reset(self)\n", r"mine\.py:2: expected Python"),
        ("x = 1\n", r"mine\.py: expected a class with a method `reset`"),
        (WALK + WALK.replace("class Walk", "class Run"), r"expected one task, got Walk .*, Run"),
        (WALK.replace("def step", "def _step"), r"expected a public method besides reset"),
        (WALK.replace("def get_reward", "def _get"), "expected a method get_reward"),
        (WALK.replace("    @property\n", "", 1), r"Walk\.turn_state: expected a property"),
        (WALK.replace("word: str", "word"), r"Walk\.step: expected a type of .* 'word'"),
        (WALK.replace("word: The", "wort: The"), r"Walk\.step: expected a line 'word: \.\.\.'"),
    ],
)
def test_a_class_that_cannot_be_used_is_refused(make_task: Make, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_task(text)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("        self.room = start", "        1 / 0", r"mine\.py:\d+: reset of row 1 raised Zero"),
        (", **_)", ")", r"unexpected keyword argument 'prompt'; .* end it with \*\*_"),
        ("        return self.given\n\n", "        return 'much'\n\n", "expected a finite number"),
        ("        return self.room\n", "        return object()\n", "turn_state raised TypeError"),
        ('        return f" You', '        return 1, f" You', "reset: expected a text or None"),
    ],
)
def test_an_environment_that_fails_at_once_is_refused(
    make_run: Make, old: str, new: str, message: str
) -> None:
    assert old in WALK
    with pytest.raises(ConfigError, match=message):
        make_run(WALK.replace(old, new, 1))


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"estimator": "vine"}, "needs turn_values"),
        ({"rollout": "vine"}, "measures values of turns, which backend 'trl' cannot do"),
        ({"rollout": "reference"}, "draws no further rollouts, as task .* has an environment, got"),
        (
            {"backend": "tiny", "model": "tiny"},
            r"mine' is an environment.* backends that can: trl",
        ),
        ({"backend": {"name": "trl", "processes": 2}}, r"backend\.processes: expected 1"),
        (
            {"generation": {"name": "transformers", "stop": ["x"]}},
            r"generation\.stop: expected none",
        ),
        ({"model": {"name": "hf", "path": "a/b", "prompt": "plain"}}, "expected chat or auto"),
        ({"estimator": "psr"}, r"0 to 1; task\.low, task\.high and task\.binary say"),
        ({"control": "placebo"}, "changes a verifier's verdicts"),
        ({"task": {"data": ""}}, r"task\.data: expected the rows"),
    ],
)
def test_what_cannot_go_together_is_refused(
    make_run: Make, keys: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        make_run(**keys)


def test_an_estimator_that_needs_states_is_refused_by_name(make_run: Make) -> None:
    assert make_run(estimator="gigpo").task.label.endswith("mine")
    expected = r"estimator: 'gigpo' needs turn_states, .*, or one with turn_state\) gives"
    with pytest.raises(ConfigError, match=expected):
        make_run(NO_STATE, estimator="gigpo")


def test_what_was_not_set_is_as_by_default(make_task: Make) -> None:
    """So that `advsweep show` prints what is special about a run."""
    node = make_task(tool_turns=3).plain()
    usual = default_config({"task": node, "backend": {"name": "trl"}})["task"]
    assert {key for key in usual if usual[key] != node[key]} == {
        *("name", "data", "held_out", "tool_turns")
    }
