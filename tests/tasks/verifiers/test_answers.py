"""Boxes, numbers, letters, patterns and mathematics in what models write."""

from __future__ import annotations

import random
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from advsweep.errors import ConfigError
from advsweep.tasks.verifiers import VERIFIERS, Outcome, Verdict, Verifier
from advsweep.tasks.verifiers.answers import last_boxed, number, plain_number, spell


def judge(spec: str | dict[str, Any], gold: str, completion: str) -> Verdict:
    return VERIFIERS.build(spec).judge({"answer": gold}, completion)


@pytest.mark.parametrize(
    ("text", "boxed"),
    [
        (r"\boxed{7}", "7"),
        (r"first \boxed{1}, then \boxed{ \frac{1}{2} }.", r"\frac{1}{2}"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"\boxed{\left\{ x \right.}", r"\left\{ x \right."),
        (r"\boxed {3}", "3"),
        (r"\boxed{1} but \boxed{2 is cut of", None),
        (r"\boxed{}", None),
        ("", None),
        ("\\boxed{" * 200_000, None),  # in linear time
    ],
)
def test_the_last_box_counts(text: str, boxed: str | None) -> None:
    assert last_boxed(text) == boxed


@pytest.mark.parametrize(
    ("text", "plain", "value"),
    [
        ("72", 72, 72),
        ("1,234,567.5", Fraction(2469135, 2), Fraction(2469135, 2)),
        ("1,23", None, None),
        ("٣", None, None),
        ("9" * 61, None, None),
        ("", None, None),
        (r"\$1,200.50", None, Fraction(2401, 2)),
        (r"25\%", None, 25),
        (".5", None, Fraction(1, 2)),
        ("1E-2", None, Fraction(1, 100)),
        ("-3/4", None, Fraction(-3, 4)),
        ("1e9999", None, None),
    ],
)
def test_numbers_as_people_write_them(text: str, plain: object, value: object) -> None:
    assert (plain_number(text), number(text)) == (plain, value)


@pytest.mark.parametrize(
    ("value", "text"), [("72", "72"), ("-7/2", "-3.5"), ("1/3", "1/3"), ("-100", "-100")]
)
def test_numbers_have_one_spelling(value: str, text: str) -> None:
    assert spell(Fraction(value)) == text


@given(st.fractions(max_denominator=1000))
def test_a_spelt_number_is_read_back(value: Fraction) -> None:
    assert number(spell(value)) == value


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
        ("choice", "C", "C", False, None),
        (PATTERN, "no", "<a>yes</a> <a> no </a>", True, "no"),
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


@pytest.fixture(scope="module")
def maths() -> Verifier:
    verifier = VERIFIERS.build("boxed_math")
    verifier.check()
    verifier.prepare()
    return verifier


@pytest.mark.parametrize(
    ("gold", "completion", "right"),
    [
        ("72", r"I think so.\n\boxed{72.0}", True),
        ("1234", r"\boxed{1,234}", True),
        ("1/3", r"\boxed{0.333333}", True),
        (r"\frac{\sqrt{2}}{2}", r"\boxed{\frac{1}{\sqrt2}}", True),
        (r"(3, \frac{\pi}{2})", r"\boxed{\left(3, \frac{\pi}{2}\right)}", True),
        ("5", r"\boxed{x=5}", True),
        ("4.5e33", r"\boxed{4.5 \times 10^{33}}", True),
        ("$-2$, $0$", r"\boxed{-2, 0}", True),
        ("72", "72", False),
        ("72", r"\boxed{72}, no, \boxed{73}", False),
        ("72", r"\boxed{\text{seventy-two}}", False),
        (r"x^2", r"\boxed{x^3}", False),
        # The reference comes first: an inequality may be answered by its interval.
        ("1 < x < 2", r"\boxed{(1,2)}", True),
        ("(1,2)", r"\boxed{1 < x < 2}", False),
    ],
)
def test_mathematics_is_compared(maths: Verifier, gold: str, completion: str, right: bool) -> None:
    found = maths.judge({"answer": gold}, completion)
    assert found.outcome is (Outcome.CORRECT if right else Outcome.WRONG)


@pytest.mark.parametrize("gold", ["np.arcsin(10/13)", "", r"\frac{1}{"])
def test_mathematics_that_cannot_be_read_makes_answers_unscorable(
    maths: Verifier, gold: str
) -> None:
    assert not maths.reads({"answer": gold})
    found = maths.judge({"answer": gold}, "\\boxed{1}")
    assert found == (Outcome.UNSCORABLE, "1", "its reference answer cannot be read")


def test_an_error_in_the_comparison_is_raised(
    maths: Verifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    """math-verify takes errors for wrong answers unless it is asked not to."""
    from math_verify import grader

    def fail(*arguments: object) -> bool:
        raise RecursionError

    monkeypatch.setattr(grader, "sympy_expr_eq", fail)
    with pytest.raises(RecursionError):
        maths.judge({"answer": "72"}, r"\boxed{72}")


def _number(rng: random.Random) -> str:
    value = rng.choice([rng.randint(0, 12), rng.randint(0, 2000), rng.randint(0, 10**13)])
    text = f"{value:,}" if rng.random() < 0.3 else str(value)
    text += rng.choice(["", "", "", ".0", ".00", ".5", ".000001", ".0000001"])
    return rng.choice(["", "", "", "-", "+", "0"]) + text


def test_the_quick_way_agrees_with_math_verify(maths: Verifier) -> None:
    rng = random.Random(1)
    quick = 0
    for _ in range(800):
        gold = _number(rng)
        answer = gold.replace(",", "") if rng.random() < 0.5 else _number(rng)
        completion = f"\\boxed{{{answer}}}"
        found = maths.judge_quickly({"answer": gold}, completion)
        if found is not None:
            quick += 1
            assert found == maths.judge({"answer": gold}, completion), (gold, answer)
    assert quick > 100
    for gold, answer in [("0.333", "1/3"), ("x", "3"), ("3", "x"), ("3", "2+1"), ("1" * 16,) * 2]:
        assert maths.judge_quickly({"answer": gold}, f"\\boxed{{{answer}}}") is None


def test_without_math_verify_the_message_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install .*'math-verify\["):
        VERIFIERS.build("boxed_math").check()
