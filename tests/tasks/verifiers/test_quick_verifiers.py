"""Numbers, letters and patterns."""

from __future__ import annotations

from typing import Any

import pytest

from advsweep.errors import ConfigError
from advsweep.tasks.verifiers import VERIFIERS, Outcome, Verdict


def judge(spec: str | dict[str, Any], gold: str, completion: str) -> Verdict:
    return VERIFIERS.build(spec).judge({"answer": gold}, completion)


@pytest.mark.parametrize(
    ("gold", "completion", "answer"),
    [
        ("72", r"\boxed{72}", "72"),
        ("72", "She sold 48 + 24 = 72 clips.", "72"),
        ("1,080", "so #### 1080", "1080"),
        ("3/4", r"\boxed{0.75}", "0.75"),
        ("0.5", r"\boxed{$.50}", "0.5"),
        ("-3", "x is -3", "-3"),
        ("1000000", "1000000.5", "1000000.5"),
        ("5", r"5 apples, of \$5.", "5"),
    ],
)
def test_equal_numbers_are_correct(gold: str, completion: str, answer: str) -> None:
    assert judge("numeric", gold, completion) == (Outcome.CORRECT, answer, "")


@pytest.mark.parametrize(
    ("gold", "completion", "answer"),
    [
        ("72", r"72, or \boxed{71}", "71"),
        ("72", r"72 \boxed{seventy}", None),
        ("72", "none", None),
        ("72", "72 or 73", "73"),
        ("0", "0.0000001", "0.0000001"),
    ],
)
def test_other_numbers_are_wrong(gold: str, completion: str, answer: str | None) -> None:
    assert judge("numeric", gold, completion) == (Outcome.WRONG, answer, "")


def test_numbers_may_have_to_be_boxed_and_differ_a_little() -> None:
    assert judge({"name": "numeric", "boxed_only": True}, "7", "7").outcome is Outcome.WRONG
    near = {"name": "numeric", "tolerance": 0.01}
    assert judge(near, "200", "202").outcome is Outcome.CORRECT
    assert judge(near, "200", "202.1").outcome is Outcome.WRONG


def test_a_reference_answer_that_is_no_number_makes_answers_unscorable() -> None:
    assert judge("numeric", "x", "x").outcome is Outcome.UNSCORABLE
    assert not VERIFIERS.build("numeric").reads({"answer": "x"})


@pytest.mark.parametrize(
    ("completion", "answer"),
    [
        (r"\boxed{C}", "C"),
        (r"\boxed{c}", "C"),
        (r"\boxed{(C)}", "C"),
        (r"\boxed{\text{C}}", "C"),
        (r"\boxed{\textbf{(C) }42}", "C"),
        (r"\boxed{C. forty-two}", "C"),
        ("The answer is (B). No: the answer is **C**.", "C"),
        ("Answer: C", "C"),
    ],
)
def test_letters_are_found(completion: str, answer: str) -> None:
    assert judge("choice", "C", completion) == (Outcome.CORRECT, answer, "")
    assert judge("choice", "D", completion) == (Outcome.WRONG, answer, "")


@pytest.mark.parametrize("completion", ["", "C", r"\boxed{Cat}", r"\boxed{42}", "answer is Cat"])
def test_other_texts_have_no_letter(completion: str) -> None:
    assert judge("choice", "C", completion) == (Outcome.WRONG, None, "")


def test_a_pattern_takes_its_last_match_and_first_group() -> None:
    own = {"name": "regex", "pattern": r"<a>(.*?)</a>"}
    assert judge(own, "no", "<a>yes</a> <a> no </a>") == (Outcome.CORRECT, "no", "")
    assert judge(own, "No", "<a>no</a>") == (Outcome.WRONG, "no", "")
    assert judge({**own, "ignore_case": True}, "No", "<a>no</a>").outcome is Outcome.CORRECT
    assert judge(own, "no", "no") == (Outcome.WRONG, None, "")
    whole = {"name": "regex", "pattern": r"[0-9]+$"}
    assert judge(whole, "12", "x12").answer == "12"


def test_a_pattern_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"pattern: expected a regular expression, got '\('"):
        VERIFIERS.build({"name": "regex", "pattern": "("})


@pytest.mark.parametrize("name", ["boxed_math", "choice", "numeric", "regex"])
def test_the_known_solution_is_correct(name: str) -> None:
    verifier = VERIFIERS.build(name)
    gold = {"answer": "A" if name == "choice" else "7"}
    assert verifier.judge(gold, verifier.solution(gold)).outcome is Outcome.CORRECT
