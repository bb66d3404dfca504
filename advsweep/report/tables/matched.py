"""Rows compared with their baseline where a number is equal, such as diversity at equal pass@1.

A row that has learned more at the same step has lost more diversity, so that two rows at the end of
their training differ in both. Here each run is compared with that of the baseline of its seed at
one level of pass@1: the lower of the ends of the two, or a level that the user names. A run that
does not come to it, or only on a line that is too long to read from, has no pair
(`statistics.matching`).

The seeds of a row have levels of their own, and so has each row; a baseline thus has other numbers
against each of them, and there is no table of arms and seeds that a spread could be pooled over.
Each difference has its own spread: a paired t-test. Those of all rows and outcomes are one family.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace

import pandas as pd

from advsweep.statistics import Comparison, benjamini_hochberg, compare_paired
from advsweep.statistics.matching import MatchedPair, match_curves


@dataclass(frozen=True)
class Matching:
    """Where rows are compared, and in what.

    Attributes:
        column: the number that is equal.
        outcomes: the columns that are compared.
        level: the value of `column`; None for the lower end of each pair of runs.
    """

    column: str
    outcomes: Sequence[str]
    level: float | None = None


@dataclass(frozen=True)
class MatchedDifference:
    """A row compared with its baseline in one outcome.

    Attributes:
        seeds: how many seeds both have; those of them that have a pair are the comparison's n.
        levels: of the pairs.
        gap: the longest line that a value is read from, in units of what is equal; NaN without
            a pair.
        p_adjusted: p after Benjamini and Hochberg over all rows and outcomes; NaN without a
            spread.
    """

    outcome: str
    row: str
    baseline: str
    comparison: Comparison
    seeds: int
    levels: tuple[float, ...]
    gap: float
    p_adjusted: float = math.nan

    @property
    def level(self) -> float:
        """The mean level; NaN without a pair."""
        return math.fsum(self.levels) / len(self.levels) if self.levels else math.nan


def compare_matched(
    points: pd.DataFrame, baselines: Mapping[str, str], matching: Matching
) -> list[MatchedDifference]:
    """Compare rows with their baselines where a number is equal, by outcome and row.

    Args:
        points: a line for each evaluation, with `row`, `seed`, `step` and the columns of
            `matching`; NaN where an evaluation lacks one. `runs.csv` of a study is such a table.
        baselines: the baseline of each row that is compared.
    """
    found = []
    for outcome in matching.outcomes:
        curves = _curves(points, matching.column, outcome)
        for row, baseline in baselines.items():
            found.append(_compare(curves, row, baseline, outcome, matching.level))
    # Without variation there is nothing to test.
    p_values = [one.comparison.p_value if one.comparison.sd > 0 else math.nan for one in found]
    adjusted = benjamini_hochberg(p_values)
    return [replace(one, p_adjusted=float(p)) for one, p in zip(found, adjusted, strict=True)]


# x and y of a run's evaluations.
_Curve = tuple["pd.Series[float]", "pd.Series[float]"]
_Curves = Mapping[str, Mapping[Hashable, _Curve]]


def _curves(points: pd.DataFrame, column: str, outcome: str) -> _Curves:
    """Return the curve of an outcome over what is equal, by row and seed."""
    found: dict[str, dict[Hashable, _Curve]] = {}
    for (row, seed), of_run in points.groupby(["row", "seed"], sort=False):
        ordered = of_run.sort_values("step")
        found.setdefault(str(row), {})[seed] = ordered[column], ordered[outcome]
    return found


def _compare(
    curves: _Curves, row: str, baseline: str, outcome: str, level: float | None
) -> MatchedDifference:
    own = curves.get(row, {})
    others = curves.get(baseline, {})
    shared = [seed for seed in own if seed in others]
    pairs = [match_curves(own[seed], others[seed], level) for seed in shared]
    told: list[MatchedPair] = [pair for pair in pairs if not math.isnan(pair.difference)]
    return MatchedDifference(
        outcome=outcome,
        row=row,
        baseline=baseline,
        comparison=compare_paired(
            [pair.one.value for pair in told], [pair.other.value for pair in told]
        ),
        seeds=len(shared),
        levels=tuple(pair.level for pair in told),
        gap=max((pair.gap for pair in told), default=math.nan),
    )
