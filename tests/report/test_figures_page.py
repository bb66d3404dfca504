"""The page of figures names every figure."""

from __future__ import annotations

from pathlib import Path

import pytest

from advsweep.report.figures.registry import FIGURES, summary_of

PAGE = Path(__file__).parents[2] / "docs" / "figures.md"


@pytest.mark.parametrize("figure", FIGURES)
def test_it_has_a_row(figure):
    assert f"\n| `{figure}` |" in PAGE.read_text("utf-8"), (
        "add to the table of docs/figures.md\n"
        f"    | `{figure}` | {summary_of(figure)} | what runs must have |"
    )
