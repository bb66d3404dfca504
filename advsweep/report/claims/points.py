"""Claims about a column over another one or a config key: a line, ranks, or a shape."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.special import ndtri

from advsweep.errors import ConfigError, NotFoundError, ReportError
from advsweep.report.claims.assertions import ClaimVerdict, Finding
from advsweep.report.claims.kinds import (
    Kind,
    above_chance,
    by_interval,
    by_p_value,
    check_mapping,
    choose,
    show_interval,
)
from advsweep.report.data.runs import name_group, split_list
from advsweep.report.tables.comparison import LEVEL, MOST_SEEDS, BaselineRows, parse_baseline
from advsweep.report.tables.types import Report, Row
from advsweep.statistics import (
    Comparison,
    Regression,
    compare_paired,
    correlation_interval,
    correlation_p_value,
    rank_correlation,
    regress,
)
from advsweep.writing import show

if TYPE_CHECKING:
    from advsweep.report.claims.lists import Claim
    from advsweep.report.claims.reports import ClaimReports

_POWER = 0.8
_SLOPES = {"rises": 1, "falls": -1}
_EXTREMA = {"maximum inside": 1, "minimum inside": -1}
_POINTS = {"runs": True, "rows": False}


@dataclass(frozen=True)
class Trend(Kind):
    """A column rises or falls with another column or a config key, along a line or by rank.

    Attributes:
        of, over: the column, and the column or key.
        sign: 1 if it is to rise, -1 if it is to fall.
        by_rank: Spearman's rank correlation decides, by its permutation test; otherwise the slope.
        of_runs: each run is a point; otherwise the mean of each row.
        within: config keys; the slope is that among rows with the same values of these keys.
        r2: the least share of the variance that the line must explain; None for the slope alone.
        gain: two rows; points are how much the first is above the second in the same setting,
            paired by seed, over the place of the second. Empty for the values of all rows.
    """

    of: str
    over: str
    sign: int
    by_rank: bool
    of_runs: bool
    within: tuple[str, ...] = ()
    r2: float | None = None
    gain: tuple[str, ...] = ()

    @classmethod
    def parse(cls, given: Any, name: str) -> Trend:
        return cls._parse(given, f"{name}: trend", by_rank=False)

    @classmethod
    def parse_rank(cls, given: Any, name: str) -> Trend:
        return cls._parse(given, f"{name}: rank", by_rank=True)

    @classmethod
    def _parse(cls, given: Any, name: str, *, by_rank: bool) -> Trend:
        options = ("points", "gain") if by_rank else ("points", "gain", "within", "r2")
        check_mapping(given, ("of", "over", "direction"), options, name)
        within = given.get("within", [])
        within = split_list(within) if isinstance(within, str) else within
        if not isinstance(within, list) or not all(isinstance(key, str) for key in within):
            raise ConfigError(f"{name}.within: expected a list of keys, got {within!r}")
        r2 = given.get("r2")
        if r2 is not None and (not isinstance(r2, (int, float)) or not 0 < r2 < 1):
            raise ConfigError(f"{name}.r2: expected a number in (0, 1), got {r2!r}")
        gain: tuple[str, ...] = ()
        if "gain" in given:
            check_mapping(given["gain"], ("of", "than"), (), f"{name}.gain")
            gain = str(given["gain"]["of"]), str(given["gain"]["than"])
        of, over = str(given["of"]), str(given["over"])
        text = f"gain of [{gain[0]}] over [{gain[1]}] in {of}" if gain else of
        text += f" {given['direction']} with {over}"
        text += " by rank" if by_rank else ""
        text += f" within {', '.join(within)}" if within else ""
        text += f" with R² >= {r2:g}" if r2 is not None else ""
        return cls(
            text,
            (of,),  # it may be over a config key, which is no column
            (),
            of,
            over,
            choose(_SLOPES, given["direction"], f"{name}.direction"),
            by_rank,
            choose(_POINTS, given.get("points", "rows"), f"{name}.points"),
            tuple(within),
            None if r2 is None else float(r2),
            gain,
        )

    def judge(self, reports: ClaimReports, claim: Claim) -> Finding:
        xs, ys, groups = self._points(_report_over(reports, claim, self.of, self.over))
        unit = "runs" if self.of_runs else "rows"
        finding = self._judge_rank(xs, ys) if self.by_rank else self._judge_line(xs, ys, groups)
        finding = replace(finding, reason=f"{finding.reason} over {finding.n} {unit}", unit=unit)
        return above_chance(finding, reports, claim, {self.of: []})

    def _judge_rank(self, xs: Sequence[float], ys: Sequence[float]) -> Finding:
        found = rank_correlation(xs, ys)
        shown = "" if math.isnan(found.low) else f", {show_interval(found.low, found.high)}"
        reason = (
            f"{self.text}: ρ = {found.value:+.3f}{shown}, p = {found.p_value:.3g} (permutations)"
        )
        numbers = found.value, found.low, found.high, found.n, found.p_value
        return Finding(by_p_value(found.value, found.p_value, self.sign), reason, *numbers)

    def _judge_line(
        self, xs: Sequence[float], ys: Sequence[float], groups: Sequence[str]
    ) -> Finding:
        line = regress(xs, ys, groups if self.within else None)
        slope = line.slope
        verdict = by_interval(slope.low, slope.high, self.sign)
        p_value, bounds = line.p_value, ""
        if self.r2 is not None:
            verdict, p_value, bounds = self._judge_r2(line, self.r2)
        half, needed = (slope.high - slope.low) / 2, None
        if math.isfinite(half) and half > 0 and slope.value:
            # Points for a power of 80 %, by the normal approximation.
            quantiles = float(ndtri(1 - LEVEL / 2)), float(ndtri(_POWER))
            ratio = sum(quantiles) / quantiles[0] * half / abs(slope.value)
            needed = min(math.ceil(line.n * ratio**2), MOST_SEEDS + 1)
        reason = (
            f"{self.text}: slope {slope.value:+.4g}, {show_interval(slope.low, slope.high)}, "
            f"R² = {show(line.r_squared.value)}{bounds}"
        )
        numbers = slope.value, slope.low, slope.high, line.n, p_value
        return Finding(verdict, reason, *numbers, needed=needed)

    def _judge_r2(self, line: Regression, least: float) -> tuple[ClaimVerdict, float, str]:
        """Judge R² of at least a value by Fisher's interval of the correlation.

        The correlation has the sign of the slope in the claimed direction, so that a line in the
        other direction explains nothing of what is claimed. Each group's intercept takes a point.
        """
        n = line.n - (line.groups - 1)
        share = line.r_squared.value
        size = 0.0 if math.isnan(share) else math.sqrt(share)
        r = math.copysign(size, line.slope.value * self.sign)
        low, high = correlation_interval(r, n)
        bound = math.sqrt(least)
        verdict = ClaimVerdict.CANNOT_TELL
        if low >= bound:
            verdict = ClaimVerdict.HOLDS
        elif high < bound:
            verdict = ClaimVerdict.CONTRADICTED
        ends = [show(max(end, 0.0) ** 2) for end in (low, high)]
        shown = "" if math.isnan(low) else f", 95 % interval [{ends[0]}, {ends[1]}]"
        return verdict, correlation_p_value(r, n, bound), shown

    def _points(self, report: Report) -> tuple[list[float], list[float], list[str]]:
        """Return the points' x, y and the values of the keys that the trend is within, as JSON."""
        for key in self.within:
            if not any(key in row.group for row in report.rows):
                raise ReportError(
                    f"'{key}', which the trend is within, tells no rows apart; expected some of "
                    f"{', '.join(report.keys)}"
                )
        trained = [row for row in report.rows if not row.is_base]
        pairs = self._pairs(report, trained) if self.gain else [(row, row) for row in trained]
        points: list[tuple[float, float, str]] = []
        for row, other in pairs:
            places, ys = _places(other, self.over), row.by_seed(self.of)
            if self.gain:
                others = other.by_seed(self.of)
                ys = {seed: y - others[seed] for seed, y in ys.items() if seed in others}
            found = [
                (places[seed], y)
                for seed, y in ys.items()
                if seed in places and math.isfinite(places[seed] + y)
            ]
            if not self.of_runs and found:
                x, y = (math.fsum(values) / len(found) for values in zip(*found, strict=True))
                found = [(x, y)]
            group = json.dumps([row.group.get(key) for key in self.within])
            points += [(x, y, group) for x, y in found]
        return [x for x, _, _ in points], [y for _, y, _ in points], [g for _, _, g in points]

    def _pairs(self, report: Report, rows: Sequence[Row]) -> list[tuple[Row, Row]]:
        """Return each row of the gain's first name with that of the second in its setting."""

        def chosen(name: str) -> BaselineRows:
            try:
                return parse_baseline(name, rows, report.keys[0])
            except NotFoundError as error:
                raise NotFoundError(str(error).replace("--baseline", "gain")) from None

        own, baseline = map(chosen, self.gain)
        pairs = []
        for row in rows:
            if all(row.group.get(key, own) == value for key, value in own.values.items()):
                index = baseline.of(row, rows)
                pairs += [] if index is None else [(row, rows[index])]
        return pairs


