"""Writes the leaderboard's results that ship with advsweep, from the tables of the study.

    python tools/leaderboard_table.py            # write advsweep/judging/leaderboard.csv again

`advsweep judge` places an estimator among these arms, also where `experiments/` is not installed.
"""

from __future__ import annotations

import csv
import io
from pathlib import Path

from advsweep.judging.leaderboard import BASELINE, OUTCOMES, RANGES

ROOT = Path(__file__).resolve().parents[1]
STUDY = ROOT / "experiments" / "leaderboard"
TABLE = ROOT / "advsweep" / "judging" / "leaderboard.csv"
PARTS = ("difference", "low", "high")
# Rows without a training, and controls.
LEFT_OUT = ("base", "guess", "walker")


def table() -> str:
    """Return the table as CSV: a line for each arm of each range, in the order of the study."""
    columns = [f"{outcome} {part}" for outcome in OUTCOMES for part in PARTS]
    text = io.StringIO()
    writer = csv.DictWriter(text, ["range", "arm", "rate", *columns], lineterminator="\n")
    writer.writeheader()
    for difficulty in RANGES:
        with (STUDY / f"{difficulty}.csv").open(encoding="utf-8", newline="") as file:
            rows = [row for row in csv.DictReader(file) if is_arm(row)]
        for row in rows:
            line = {"range": difficulty, "arm": name_of(row), "rate": row["optimizer.lr"]}
            if row["estimator"] != BASELINE:
                line |= differences_of(row)
            writer.writerow(line)
    return text.getvalue()


def is_arm(row: dict[str, str]) -> bool:
    return row["estimator"] not in LEFT_OUT and "(" not in row["estimator"]


def name_of(row: dict[str, str]) -> str:
    is_batch = row["estimator.scope"] == "batch"
    return f"{row['estimator']} scope=batch" if is_batch else row["estimator"]


def differences_of(row: dict[str, str]) -> dict[str, str]:
    """Return the differences to RLOO to five digits; empty where the study has none."""
    found = {}
    for outcome, column in OUTCOMES.items():
        for part, suffix in zip(PARTS, ("", "_low", "_high"), strict=True):
            number = row[f"{column}_difference{suffix}"]
            found[f"{outcome} {part}"] = f"{float(number):.5f}" if number else ""
    return found


if __name__ == "__main__":
    TABLE.write_text(table(), encoding="utf-8")
