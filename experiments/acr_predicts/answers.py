"""What the documents say of the study of early collapse."""

from __future__ import annotations

import re
from pathlib import Path

import page_queries
import yaml

PAPERS = Path(__file__).resolve().parents[1] / "papers" / "map.yaml"
FILES = ("acr_predicts/lines.csv", "acr_predicts/lines_shared.csv")


def r_squared() -> list[float]:
    """R² of pass@1 over ACR100 with its interval: on the trained prompts, and on a common set."""
    found: list[float] = []
    for file in FILES:
        row = page_queries.table(file).iloc[0]
        found += [row["r_squared"], row["r_squared_low"], row["r_squared_high"]]
    return found


def r_squared_alone() -> list[float]:
    """R² of both settings, without intervals."""
    return r_squared()[::3]


def printed() -> list[float]:
    """The R² that the paper prints, as the list of the papers' claims has it (AV05)."""
    claims = yaml.safe_load(PAPERS.read_text("utf-8"))["avspo"]["claims"]
    percent = re.search(r"explains (\d+) %", claims["AV05"]["says"])
    if percent is None:
        raise page_queries.QueryError("AV05 in map.yaml prints no R²")
    return [int(percent[1]) / 100]


def explained(file: str, column: str, *within: str) -> list[float]:
    """The R² of a line of pass@1 over a column, through the setups of a report.

    Args:
        within: keys of parallel lines: what their groups explain is taken out first.
    """
    table = page_queries.table(f"acr_predicts/{file}.csv")
    x, y = table[column], table["pass@1"]
    if within:
        groups = [table[key] for key in within]
        x = x - x.groupby(groups).transform("mean")
        y = y - y.groupby(groups).transform("mean")
    return [float(x.corr(y)) ** 2]


def setups(file: str) -> list[float]:
    return [len(page_queries.table(f"acr_predicts/{file}.csv"))]
