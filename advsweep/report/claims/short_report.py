"""A report in a few lines: what the differences say, and a table of a few columns."""

from __future__ import annotations

from dataclasses import replace

from advsweep.report.claims.judge_differences import find_differences, judge_differences
from advsweep.report.tables.comparison import name_group
from advsweep.report.tables.footnotes import difference_notes
from advsweep.report.tables.layout import lay_out
from advsweep.report.tables.types import Document, Report

SHOWN_COLUMNS = 4


def describe_findings(report: Report) -> list[str]:
    """Returns a sentence for each row that is compared, or why none is.

    Rows with runs that learned nothing come first.
    """
    untaught = [f"{sentence}." for sentence in report.untaught]
    judged = judge_differences(report)
    if not judged:
        return untaught + [f"{note[0].upper()}{note[1:]}." for note in difference_notes(report)]
    texts: dict[int, list[str]] = {}
    for finding in find_differences(judged, report):
        texts.setdefault(finding.row, []).append(finding.text)
    return untaught + [
        f"{name_group(report.rows[row].group)} against {report.baseline}: {'; '.join(said)}."
        for row, said in texts.items()
    ]


def shorten_report(report: Report) -> Report:
    """Returns a report with its main columns alone: collapse at the end, and three of pass@k.

    Numbers, intervals and p values stay those of the whole report.
    """
    names = [column.name for column in report.columns]
    evaluated = [column.name for column in report.columns if column.k is not None][:3]
    chosen = [name for name in ("collapse/acr@end", *evaluated) if name in names]
    kept = (chosen if evaluated else names)[:SHOWN_COLUMNS]
    return replace(
        report,
        columns=tuple(column for column in report.columns if column.name in kept),
        differences=[d for d in report.differences if d.column in kept],
    )


def lay_out_short(report: Report) -> Document:
    """Lays out the table of a report with the line that explains its numbers."""
    document = lay_out(report)
    return Document(document.tables[:1], notes=document.notes[:1], legend=document.legend)
