"""The findings of a report: a sentence for each row about the primary outcomes.

A difference to the baseline is significant if its p after the correction over the primary
outcomes' differences is at most .05; its 95 % interval then excludes 0, as p alone is not larger.
All other differences are descriptive, and nothing is found about them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from advsweep.report.data.columns import MetricDirection
from advsweep.report.tables.comparison import LEVEL, MOST_SEEDS
from advsweep.report.tables.layout import show_difference, show_p
from advsweep.report.tables.types import Difference, Report

SAME = "same for every seed"
NOT_SIGNIFICANT = "not significant"
DESCRIPTIVE = "descriptive"
_CORRECTED = "not significant after Benjamini-Hochberg"
_SIGNIFICANT = ("better", "worse", "higher", "lower")


@dataclass(frozen=True)
class DifferenceFinding:
    """What the differences of a row to its baseline say.

    Attributes:
        row: the index of the row.
        text: the finding in words, without the names.
        outcome: `better`, `worse`, `higher` or `lower` if all significant differences agree,
            `mixed` if they do not, and `not significant` if there are none.
    """

    row: int
    text: str
    outcome: str


def judge_difference(difference: Difference) -> str:
    """Return the verdict on a difference.

    It is `better` or `worse` in a column with a better direction, `higher` or `lower` in others;
    or `same for every seed`, `not significant`, or `descriptive` for what is no primary outcome.
    """
    if not difference.is_primary:
        return DESCRIPTIVE
    if difference.comparison.sd == 0:
        return SAME
    if not difference.p_adjusted <= LEVEL:
        return NOT_SIGNIFICANT
    direction = difference.column.direction
    rises = difference.comparison.difference > 0
    if direction is MetricDirection.NEITHER:
        return "higher" if rises else "lower"
    return "better" if rises is (direction is MetricDirection.HIGHER) else "worse"


def find_differences(report: Report) -> list[DifferenceFinding]:
    """Describe the differences of the primary outcomes in a sentence for each row.

    Returns:
        Findings with a significant difference first, both parts in the report's order.
    """
    by_row = groupby(sorted(report.primary, key=lambda d: d.row), key=lambda d: d.row)
    findings = [_finding(row, list(members)) for row, members in by_row]
    return sorted(findings, key=lambda finding: finding.outcome == NOT_SIGNIFICANT)


def _finding(row: int, differences: Sequence[Difference]) -> DifferenceFinding:
    by_heading: dict[str, list[Difference]] = {}
    for heading in (*_SIGNIFICANT, SAME, _CORRECTED, NOT_SIGNIFICANT):
        if own := [d for d in differences if _heading(d) == heading]:
            by_heading[heading] = own
    significant = [heading for heading in by_heading if heading in _SIGNIFICANT]
    return DifferenceFinding(
        row=row,
        text="; ".join(_clause(heading, own) for heading, own in by_heading.items()),
        outcome="mixed" if significant[1:] else next(iter(significant), NOT_SIGNIFICANT),
    )


def _heading(difference: Difference) -> str:
    verdict = judge_difference(difference)
    settled = verdict == NOT_SIGNIFICANT and difference.comparison.is_settled
    return _CORRECTED if settled else verdict


def _clause(heading: str, differences: Sequence[Difference]) -> str:
    colon = "" if heading in _SIGNIFICANT else ":"
    listed = [_described(d, seeds=heading == NOT_SIGNIFICANT) for d in differences]
    joined = listed[0] if len(listed) == 1 else f"{', '.join(listed[:-1])} and {listed[-1]}"
    return f"{heading}{colon} {joined}"


def _described(difference: Difference, *, seeds: bool) -> str:
    text = " ".join(show_difference(difference.comparison))
    if p_adjusted := show_p(difference.p_adjusted):
        text += f", p adj {p_adjusted}"
    if seeds and difference.seeds is not None:
        many = "more than" if difference.seeds > MOST_SEEDS else "about"
        text += f"; {many} {min(difference.seeds, MOST_SEEDS)} seeds for 80 % power"
    return f"{difference.column.header} ({text})"
