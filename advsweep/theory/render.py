"""Results of the checks as text, in every format of claims."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from advsweep.report.claims.expressions import ClaimVerdict
from advsweep.theory.types import Finding, TheoryResult
from advsweep.writing import Document, Entry, Heading, Line, Table, write


def render_theory(results: Sequence[TheoryResult], format: str = "table") -> str:
    """Renders results as text that ends with a line break.

    Raises:
        ConfigError: there is no such format.
    """
    if format == "csv":
        return write([_plain(one) for one in results], format)
    if format == "json":
        return write(
            {
                "checks": [
                    {
                        **_plain(r),
                        "findings": [
                            {**_plain_finding(f), "holds": f.holds, "comparisons": f.comparisons}
                            for f in r.findings
                        ],
                    }
                    for r in results
                ]
            },
            format,
        )
    return write(_lay_out(results), format)


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
