"""The findings of a report in sentences: one for each row that differs in a primary outcome.

A difference to the baseline is significant if its p after the correction over the primary
outcomes' differences is at most .05; its 95 % interval then excludes 0, as p alone is not larger.
All other differences are descriptive, and nothing is found about them. A row without a significant
difference has the margins within which it is equivalent to the baseline.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from advsweep.report.data.labels import label_keys, show_key
from advsweep.report.data.metrics import MetricDirection
from advsweep.report.tables.comparison import LEVEL
from advsweep.report.tables.margins import show_margin
from advsweep.report.tables.notes import (
    describe_unknown_seeds,
    explain_no_tests,
    notes,
    unit_of,
)
from advsweep.report.tables.render import lay_out, show_difference, show_values
from advsweep.report.tables.types import Cell, Difference, NoteKind, Report, count_states
from advsweep.statistics import equivalence_margin
from advsweep.writing import NO_NUMBER, Document, Entry, Line, Table

SAME = "same for every seed"
NOT_SIGNIFICANT = "not significant"
DESCRIPTIVE = "descriptive"
_SIGNIFICANT = ("better", "worse", "higher", "lower")


@dataclass(frozen=True)
class ReportFinding:
    """A sentence on what a report shows: `name`, then `text`.

    Attributes:
        name: the row that the sentence is about; empty for several rows.
        outcome: `better`, `worse`, `higher` or `lower` if all significant differences of the row
            agree, and `mixed` if they do not; empty for other sentences.
    """

    text: str
    name: str = ""
    outcome: str = ""


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


def list_findings(report: Report) -> list[ReportFinding]:
    """Return a finding for each row with a significant difference, and one for the others.

    Rows with runs that learned nothing come first.
    """
    findings = [
        ReportFinding(f"{sentence}.")
        for sentence in report.texts(NoteKind.REVISION, NoteKind.WITHOUT_SIGNAL)
    ]
    if not report.primary:
        reasons = explain_no_tests(report)
        return findings + [ReportFinding(f"{why[0].upper()}{why[1:]}.") for why in reasons]
    others = []
    by_row = groupby(sorted(report.primary, key=lambda d: d.row), key=lambda d: d.row)
    for row, members in by_row:
        name = _short_name(report, row)
        members_of_row = list(members)
        judged = [(judge_difference(difference), difference) for difference in members_of_row]
        significant = [
            f"{heading} {difference.column.header}, {_shown(difference)}"
            for heading, difference in judged
            if heading in _SIGNIFICANT
        ]
        if significant:
            outcomes = {heading for heading, _ in judged if heading in _SIGNIFICANT}
            outcome = outcomes.pop() if len(outcomes) == 1 else "mixed"
            findings.append(
                ReportFinding(
                    f" against {report.baseline}: {'; '.join(significant)}.", name, outcome
                )
            )
        else:
            others.append(f"{name}{_describe_margins(members_of_row)}")
    columns = ", ".join(dict.fromkeys(d.column.header for d in report.primary))
    if others:
        none = f"No significant difference from {report.baseline} in {columns}"
        findings.append(ReportFinding(f"{none}: {'; '.join(others)}."))
    findings += _list_equivalent_rows(report)
    return [*findings, *map(ReportFinding, _describe_equal_rows(report))]


def _describe_margins(differences: Sequence[Difference]) -> str:
    """Say within which margins a row is equivalent to the baseline; empty where nothing varies."""
    margins = [equivalence_margin(difference.comparison) for difference in differences]
    if all(math.isnan(margin) for margin in margins):
        return ""
    shown = [NO_NUMBER if math.isnan(margin) else show_margin(margin) for margin in margins]
    return f" (equal within {', '.join(shown)})"


def _list_equivalent_rows(report: Report) -> list[ReportFinding]:
    """Return a finding for each margin, with the rows that are equivalent within it."""
    findings = []
    for column in dict.fromkeys(d.column for d in report.primary if not math.isnan(d.margin)):
        tested = [d for d in report.primary if d.column is column]
        names = [_short_name(report, d.row) for d in tested if d.p_equal <= LEVEL]
        within = f"within {tested[0].margin:g} in {column.header}"
        text = f"No row is shown to be equivalent to {report.baseline} {within}."
        if names:
            text = f"Equivalent to {report.baseline} {within}: {'; '.join(names)}."
        findings.append(ReportFinding(text))
    return findings


def describe_findings(report: Report) -> list[str]:
    """Return the findings as sentences."""
    return [finding.name + finding.text for finding in list_findings(report)]


def _short_name(report: Report, row: int) -> str:
    return report.name_arm(report.rows[row])


def _describe_equal_rows(report: Report) -> list[str]:
    """Name the rows that have the numbers of an earlier one, seed by seed, as equal runs have."""
    first: dict[tuple[tuple[float, ...], ...], int] = {}
    sentences = []
    for i, row in enumerate(report.rows):
        values = tuple(row.cells[outcome.name].values for outcome in report.outcomes)
        if row.is_untrained or not any(values):
            continue
        other = first.setdefault(values, i)
        if other != i:
            one, two = _short_name(report, i), _short_name(report, other)
            pairs = "seed by seed"
            if row.unknown_seeds or report.rows[other].unknown_seeds:
                pairs = "run by run"
            sentences.append(f"{one} has the numbers of {two}, {pairs}.")
    return sentences


def _shown(difference: Difference) -> str:
    return " ".join(show_difference(difference.comparison))


def lay_out_short(report: Report) -> Document:
    """Lay out what came out: the primary outcomes, and the difference in the first of them.

    The notes are the findings, and a line on what they rest on.
    """
    outcomes = report.outcomes
    if not any(row.cells[outcome.name].n for row in report.rows for outcome in outcomes):
        document = lay_out(report)
        shown = (*notes(report), *explain_no_tests(report))
        return replace(document, tables=document.tables[:1], notes=shown, provenance=())
    columns = [*outcomes, *(c for c in report.columns if c.name == "collapse/acr@end")]
    keys = [key for key in report.keys if key != report.tuned]
    differences = {(d.row, d.column.name): d for d in report.primary}
    sections: dict[bool, list[Line]] = {}
    for i, row in enumerate(report.rows):
        names = (*show_values(row.group, keys), str(row.n))
        entries = [
            _short_entry(row.cells[column.name], differences.get((i, column.name)))
            for column in columns
        ]
        first = differences.get((i, outcomes[0].name))
        entries.append(Entry("" if first is None else _shown(first)))
        sections.setdefault(row.is_untrained, []).append(Line(names, tuple(entries)))
    # A blank where the numbers may have a star.
    headers = [f"{column.header} " for column in columns]
    table = Table(
        names=(*label_keys(keys), "n"),
        columns=(*headers, f"Δ {outcomes[0].header} [95 % interval]"),
        sections=tuple(map(tuple, sections.values())),
        numbers=1,
    )
    return Document(
        (table,), notes=(*describe_findings(report), *_rests_on(report)), head=report.head
    )


def _short_entry(cell: Cell, difference: Difference | None) -> Entry:
    """Write a mean, with a `*` if its difference to the baseline is significant."""
    number = f"{cell.mean:.3f}" if cell.n else NO_NUMBER
    if difference is not None and judge_difference(difference) in _SIGNIFICANT:
        return Entry(f"{number}*")
    return Entry(f"{number} ")


def _rests_on(report: Report) -> list[str]:
    """Describe what the numbers of a short report are, in a line or two."""
    counts = sorted({row.n for row in report.rows if not row.is_untrained})
    seeds = str(counts[0]) if counts else "0"
    if len(counts) > 1:
        seeds += f"-{counts[-1]}"
    unit = unit_of(report)
    one = unit.removesuffix("s") if seeds == "1" else unit
    lines = [f"means over {seeds} {one}"]
    if report.primary:
        lines[0] += (
            f"; *: differs from {report.baseline}, p adj at most {LEVEL} over {report.family} "
            "(Benjamini-Hochberg)"
        )
    if report.tuned:
        chosen = [
            f"{report.name_arm(row)} {show_key(row.group[report.tuned])}{report.mark_edge(row)}"
            for row in report.rows
            if report.tuned in row.group
        ]
        lines.append(f"{report.tuned}, tuned for each: {'; '.join(chosen)}")
        if report.edges:
            lines.append(
                "(edge): the smallest or largest value that was tried; a wider grid may have a "
                "better one"
            )
    if report.left_out:
        lines.append(f"left out, as they are not done: {count_states(report.left_out)}")
    lines += [*report.texts(NoteKind.EARLY_END), *describe_unknown_seeds(report)]
    return [*lines, "all columns, intervals, tests and notes: `advsweep report --full`"]
