"""Verifiers and rewards that are plain functions in a file of the user's."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from advsweep.components import identity_of
from advsweep.errors import ConfigError, TrainingError
from advsweep.sweep.planning.plan import make_plan
from advsweep.tasks.base import Split
from advsweep.tasks.rewards import REWARDS, RewardPart, build_reward
from advsweep.tasks.verifiers import VERIFIERS, Outcome, Verifier

FAKE = ("backend=fake", "steps=2", "evaluation.n=2", "evaluation.k=[1]", "prompts_per_step=2")

FOLDED = """
def verify(answer, gold, fold=True):
    return answer.lower() == gold.lower() if fold else answer == gold
"""
SHORT = """
def reward(completion, correct, length, bonus=0.5):
    return (1.0 if correct else 0.0) * (1 - bonus) + bonus / length
"""

WriteCode = Callable[..., str]


def verifier(path: str, **options: Any) -> Verifier:
    return VERIFIERS.build(VERIFIERS.resolve(path), **options)


def reward(path: str, **options: Any) -> RewardPart:
    return REWARDS.build(REWARDS.resolve(path), **options)


def test_a_function_gives_verdicts(write_code: WriteCode) -> None:
    folded = verifier(write_code(FOLDED))
    gold = {"answer": "Paris"}
    outcomes = [folded.judge(gold, text).outcome for text in (r"\boxed{paris}", r"\boxed{x}", "")]
    assert outcomes == [Outcome.CORRECT, Outcome.WRONG, Outcome.WRONG]
    assert folded.judge(gold, r"\boxed{paris}").answer == "paris"
    assert (
        verifier(write_code(FOLDED), fold=False).judge(gold, r"\boxed{paris}").outcome
        is Outcome.WRONG
    )
    assert folded.reads(gold)
    assert not folded.reads({"answer": ""})


def test_a_function_may_read_the_whole_completion_and_all_of_the_reference(
    write_code: WriteCode,
) -> None:
    text = "def verify(completion, reference): return reference['key'] in completion\n"
    assert verifier(write_code(text)).judge({"key": "ab"}, "cab").outcome is Outcome.CORRECT


def test_two_texts_are_two_verifiers(write_code: WriteCode) -> None:
    first = verifier(write_code(FOLDED))
    second = verifier(write_code(FOLDED + "# changed"))
    assert identity_of(first) != identity_of(second)
    assert first.describe() != second.describe()
    assert first.describe().startswith("idea#")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def verify(answer, gold): return int(answer) == int(gold)", r":1: it raised ValueError"),
        ("def verify(answer, gold): return 1.0", r":1: verify: expected True or False, got 1.0"),
        (
            "from random import random\ndef verify(answer, gold): return random()",
            r":2: .* the same result",
        ),
    ],
)
def test_a_verifier_is_tried_with_reference_answers(
    write_code: WriteCode, text: str, message: str
) -> None:
    tried = verifier(write_code(text))
    with pytest.raises(ConfigError, match=rf"^idea\.py{message}"):
        tried.check_references({"1": {"answer": "x"}})


def test_a_function_gives_rewards(write_code: WriteCode) -> None:
    """Half a point for a right answer, and 0.5 / 2 and 0.5 / 1 for 2 and 1 tokens."""
    part = reward(write_code(SHORT))
    values = part.values(["a", "b"], np.array([True, False]), np.array([2.0, 1.0]))
    assert values.tolist() == [0.75, 0.5]
    assert part.range == (0, 1)
    assert part.reads_verdicts
    assert not reward(write_code("def reward(completion): return 0.0")).reads_verdicts


def test_the_range_of_a_reward_is_kept(write_code: WriteCode) -> None:
    text = "def reward(completion): return -float(len(completion) > 20)\n"
    with pytest.raises(ConfigError, match=r"^idea\.py:1: reward: expected a number from 0 to 1"):
        reward(write_code(text))
    path = write_code(text)
    part = reward(path, low=-1)
    assert part.range == (-1, 1)
    # The range changes no reward.
    assert identity_of(part) == identity_of(reward(path, low=-2))
    text = "def reward(completion): return float('nan') if 'q' in completion else 0.0\n"
    part = reward(write_code(text))
    with pytest.raises(ConfigError, match="got nan for the completion 'q'"):
        part.values(["q"], np.array([True]), np.array([1.0]))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def reward(completion): return completion[0]", r":1: it raised IndexError"),
        ("def reward(completion): return 'x'", r":1: reward: expected a number .* got 'x'"),
        ("def reward(text): return 0.0", r":1: reward: the parameter 'text' is no input; known"),
    ],
)
def test_a_reward_is_tried_with_texts(write_code: WriteCode, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=rf"^idea\.py{message}"):
        reward(write_code(text))


def test_a_reward_that_fails_in_training_says_where(write_code: WriteCode) -> None:
    part = reward(write_code("def reward(completion):\n    return 1 / (completion != 'q')\n"))
    with pytest.raises(TrainingError, match=r"^idea\.py:2: it raised ZeroDivisionError.*'q'"):
        part.values(["q"], np.array([True]), np.array([1.0]))


def test_parts_by_name_are_built_again(write_code: WriteCode) -> None:
    parts = build_reward({"accuracy": 1, REWARDS.resolve(write_code(SHORT)): {"weight": 0.5}})
    nodes = {}
    for part in parts:
        node = part.plain()
        nodes[node.pop("name")] = node
    assert build_reward(json.loads(json.dumps(nodes))) == parts


def test_overrides_and_sweep_files_name_them(write_code: WriteCode, tmp_path: Path) -> None:
    rows = [{"question": f"{name}?", "answer": name} for name in ("ab", "cd", "ef", "gh")]
    data = tmp_path / "data.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    check = write_code(FOLDED + SHORT, "check.py")
    task = ("task=dataset", f"task.data={data}", "task.held_out=2")
    named = (f"task.verifier={check}", f"task.reward={{accuracy: 1, {check}: 0.25}}")
    [planned] = make_plan([*FAKE, *task, *named, "seed=0"], single=True).runs
    built = planned.run.task
    assert built.part_weights == (1, 0.25)
    assert planned.config["task"]["verifier"]["code"]["object"] == "verify"
    problems = built.problems(Split.HELD_OUT)
    answers = [rf"\boxed{{{problem.reference['answer'].upper()}}}" for problem in problems]
    assert built.score(problems, answers).tolist() == [1, 1]
    file = tmp_path / "mine.yaml"
    file.write_text(
        f"defaults: [override /task: dataset]\n"
        f"task: {{data: {data}, held_out: 2, verifier: {check}, "
        f"reward: {{accuracy: 1, {check}: 0.25}}}}\n"
    )
    [again] = make_plan([str(file), *FAKE, "seed=0"]).runs
    assert again.run.identity == planned.run.identity
