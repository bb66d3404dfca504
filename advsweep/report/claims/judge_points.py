"""Claims about points: trends, rank correlations, and shapes with an extremum inside."""

from __future__ import annotations

import math

import numpy as np
from scipy.special import ndtri

from advsweep.errors import ReportError
from advsweep.report.claims.claim_reports import ClaimReports
from advsweep.report.claims.expressions import ClaimVerdict
from advsweep.report.claims.findings import (
    Finding,
    by_interval,
    by_p_value,
    interval_text,
)
from advsweep.report.claims.kinds import Rank, Shape, Trend
from advsweep.report.claims.lists import Claim
from advsweep.report.claims.points import place_of, points_of
from advsweep.report.tables.comparison import LEVEL, MOST_SEEDS, name_group
from advsweep.report.tables.layout import show
from advsweep.report.tables.types import Report, Row
from advsweep.statistics import (
    CommonSlope,
    Comparison,
    Estimate,
    Regression,
    compare_paired,
    correlation_interval,
    correlation_p_value,
    rank_correlation,
    regress,
    regress_within,
)

_POWER = 0.8


def judge_trend(reports: ClaimReports, claim: Claim, trend: Trend) -> Finding:
    """Judges the slope of a line, or with `r2` the correlation along it."""
    report = _report_over(reports, claim, trend.of, trend.over)
    points = points_of(
        report, trend.of, trend.over, trend.points, within=trend.within, gain=trend.gain
    )
    xs, ys = [point.x for point in points], [point.y for point in points]
    line: Regression | CommonSlope
    if trend.within:
        line = regress_within(xs, ys, [point.group for point in points])
    else:
        line = regress(xs, ys)
    unit = trend.points.value
    verdict = by_interval(line.slope.low, line.slope.high, trend.direction.sign)
    p_value, bounds = line.p_value, ""
    if trend.r2 is not None:
        verdict, p_value, bounds = _judge_r2(line, trend, trend.r2)
    return Finding(
        verdict,
        f"{trend.text}: slope {line.slope.value:+.4g}, "
        f"{interval_text(line.slope.low, line.slope.high)}, "
        f"R² = {show(line.r_squared.value)}{bounds} over {line.n} {unit}",
        line.slope.value,
        line.slope.low,
        line.slope.high,
        n=line.n,
        p_value=p_value,
        needed=_points_needed(line.slope, line.n),
        unit=unit,
    )


def _judge_r2(
    line: Regression | CommonSlope, trend: Trend, least: float
) -> tuple[ClaimVerdict, float, str]:
    """Judges R² of at least a value by Fisher's interval of the correlation.

    The correlation has the sign of the slope in the claimed direction, so that a line in the other
    direction explains nothing of what is claimed. Each group's intercept takes a point.
    """
    n = line.n - (line.groups - 1 if isinstance(line, CommonSlope) else 0)
    size = math.sqrt(line.r_squared.value) if line.r_squared.value == line.r_squared.value else 0.0
    r = math.copysign(size, line.slope.value * trend.direction.sign)
    low, high = correlation_interval(r, n)
    bound = math.sqrt(least)
    verdict = ClaimVerdict.CANNOT_TELL
    if low >= bound:
        verdict = ClaimVerdict.HOLDS
    elif high < bound:
        verdict = ClaimVerdict.CONTRADICTED
    ends = [max(end, 0.0) ** 2 for end in (low, high)]
    shown = f", 95 % interval [{show(ends[0])}, {show(ends[1])}]" if low == low else ""
    return verdict, correlation_p_value(r, n, bound), shown


def judge_rank(reports: ClaimReports, claim: Claim, kind: Rank) -> Finding:
    """Judges Spearman's rank correlation by its permutation test."""
    report = _report_over(reports, claim, kind.of, kind.over)
    points = points_of(report, kind.of, kind.over, kind.points, gain=kind.gain)
    found = rank_correlation([point.x for point in points], [point.y for point in points])
    shown = "" if math.isnan(found.low) else f", {interval_text(found.low, found.high)}"
    return Finding(
        by_p_value(found.value, found.p_value, kind.direction.sign),
        f"{kind.text}: ρ = {found.value:+.3f}{shown}, p = {found.p_value:.3g} (permutations) over "
        f"{found.n} {kind.points.value}",
        found.value,
        found.low,
        found.high,
        n=found.n,
        p_value=found.p_value,
        unit=kind.points.value,
    )


