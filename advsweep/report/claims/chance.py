"""Whether pass@k of a claim's rows is above chance: at chance it says nothing of a model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from advsweep.report.claims.claim_reports import ClaimReports
from advsweep.report.claims.expressions import Term, find_row
from advsweep.report.claims.kinds import Equivalence, Failures, RelativeChange, Spread
from advsweep.report.claims.lists import Claim
from advsweep.report.tables.chance import chance_column, describe_chance, guess
from advsweep.report.tables.comparison import name_group
from advsweep.report.tables.types import Report, Row, RowKind


class ChanceTest:
    """Compares the base and the baseline of a claim with guessing at the same k.

    The baseline is the row that another is compared with. A claim about points has the mean of
    all bases. Problems that are chosen by solve rates, and tasks that cannot compute the chance of
    a guess, are not tested.
    """

    def __init__(self, reports: ClaimReports, claim: Claim) -> None:
        self._reports = reports
        self._claim = claim

    def of_claim(self) -> str:
        """Says which rows of the claim are at chance; empty if none is."""
        match kind := self._claim.kind:
            case Equivalence():
                return self.of_terms(kind.difference.terms)
            case RelativeChange() | Spread():
                return self._describe(kind.metric, [kind.than])
            case Failures():
                return ""
            case _:
                return "; ".join(filter(None, (self._describe(c, []) for c in kind.columns)))

    def of_terms(self, terms: Sequence[Term]) -> str:
        """Says which rows of an assertion are at chance; those that it subtracts are baselines."""
        baselines: dict[str, list[str]] = {term.column: [] for term in terms}
        for term in terms:
            baselines[term.column] += [term.row] if term.factor < 0 else []
        return "; ".join(filter(None, (self._describe(c, rows) for c, rows in baselines.items())))

    def _describe(self, column: str, baselines: Sequence[str]) -> str:
        plain = chance_column(column)
        if plain is None:
            return ""
        # Bases have no numbers within a training.
        report = self._reports.of(replace(self._claim, at=None))
        guessed = guess(report.rows, plain)
        if math.isnan(guessed):
            return ""
        origin = f"claim {self._claim.id}"
        named = [find_row(report, name, origin) for name in self._claim.kind.rows]
        rows = [*_bases_of(report, named), *(find_row(report, name, origin) for name in baselines)]
        values = {name_group(row.group): row.cells[plain].mean for row in rows}
        if bases := [row.cells[plain].mean for row in _bases(report)] if not named else []:
            values = {"bases": math.fsum(bases) / len(bases)}
        return describe_chance(plain, guessed, values)


def _bases(report: Report) -> list[Row]:
    return [row for row in report.rows if row.kind is RowKind.BASE]


def _bases_of(report: Report, named: Sequence[Row]) -> list[Row]:
    """Returns the bases that some rows start from, as far as their names tell."""
    return [
        base
        for base in _bases(report)
        if any(
            all(row.group.get(key, value) == value for key, value in list(base.group.items())[1:])
            for row in named
        )
    ]
