"""The kinds of claims: how each is written, what it says as text, and how runs judge it.

    statement: 'pass@1[fade] > pass@1[grpo]'                        assertions that must all hold
    metric: pass@1, of: fade, than: grpo, direction: within, margin: 0.02         the same in words
    trend: {of: pass@1, over: collapse/acr, direction: falls}            a line through rows or runs

docs/claims.md says how each kind is judged, with sources.
"""

from __future__ import annotations

import json
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from scipy.special import ndtri

from advsweep.errors import ConfigError, ReportError, nearest
from advsweep.report.claims.assertions import (
    Assertion,
    ClaimVerdict,
    Finding,
    Term,
    compare_sides,
    find_row,
    judge_assertion,
    parse_assertion,
)
from advsweep.report.data.filters import split_list
from advsweep.report.tables.comparison import LEVEL, MOST_SEEDS, count_seeds
from advsweep.report.tables.types import Report, Row
from advsweep.statistics import (
    Comparison,
    Regression,
    correlation_interval,
    correlation_p_value,
    holm,
    ratio_of_means,
    regress,
)
from advsweep.store.seeds import SeedKey
from advsweep.writing import show

if TYPE_CHECKING:
    from advsweep.report.claims.lists import Claim
    from advsweep.report.claims.reports import ClaimReports

# The first verdict among those on the parts of a claim is the claim's.
WORST_FIRST = (
    ClaimVerdict.CONTRADICTED,
    ClaimVerdict.EQUAL,
    ClaimVerdict.STEP_NOT_MATCHED,
    ClaimVerdict.AT_CHANCE,
    ClaimVerdict.CANNOT_TELL,
    ClaimVerdict.NOT_SETTLED,
    ClaimVerdict.HOLDS,
)

_TOST_LEVEL = 0.90  # two one-sided tests at 5 %
_POWER = 0.8
_SLOPES = {"rises": 1, "falls": -1}
_POINTS = {"runs": True, "rows": False}
# The comparison, and the sign of a margin that makes it stricter or more lenient.
_DIRECTIONS = {
    "higher": (">", +1),
    "lower": ("<", -1),
    "not lower": (">=", -1),
    "not higher": ("<=", +1),
}
_PERCENT = re.compile(r"(?P<number>\d+\.?\d*|\.\d+)\s*%")


@dataclass(frozen=True)
class Kind(ABC):
    """What a claim claims.

    Attributes:
        text: the claim as text.
        columns: the columns that it needs.
        rows: the names of the rows that it is about; empty for all.
    """

    text: str
    columns: tuple[str, ...]
    rows: tuple[str, ...]

    @abstractmethod
    def judge(self, reports: ClaimReports, claim: Claim) -> Finding:
        """Return what the runs of a claim say about it.

        Raises:
            NotFoundError: it names what does not exist.
            ReportError, StoreError, FitError: the runs lack what it needs.
        """


def withhold(finding: Finding, verdict: ClaimVerdict, reason: str = "") -> Finding:
    """Return a finding whose numbers are no test of the claim, and why."""
    return replace(
        finding,
        verdict=verdict,
        reason=reason + finding.reason,
        p_value=math.nan,
        p_adjusted=math.nan,
        family="",
        needed=None,
    )


def _above_chance(
    finding: Finding, reports: ClaimReports, claim: Claim, terms: Sequence[Term]
) -> Finding:
    """Withhold the verdict where the base or a row that a term subtracts is at chance."""
    baselines: dict[str, list[str]] = {term.column: [] for term in terms}
    for term in terms:
        if term.factor < 0:
            baselines[term.column].append(term.row)
    reason = reports.describe_chance(claim, baselines)
    if not reason:
        return finding
    return withhold(finding, ClaimVerdict.AT_CHANCE, f"{reason}; ")


def _show_interval(low: float, high: float, level: str = "95") -> str:
    return f"{level} % interval [{low:+.4g}, {high:+.4g}]"


