"""Print the leaderboard's tables of a range, hard, middle or easy, as markdown.

    python experiments/leaderboard/make_table.py middle > experiments/leaderboard/table_middle.md
    python experiments/leaderboard/make_table.py hard --short    # of README.md: `make readme`

A row per estimator, sorted by pass@1: the learning rate that its tuning chose, the rates with at
least 90 % of the best rate's pass@1, pass@1, and the differences to RLOO in the three primary
outcomes. A difference in bold has an adjusted p of at most .05: Benjamini-Hochberg over the primary
outcomes of all rows, as in the report. The short table has pass@1 alone.
"""

from __future__ import annotations

import csv
import sys
from collections import defaultdict
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
OUTCOMES = {
    "pass@1": "Δ pass@1",
    "pass@32[above=guess]": "Δ pass@32",
    "entropy": "Δ entropy",
}
ENTROPIES = ("entropy/right_rarefied", "entropy/right")
"""Of eight right answers; of all where some run has no problem with eight."""
LEVEL = 0.05
GOOD = 0.9
Row = dict[str, str]


def read(name: str) -> list[Row]:
    with (FOLDER / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def label(row: Row) -> str:
    """Name a row by its estimator; GRPO with σ of the batch is a variant of GRPO."""
    is_variant = row["estimator"] == "grpo" and row["estimator.scope"] == "batch"
    return "grpo, σ of the batch" if is_variant else row["estimator"]


def rate(value: float) -> str:
    return f"{value:.0e}".replace("e-0", "e-")


def good_rates(range_: str) -> dict[str, str]:
    """Return, for each estimator, the least and the greatest rate near its best in the tuning."""
    scores: dict[str, dict[float, float]] = defaultdict(dict)
    for row in read(f"{range_}_rates"):
        if row["optimizer.lr"]:
            scores[label(row)][float(row["optimizer.lr"])] = float(row["pass@1"])
    found = {}
    for estimator, by_rate in scores.items():
        good = [lr for lr, score in by_rate.items() if score >= GOOD * max(by_rate.values())]
        least, greatest = rate(min(good)), rate(max(good))
        found[estimator] = least if least == greatest else f"{least} to {greatest}"
    return found


def difference(row: Row, outcome: str) -> str:
    """Return a difference with its 95 % interval, bold if it is significant."""
    if outcome == "entropy":
        outcome = next(name for name in ENTROPIES if f"{name}_p_adjusted" in row)
    found = [row[f"{outcome}_difference{end}"] for end in ("", "_low", "_high")]
    if not found[0]:
        return ""
    value, low, high = (f"{float(number):+.3f}" for number in found)
    adjusted = row.get(f"{outcome}_p_adjusted")
    if adjusted and float(adjusted) <= LEVEL:
        value = f"**{value}**"
    return f"{value} [{low}, {high}]"


def print_table(range_: str, *, short: bool) -> None:
    good = good_rates(range_)
    headers = ["rate", "pass@1", *list(OUTCOMES.values())[: 1 if short else 3]]
    headers += [] if short else ["good rates"]
    print("| |", " | ".join(headers), "|")
    print("| :-- |", " | ".join(["--:"] * len(headers)), "|")
    rows = read(range_)
    for row in sorted(rows, key=lambda row: (bool(row["optimizer.lr"]), -float(row["pass@1"]))):
        cells = [rate(float(row["optimizer.lr"])) if row["optimizer.lr"] else ""]
        cells.append(f"{float(row['pass@1']):.3f}")
        cells += [difference(row, outcome) for outcome in list(OUTCOMES)[: 1 if short else 3]]
        cells += [] if short else [good.get(label(row), "")]
        print(f"| {label(row)} |", " | ".join(cells), "|")


if __name__ == "__main__":
    print_table(sys.argv[1], short=sys.argv[2:] == ["--short"])
