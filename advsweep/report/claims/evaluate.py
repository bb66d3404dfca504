"""What a store says of claims: each holds, is contradicted, or cannot be told."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from scipy.special import ndtri

from advsweep.errors import FitError, ReportError, StoreError
from advsweep.report.claims.expressions import Judgement, Verdict, judge
from advsweep.report.claims.lists import Claim, Claims, Slope, Trend
from advsweep.report.data.formatting import show
from advsweep.report.figures.chart import Points
from advsweep.report.tables.build import build_report
from advsweep.report.tables.comparison import MOST_SEEDS, count_seeds
from advsweep.report.tables.footnotes import provenance
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
# From largest to smallest: what decides among several statements.
_RANK = {Verdict.CONTRADICTED: 0, Verdict.CANNOT_TELL: 1, Verdict.HOLDS: 2}


@dataclass(frozen=True)
class Answer:
    """What the data say of one claim.

    Attributes:
        reason: in a sentence, with the numbers.
        difference: of the two sides of the statement that decides, with its 95 % interval; of a
            trend its slope. NaN where there is none.
        n: seeds, or of a trend points, behind it.
        p_value: that of the t-test, two-sided; NaN where there was nothing to test.
        p_adjusted: after Benjamini and Hochberg, over all claims of the list.
        more: how many more seeds (of a trend: points) would tell with a chance of 80 %, were the
            difference as found; None where that cannot be said or is not needed.
    """

    claim: Claim
    verdict: Verdict
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
        """Whether what is told stays told among so many claims."""
        return self.verdict is Verdict.CANNOT_TELL or not self.p_adjusted > LEVEL


@dataclass(frozen=True)
class Answers:
    """The answers to a list of claims, in its order.

    Attributes:
        provenance: sentences about where the numbers come from.
    """

    title: str
    answers: tuple[Answer, ...]
    provenance: tuple[str, ...]

    def count(self, verdict: Verdict) -> int:
        return sum(answer.verdict is verdict for answer in self.answers)


def answer_claims(store: Store, claims: Claims) -> Answers:
    """Judges every claim of a list by the finished runs of a store.

    Claims that the store has no runs or no such metric for cannot be told.

    Raises:
        ConfigError: a claim can be read in several ways; the message names it.
    """
    reports = _Reports(store, claims.claims)
    answers = [_answer(claim, reports) for claim in claims.claims]
    adjusted = benjamini_hochberg([answer.p_value for answer in answers])
    return Answers(
        title=claims.title,
        answers=tuple(
            replace(a, p_adjusted=float(p)) for a, p in zip(answers, adjusted, strict=True)
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
        """Where the numbers of all reports that were used come from; runs count once."""
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
        """The report that has a claim's columns; raises what `build_report` does."""
        key = _runs_of(claim)
        if key not in self._built:
            try:
                self._built[key] = self.alone(claim, self._columns[key])
            except (ReportError, StoreError):
                # One claim's metric may be missing, and the others' there.
                self._built[key] = None
        report = self._built[key] or self.alone(claim, _columns_of(claim))
        self._used += [] if report in self._used else [report]
        return report

    def alone(self, claim: Claim, columns: Sequence[str]) -> Report:
        """A report of a claim's runs that nothing else shares."""
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
        # What it is over may be a config key, which is no column.
        return [claim.trend.of]
    return list(dict.fromkeys(c for statement in claim.statements for c in statement.columns))


def _answer(claim: Claim, reports: _Reports) -> Answer:
    try:
        if claim.trend is not None:
            return _answer_trend(claim, claim.trend, reports)
        report = reports.of(claim)
        judgements = [judge(report, statement) for statement in claim.statements]
    except (ReportError, StoreError, FitError) as error:
        return Answer(claim, Verdict.CANNOT_TELL, str(error))
    return _decide(claim, judgements)


def _decide(claim: Claim, judgements: Sequence[Judgement]) -> Answer:
    """The answer of the statement that decides: the first that is not borne out."""
    deciding = min(judgements, key=lambda j: (_RANK[j.verdict], -_p_value(j)))
    comparison = deciding.comparison
    answer = Answer(claim, deciding.verdict, deciding.text)
    if comparison is None:
        return answer
    answer = replace(
        answer,
        difference=comparison.difference,
        low=comparison.low,
        high=comparison.high,
        n=comparison.n,
        p_value=_p_value(deciding) if comparison.sd > 0 else math.nan,
    )
    needed = count_seeds(comparison, comparison.difference)
    return _with_seeds(answer, needed, "seeds")


def _p_value(judgement: Judgement) -> float:
    comparison = judgement.comparison
    return 1.0 if comparison is None or math.isnan(comparison.p_value) else comparison.p_value


def _with_seeds(answer: Answer, needed: int | None, unit: str) -> Answer:
    """The answer where too few seeds are there to be asked, and how many more it would take."""
    asked = answer.claim.seeds
    if answer.n < asked and answer.verdict is not Verdict.CANNOT_TELL:
        undecided = answer.reason.removeprefix(f"{answer.verdict.value}: ")
        answer = replace(
            answer,
            verdict=Verdict.CANNOT_TELL,
            reason=f"{Verdict.CANNOT_TELL.value}: {undecided}; the claim asks for {asked} {unit}, "
            f"and there are {answer.n}",
        )
    if answer.verdict is not Verdict.CANNOT_TELL:
        return answer
    more = max((needed or 0) - answer.n, asked - answer.n)
    return replace(answer, more=more if more > 0 else None)


def _answer_trend(claim: Claim, trend: Trend, reports: _Reports) -> Answer:
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
    answer = Answer(
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
    return _with_seeds(answer, _points_needed(line.slope, line.n), unit)


class _Point(NamedTuple):
    """A run, or the mean of a row's.

    Attributes:
        x: what a trend is over.
        y: its column.
        group: the values of the keys that it is within.
    """

    x: float
    y: float
    group: str


def _points(report: Report, trend: Trend) -> list[_Point]:
    """
    Raises:
        ReportError: rows are not told apart by a key that the trend is within.
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
        if trend.points is Points.ROWS and pairs:
            x, y = (math.fsum(values) / len(pairs) for values in zip(*pairs, strict=True))
            pairs = [(x, y)]
        group = json.dumps([row.group.get(key) for key in trend.within])
        points += [_Point(x, y, group) for x, y in pairs]
    return points


def _trend_verdict(trend: Trend, slope: Estimate) -> Verdict:
    low, high = slope.low, slope.high
    if trend.direction is Slope.FALLS:
        low, high = -high, -low
    if low > 0:
        return Verdict.HOLDS
    return Verdict.CONTRADICTED if high < 0 else Verdict.CANNOT_TELL


def _points_needed(slope: Estimate, n: int) -> int | None:
    """Points like these that would tell with a chance of 80 %, by the normal approximation."""
    half = (slope.high - slope.low) / 2
    if not (math.isfinite(half) and half > 0 and slope.value):
        return None
    quantiles = float(ndtri(1 - LEVEL / 2)), float(ndtri(_POWER))
    ratio = sum(quantiles) / quantiles[0] * half / abs(slope.value)
    return min(math.ceil(n * ratio**2), MOST_SEEDS)