@dataclass(frozen=True)
class Statements(Kind):
    """Assertions that must all hold: the one with the worst verdict decides.

    They hold together if each does, with the largest p. They are contradicted if one is, after the
    correction of Holm for their number.

    Attributes:
        change: metric, row and other row of an only assertion that is a relative change: it is of
            of - (1 ± by) than, whose t-test is Fieller's of the ratio of the means.
    """

    assertions: tuple[Assertion, ...]
    change: tuple[str, str, str] | None = None

    @classmethod
    def of(cls, *assertions: Assertion, change: tuple[str, str, str] | None = None) -> Statements:
        terms = [term for assertion in assertions for term in assertion.terms]
        rows = change[1:] if change else tuple(dict.fromkeys(term.row for term in terms))
        return cls(
            text=" and ".join(assertion.text for assertion in assertions),
            columns=tuple(dict.fromkeys(term.column for term in terms)),
            rows=rows,
            assertions=assertions,
            change=change,
        )

    @classmethod
    def parse(cls, given: Any, name: str) -> Statements:
        texts = given if isinstance(given, list) else [given]
        if not texts or not all(isinstance(text, str) for text in texts):
            raise ConfigError(f"{name}: statement: expected a text or several, got {given!r}")
        return cls.of(*(parse_assertion(text, name) for text in texts))

    def judge(self, reports: ClaimReports, claim: Claim) -> Finding:
        report = reports.of(claim)
        findings = []
        for assertion in self.assertions:
            finding = judge_assertion(report, assertion)
            if self.change is not None:
                finding = self._with_ratio(finding, report, claim)
            findings.append(_above_chance(finding, reports, claim, assertion.terms))
        findings = _correct_contradictions(findings)
        return min(findings, key=lambda f: (WORST_FIRST.index(f.verdict), _clearness(f)))

    def _with_ratio(self, finding: Finding, report: Report, claim: Claim) -> Finding:
        assert self.change is not None
        metric = self.change[0]
        of_name, than_name = self.rows
        of = find_row(report, of_name, f"claim {claim.id}")
        than = find_row(report, than_name, f"claim {claim.id}")
        if not of.seeds or not than.seeds:
            raise ReportError(f"{self.text}: a base model of one evaluation has no seeds")
        if not all(value > 0 for value in than.cells[metric].values if math.isfinite(value)):
            raise ReportError(
                f"{self.text}: a relative change needs values of [{than_name}] above 0, got "
                f"{show(min(than.cells[metric].values))}"
            )
        ratio = ratio_of_means(of.by_seed(metric), than.by_seed(metric))
        change, low, high = (value - 1 for value in ratio)
        reason = f"{finding.reason}; relative change {change:+.1%}"
        if math.isfinite(low):
            reason += f", 95 % interval (Fieller) [{low:+.1%}, {high:+.1%}]"
        return replace(finding, reason=reason, difference=change, low=low, high=high)


def _correct_contradictions(findings: Sequence[Finding]) -> list[Finding]:
    """Correct the contradictions among the parts of a claim for the number of its tests.

    That all parts hold needs no correction (each is tested at 5 %, and the weakest counts); that
    any of several is contradicted happens by chance more often the more there are.
    """
    corrected = list(findings)
    tested = [i for i, finding in enumerate(findings) if not math.isnan(finding.p_value)]
    if len(tested) < 2:
        return corrected
    p_values = holm([findings[i].p_value for i in tested])
    for i, p_value in zip(tested, p_values, strict=True):
        finding = findings[i]
        if finding.verdict is not ClaimVerdict.CONTRADICTED:
            continue
        reason = f"{finding.reason}; p = {p_value:.3g} among {len(tested)} parts (Holm)"
        verdict = ClaimVerdict.CONTRADICTED
        if p_value > LEVEL:
            reason += ", alone it would be contradicted"
            verdict = ClaimVerdict.NOT_SETTLED
        corrected[i] = replace(finding, verdict=verdict, reason=reason, p_value=p_value)
    return corrected


def _clearness(finding: Finding) -> float:
    """Sort the clearest of contradicted parts first, and the least clear of others."""
    p_value = finding.p_value
    if math.isnan(p_value):
        # Without a test a number is certain, or there is none.
        p_value = 1.0 if finding.verdict is ClaimVerdict.CANNOT_TELL else 0.0
    return p_value if finding.verdict is ClaimVerdict.CONTRADICTED else -p_value


