"""The tables of answers in docs/verifiers.md say what the verifiers do."""

from __future__ import annotations

import logging
import re
from pathlib import Path

import pytest

from advsweep.tasks.verifiers import VERIFIERS

PAGE = (Path(__file__).parents[3] / "docs" / "verifiers.md").read_text("utf-8")


def rows(header: str) -> list[list[str]]:
    """Return the cells below a header of a table."""
    table = PAGE[PAGE.index(header) :].split("\n\n")[0]
    return [
        [cell.strip().strip("`") for cell in line.strip("|").split(" | ")]
        for line in table.splitlines()[2:]
    ]


EXAMPLES = rows("| verifier | reference | answer | verdict |")
DIFFERENCES = rows("| reference | answer | math-verify | `boxed_math` |")


@pytest.mark.parametrize(("name", "gold", "answer", "outcome"), EXAMPLES)
def test_examples_are_judged_as_documented(name: str, gold: str, answer: str, outcome: str) -> None:
    verdict = VERIFIERS.build(name).judge({"answer": gold}, answer)
    assert verdict.outcome.value == outcome


@pytest.mark.parametrize(("gold", "answer", "theirs", "ours"), DIFFERENCES)
def test_math_verify_differs_as_documented(gold: str, answer: str, theirs: str, ours: str) -> None:
    from math_verify import parse, verify

    logging.getLogger("math_verify").setLevel(logging.CRITICAL)
    verdict = VERIFIERS.build("boxed_math").judge({"answer": gold}, f"\\boxed{{{answer}}}")
    assert verdict.outcome.value == ours
    its_verdict = verify(parse(f"${gold}$"), parse(f"${answer}$"))
    assert ("correct" if its_verdict else "wrong") == theirs


def test_every_way_of_writing_a_number_is_read() -> None:
    from advsweep.tasks.verifiers.number_reader import read_quantity

    (line,) = [line for line in PAGE.splitlines() if line.startswith("- Read: ")]
    written = [text for text in re.findall(r"`([^`]+)`", line) if any(map(str.isdigit, text))]
    assert len(written) > 5
    assert [text for text in written if len(text) > 1 and read_quantity(text) is None] == []
