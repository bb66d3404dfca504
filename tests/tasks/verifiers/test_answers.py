"""Verifiers of answers in a text: numbers, letters and patterns."""

from __future__ import annotations

from typing import Any

import pytest

from advsweep.errors import ConfigError
from advsweep.tasks.verifiers import VERIFIERS, Outcome, Verdict


def judge(spec: str | dict[str, Any], gold: str, completion: str) -> Verdict:
    return VERIFIERS.build(spec).judge({"answer": gold}, completion)


PATTERN = {"name": "regex", "pattern": r"<a>(.*?)</a>"}
BOXED = {"name": "numeric", "boxed_only": True}


@pytest.mark.parametrize(
    ("spec", "gold", "completion", "right", "answer"),
    [
        ("numeric", "72", "She sold 48 + 24 = 72 clips.", True, "72"),
        ("numeric", "1,080", "so #### 1080", True, "1080"),
        ("numeric", "5", r"5 apples, of \$5.", True, "5"),
        ("numeric", "72", r"72, or \boxed{71}", False, "71"),
        ("numeric", "72", r"72 \boxed{seventy}", False, None),
        ("numeric", "72", "none", False, None),
        ("numeric", "0", "0.0000001", False, "0.0000001"),
        (BOXED, "7", "7", False, None),
        ({"name": "numeric", "tolerance": 0.01}, "200", "202", True, "202"),
        ({"name": "numeric", "tolerance": 0.01}, "200", "202.1", False, "202.1"),
        ("choice", "C", r"\boxed{c}", True, "C"),
        ("choice", "C", r"\boxed{\textbf{(C) }42}", True, "C"),
        ("choice", "C", "The answer is (B). No: the answer is **C**.", True, "C"),
        ("choice", "C", r"\boxed{Cat}", False, None),
        ("choice", "C", "C", True, "C"),
        (PATTERN, "no", "<a>yes</a> <a> no </a>", True, "no"),
        (PATTERN, "no", "<a>**no**.</a>", True, "no"),
        (PATTERN, "No", "<a>no</a>", False, "no"),
        ({**PATTERN, "ignore_case": True}, "No", "<a>no</a>", True, "no"),
        (PATTERN, "no", "no", False, None),
        ({"name": "regex", "pattern": r"[0-9]+$"}, "12", "x12", True, "12"),
    ],
)
def test_answers_are_found_and_compared(
    spec: Any, gold: str, completion: str, right: bool, answer: str | None
) -> None:
    outcome = Outcome.CORRECT if right else Outcome.WRONG
    assert judge(spec, gold, completion) == (outcome, answer, "")


@pytest.mark.parametrize("name", ["boxed_math", "choice", "numeric", "regex"])
def test_the_known_solution_is_correct(name: str) -> None:
    gold = {"answer": "A" if name == "choice" else "7"}
    verifier = VERIFIERS.build(name)
    assert verifier.judge(gold, verifier.solution(gold)).outcome is Outcome.CORRECT


@pytest.mark.parametrize("name", ["choice", "numeric"])
def test_a_reference_answer_that_cannot_be_read_makes_answers_unscorable(name: str) -> None:
    verifier = VERIFIERS.build(name)
    for completion in (None, "xyz"):
        found = verifier.judge_quickly({"answer": "xyz"}, completion)
        assert found is not None
        assert found.outcome is Outcome.UNSCORABLE


def test_a_pattern_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"pattern: expected a regular expression, got '\('"):
        VERIFIERS.build({"name": "regex", "pattern": "("})


@pytest.mark.parametrize("name", ["numeric", "choice"])
@pytest.mark.parametrize(
    "text",
    [
        "the answer is " * 70_000,
        "answer:" * 100_000,
        "<answer>" * 100_000,
        "#### " * 200_000,
        "(" * 500_000 + "1" + ")" * 500_000,
        "1 " * 500_000,
        "1," * 500_000,
        "1/" * 500_000,
        "**" * 500_000,
        "1." * 500_000 + "x",
        "a" * 1_000_000 + "!",
        "the answer is 5 " + "a" * 1_000_000 + "!",
        "the answer is " + "not A, " * 100_000,
        "\\text{" * 150_000,
        "so C " * 200_000,
        "\\boxed{" + ("the" + " " * 100) * 9 + "!}",
        "A\n" * 300_000,
        "\\frac{1}{" * 20_000,
        "1" + " " * 1_000_000 + "x",
        "答案是" * 300_000,
    ],
    ids=lambda text: f"{text[:12]!r}",
)
def test_long_texts_take_linear_time(name: str, text: str) -> None:
    """Each takes a fraction of a second; with a square in its length it would take hours."""
    gold = {"answer": "B" if name == "choice" else "73"}
    verdict = VERIFIERS.build(name).judge_quickly(gold, text)
    assert verdict is not None
    assert verdict.outcome is Outcome.WRONG