@dataclass(frozen=True)
class Equivalence(Kind):
    """Two rows differ by less than a margin, in either direction.

    Judged by two one-sided tests at 5 % (Schuirmann, 1987): it holds if the 90 % interval of the
    difference is inside the margin, and is contradicted if the whole 95 % interval is outside.

    Attributes:
        difference: the assertion that the difference is above 0.
        sides: those that it is above -margin, and below +margin.
    """

    difference: Assertion
    sides: tuple[Assertion, Assertion]

    def judge(self, reports: ClaimReports, claim: Claim) -> Finding:
        finding = self._judge(reports.of(claim))
        return _above_chance(finding, reports, claim, self.difference.terms)

    def _judge(self, report: Report) -> Finding:
        comparison = compare_sides(report, self.difference)
        narrow = compare_sides(report, self.difference, _TOST_LEVEL)
        if comparison is None or narrow is None:
            return replace(judge_assertion(report, self.difference), needed=None)
        # Distances to the two ends of the margin, above 0 inside.
        distances = [_inward(report, side, 0.95) for side in self.sides]
        outside = [distance.p_value for distance in distances if distance.high < 0]
        verdict = ClaimVerdict.CANNOT_TELL
        p_value = max(_one_sided_p(distance) for distance in distances)
        if all(_inward(report, side, _TOST_LEVEL).low > 0 for side in self.sides):
            verdict = ClaimVerdict.HOLDS
        elif outside:
            verdict = ClaimVerdict.CONTRADICTED
            p_value = outside[0]
        needed = None
        if all(distance.difference > 0 for distance in distances):
            nearest_end = min(distances, key=lambda distance: distance.difference)
            needed = count_seeds(nearest_end, nearest_end.difference)
        over = "seeds" if comparison.paired else "seeds of each, unpaired (Welch's t-test)"
        reason = (
            f"{self.text}: difference {comparison.difference:+.4g}, "
            f"{_show_interval(comparison.low, comparison.high)}, "
            f"{_show_interval(narrow.low, narrow.high, '90')} over {comparison.n} {over}"
        )
        return Finding(
            verdict,
            reason,
            difference=comparison.difference,
            low=comparison.low,
            high=comparison.high,
            n=comparison.n,
            p_value=p_value if comparison.sd > 0 else math.nan,
            needed=needed,
        )


def _one_sided_p(comparison: Comparison) -> float:
    """Return the p of the test that a difference is above 0."""
    half = comparison.p_value / 2
    return half if comparison.difference > 0 else 1 - half


def _inward(report: Report, side: Assertion, level: float) -> Comparison:
    """Compare the sides of an assertion so that the difference is above 0 where it is true."""
    comparison = compare_sides(report, side, level)
    assert comparison is not None
    if math.isnan(comparison.p_value):
        comparison = replace(comparison, p_value=1.0)
    if side.above:
        return comparison
    return replace(
        comparison,
        difference=-comparison.difference,
        low=-comparison.high,
        high=-comparison.low,
    )


@dataclass(frozen=True)
class _Compared:
    """A comparison of a metric between two rows in words, whose parts are checked.

    Attributes:
        left, right: the sides as an assertion has them, without a margin.
        margin: 0 without one.
        by: the share of a relative change; None for an absolute one.
        origin: the claim, for messages.
    """

    left: str
    right: str
    margin: float
    by: float | None
    origin: str

    def side(self, compare: str, sign: int) -> Assertion:
        """Return the assertion that the left side compares so with the moved right side.

        Args:
            sign: 1 to move the right side up, -1 to move it down.
        """
        right = self.right
        if self.by is not None:
            right = f"{1 + sign * self.by:.12g}*{right}"
        elif self.margin:
            right += f" {'+' if sign > 0 else '-'} {self.margin:g}"
        return parse_assertion(f"{self.left} {compare} {right}", self.origin)

    def equivalence(self) -> Equivalence:
        """Return the claim that the sides differ by less than the margin."""
        if not self.margin and self.by is None:
            raise ConfigError(f"{self.origin}: within: expected a margin above 0, or by: a share")
        size = f"{self.margin:g}" if self.by is None else f"{self.by:.4g} of it"
        difference = parse_assertion(f"{self.left} >= {self.right}", self.origin)
        plain = Statements.of(difference)
        return Equivalence(
            text=f"{self.left} within {size} of {self.right}",
            columns=plain.columns,
            rows=plain.rows,
            difference=difference,
            sides=(self.side(">=", -1), self.side("<=", 1)),
        )