def _places(row: Row, over: str) -> dict[int, float]:
    """Return where each seed of a row lies: its value of a key, or of a column."""
    value = row.group.get(over)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return dict.fromkeys(row.seeds, float(value))
    return row.by_seed(over) if over in row.cells else {}


def _report_over(reports: ClaimReports, claim: Claim, of: str, over: str) -> Report:
    """Return a report with the column `over`, unless that is a config key of its rows."""
    report = reports.of(claim)
    return report if over in report.keys else reports.build(claim, (of, over))


@dataclass(frozen=True)
class Shape(Kind):
    """A column has its best value between the ends of another column or a config key.

    Seeds are the unit. It holds if (1) the quadratic of least squares through each seed's rows
    rises at the lower end and falls at the upper one, each slope by its t-test over seeds (Lind and
    Mehlum, 2010), and (2) the best inner row is beyond both end rows, paired by seed, with p
    multiplied by the number of inner rows that it was chosen from. An end whose slope has the other
    sign, and whose row is beyond every inner one, contradicts it.

    Attributes:
        sign: 1 for a maximum, -1 for a minimum.
        log: whether the quadratic is of the logarithm of `over`.
    """

    of: str
    over: str
    sign: int
    log: bool

    @classmethod
    def parse(cls, given: Any, name: str) -> Shape:
        name = f"{name}: shape"
        check_mapping(given, ("of", "over", "has"), ("log",), name)
        of, over, log = str(given["of"]), str(given["over"]), given.get("log", False)
        if not isinstance(log, bool):
            raise ConfigError(f"{name}.log: expected true or false, got {log!r}")
        sign = choose(_EXTREMA, given["has"], f"{name}.has")
        text = f"{of} over {'log ' if log else ''}{over} has a {given['has']}"
        return cls(text, (of,), (), of, over, sign, log)

    def judge(self, reports: ClaimReports, claim: Claim) -> Finding:
        places, table = self._by_seed(_report_over(reports, claim, self.of, self.over))
        xs = np.log(places) if self.log else places
        scaled = (xs - xs[0]) / (xs[-1] - xs[0])
        design = np.stack([np.ones_like(scaled), scaled, scaled**2], axis=1)
        _, linear, square = np.linalg.lstsq(design, self.sign * table.T, rcond=None)[0]
        ends = [_over_seeds(linear), _over_seeds(-(linear + 2 * square))]
        inner = 1 + int(np.argmax(self.sign * table[:, 1:-1].mean(axis=0)))
        beyond = [_over_seeds(self.sign * (table[:, inner] - table[:, end])) for end in (0, -1)]
        if all(c.difference > 0 for c in (*ends, *beyond)):
            tried = len(xs) - 2
            p_value = max(
                *(c.p_value for c in ends), *(min(1.0, tried * c.p_value) for c in beyond)
            )
            verdict = ClaimVerdict.HOLDS
        else:
            wrong = [
                min(1.0, 2 * slope.p_value)
                for slope, rows in zip(ends, beyond, strict=True)
                if slope.difference < 0 and rows.difference <= 0
            ]
            p_value = min(wrong, default=1.0)
            verdict = ClaimVerdict.CONTRADICTED
        slopes = []
        for x, c, side in zip((places[0], places[-1]), ends, (self.sign, -self.sign), strict=True):
            low, high = sorted((side * c.low, side * c.high))
            slopes.append(f"at {x:g} {side * c.difference:+.4g} [{low:+.4g}, {high:+.4g}]")
        worst = min(beyond, key=lambda c: c.difference)
        reason = (
            f"{self.text}: the best inner row is at {places[inner]:g}, by {worst.difference:+.4g} "
            f"{show_interval(worst.low, worst.high)} beyond the better end; slopes of the "
            f"quadratic over the whole range {', '.join(slopes)}; over {len(table)} seeds of "
            f"{len(xs)} rows"
        )
        verdict = verdict if p_value <= LEVEL else ClaimVerdict.CANNOT_TELL
        numbers = worst.difference, worst.low, worst.high, len(table), p_value
        finding = Finding(verdict, reason, *numbers)
        return above_chance(finding, reports, claim, {self.of: []})

    def _by_seed(self, report: Report) -> tuple[np.ndarray, np.ndarray]:
        """Return the places of rows, rising, and the values [seeds, rows] of seeds that all have.

        Raises:
            ReportError: fewer than three rows, several rows at one place, or fewer than two seeds.
        """
        places: dict[float, Row] = {}
        for row in report.rows:
            own = [x for x in _places(row, self.over).values() if math.isfinite(x)]
            if row.is_base or not own:
                continue
            x = own[0] if self.over in row.group else row.cells[self.over].mean
            if x in places:
                some = " and ".join(name_group(r.group) for r in (places[x], row))
                raise ReportError(
                    f"{self.text}: expected one row at each value of {self.over}, got {some} at "
                    f"{show(x)}; choose rows with `where`"
                )
            places[x] = row
        if len(places) < 3:
            raise ReportError(f"{self.text}: expected rows at 3 places or more, got {len(places)}")
        xs = np.array(sorted(places))
        if self.log and xs[0] <= 0:
            raise ReportError(f"{self.text}: a logarithm needs values above 0, got {xs[0]:g}")
        values = [places[x].by_seed(self.of) for x in xs]
        finite = [{s for s, v in own.items() if math.isfinite(v)} for own in values]
        seeds = sorted(set.intersection(*finite))
        if len(seeds) < 2:
            missing = "that takes two seeds or more that all of its rows have"
            raise ReportError(f"{self.text}: {missing}")
        return xs, np.array([[own[seed] for own in values] for seed in seeds])


def _over_seeds(values: np.ndarray) -> Comparison:
    """Compare numbers of seeds with 0; p of equal numbers is 0, or 1 if they are 0."""
    return compare_paired(values, np.zeros(len(values)))
