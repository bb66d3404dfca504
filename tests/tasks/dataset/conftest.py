from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from advsweep.tasks import dataset as reference_answers

Write = Callable[..., str]


@pytest.fixture(autouse=True)
def _unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gold answers are checked once per process: here in every test."""
    monkeypatch.setattr(reference_answers, "_checked", set())


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """`write(name, rows)`: a file of JSON lines; gives its path."""

    def write(name: str, rows: Iterable[Any]) -> str:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        return str(path)

    return write


@pytest.fixture
def sums(write: Write) -> str:
    """A file of twenty sums, of levels 1 to 4, in the shape of MATH."""
    rows = [
        {
            "problem": f"What is {i} + {i}?",
            "level": f"Level {1 + i % 4}",
            "solution": f"It is $\\boxed{{{2 * i}}}$.",
        }
        for i in range(20)
    ]
    return write("sums.jsonl", rows)
