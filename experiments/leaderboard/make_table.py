"""Print the leaderboard's tables as markdown.

    python experiments/leaderboard/make_table.py > experiments/leaderboard/table.md
    python experiments/leaderboard/make_table.py --short    # the table of README.md: `make readme`

Each range of difficulty has a table with a row per estimator, sorted by pass@1: the learning rate
that its tuning chose, the rates with at least 90 % of the best rate's pass@1, pass@1, and the
differences to RLOO in the three primary outcomes. A difference in bold has an adjusted p below
.05: Benjamini-Hochberg over the primary outcomes of all rows of the range, as in its report. The
last column is the mean distance from RLOO's frontier, in nats of correct-answer entropy at equal
pass@1, unadjusted. The short table has the differences in pass@1 alone.
"""

from __future__ import annotations

import csv
import sys
from collections import defaultdict
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
RANGES = {"hard": "levels 4 to 6", "easy": "levels 0 to 2"}
OUTCOMES = ("pass@1", "pass@32[above=guess]", "entropy/right_rarefied")
BASELINE = "rloo"
LEVEL = 0.05
GOOD = 0.9
Row = dict[str, str]


def read(name: str) -> list[Row]:
    with (FOLDER / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def label(row: Row) -> str:
    """Name an estimator; GRPO with σ of the batch is a variant of GRPO."""
    scope = row.get("estimator.scope", "")
    return f"{row['estimator']} ({scope})" if scope == "batch" else row["estimator"]


def rate(text: str) -> str:
    return f"{float(text):.0e}".replace("e-0", "e-")


def good_rates(name: str) -> dict[str, str]:
    """Return, for each estimator, the least and greatest rate near its best in the tuning."""
    scores: dict[str, dict[float, float]] = defaultdict(dict)
    for row in read(f"{name}_rates"):
        if row["optimizer.lr"]:
            scores[label(row)][float(row["optimizer.lr"])] = float(row["pass@1"])
    found = {}
    for estimator, by_rate in scores.items():
        best = max(by_rate.values())
        good = [rate(str(lr)) for lr, score in sorted(by_rate.items()) if score >= GOOD * best]
        found[estimator] = good[0] if len(good) == 1 else f"{good[0]} to {good[-1]}"
    return found


def difference(row: Row, outcome: str) -> str:
    """Return a difference with its 95 % interval, bold if it is significant."""
    found = [row[f"{outcome}_difference{end}"] for end in ("", "_low", "_high")]
    if not found[0]:
        return ""
    value, low, high = (f"{float(number):+.3f}" for number in found)
    adjusted = row[f"{outcome}_p_adjusted"]
    value = f"**{value}**" if adjusted and float(adjusted) <= LEVEL else value
    return f"{value} [{low}, {high}]"


def off_frontier(name: str) -> dict[str, str]:
    found = {}
    for row in read(f"frontier_{name}"):
        if not row["step"] and row["off"]:
            mean, low, high = (f"{float(row[end]):+.3f}" for end in ("off", "low", "high"))
            found[row["row"]] = f"{mean} [{low}, {high}]"
    return found


def print_range(name: str, levels: str) -> None:
    rows, good, off = read(name), good_rates(name), off_frontier(name)
    rows.sort(key=lambda row: (bool(row["optimizer.lr"]), -float(row["pass@1"])))
    print(f"**{name.capitalize()}**, {levels}:\n")
    print("| | rate | good rates | pass@1 | Δ pass@1 | Δ pass@32 | Δ entropy | off frontier |")
    print("| :-- |", " | ".join(["--:"] * 7), "|")
    for row in rows:
        own = label(row)
        cells = [
            rate(row["optimizer.lr"]) if row["optimizer.lr"] else "",
            good.get(own, ""),
            f"{float(row['pass@1']):.3f}",
            *(difference(row, outcome) for outcome in OUTCOMES),
            off.get(own, ""),
        ]
        print(f"| {own} |", " | ".join(cells), "|")
    print()


def print_short() -> None:
    cells: dict[str, dict[str, str]] = defaultdict(dict)
    scores: dict[str, float] = defaultdict(float)
    for name in RANGES:
        for row in read(name):
            if row["optimizer.lr"]:
                text = difference(row, "pass@1") or f"{float(row['pass@1']):.3f}"
                cells[label(row)][name] = text
                scores[label(row)] += float(row["pass@1"])
    print("| |", " | ".join(RANGES), "|")
    print("| :-- |", " | ".join(["--:"] * len(RANGES)), "|")
    for own in sorted(cells, key=lambda own: -scores[own]):
        print(f"| `{own}` |", " | ".join(cells[own].get(name, "") for name in RANGES), "|")


def main() -> None:
    if sys.argv[1:] == ["--short"]:
        print_short()
    else:
        for name, levels in RANGES.items():
            print_range(name, levels)


if __name__ == "__main__":
    main()
