"""Results of the checks as text, in every format of claims."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from advsweep.printable import printable_json, spreadsheet_cell
from advsweep.report.claims.expressions import ClaimVerdict
from advsweep.report.tables.export import to_latex, to_markdown, writer
from advsweep.report.tables.types import Document, Entry, Heading, Line, Table
from advsweep.theory.types import Finding, TheoryResult


def render_theory(results: Sequence[TheoryResult], format: str = "table") -> str:
    """Renders results as text that ends with a line break.

    Raises:
        ConfigError: there is no such format.
    """
    return writer(THEORY_FORMATS, format)(results)


def _number(value: float) -> str:
    return f"{0.0 if abs(value) < 1e-12 else value:.4g}"


def _expected(finding: Finding) -> str:
    return f"{finding.relation.value} {_number(finding.expected)}"


def _lay_out(results: Sequence[TheoryResult]) -> Document:
    """One line for each check; the numbers are those of the finding that decides."""
    lines = []
    for result in results:
        finding = result.deciding
        check = result.check
        names = (check.id, result.verdict.value, check.paper.partition(" (")[0], check.equation)
        entries = (
            Entry(_number(finding.got), value=finding.got),
            Entry(_expected(finding)),
            Entry(f"{result.comparisons:,}", value=float(result.comparisons)),
        )
        lines.append(Line(names, entries))
    headings = ("got", "expected", "compared")
    table = Table(
        names=("claim", "verdict", "paper", "equation"),
        columns=tuple(Heading((heading,), "claim") for heading in headings),
        sections=(tuple(lines),),
        title="The papers' theorems and masses, computed",
    )
    held = sum(result.verdict is ClaimVerdict.HOLDS for result in results)
    summary = f"{len(results)} checks: {held} hold, {len(results) - held} contradicted"
    return Document(tables=(table,), notes=(summary, *map(_note, results)))


def describe(result: TheoryResult) -> str:
    """Says what decided, with the numbers."""
    finding = result.deciding
    decided = f"{finding.quantity}: {_number(finding.got)}, expected {_expected(finding)}"
    return f"{decided}. {result.check.note}".rstrip()


def _note(result: TheoryResult) -> str:
    check = result.check
    return f"{check.id}: {check.says}. Computed: {check.computes}; {describe(result)}"


def _plain(result: TheoryResult) -> dict[str, Any]:
    check, finding = result.check, result.deciding
    return {
        "claim": check.id,
        "verdict": result.verdict.value,
        "paper": check.paper,
        "equation": check.equation,
        "says": check.says,
        "computed": check.computes,
        **_plain_finding(finding),
        "comparisons": result.comparisons,
        "note": check.note,
    }


def _plain_finding(finding: Finding) -> dict[str, Any]:
    return {
        "quantity": finding.quantity,
        "got": finding.got,
        "relation": finding.relation.value,
        "expected": finding.expected,
        "tolerance": finding.tolerance,
    }


def _to_csv(results: Sequence[TheoryResult]) -> str:
    rows = [_plain(result) for result in results]
    buffer = io.StringIO()
    table = csv.DictWriter(buffer, list(rows[0]), lineterminator="\n")
    table.writeheader()
    table.writerows({key: spreadsheet_cell(v) for key, v in row.items()} for row in rows)
    return buffer.getvalue()


def _to_json(results: Sequence[TheoryResult]) -> str:
    document = [
        {
            **_plain(result),
            "findings": [
                {**_plain_finding(f), "holds": f.holds, "comparisons": f.comparisons}
                for f in result.findings
            ],
        }
        for result in results
    ]
    return printable_json(json.dumps({"checks": document}, indent=2, ensure_ascii=False)) + "\n"


def _to_table(results: Sequence[TheoryResult]) -> str:
    from advsweep.report.tables.terminal import to_table  # rich is for people alone

    return to_table(_lay_out(results))


THEORY_FORMATS: Mapping[str, Callable[[Sequence[TheoryResult]], str]] = {
    "table": _to_table,
    "markdown": lambda results: to_markdown(_lay_out(results)),
    "latex": lambda results: to_latex(_lay_out(results)),
    "csv": _to_csv,
    "json": _to_json,
}
