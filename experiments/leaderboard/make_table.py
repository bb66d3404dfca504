"""Print the leaderboard's tables as markdown.

    python experiments/leaderboard/make_table.py > experiments/leaderboard/table.md
    python experiments/leaderboard/make_table.py --rates > experiments/leaderboard/rates.md
    python experiments/leaderboard/make_table.py --short    # the table of README.md: `make readme`

The first table has a row per estimator and, for each range of difficulty, the places by pass@1
that the tests leave open and the differences to RLOO in the three primary outcomes, from the
reports of that range. A difference in bold has an adjusted p below .05: Benjamini-Hochberg over
the primary outcomes of all estimators in the range. The second and third have a row per
estimator and a column per learning rate on the hard levels, from the values of each run in
`rates.csv`.
"""

from __future__ import annotations

import csv
import sys
from collections import defaultdict
from pathlib import Path
from statistics import fmean

from advsweep.statistics import benjamini_hochberg, compare_paired

FOLDER = Path(__file__).resolve().parent
RANGES = ("easy", "middle", "hard")
OUTCOMES = ("pass@1", "pass@32[above=guess]", "entropy/right")
LEVEL = 0.05
Row = dict[str, str]


def read(name: str) -> list[Row]:
    with (FOLDER / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def settled(rows: list[Row]) -> set[tuple[str, str]]:
    """Return the (estimator, outcome) whose difference to RLOO is significant in a range."""
    family = {
        (row["estimator"], outcome): float(row[f"{outcome}_p"])
        for row in rows
        for outcome in OUTCOMES
        if row["rank_low"] and row[f"{outcome}_p"]
    }
    adjusted = benjamini_hochberg(list(family.values()))
    return {key for key, p in zip(family, adjusted, strict=True) if p < LEVEL}


def cells(row: Row, bold: set[tuple[str, str]]) -> list[str]:
    """Return an estimator's places and differences; those of a base or floor are values."""
    low, high = row["rank_low"], row["rank_high"]
    shown = [low if low == high else f"{low}–{high}"]
    for outcome in OUTCOMES:
        difference = row[f"{outcome}_difference"]
        if low and difference:
            text = f"{float(difference):+.3f}"
            shown.append(f"**{text}**" if (row["estimator"], outcome) in bold else text)
        else:
            shown.append(f"{float(row[outcome]):.3f}" if row[outcome] else "–")
    return shown


def print_ranges() -> None:
    reports = {name: read(name) for name in RANGES}
    lines: dict[str, list[str]] = defaultdict(list)
    places: dict[str, int] = defaultdict(int)
    for rows in reports.values():
        bold = settled(rows)
        for row in rows:
            lines[row["estimator"]] += cells(row, bold)
            places[row["estimator"]] += int(row["rank_low"] or 0) + int(row["rank_high"] or 0)
    headers = ("rank", "Δ pass@1", "Δ pass@32", "Δ entropy")
    print("| |", " | ".join(f"{name}: {header}" for name in RANGES for header in headers), "|")
    print("| :-- |", " | ".join(["--:"] * (len(headers) * len(RANGES))), "|")
    for estimator in sorted(lines, key=lambda name: places[name]):
        print(f"| {estimator} |", " | ".join(lines[estimator]), "|")


Values = dict[tuple[str, str], dict[int, dict[str, float]]]


def final_values() -> tuple[Values, dict[int, dict[str, float]]]:
    """Return the last evaluation of each (estimator, rate) by seed, and that of the bases."""
    last: Values = defaultdict(dict)
    bases: dict[int, dict[str, float]] = {}
    rows = sorted(read("rates"), key=lambda row: int(row["step"]))
    for row in rows:
        values = {name: float(row[name]) for name in ("pass@1", "pass@32") if row[name]}
        if int(row["step"]) == 0:
            bases[int(row["seed"])] = values
        else:
            last[row["estimator"], row["optimizer.lr"]][int(row["seed"])] = values
    return last, bases


def print_rates(*, short: bool) -> None:
    """Print pass@1 by rate: its gain over the base with an interval, or the values as well."""
    last, bases = final_values()
    rates = sorted({rate for _, rate in last}, key=float)
    print("| |", " | ".join(f"{float(rate):.0e}".replace("e-0", "e-") for rate in rates), "|")
    print("| :-- |", " | ".join(["--:"] * len(rates)), "|")
    for estimator in dict.fromkeys(name for name, _ in last):
        texts = []
        for rate in rates:
            runs = last[estimator, rate]
            seeds = sorted(runs)
            gain = compare_paired(
                [runs[seed]["pass@1"] for seed in seeds], [bases[seed]["pass@1"] for seed in seeds]
            )
            text = f"{gain.difference:+.3f} [{gain.low:+.3f}, {gain.high:+.3f}]"
            if not short:
                pass_1, pass_32 = (
                    fmean(runs[seed][name] for seed in seeds) for name in ("pass@1", "pass@32")
                )
                text = f"{pass_1:.3f} / {pass_32:.3f}<br>{text}"
            texts.append(text)
        print(f"| `{estimator}` |", " | ".join(texts), "|")


def main() -> None:
    if sys.argv[1:] == ["--short"]:
        print_rates(short=True)
    elif sys.argv[1:] == ["--rates"]:
        print_rates(short=False)
    else:
        print_ranges()


if __name__ == "__main__":
    main()
