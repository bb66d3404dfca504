"""The dataset task: scores, answers, draws, rewards, and reference answers that cannot be read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from advsweep.backends import BACKENDS
from advsweep.backends.base import Can
from advsweep.backends.build import build_run
from advsweep.errors import AdvsweepWarning, ConfigError
from advsweep.tasks import TASKS
from advsweep.tasks.base import Split
from advsweep.tasks.dataset import Dataset

Write = Callable[..., str]


@pytest.fixture
def mixed(write: Write) -> str:
    """Problems whose answers are a number, an expression, and nothing that can be read."""
    golds = ["72", r"\frac{1}{2}", "np.arcsin(1)"]
    return write("mixed.jsonl", [{"question": f"{g}?", "answer": g} for g in golds])


def test_scores_and_answers(mixed: str) -> None:
    task = Dataset(data=mixed, train_split="")
    number, expression, unreadable = task.problems(Split.HELD_OUT)
    problems = [number, number, expression, expression, unreadable, number]
    texts = [r"\boxed{72}", r"\boxed{73}", r"\boxed{0.5}", r"\boxed{2}", r"\boxed{1}", "72"]
    with pytest.warns(AdvsweepWarning, match="1 of 6 answers could not be scored: its reference"):
        scores = task.score(problems, texts)
    assert scores.dtype == np.float64
    assert scores.tolist() == pytest.approx([1, 0, 1, 0, np.nan, 0], nan_ok=True)
    assert task.answers(problems, texts) == ["72", "73", "0.5", "2", "1", None]
    # Other texts, or other problems, are judged anew.
    assert task.score([number] * 2, [r"\boxed{71}"] * 2).tolist() == [0, 0]
    assert task.score([number] * 2, [r"\boxed{72}"] * 2).tolist() == [1, 1]
    assert task.score([expression] * 2, [r"\boxed{72}"] * 2).tolist() == [0, 0]
    assert task.score([number], [r"\boxed{72}"]).tolist() == [1]
    assert task.answers([], []) == []


@pytest.mark.parametrize(
    ("lists", "verifier", "rewards"),
    [
        # One half, or two halves: of several answers any one, or all of them.
        ("any", "numeric", [1, 1, 0, 0]),
        ("any", "boxed_math", [1, 1, 0, 0]),
        ("all", "boxed_math", [0, 0, 0, 1]),
    ],
)
def test_any_or_all_of_several_answers(
    write: Write, lists: str, verifier: str, rewards: list[int]
) -> None:
    path = write("a.jsonl", [{"question": "Solve.", "answer": ["1/2", "3"]}])
    task = Dataset(data=path, train_split="", gold_lists=lists, verifier=verifier)
    task.check()
    problems = [*task.problems(Split.HELD_OUT)] * 4
    texts = ["\\boxed{0.5}", "\\boxed{3}", "\\boxed{2}", "\\boxed{3, 1/2}"]
    assert task.score(problems, texts).tolist() == rewards
    assert task.score(problems, ["none"] * 4).tolist() == [0] * 4


def test_of_several_answers_one_that_can_be_read_is_enough(write: Write) -> None:
    answers = ["about five", "5"]
    path = write("a.jsonl", [{"question": "How many?", "answer": answers}])
    task = Dataset(data=path, train_split="", gold_lists="any", verifier="numeric")
    task.check()
    (problem,) = task.problems(Split.HELD_OUT)
    assert task.score([problem] * 2, ["5", "6"]).tolist() == [1, 0]
    assert task.answers([problem] * 2, ["5", "6"]) == ["5", "6"]


def test_tests_of_objects_are_refused_when_the_data_is_loaded_or_shown(write: Write) -> None:
    rows = [
        {"question": "Double.", "tests": ["assert f(1) == 2"], "id": "a"},
        {"question": "Stack.", "tests": ["s = Stack()", "s.push(1)", "assert len(s)"], "id": "b"},
        {"question": "Sum.", "tests": [{"input": "1 2", "output": "3", "kind": "x"}], "id": "c"},
    ]
    fields: dict[str, Any] = {
        "data": write("a.jsonl", rows),
        "train_split": "",
        "tests_column": "tests",
        "id_column": "id",
        "deadline": 9.0,
        "prompt": "code",
    }
    task = Dataset(**fields, verifier={"name": "code", "isolation": "limits"})
    with pytest.raises(
        ConfigError,
        match=r"task\.verifier\.trusted_tests: expected true for the 1 of 3 problems whose tests "
        r"need objects of the program, such as 's\.push' of problem b, got false; true runs",
    ):
        task.check()
    assert "trusted_tests" not in task.protocol()
    assert "Input:\n1 2\nOutput:\n3" in task.problems(Split.HELD_OUT)[2].prompt
    trusted = {"name": "code", "isolation": "limits", "trusted_tests": True}
    task = Dataset(**fields, verifier=trusted)
    task.check()
    assert task.protocol()["trusted_tests"] == "1 of 3 problems"


@pytest.mark.parametrize(
    ("fields", "verifier"),
    [
        ({"verifier": "numeric"}, "numeric revision=2"),
        ({"verifier": {"name": "numeric", "boxed_only": False}}, "numeric revision=2"),
        ({"verifier": {"name": "numeric", "tolerance": 0.1}}, "numeric revision=2 tolerance=0.1"),
        ({"verifier": "numeric", "deadline": 9, "workers": 3}, "numeric revision=2 deadline=9"),
    ],
)
def test_what_of_a_task_decides_which_answers_count(sums: str, fields: Any, verifier: str) -> None:
    assert Dataset(data=sums, held_out=5, **fields).protocol() == {
        "verifier": verifier,
        "system": "none",
    }


def test_messages_of_the_system_are_a_part_of_it(sums: str) -> None:
    prompts = ("boxed", "plain", "boxed_system", "two_stage", "aapo_7b")
    found = [
        Dataset(data=sums, held_out=5, prompt=prompt).protocol()["system"] for prompt in prompts
    ]
    assert found[:2] == ["none", "none"]
    assert len(set(found)) == 4


@pytest.mark.security
def test_an_answer_that_hangs_is_wrong(write: Write) -> None:
    path = write("a.jsonl", [{"question": "a?", "answer": "x"}])
    slow = {"name": "regex", "pattern": r"(?:a+)+$|is ([a-z]+)"}
    task = Dataset(data=path, train_split="", verifier=slow, deadline=0.5, workers=1)
    (problem,) = task.problems(Split.HELD_OUT)
    with pytest.warns(AdvsweepWarning, match=r"1 of 3 answers count as wrong: it took more than"):
        scores = task.score([problem] * 3, ["is x", "a" * 60 + "!", "is y"])
    assert scores.tolist() == [1, 0, 0]


def test_a_task_is_rebuilt_from_its_plain_form(sums: str) -> None:
    task = Dataset(data=sums, held_out=5, reward={"format": 1, "cosine": 2}, verifier="numeric")
    again = TASKS.build(task.plain())
    assert again == task
    assert again.identity() == task.identity()


def test_a_reference_answer_without_its_mark_cannot_be_read(write: Write) -> None:
    rows = [{"question": f"{i}?", "answer": f"so {i} #### {i}"} for i in range(3)]
    path = write("a.jsonl", [*rows, {"question": "more?", "answer": "so it is 17"}])
    with pytest.warns(
        AdvsweepWarning, match=r"1 of 4 reference answers .* such as no answer found"
    ):
        Dataset(data=path, train_split="", gold_part="hashes").check()


def test_reference_answers_of_which_most_cannot_be_read_are_refused(write: Write) -> None:
    golds = ["72", r"\sqrt{2}", "np.arcsin(1)"]
    path = write("roots.jsonl", [{"question": f"{g}?", "answer": g} for g in golds])
    with pytest.raises(
        ConfigError, match=r"^task\.gold_column: 2 of 3 reference answers cannot be"
    ):
        Dataset(data=path, train_split="", verifier="numeric").check()


def test_the_deadline_is_beyond_what_a_program_may_take(write: Write) -> None:
    path = write("a.jsonl", [{"question": "Double.", "tests": ["assert f(1) == 2"]}])
    verifier = {"name": "code", "isolation": "limits", "seconds": 5}
    task = Dataset(data=path, train_split="", tests_column="tests", verifier=verifier)
    with pytest.raises(ConfigError, match=r"^task\.deadline: expected > 7, .* got 5"):
        task.check()


RUN: dict[str, Any] = {
    "estimator": "grpo",
    "objective": "clipped",
    "rollout": "plain",
    "model": "tiny",
    "optimizer": "adamw",
    "generation": "sampling",
    "evaluation": {"name": "standard", "n": 2, "k": [1]},
    "backend": "fake",
    "group_size": 4,
    "prompts_per_step": 4,
    "steps": 2,
    "seed": 0,
}


def test_runs_are_refused_before_anything_starts(
    sums: str, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = {"name": "file", "data": sums, "held_out": 5}
    run = build_run({**RUN, "task": task})
    assert run.task.label == "sums"
    with pytest.raises(ConfigError, match="'nsr' is defined for rewards of 0 and 1 only"):
        build_run({**RUN, "task": {**task, "reward": "cosine"}, "estimator": "nsr"})
    monkeypatch.setattr(BACKENDS.get("fake"), "supports", Can.SHAPED_REWARDS)
    with pytest.raises(ConfigError, match=r"task\.prompt: .* backend 'fake' cannot do"):
        build_run({**RUN, "task": {**task, "prompt": "two_stage"}})
    monkeypatch.setattr(BACKENDS.get("fake"), "supports", Can.SYSTEM_MESSAGES)
    with pytest.raises(ConfigError, match=r"task\.reward: .* backend 'fake' cannot do"):
        build_run({**RUN, "task": {**task, "reward": "cosine"}})
    only = write("only.jsonl", [{"question": "1 + 1?", "answer": "2"}])
    with pytest.raises(ConfigError, match="task: 'only' has no training problems"):
        build_run({**RUN, "task": {"name": "dataset", "data": only, "train_split": ""}})
