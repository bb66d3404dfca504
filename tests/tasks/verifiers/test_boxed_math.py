"""Mathematics in boxes: what is compared by value, and what math-verify compares."""

from __future__ import annotations

import random

import pytest

from advsweep.errors import ConfigError
from advsweep.tasks.verifiers import VERIFIERS, Outcome, Verifier


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
        # (1,2) may be a point; a half-open interval is none.
        ("(1,2)", r"\boxed{1 < x < 2}", False),
        ("[1,2)", r"\boxed{1 \le x < 2}", True),
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
        maths.judge({"answer": "x + 1"}, r"\boxed{x + 2}")


def _number(rng: random.Random) -> str:
    value = rng.choice([rng.randint(0, 12), rng.randint(0, 2000), rng.randint(0, 10**13)])
    text = f"{value:,}" if rng.random() < 0.3 else str(value)
    text += rng.choice(["", "", "", ".0", ".00", ".5", ".000001", ".0000001"])
    return rng.choice(["", "", "", "-", "+", "0"]) + text


def test_the_quick_way_agrees_with_the_other(maths: Verifier) -> None:
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
    for gold, answer in [("x", "3"), ("3", "x"), ("3", "2+1"), ("x = 3", "y = 3")]:
        assert maths.judge_quickly({"answer": gold}, f"\\boxed{{{answer}}}") is None


def test_without_math_verify_the_message_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install .*'math-verify\["):
        VERIFIERS.build("boxed_math").check()
