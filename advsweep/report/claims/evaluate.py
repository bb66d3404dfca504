"""Evaluation of claims against a store: each one holds, is contradicted, or cannot be told."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from scipy.special import ndtri

from advsweep.errors import FitError, ReportError, StoreError
from advsweep.report.claims.expressions import AssertionResult, ClaimVerdict, evaluate_assertion
from advsweep.report.claims.lists import Claim, ClaimList, Slope, Trend
from advsweep.report.figures.chart import PointUnit
from advsweep.report.tables.build import build_report
from advsweep.report.tables.comparison import MOST_SEEDS, count_seeds
from advsweep.report.tables.footnotes import provenance
from advsweep.report.tables.layout import show
from advsweep.report.tables.types import Report
from advsweep.statistics import (
    CommonSlope,
    Estimate,
    Regression,
    benjamini_hochberg,
    regress,
    regress_within,
)
from advsweep.store import Store

LEVEL = 0.05
_POWER = 0.8
# The verdict with the lowest rank among several statements decides on the claim.
_RANK = {ClaimVerdict.CONTRADICTED: 0, ClaimVerdict.CANNOT_TELL: 1, ClaimVerdict.HOLDS: 2}


@dataclass(frozen=True)
class ClaimResult:
    """What the data say about one claim.

    Attributes:
        reason: a sentence with the numbers.
        difference: left side minus right side of the deciding statement, or a trend's slope; NaN
            where there is none. `low` and `high` are the ends of its 95 % interval.
        n: the number of seeds, or of a trend's points.
        p_value: p of the two-sided t-test; NaN where there is nothing to test.
        p_adjusted: p after Benjamini and Hochberg, over all claims of the list.
        more: the number of further seeds (points of a trend) that would decide with a power of
            80 % if the difference is as found; None where it is unknown or 0.
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
    more: int | None = None

    @property
    def survives(self) -> bool:
        """Whether the verdict remains significant after the correction for many claims."""
        return self.verdict is ClaimVerdict.CANNOT_TELL or not self.p_adjusted > LEVEL


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


def evaluate_claims(store: Store, claims: ClaimList) -> ClaimResults:
    """Evaluates every claim of a list on the finished runs of a store.

    A claim cannot be told if the store lacks its runs or its metric.

    Raises:
        ConfigError: a claim is ambiguous; the message names it.
    """
    reports = _Reports(store, claims.claims)
    results = [_evaluate(claim, reports) for claim in claims.claims]
    adjusted = benjamini_hochberg([result.p_value for result in results])
    return ClaimResults(
        title=claims.title,
        results=tuple(
            replace(a, p_adjusted=float(p)) for a, p in zip(results, adjusted, strict=True)
        ),
        provenance=tuple(reports.provenance),
    )


class _Reports:
    """Reports of the runs that claims are about; claims about the same runs share one."""

    def __init__(self, store: Store, claims: Sequence[Claim]) -> None:
        self._store = store
        self._columns: dict[object, list[str]] = {}
        for claim in claims:
            known = self._columns.setdefault(_runs_of(claim), [])
            known += [c for c in _columns_of(claim) if c not in known]
        self._built: dict[object, Report | None] = {}
        self._used: list[Report] = []

    @property
    def provenance(self) -> list[str]:
        """Sentences about the source of the numbers; each run counts once."""
        lines: dict[str, None] = {}
        for report in self._used:
            alike = [r for r in self._used if r.provenance.sweep == report.provenance.sweep]
            own = [r.provenance for r in alike]
            together = replace(
                report.provenance,
                runs=len(frozenset().union(*(r.run_ids for r in alike))),
                first=min((p.first for p in own if p.first), default=None),
                last=max((p.last for p in own if p.last), default=None),
            )
            lines |= dict.fromkeys(provenance(replace(report, provenance=together)))
        return list(lines)

    def of(self, claim: Claim) -> Report:
        """Returns a report with a claim's columns; raises the errors of `build_report`."""
        key = _runs_of(claim)
        if key not in self._built:
            try:
                self._built[key] = self.alone(claim, self._columns[key])
            except (ReportError, StoreError):
                # One claim's metric may be missing although the others' are there, so each claim
                # gets a report of its own.
                self._built[key] = None
        report = self._built[key] or self.alone(claim, _columns_of(claim))
        self._used += [] if report in self._used else [report]
        return report

    def alone(self, claim: Claim, columns: Sequence[str]) -> Report:
        """Builds a report of a claim's runs that no other claim shares."""
        return build_report(
            self._store,
            claim.sweep,
            columns=columns,
            rows=claim.rows,
            where=claim.where,
            at=claim.at,
            baseline="none",
        )


def _runs_of(claim: Claim) -> object:
    where = tuple(filter.text for filter in claim.where)
    return claim.sweep, where, claim.at, claim.rows


def _columns_of(claim: Claim) -> list[str]:
    if claim.trend is not None:
        # A trend may be over a config key, which is not a column.
        return [claim.trend.of]
    return list(dict.fromkeys(c for statement in claim.statements for c in statement.columns))


def _evaluate(claim: Claim, reports: _Reports) -> ClaimResult:
    try:
        if claim.trend is not None:
            return _evaluate_trend(claim, claim.trend, reports)
        report = reports.of(claim)
        results = [evaluate_assertion(report, statement) for statement in claim.statements]
    except (ReportError, StoreError, FitError) as error:
        return ClaimResult(claim, ClaimVerdict.CANNOT_TELL, str(error))
    return _decide(claim, results)


