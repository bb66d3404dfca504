"""The results of the leaderboard (experiments/leaderboard), as far as a verdict needs them.

`leaderboard.csv` beside this file has them; a test makes it again of the study's tables.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

BASELINE = "rloo"

RANGES = ("easy", "middle", "hard")

# The columns of a report, by the names of the outcomes in a verdict.
OUTCOMES = {
    "pass@1": "pass@1",
    "pass@32": "pass@32[above=guess]",
    "diversity": "entropy/right_rarefied",
}

_FILE = Path(__file__).with_name("leaderboard.csv")


@dataclass(frozen=True, kw_only=True)
class ListedDifference:
    """A difference to RLOO with its 95 % interval."""

    difference: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class ListedArm:
    """An arm of the leaderboard on a range of difficulty.

    Attributes:
        name: such as `psr` or `grpo scope=batch`.
        rate: the learning rate that its tuning chose.
        differences: to RLOO, by the keys of `OUTCOMES`; empty for RLOO.
    """

    name: str
    rate: float
    differences: Mapping[str, ListedDifference]


def read_leaderboard(difficulty: str) -> list[ListedArm]:
    """Return the arms of a range, in the order of the study; controls are left out."""
    with _FILE.open(encoding="utf-8", newline="") as file:
        lines = [line for line in csv.DictReader(file) if line["range"] == difficulty]
    arms = []
    for line in lines:
        differences = {
            outcome: ListedDifference(
                difference=float(line[f"{outcome} difference"]),
                low=float(line[f"{outcome} low"]),
                high=float(line[f"{outcome} high"]),
            )
            for outcome in OUTCOMES
            if line[f"{outcome} difference"]
        }
        arm = ListedArm(name=line["arm"], rate=float(line["rate"]), differences=differences)
        arms.append(arm)
    return arms


def baseline_rate(difficulty: str) -> float:
    """Return the learning rate that the leaderboard's tuning chose for RLOO on a range."""
    return next(arm.rate for arm in read_leaderboard(difficulty) if arm.name == BASELINE)