def parse_compared(entry: Mapping[str, Any], name: str) -> Statements | Equivalence:
    """Parse a comparison of a metric between two rows, in words."""
    for key in ("of", "than", "direction"):
        if key not in entry:
            raise ConfigError(f"{name}: a metric needs of, than and direction; '{key}' is missing")
    metric = entry["metric"]
    of = entry["of"]
    than = entry["than"]
    direction = entry["direction"]
    choose({**_DIRECTIONS, "within": None}, direction, f"{name}: direction")
    margin = entry.get("margin", 0)
    if not isinstance(margin, (int, float)) or isinstance(margin, bool) or margin < 0:
        raise ConfigError(f"{name}: margin: expected a number >= 0, got {margin!r}")
    is_number = isinstance(than, (int, float))
    by = _parse_share(entry["by"], f"{name}: by") if "by" in entry else None
    if by is not None and (margin or is_number):
        raise ConfigError(f"{name}: by: expected a row under 'than', and no margin")
    compared = _Compared(
        left=f"{metric}[{of}]",
        right=f"{than:g}" if is_number else f"{metric}[{than}]",
        margin=margin,
        by=by,
        origin=name,
    )
    if direction == "within":
        return compared.equivalence()
    change = None if by is None else (str(metric), str(of), str(than))
    return Statements.of(compared.side(*_DIRECTIONS[direction]), change=change)


def _parse_share(given: Any, where: str) -> float:
    """Parse a share: `30%` or 0.3."""
    match = _PERCENT.fullmatch(given.strip()) if isinstance(given, str) else None
    if match is not None:
        given = float(match["number"]) / 100
    if isinstance(given, bool) or not isinstance(given, (int, float)) or not 0 < given < 10:
        raise ConfigError(f"{where}: expected a share such as 30%, got {given!r}")
    return float(given)


@dataclass(frozen=True)
class Trend(Kind):
    """A column rises or falls with another column or a config key, along a line.

    Attributes:
        of, over: the column, and the column or key.
        sign: 1 if it is to rise, -1 if it is to fall.
        of_runs: each run is a point; otherwise the mean of each row.
        within: config keys; the slope is that among rows with the same values of these keys.
        r2: the least share of the variance that the line must explain; None for the slope alone.
    """

    of: str
    over: str
    sign: int
    of_runs: bool
    within: tuple[str, ...] = ()
    r2: float | None = None

    @classmethod
    def parse(cls, given: Any, name: str) -> Trend:
        name = f"{name}: trend"
        needed = ("of", "over", "direction")
        if not isinstance(given, Mapping) or not set(given) >= set(needed):
            raise ConfigError(f"{name}: expected a mapping of {', '.join(needed)}, got {given!r}")
        check_keys(given, (*needed, "points", "within", "r2"), name)
        within = given.get("within", [])
        if isinstance(within, str):
            within = split_list(within)
        if not isinstance(within, list) or not all(isinstance(key, str) for key in within):
            raise ConfigError(f"{name}.within: expected a list of keys, got {within!r}")
        r2 = given.get("r2")
        if r2 is not None and (not isinstance(r2, (int, float)) or not 0 < r2 < 1):
            raise ConfigError(f"{name}.r2: expected a number in (0, 1), got {r2!r}")
        of = str(given["of"])
        over = str(given["over"])
        text = f"{of} {given['direction']} with {over}"
        if within:
            text += f" within {', '.join(within)}"
        if r2 is not None:
            text += f" with R² >= {r2:g}"
        return cls(
            text=text,
            columns=(of,),  # it may be over a config key, which is no column
            rows=(),
            of=of,
            over=over,
            sign=choose(_SLOPES, given["direction"], f"{name}.direction"),
            of_runs=choose(_POINTS, given.get("points", "rows"), f"{name}.points"),
            within=tuple(within),
            r2=None if r2 is None else float(r2),
        )

    def judge(self, reports: ClaimReports, claim: Claim) -> Finding:
        report = reports.of(claim)
        if self.over not in report.keys:
            report = reports.build(claim, (self.of, self.over))
        points = self._points(report)
        line = regress(
            [point.x for point in points],
            [point.y for point in points],
            [point.group for point in points] if self.within else None,
        )
        slope = line.slope
        if self.r2 is None:
            low, high = sorted((self.sign * slope.low, self.sign * slope.high))
            verdict = _by_interval(low, high, 0.0)
            p_value = line.p_value
            bounds = ""
        else:
            verdict, p_value, bounds = self._judge_r2(line, self.r2)
        unit = "runs" if self.of_runs else "rows"
        reason = (
            f"{self.text}: slope {slope.value:+.4g}, {_show_interval(slope.low, slope.high)}, "
            f"R² = {show(line.r_squared.value)}{bounds} over {line.n} {unit}"
        )
        finding = Finding(
            verdict,
            reason,
            difference=slope.value,
            low=slope.low,
            high=slope.high,
            n=line.n,
            p_value=p_value,
            needed=_points_needed(line),
            unit=unit,
        )
        return _above_chance(finding, reports, claim, [Term(1.0, self.of, "")])

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
        interval = ""
        if not math.isnan(low):
            interval = f", 95 % interval [{show(max(low, 0.0) ** 2)}, {show(max(high, 0.0) ** 2)}]"
        bound = math.sqrt(least)
        return _by_interval(low, high, bound), correlation_p_value(r, n, bound), interval

    def _points(self, report: Report) -> list[_Point]:
        for key in self.within:
            if not any(key in row.group for row in report.rows):
                raise ReportError(
                    f"'{key}', which the trend is within, tells no rows apart; expected some of "
                    f"{', '.join(report.keys)}"
                )
        points: list[_Point] = []
        for row in report.rows:
            if row.is_untrained:
                continue
            group = json.dumps([row.group.get(key) for key in self.within])
            of_runs = self._points_of_runs(row, group)
            if self.of_runs or not of_runs:
                points += of_runs
                continue
            x = math.fsum(point.x for point in of_runs) / len(of_runs)
            y = math.fsum(point.y for point in of_runs) / len(of_runs)
            points.append(_Point(x, y, group))
        return points

    def _points_of_runs(self, row: Row, group: str) -> list[_Point]:
        """Return a point for each run of a row that has both numbers."""
        xs = _values_over(row, self.over)
        points = []
        for seed, y in row.by_seed(self.of).items():
            if seed in xs and math.isfinite(xs[seed] + y):
                points.append(_Point(xs[seed], y, group))
        return points