def _decide(claim: Claim, results: Sequence[AssertionResult]) -> ClaimResult:
    """Returns the result of the deciding statement: the one with the worst verdict."""
    deciding = min(results, key=lambda j: (_RANK[j.verdict], -_p_value(j)))
    comparison = deciding.comparison
    result = ClaimResult(claim, deciding.verdict, deciding.text)
    if comparison is None:
        return result
    result = replace(
        result,
        difference=comparison.difference,
        low=comparison.low,
        high=comparison.high,
        n=comparison.n,
        p_value=_p_value(deciding) if comparison.sd > 0 else math.nan,
    )
    needed = count_seeds(comparison, comparison.difference)
    return _with_seeds(result, needed, "seeds")


def _p_value(result: AssertionResult) -> float:
    comparison = result.comparison
    return 1.0 if comparison is None or math.isnan(comparison.p_value) else comparison.p_value


def _with_seeds(result: ClaimResult, needed: int | None, unit: str) -> ClaimResult:
    """Withdraws the verdict if the claim requires more seeds, and counts the missing ones."""
    required = result.claim.seeds
    if result.n < required and result.verdict is not ClaimVerdict.CANNOT_TELL:
        reason = result.reason.removeprefix(f"{result.verdict.value}: ")
        result = replace(
            result,
            verdict=ClaimVerdict.CANNOT_TELL,
            reason=f"{ClaimVerdict.CANNOT_TELL.value}: {reason}; the claim asks for {required} "
            f"{unit}, and there are {result.n}",
        )
    if result.verdict is not ClaimVerdict.CANNOT_TELL:
        return result
    more = max((needed or 0) - result.n, required - result.n)
    return replace(result, more=more if more > 0 else None)


def _evaluate_trend(claim: Claim, trend: Trend, reports: _Reports) -> ClaimResult:
    report = reports.of(claim)
    if trend.over not in report.keys:
        report = reports.alone(claim, [trend.of, trend.over])
    points = _points(report, trend)
    xs, ys = [point.x for point in points], [point.y for point in points]
    line: Regression | CommonSlope
    if trend.within:
        line = regress_within(xs, ys, [point.group for point in points])
    else:
        line = regress(xs, ys)
    verdict = _trend_verdict(trend, line.slope)
    unit = trend.points.value
    result = ClaimResult(
        claim,
        verdict,
        f"{verdict.value}: {trend.text}: slope {line.slope.value:+.4g}, 95 % interval "
        f"[{line.slope.low:+.4g}, {line.slope.high:+.4g}], R² = {show(line.r_squared.value)} over "
        f"{line.n} {unit}",
        difference=line.slope.value,
        low=line.slope.low,
        high=line.slope.high,
        n=line.n,
        p_value=line.p_value,
    )
    return _with_seeds(result, _points_needed(line.slope, line.n), unit)


class _Point(NamedTuple):
    """A point of a trend: a run, or the mean of a row's runs.

    Attributes:
        x: the value that the trend is over.
        y: the value of the trend's column.
        group: the values of the keys that the trend is within, as JSON.
    """

    x: float
    y: float
    group: str


def _points(report: Report, trend: Trend) -> list[_Point]:
    """Returns the points of a trend.

    Raises:
        ReportError: no row has a key that the trend is within.
    """
    for key in trend.within:
        if not any(key in row.group for row in report.rows):
            raise ReportError(
                f"'{key}', which the trend is within, tells no rows apart; expected some of "
                f"{', '.join(report.keys)}"
            )
    points: list[_Point] = []
    for row in report.rows:
        if row.is_base:
            continue
        ys = row.cells[trend.of].values
        over = row.group.get(trend.over)
        if isinstance(over, (int, float)):
            xs: Sequence[float] = [float(over)] * len(ys)
        elif trend.over in row.cells:
            xs = row.cells[trend.over].values
        else:
            continue
        pairs = [(x, y) for x, y in zip(xs, ys, strict=True) if math.isfinite(x + y)]
        if trend.points is PointUnit.ROWS and pairs:
            x, y = (math.fsum(values) / len(pairs) for values in zip(*pairs, strict=True))
            pairs = [(x, y)]
        group = json.dumps([row.group.get(key) for key in trend.within])
        points += [_Point(x, y, group) for x, y in pairs]
    return points


def _trend_verdict(trend: Trend, slope: Estimate) -> ClaimVerdict:
    low, high = slope.low, slope.high
    if trend.direction is Slope.FALLS:
        low, high = -high, -low
    if low > 0:
        return ClaimVerdict.HOLDS
    return ClaimVerdict.CONTRADICTED if high < 0 else ClaimVerdict.CANNOT_TELL


def _points_needed(slope: Estimate, n: int) -> int | None:
    """Estimates the points needed for a power of 80 %, by the normal approximation."""
    half = (slope.high - slope.low) / 2
    if not (math.isfinite(half) and half > 0 and slope.value):
        return None
    quantiles = float(ndtri(1 - LEVEL / 2)), float(ndtri(_POWER))
    ratio = sum(quantiles) / quantiles[0] * half / abs(slope.value)
    return min(math.ceil(n * ratio**2), MOST_SEEDS)
