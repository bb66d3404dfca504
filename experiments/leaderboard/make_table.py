"""Prints the leaderboard's short table from its three reports (CSV), as markdown.

    python experiments/leaderboard/make_table.py > experiments/leaderboard/table.md
    python experiments/leaderboard/make_table.py --short    # the table of README.md: `make readme`

A row is an estimator; for each range of difficulty: the places by pass@1 that the tests leave
open, the difference of pass@1 to RLOO, pass@32 where pass@1 is equal, and the entropy of the
right answers. A difference in bold has an adjusted p below .05.
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
RANGES = {"easy": "0.6", "middle": "0.35", "hard": "0.15"}
LEVEL = 0.05
Row = dict[str, str]


def read(name: str) -> dict[str, Row]:
    """Reads a report's rows by estimator."""
    with (FOLDER / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        return {row["estimator"]: row for row in csv.DictReader(file)}


def number(row: Row, column: str, digits: int = 3) -> str:
    return f"{float(row[column]):.{digits}f}" if row.get(column) else "–"


def difference(row: Row, column: str) -> str:
    """The difference to RLOO; bold if its adjusted p is below .05."""
    if not row.get(f"{column}_difference"):
        return "–"
    text = f"{float(row[f'{column}_difference']):+.3f}"
    settled = float(row[f"{column}_p_adjusted"] or 1) < LEVEL
    return f"**{text}**" if settled else text


def places(row: Row) -> str:
    low, high = row["rank_low"], row["rank_high"]
    return low if low == high else f"{low}–{high}"


def cells(row: Row, target: str) -> list[str]:
    """The four cells of an estimator in one range; without a rank, those of a floor or a base."""
    trained = bool(row["rank_low"])
    matched = f"pass@32@pass@1={target}"
    # RLOO has places and no difference to itself. One run alone has no difference either.
    if trained and row["pass@1_difference"]:
        shown = [difference(row, name) for name in ("pass@1", matched, "entropy/right")]
    else:
        shown = [number(row, "pass@1"), number(row, matched), number(row, "entropy/right", 2)]
    return [places(row) if trained else "", *shown]


def interval(row: Row, column: str) -> str:
    """The difference to RLOO with its 95 % interval."""
    low, high = (float(row[f"{column}_difference_{end}"]) for end in ("low", "high"))
    return f"{difference(row, column)} [{low:+.3f}, {high:+.3f}]"


def short() -> None:
    """Prints the hard levels: the base, RLOO, GRPO, and what differs from RLOO in pass@1."""
    print("| | pass@1 | difference to RLOO | H right |")
    print("| :-- | --: | --: | --: |")
    for name, row in read("hard").items():
        compared = bool(row["pass@1_difference"]) and name != "base"
        if not compared and name not in ("base", "rloo"):
            continue
        if compared and name != "grpo" and "**" not in difference(row, "pass@1"):
            continue
        against = interval(row, "pass@1") if compared else ""
        label = name if name == "base" else f"`{name}`"
        print(
            f"| {label} | {number(row, 'pass@1')} | {against} | {number(row, 'entropy/right', 2)} |"
        )


def main() -> None:
    reports = {name: read(name) for name in RANGES}
    headers = ["rank", "Δ pass@1", "Δ pass@32 at equal pass@1", "Δ H right"]
    print("| |", " | ".join(f"{name}: {h}" for name in RANGES for h in headers), "|")
    print("| :-- |", " | ".join(["--:"] * (len(headers) * len(RANGES))), "|")

    def order(estimator: str) -> tuple[float, ...]:
        found = [reports[name].get(estimator) for name in RANGES]
        known = [(int(r["rank_low"]), int(r["rank_high"])) for r in found if r and r["rank_low"]]
        if not known:
            return (-1.0,)
        return (sum(low + high for low, high in known) / len(known),)

    names = dict.fromkeys(name for report in reports.values() for name in report)
    for estimator in sorted(names, key=order):
        entries = [
            cell
            for name, target in RANGES.items()
            for cell in (
                cells(reports[name][estimator], target)
                if estimator in reports[name]
                else ["–"] * len(headers)
            )
        ]
        print(f"| {estimator} |", " | ".join(entries), "|")


if __name__ == "__main__":
    short() if sys.argv[1:] == ["--short"] else main()
