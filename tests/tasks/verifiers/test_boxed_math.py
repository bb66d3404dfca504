"""Boxed answers: math-verify's equality, and where the quick way takes its place."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from advsweep.errors import ConfigError
from advsweep.tasks.verifiers import VERIFIERS, Outcome, Verdict, Verifier

Judge = Callable[[str, str], Verdict]


@pytest.fixture(scope="module")
def verifier() -> Verifier:
    verifier = VERIFIERS.build("boxed_math")
    verifier.check()
    verifier.prepare()
    return verifier


@pytest.fixture
def judge(verifier: Verifier) -> Judge:
    return lambda gold, completion: verifier.judge({"answer": gold}, completion)


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        ("72", "72"),
        ("72", "72.0"),
        ("1234", "1,234"),
        ("0.5", r"\frac12"),
        ("1/3", "0.333333"),
        (r"\frac{\sqrt{2}}{2}", r"\frac{1}{\sqrt2}"),
        (r"(3, \frac{\pi}{2})", r"\left(3, \frac{\pi}{2}\right)"),
        ("5", "x=5"),
        ("1,2,3", "3, 1, 2"),
        ("4.5e33", r"4.5 \times 10^{33}"),
        (r"8\%", r"8\%"),
        ("$-2$, $0$", "-2, 0"),
    ],
)
def test_equal_answers_are_correct(judge: Judge, gold: str, answer: str) -> None:
    found = judge(gold, f"I think so.\n\\boxed{{{answer}}}")
    assert found.outcome is Outcome.CORRECT
    assert found.answer


@pytest.mark.parametrize(
    ("gold", "completion"),
    [
        ("72", r"\boxed{73}"),
        ("72", "72"),
        ("72", r"\boxed{72}, no, \boxed{73}"),
        ("72", ""),
        ("72", r"\boxed{\text{seventy-two}}"),
        (r"x^2", r"\boxed{x^3}"),
    ],
)
def test_other_answers_are_wrong(judge: Judge, gold: str, completion: str) -> None:
    assert judge(gold, completion).outcome is Outcome.WRONG


def test_the_reference_answer_comes_first(judge: Judge) -> None:
    """As math-verify is not symmetric: an inequality may be answered by its interval."""
    assert judge("1 < x < 2", r"\boxed{(1,2)}").outcome is Outcome.CORRECT
    assert judge("(1,2)", r"\boxed{1 < x < 2}").outcome is Outcome.WRONG


@pytest.mark.parametrize("gold", ["np.arcsin(10/13)", "", r"\frac{1}{"])
def test_a_reference_answer_that_cannot_be_read_makes_answers_unscorable(
    verifier: Verifier, judge: Judge, gold: str
) -> None:
    assert not verifier.reads({"answer": gold})
    found = judge(gold, "\\boxed{1}")
    assert found == (Outcome.UNSCORABLE, "1", "its reference answer cannot be read")


def test_an_error_in_the_comparison_is_raised(
    judge: Judge, monkeypatch: pytest.MonkeyPatch
) -> None:
    """math-verify takes errors for wrong answers unless it is asked not to."""
    from math_verify import grader

    def fail(*arguments: object) -> bool:
        raise RecursionError

    monkeypatch.setattr(grader, "sympy_expr_eq", fail)
    with pytest.raises(RecursionError):
        judge("72", r"\boxed{72}")


def _number(rng: random.Random) -> str:
    value = rng.choice([rng.randint(0, 12), rng.randint(0, 2000), rng.randint(0, 10**13)])
    text = f"{value:,}" if rng.random() < 0.3 else str(value)
    text += rng.choice(["", "", "", ".0", ".00", ".5", ".000001", ".0000001"])
    return rng.choice(["", "", "", "-", "+", "0"]) + text


def test_the_quick_way_agrees_with_math_verify(verifier: Verifier) -> None:
    rng = random.Random(1)
    quick = 0
    for _ in range(800):
        gold = _number(rng)
        answer = gold.replace(",", "") if rng.random() < 0.5 else _number(rng)
        completion = f"\\boxed{{{answer}}}"
        found = verifier.judge_quickly({"answer": gold}, completion)
        if found is not None:
            quick += 1
            assert found == verifier.judge({"answer": gold}, completion), (gold, answer)
    assert quick > 100


@pytest.mark.parametrize(
    ("gold", "answer"),
    [("0.333", "1/3"), ("x", "3"), ("3", "x"), ("0.5", "0.5"), ("3", "2+1"), ("1" * 16, "1" * 16)],
)
def test_what_is_no_whole_number_is_left_to_math_verify(
    verifier: Verifier, gold: str, answer: str
) -> None:
    assert verifier.judge_quickly({"answer": gold}, f"\\boxed{{{answer}}}") is None


def test_without_math_verify_the_message_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install .*'math-verify\["):
        VERIFIERS.build("boxed_math").check()
