"""The findings of a report in sentences: one for each row about the primary outcomes.

A difference to the baseline is significant if its p after the correction over the primary
outcomes' differences is at most .05; its 95 % interval then excludes 0, as p alone is not larger.
All other differences are descriptive, and nothing is found about them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from advsweep.report.data.metrics import MetricDirection
from advsweep.report.data.runs import name_group
from advsweep.report.tables.comparison import LEVEL, MOST_SEEDS
from advsweep.report.tables.notes import describe_family, difference_notes
from advsweep.report.tables.render import lay_out, show_difference
from advsweep.report.tables.types import Difference, Report
from advsweep.writing import Document, show_p

SAME = "same for every seed"
NOT_SIGNIFICANT = "not significant"
DESCRIPTIVE = "descriptive"
_CORRECTED = "not significant after Benjamini-Hochberg"
_SIGNIFICANT = ("better", "worse", "higher", "lower")
_SHOWN_COLUMNS = 4


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
    findings = []
    for row, members in groupby(sorted(report.primary, key=lambda d: d.row), key=lambda d: d.row):
        by_heading: dict[str, list[Difference]] = {}
        for difference in members:
            heading = judge_difference(difference)
            if heading == NOT_SIGNIFICANT and difference.comparison.is_settled:
                heading = _CORRECTED
            by_heading.setdefault(heading, []).append(difference)
        order = [h for h in (*_SIGNIFICANT, SAME, _CORRECTED, NOT_SIGNIFICANT) if h in by_heading]
        significant = [heading for heading in order if heading in _SIGNIFICANT]
        outcome = "mixed" if significant[1:] else next(iter(significant), NOT_SIGNIFICANT)
        text = "; ".join(_clause(heading, by_heading[heading]) for heading in order)
        findings.append(DifferenceFinding(row, text, outcome))
    return sorted(findings, key=lambda finding: finding.outcome == NOT_SIGNIFICANT)


def _clause(heading: str, differences: Sequence[Difference]) -> str:
    listed = []
    for difference in differences:
        text = " ".join(show_difference(difference.comparison))
        if p_adjusted := show_p(difference.p_adjusted):
            text += f", p adj {p_adjusted}"
        if heading == NOT_SIGNIFICANT and difference.seeds is not None:
            many = "more than" if difference.seeds > MOST_SEEDS else "about"
            text += f"; {many} {min(difference.seeds, MOST_SEEDS)} seeds for 80 % power"
        listed.append(f"{difference.column.header} ({text})")
    joined = " and ".join(filter(None, (", ".join(listed[:-1]), listed[-1])))
    return f"{heading}{'' if heading in _SIGNIFICANT else ':'} {joined}"


def describe_findings(report: Report) -> list[str]:
    """Return a sentence for each row that is compared and one about their p, or why none is.

    Rows with runs that learned nothing come first.
    """
    sentences = [f"{sentence}." for sentence in report.untaught]
    findings = find_differences(report)
    sentences += [
        f"{name_group(report.rows[one.row].group)} against {report.baseline}: {one.text}."
        for one in findings
    ]
    if findings:
        return [*sentences, f"{describe_family(report)}."]
    return sentences + [f"{note[0].upper()}{note[1:]}." for note in difference_notes(report)]


def shorten_report(report: Report) -> Report:
    """Return a report with its main columns alone: collapse at the end, and three of pass@k.

    Numbers, intervals and p values stay those of the whole report, and so do its differences.
    """
    names = [column.name for column in report.columns]
    evaluated = [column.name for column in report.columns if column.k is not None][:3]
    chosen = [name for name in ("collapse/acr@end", *evaluated) if name in names]
    kept = (chosen if evaluated else names)[:_SHOWN_COLUMNS]
    columns = tuple(column for column in report.columns if column.name in kept)
    return replace(report, columns=columns)


def lay_out_short(report: Report) -> Document:
    """Lay out the table of a report with the line that explains its numbers."""
    document = lay_out(report)
    return Document(document.tables[:1], notes=document.notes[:1], legend=document.legend)
