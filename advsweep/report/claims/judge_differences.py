"""The findings of a report: a sentence for each row and group of columns.

A difference to the baseline is judged as the claims of a list are: its 95 % interval decides, and
its p after the correction over all differences of the report must bear it out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from advsweep.report.claims.expressions import ClaimVerdict
from advsweep.report.claims.findings import LEVEL, by_interval
from advsweep.report.data.columns import Column, MetricDirection
from advsweep.report.tables.comparison import MOST_SEEDS
from advsweep.report.tables.layout import show_difference, show_p
from advsweep.report.tables.types import Difference, Report

SAME = "same for every seed"
NOT_SETTLED = "not settled"
CANNOT_TELL = "cannot tell"
_OUTCOMES = ("better", "worse", "higher", "lower", SAME, NOT_SETTLED, CANNOT_TELL)
_SIGNIFICANT = _OUTCOMES[:4]


@dataclass(frozen=True)
class JudgedDifference:
    """A difference of a report and what it says.

    Attributes:
        column: the column that it is of.
        outcome: `better` or `worse` in a column with a better direction, `higher` or `lower` in
            others; or `same for every seed`, `not settled`, `cannot tell`.
    """

    difference: Difference
    column: Column
    outcome: str


@dataclass(frozen=True)
class DifferenceFinding:
    """What the differences of a row to its baseline say in a group of columns.

    Attributes:
        row: the index of the row.
        text: the finding in words, without the names.
        outcome: `better`, `worse`, `higher` or `lower` if all significant differences agree,
            `mixed` if they do not, and `cannot tell` if there are none.
    """

    row: int
    text: str
    outcome: str


def judge_differences(report: Report) -> list[JudgedDifference]:
    """Judges every difference of a report, in the report's order."""
    columns = {column.name: column for column in report.columns}
    return [
        JudgedDifference(difference, columns[difference.column], outcome)
        for difference in report.differences
        if (outcome := _outcome(difference, columns[difference.column]))
    ]


def _outcome(difference: Difference, column: Column) -> str:
    """Returns the outcome of a difference; empty for a cost that is the same for both rows."""
    comparison = difference.comparison
    directed = column.direction is not MetricDirection.NEITHER
    if comparison.sd == 0:
        return SAME if directed or comparison.difference else ""
    sign = -1 if column.direction is MetricDirection.LOWER else 1
    verdict = by_interval(comparison.low, comparison.high, sign)
    if verdict is ClaimVerdict.CANNOT_TELL:
        return CANNOT_TELL
    if difference.p_adjusted > LEVEL:
        return NOT_SETTLED
    holds, contradicted = ("better", "worse") if directed else ("higher", "lower")
    return holds if verdict is ClaimVerdict.HOLDS else contradicted


def find_differences(judged: Sequence[JudgedDifference], report: Report) -> list[DifferenceFinding]:
    """Describes the differences in a sentence for each row and family of columns.

    Returns:
        Findings with a significant difference first, both parts in the report's order.
    """
    families = list(dict.fromkeys(column.family for column in report.columns))

    def order(one: JudgedDifference) -> tuple[int, int]:
        return one.difference.row, families.index(one.column.family)

    groups = groupby(sorted(judged, key=order), key=order)
    findings = [_finding(list(members)) for _, members in groups]
    return sorted(findings, key=lambda finding: finding.outcome == CANNOT_TELL)


def _finding(judged: Sequence[JudgedDifference]) -> DifferenceFinding:
    by_outcome: Mapping[str, list[JudgedDifference]] = {
        outcome: own
        for outcome in _OUTCOMES
        if (own := [one for one in judged if one.outcome == outcome])
    }
    significant = [outcome for outcome in by_outcome if outcome in _SIGNIFICANT]
    return DifferenceFinding(
        row=judged[0].difference.row,
        text="; ".join(_clause(outcome, own) for outcome, own in by_outcome.items()),
        outcome=CANNOT_TELL if not significant else "mixed" if significant[1:] else significant[0],
    )


def _clause(outcome: str, judged: Sequence[JudgedDifference]) -> str:
    if outcome == CANNOT_TELL:
        return f"the data cannot tell for {_joined([_undecided(one) for one in judged])}"
    listed = _joined([_with_interval(one) for one in judged])
    if outcome == SAME:
        return f"the same difference for every seed: {listed}"
    if outcome == NOT_SETTLED:
        return f"not settled after the correction for the number of differences: {listed}"
    return f"{outcome} {listed}"


def _with_interval(one: JudgedDifference) -> str:
    shown, interval = show_difference(one.difference.comparison)
    text = f"{shown} {interval}"
    if one.outcome == NOT_SETTLED:
        text += f", p adj {show_p(one.difference.p_adjusted)}"
    return f"{one.column.header} ({text})"


def _undecided(one: JudgedDifference) -> str:
    seeds = one.difference.seeds
    if seeds is None:
        return one.column.header
    many = f"more than {MOST_SEEDS:,}" if seeds >= MOST_SEEDS else f"about {seeds}"
    return f"{one.column.header} ({many} seeds would)"


def _joined(texts: Sequence[str]) -> str:
    return texts[0] if len(texts) == 1 else f"{', '.join(texts[:-1])} and {texts[-1]}"
