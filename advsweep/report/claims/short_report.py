"""A report in a few lines: what the differences say, and a table of a few columns."""

from __future__ import annotations

from dataclasses import replace

from advsweep.report.claims.judge_differences import find_differences
from advsweep.report.tables.comparison import name_group
from advsweep.report.tables.footnotes import describe_family, difference_notes
from advsweep.report.tables.layout import lay_out
from advsweep.report.tables.types import Report
from advsweep.writing import Document

SHOWN_COLUMNS = 4


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
    """Returns a report with its main columns alone: collapse at the end, and three of pass@k.

    Numbers, intervals and p values stay those of the whole report, and so do its differences.
    """
    names = [column.name for column in report.columns]
    evaluated = [column.name for column in report.columns if column.k is not None][:3]
    chosen = [name for name in ("collapse/acr@end", *evaluated) if name in names]
    kept = (chosen if evaluated else names)[:SHOWN_COLUMNS]
    columns = tuple(column for column in report.columns if column.name in kept)
    return replace(report, columns=columns)


def lay_out_short(report: Report) -> Document:
    """Lays out the table of a report with the line that explains its numbers."""
    document = lay_out(report)
    return Document(document.tables[:1], notes=document.notes[:1], legend=document.legend)
