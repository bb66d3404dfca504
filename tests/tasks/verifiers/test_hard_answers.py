"""Answers that are easily misjudged, with the judgement of a careful person.

`hard_answers.jsonl` has a verifier, a reference answer, what a model wrote, and whether it is
right.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from advsweep.tasks.verifiers import VERIFIERS, Outcome

ANSWERS = [
    json.loads(line)
    for line in Path(__file__).with_name("hard_answers.jsonl").read_text("utf-8").splitlines()
]


@pytest.mark.parametrize(
    "name",
    [
        "numeric",
        "choice",
        "regex",
        pytest.param("boxed_math", marks=pytest.mark.slow),
    ],
)
def test_hard_answers_are_judged_as_a_person_does(name: str) -> None:
    logging.getLogger("math_verify").setLevel(logging.CRITICAL)
    answers = [answer for answer in ANSWERS if answer["verifier"] == name]
    assert answers
    verifier = VERIFIERS.build(name)
    misjudged = []
    for answer in answers:
        verdict = verifier.judge({"answer": answer["gold"]}, answer["text"])
        expected = Outcome.CORRECT if answer["correct"] else Outcome.WRONG
        if verdict.outcome is not expected:
            misjudged.append((answer["gold"], answer["text"], verdict))
    assert misjudged == []


@pytest.mark.parametrize("answer", ANSWERS[::7], ids=lambda answer: answer["text"][:30])
def test_the_quick_way_gives_the_same_verdict(answer: dict[str, Any]) -> None:
    verifier = VERIFIERS.build(answer["verifier"])
    reference = {"answer": answer["gold"]}
    quick = verifier.judge_quickly(reference, answer["text"])
    if quick is not None:
        assert quick == verifier.judge(reference, answer["text"])
