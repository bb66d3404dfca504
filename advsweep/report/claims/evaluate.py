"""Evaluation of claims against a store: each holds, is contradicted, or has another verdict."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from advsweep.errors import FitError, NotFoundError, ReportError, StoreError, counted, first_of
from advsweep.report.claims.chance import ChanceTest
from advsweep.report.claims.claim_reports import ClaimReports, columns_of, untreated
from advsweep.report.claims.expressions import (
    DECIDED,
    ClaimVerdict,
    correct,
    find_row,
)
from advsweep.report.claims.findings import Finding
from advsweep.report.claims.judge_points import judge_rank, judge_shape, judge_trend
from advsweep.report.claims.judge_rows import (
    judge_change,
    judge_equivalence,
    judge_failures,
    judge_spread,
    judge_statements,
    on_columns,
    withhold,
)
from advsweep.report.claims.kinds import (
    Equivalence,
    Failures,
    Rank,
    RelativeChange,
    Shape,
    Spread,
    Statements,
    Trend,
)
from advsweep.report.claims.lists import Claim, ClaimList
from advsweep.report.data.columns import REACHED
from advsweep.report.data.outcomes import find_outcome
from advsweep.report.tables.comparison import name_group
from advsweep.report.tables.layout import show
from advsweep.report.tables.types import Report, Row, SpreadKind
from advsweep.statistics import benjamini_hochberg
from advsweep.store import Store

_NAMED = 6  # rows in a sentence


@dataclass(frozen=True)
class ClaimResult:
    """What the data say about one claim.

    Attributes:
        reason: a sentence with the verdict and the numbers.
        difference: left side minus right side of the deciding statement, or a trend's slope; NaN
            where there is none. `low` and `high` are the ends of its 95 % interval.
        n: the number of seeds, of points, or of runs that may fail.
        p_value: p of the two-sided test; NaN where there is nothing to test.
        p_adjusted: p after Benjamini and Hochberg. A claim about the difference of two rows in a
            primary outcome has that of the report of its runs with one of them as the baseline;
            others are corrected among themselves.
        family: what p is adjusted over; empty without a p.
        more: the number of further seeds (points of a trend) that would decide with a power of
            80 % if the difference is as found; None where it is unknown or 0.
        by_construction: whether it holds because the estimator defines the number so.
    """

    claim: Claim
    verdict: ClaimVerdict
    reason: str
    difference: float = math.nan
    low: float = math.nan
    high: float = math.nan
    n: int = 0
    p_value: float = math.nan
    p_adjusted: float = math.nan
    family: str = ""
    more: int | None = None
    by_construction: bool = False


@dataclass(frozen=True)
class ClaimResults:
    """The results of a list of claims, in its order.

    Attributes:
        provenance: sentences about the source of the numbers.
    """

    title: str
    results: tuple[ClaimResult, ...]
    provenance: tuple[str, ...]

    def count(self, verdict: ClaimVerdict) -> int:
        return sum(result.verdict is verdict for result in self.results)


def evaluate_claims(
    store: Store, claims: ClaimList, spread: SpreadKind = SpreadKind.POOLED
) -> ClaimResults:
    """Evaluate every claim of a list on the finished runs of a store.

    A claim cannot be told if its runs are not finished; it is not judged if it names a sweep, a
    row, a column or a metric that does not exist.

    Args:
        spread: the spread that intervals of differences rest on.

    Raises:
        ConfigError: a claim is ambiguous; the message names it.
    """
    reports = ClaimReports(store, claims.claims, claims.outcomes, spread)
    results = [_evaluate(claim, reports) for claim in claims.claims]
    alone = [math.nan if result.family else result.p_value for result in results]
    adjusted = benjamini_hochberg(alone)
    size = sum(not math.isnan(p) for p in alone)
    settled = [
        result if result.family else replace(result, p_adjusted=float(p))
        for result, p in zip(results, adjusted, strict=True)
    ]
    return ClaimResults(
        title=claims.title,
        results=tuple(_settle(result, reports, size) for result in settled),
        provenance=tuple(reports.provenance),
    )


def _settle(result: ClaimResult, reports: ClaimReports, size: int) -> ClaimResult:
    """Add what p is adjusted over, and withdraw a verdict that the adjusted p does not bear out.

    Args:
        size: the number of tests that are corrected among themselves.
    """
    if math.isnan(result.p_adjusted):
        return result
    family = result.family
    if not family:
        tests = counted(size, "test")
        family = f"{tests} of this list: {_why_apart(result.claim, reports)}"
    verdict, reason = correct(result.verdict, result.reason, result.p_adjusted, family)
    return replace(result, verdict=verdict, reason=reason, family=family)


def _why_apart(claim: Claim, reports: ClaimReports) -> str:
    """Say why a claim is not about a primary difference of the report of its runs."""
    if isinstance(claim.kind, Failures):
        return "numbers of failed runs are no primary outcome"
    report = reports.of(claim)
    columns = [column for column in report.columns if column.name in claim.kind.columns]
    others = [c.name for c in columns if find_outcome(c, report.outcomes) is None]
    if others:
        return f"{first_of(others, _NAMED)} is no primary outcome"
    return "it is no plain difference of two rows"


def _evaluate(claim: Claim, reports: ClaimReports) -> ClaimResult:
    try:
        finding = _judge(claim, reports)
        if claim.confounded:
            finding = withhold(finding, ClaimVerdict.STEP_NOT_MATCHED, "")
        beside, by_construction = _beside(claim, reports, finding)
    except NotFoundError as error:
        verdict = ClaimVerdict.NOT_JUDGED
        return ClaimResult(claim, verdict, f"{verdict.value}: {error}")
    except (ReportError, StoreError, FitError) as error:
        verdict = ClaimVerdict.CANNOT_TELL
        return ClaimResult(claim, verdict, f"{verdict.value}: {error}")
    verdict, reason = finding.verdict, finding.reason
    required = claim.seeds
    if finding.n < required and verdict in DECIDED:
        verdict = ClaimVerdict.CANNOT_TELL
        reason += f"; the claim asks for {required} {finding.unit}, and there are {finding.n}"
    more = None
    if verdict is ClaimVerdict.CANNOT_TELL:
        missing = max((finding.needed or 0) - finding.n, required - finding.n)
        more = missing if missing > 0 else None
    p_adjusted = math.nan if finding.tested is None else finding.tested.p_adjusted
    return ClaimResult(
        claim,
        verdict,
        f"{verdict.value}: {reason}{beside}",
        finding.difference,
        finding.low,
        finding.high,
        n=finding.n,
        p_value=finding.p_value,
        more=more,
        p_adjusted=p_adjusted,
        family="" if math.isnan(p_adjusted) else finding.family,
        by_construction=by_construction and verdict is ClaimVerdict.HOLDS,
    )


def _judge(claim: Claim, reports: ClaimReports) -> Finding:
    chance = ChanceTest(reports, claim)
    if isinstance(claim.kind, Statements):
        return judge_statements(reports.of(claim), claim.kind, chance.of_terms)
    finding = _judge_numbers(claim, reports)
    at_chance = chance.of_claim()
    return withhold(finding, ClaimVerdict.AT_CHANCE, at_chance) if at_chance else finding


def _judge_numbers(claim: Claim, reports: ClaimReports) -> Finding:
    """Judges a claim of another kind than statements by its numbers alone."""
    match claim.kind:
        case Statements() as kind:
            return judge_statements(reports.of(claim), kind)
        case RelativeChange() as kind:
            return judge_change(reports.of(claim), claim, kind)
        case Equivalence() as kind:
            return judge_equivalence(reports.of(claim), kind)
        case Spread() as kind:
            return judge_spread(reports.of(claim), claim, kind)
        case Failures() as kind:
            return judge_failures(reports, claim, kind)
        case Trend() as kind:
            return judge_trend(reports, claim, kind)
        case Rank() as kind:
            return judge_rank(reports, claim, kind)
        case Shape() as kind:
            return judge_shape(reports, claim, kind)


def _beside(claim: Claim, reports: ClaimReports, finding: Finding) -> tuple[str, bool]:
    """Returns what a claim's line shows beside its numbers, and whether it holds by construction.

    These are the runs that reach its cutoffs, and the collapse rate before the estimator's own
    treatment: an estimator that treats collapsed groups has fewer of them by definition.
    """
    if isinstance(claim.kind, Failures):
        return "", False
    report = reports.of(claim)
    origin = f"claim {claim.id}"
    rows = [find_row(report, name, origin) for name in claim.kind.rows]
    rows = [row for row in rows or report.rows if not row.is_base]
    text = "".join(
        _survivors(column, rows) for column in _reached_columns(claim) if column in _names(report)
    )
    raw = untreated(claim.kind.columns)
    if not raw:
        return text, False
    numbers = ", ".join(
        f"{name_group(row.group)} {show(row.cells[column].mean)}"
        for column in raw.values()
        for row in rows[:_NAMED]
    )
    text += f"; before the estimators' own treatment, {', '.join(raw.values())}: {numbers}"
    if not isinstance(claim.kind, (Statements, RelativeChange)):
        return text, False
    same = judge_statements(report, on_columns(claim.kind, raw))
    text += f"; the same claim on it: {same.verdict.value}"
    if finding.verdict is not ClaimVerdict.HOLDS or same.verdict is ClaimVerdict.HOLDS:
        return text, False
    return f"{text}, so that it holds by construction", True


def _reached_columns(claim: Claim) -> list[str]:
    own = [name for name in columns_of(claim) if name.startswith(f"{REACHED}@")]
    return [*own, *([REACHED] if claim.at is not None and not claim.at.is_cost else [])]


def _names(report: Report) -> set[str]:
    return {column.name for column in report.columns}


def _survivors(column: str, rows: Sequence[Row]) -> str:
    """Says how many runs reach a cutoff, by row."""
    shown = []
    for row in rows:
        values = [value for value in row.cells[column].values if not math.isnan(value)]
        reached = sum(value > 0 for value in values)
        shown.append(f"{reached} of {row.n} runs of {name_group(row.group)}")
    more = [counted(len(shown) - _NAMED, "more row")] if len(shown) > _NAMED else []
    where = column.partition("@")[2] or "it"
    return f"; {', '.join([*shown[:_NAMED], *more])} reach {where}" if shown else ""