def judge_shape(reports: ClaimReports, claim: Claim, kind: Shape) -> Finding:
    """Judges an extremum inside; seeds are the unit.

    It holds if (1) the quadratic of least squares through each seed's rows rises at the lower end
    and falls at the upper one, each slope by its t-test over seeds (Lind and Mehlum, 2010), and
    (2) the best inner row is beyond both end rows, paired by seed, with p multiplied by the
    number of inner rows that it was chosen from. An end whose slope has the other sign, and whose
    row is beyond every inner one, contradicts it.

    Raises:
        ReportError: fewer than three rows, or several rows at one place.
    """
    report = _report_over(reports, claim, kind.of, kind.over)
    places, table, seeds = _by_seed(report, kind)
    sign = kind.has.sign
    xs = np.log(places) if kind.log else places
    scaled = (xs - xs[0]) / (xs[-1] - xs[0])
    design = np.stack([np.ones_like(scaled), scaled, scaled**2], axis=1)
    coefficients = np.linalg.lstsq(design, sign * table.T, rcond=None)[0]
    _, linear, square = coefficients
    ends = [_over_seeds(linear), _over_seeds(-(linear + 2 * square))]
    inner = 1 + int(np.argmax(sign * table[:, 1:-1].mean(axis=0)))
    beyond = [_over_seeds(sign * (table[:, inner] - table[:, end])) for end in (0, -1)]
    tried = len(xs) - 2
    parts = [*(c.p_value for c in ends), *(min(1.0, tried * c.p_value) for c in beyond)]
    wrong = [
        min(1.0, 2 * slope.p_value)
        for slope, rows in zip(ends, beyond, strict=True)
        if slope.difference < 0 and rows.difference <= 0
    ]
    worst = min(beyond, key=lambda c: c.difference)
    if all(c.difference > 0 for c in (*ends, *beyond)):
        p_value = max(parts)
        verdict = ClaimVerdict.HOLDS if p_value <= LEVEL else ClaimVerdict.CANNOT_TELL
    else:
        p_value = min(wrong, default=1.0)
        verdict = ClaimVerdict.CONTRADICTED if p_value <= LEVEL else ClaimVerdict.CANNOT_TELL
    slopes = ", ".join(
        f"at {x:g} {sign * side * c.difference:+.4g} "
        f"[{min(sign * side * c.low, sign * side * c.high):+.4g}, "
        f"{max(sign * side * c.low, sign * side * c.high):+.4g}]"
        for x, c, side in zip((places[0], places[-1]), ends, (1, -1), strict=True)
    )
    return Finding(
        verdict,
        f"{kind.text}: the best inner row is at {places[inner]:g}, by {worst.difference:+.4g} "
        f"{interval_text(worst.low, worst.high)} beyond the better end; slopes of the quadratic "
        f"over the whole range {slopes}; over {len(seeds)} seeds of {len(xs)} rows",
        worst.difference,
        worst.low,
        worst.high,
        n=len(seeds),
        p_value=p_value,
    )


def _by_seed(report: Report, kind: Shape) -> tuple[np.ndarray, np.ndarray, list[int]]:
    """Returns the places of rows, rising, and the values [seeds, rows] of seeds that all have."""
    places: dict[float, Row] = {}
    for row in report.rows:
        x = math.nan if row.is_base else place_of(row, kind.over)
        if not math.isfinite(x):
            continue
        if x in places:
            some = " and ".join(name_group(r.group) for r in (places[x], row))
            raise ReportError(
                f"{kind.text}: expected one row at each value of {kind.over}, got {some} at "
                f"{show(x)}; choose rows with `where`"
            )
        places[x] = row
    if len(places) < 3:
        raise ReportError(f"{kind.text}: expected rows at 3 places or more, got {len(places)}")
    xs = np.array(sorted(places))
    if kind.log and xs[0] <= 0:
        raise ReportError(f"{kind.text}: a logarithm needs values above 0, got {xs[0]:g}")
    values = [places[x].by_seed(kind.of) for x in xs]
    finite = [{s for s, v in own.items() if math.isfinite(v)} for own in values]
    seeds = sorted(set.intersection(*finite))
    if len(seeds) < 2:
        raise ReportError(f"{kind.text}: that takes two seeds or more that all of its rows have")
    table = np.array([[own[seed] for own in values] for seed in seeds])
    return xs, table, seeds


def _over_seeds(values: np.ndarray) -> Comparison:
    """Compares numbers of seeds with 0; p of equal numbers is 0, or 1 if they are 0."""
    return compare_paired(values, np.zeros(len(values)))


def _report_over(reports: ClaimReports, claim: Claim, of: str, over: str) -> Report:
    """Returns a report with the column `over`, unless that is a config key of its rows."""
    report = reports.of(claim)
    return report if over in report.keys else reports.alone(claim, [of, over])


def _points_needed(slope: Estimate, n: int) -> int | None:
    """Estimates the points needed for a power of 80 %, by the normal approximation."""
    half = (slope.high - slope.low) / 2
    if not (math.isfinite(half) and half > 0 and slope.value):
        return None
    quantiles = float(ndtri(1 - LEVEL / 2)), float(ndtri(_POWER))
    ratio = sum(quantiles) / quantiles[0] * half / abs(slope.value)
    return min(math.ceil(n * ratio**2), MOST_SEEDS + 1)