@dataclass(frozen=True)
class _Point:
    """A point of a trend; `group` has the values of the keys that the trend is within, as JSON."""

    x: float
    y: float
    group: str


def _points_needed(line: Regression) -> int | None:
    """Return the points with which a slope is significant with a power of 80 %.

    By the normal approximation; None for a slope without an interval.
    """
    half = (line.slope.high - line.slope.low) / 2
    if not (math.isfinite(half) and half > 0 and line.slope.value):
        return None
    quantile = float(ndtri(1 - LEVEL / 2))
    ratio = (quantile + float(ndtri(_POWER))) / quantile * half / abs(line.slope.value)
    return min(math.ceil(line.n * ratio**2), MOST_SEEDS + 1)


def _by_interval(low: float, high: float, bound: float) -> ClaimVerdict:
    """Return the verdict on the claim that a number is above a bound."""
    if low > bound:
        return ClaimVerdict.HOLDS
    if high < bound:
        return ClaimVerdict.CONTRADICTED
    return ClaimVerdict.CANNOT_TELL


def _values_over(row: Row, over: str) -> dict[SeedKey, float]:
    """Return what a trend is over for each seed of a row: the value of a key, or of a column."""
    value = row.group.get(over)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return dict.fromkeys(row.seeds, float(value))
    return row.by_seed(over) if over in row.cells else {}


def check_keys(entry: Mapping[str, Any], keys: Sequence[str], name: str) -> None:
    """Refuse keys of an entry that are not among some keys.

    Raises:
        ConfigError: there is no such key; the message suggests the nearest.
    """
    for key in entry:
        if key not in keys:
            raise ConfigError(f"{name}: no key is called '{key}'; {nearest(str(key), keys)}")


def choose(choices: Mapping[str, Any], name: Any, where: str) -> Any:
    """Return the choice of a name.

    Raises:
        ConfigError: there is no such choice.
    """
    if name not in list(choices):
        raise ConfigError(f"{where}: expected one of {', '.join(choices)}, got {name!r}")
    return choices[name]
