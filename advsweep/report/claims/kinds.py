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
from advsweep.report.data.runs import split_list
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
    from advsweep.report.claims.lists import Claim, ClaimReports

# The first verdict among those on the parts of a claim is the claim's.
WORST_FIRST = (
    *(ClaimVerdict.CONTRADICTED, ClaimVerdict.EQUAL, ClaimVerdict.STEP_NOT_MATCHED),
    *(ClaimVerdict.AT_CHANCE, ClaimVerdict.CANNOT_TELL, ClaimVerdict.NOT_SETTLED),
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
    none: dict[str, Any] = {"family": "", "needed": None}
    none |= {"p_value": math.nan, "p_adjusted": math.nan}
    return replace(finding, verdict=verdict, reason=reason + finding.reason, **none)


def _above_chance(
    finding: Finding, reports: ClaimReports, claim: Claim, terms: Sequence[Term]
) -> Finding:
    """Withhold the verdict where the base or a row that a term subtracts is at chance."""
    baselines: dict[str, list[str]] = {term.column: [] for term in terms}
    for term in terms:
        baselines[term.column] += [term.row] if term.factor < 0 else []
    reason = reports.describe_chance(claim, baselines)
    return withhold(finding, ClaimVerdict.AT_CHANCE, f"{reason}; ") if reason else finding


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
        terms = [term for own in assertions for term in own.terms]
        return cls(
            " and ".join(own.text for own in assertions),
            tuple(dict.fromkeys(term.column for term in terms)),
            change[1:] if change else tuple(dict.fromkeys(term.row for term in terms)),
            assertions,
            change,
        )

    @classmethod
    def parse(cls, given: Any, name: str) -> Statements:
        texts = given if isinstance(given, list) else [given]
        if not texts or not all(isinstance(text, str) for text in texts):
            raise ConfigError(f"{name}: statement: expected a text or several, got {given!r}")
        return cls.of(*(parse_assertion(text, name) for text in texts))

    def judge(self, reports: ClaimReports, claim: Claim) -> Finding:
        report = reports.of(claim)
        found = []
        for assertion in self.assertions:
            finding = judge_assertion(report, assertion)
            if self.change is not None:
                finding = self._with_ratio(finding, report, claim)
            found.append(_above_chance(finding, reports, claim, assertion.terms))
        # That all parts hold needs no correction (each is tested at 5 %, and the weakest counts);
        # that any of several is contradicted happens by chance more often the more there are.
        tested = [place for place, own in enumerate(found) if not math.isnan(own.p_value)]
        for place, p_value in zip(tested, holm([found[i].p_value for i in tested]), strict=True):
            own = found[place]
            if own.verdict is ClaimVerdict.CONTRADICTED and len(tested) > 1:
                reason = f"{own.reason}; p = {p_value:.3g} among {len(tested)} parts (Holm)"
                own = replace(own, reason=reason, p_value=p_value)
                if p_value > LEVEL:
                    reason += ", alone it would be contradicted"
                    own = replace(own, verdict=ClaimVerdict.NOT_SETTLED, reason=reason)
                found[place] = own
        return min(found, key=lambda own: (WORST_FIRST.index(own.verdict), _clearness(own)))

    def _with_ratio(self, finding: Finding, report: Report, claim: Claim) -> Finding:
        assert self.change is not None
        metric = self.change[0]
        of, than = (find_row(report, name, f"claim {claim.id}") for name in self.rows)
        if not of.seeds or not than.seeds:
            raise ReportError(f"{self.text}: a base model of one evaluation has no seeds")
        if not all(value > 0 for value in than.cells[metric].values if math.isfinite(value)):
            raise ReportError(
                f"{self.text}: a relative change needs values of [{self.rows[1]}] above 0, got "
                f"{show(min(than.cells[metric].values))}"
            )
        ratio = ratio_of_means(of.by_seed(metric), than.by_seed(metric))
        change, low, high = (value - 1 for value in ratio)
        reason = f"{finding.reason}; relative change {change:+.1%}"
        if math.isfinite(low):
            reason += f", 95 % interval (Fieller) [{low:+.1%}, {high:+.1%}]"
        return replace(finding, reason=reason, difference=change, low=low, high=high)


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
        shown = compare_sides(report, self.difference)
        close = compare_sides(report, self.difference, _TOST_LEVEL)
        if shown is None or close is None:
            return replace(judge_assertion(report, self.difference), needed=None)
        # Distances to the two ends of the margin, above 0 inside.
        wide = [_inward(report, side, 0.95) for side in self.sides]
        outside = [own.p_value for own in wide if own.high < 0]
        p_value = max(
            own.p_value / 2 if own.difference > 0 else 1 - own.p_value / 2 for own in wide
        )
        verdict = ClaimVerdict.CANNOT_TELL
        if all(_inward(report, side, _TOST_LEVEL).low > 0 for side in self.sides):
            verdict = ClaimVerdict.HOLDS
        elif outside:
            verdict, p_value = ClaimVerdict.CONTRADICTED, outside[0]
        needed = None
        if all(own.difference > 0 for own in wide):
            nearest_end = min(wide, key=lambda own: own.difference)
            needed = count_seeds(nearest_end, nearest_end.difference)
        over = "seeds" if shown.paired else "seeds of each, unpaired (Welch's t-test)"
        reason = (
            f"{self.text}: difference {shown.difference:+.4g}, "
            f"{_show_interval(shown.low, shown.high)}, "
            f"{_show_interval(close.low, close.high, '90')} over {shown.n} {over}"
        )
        p_value = p_value if shown.sd > 0 else math.nan
        numbers = shown.difference, shown.low, shown.high, shown.n, p_value
        return Finding(verdict, reason, *numbers, needed=needed)


def _inward(report: Report, side: Assertion, level: float) -> Comparison:
    """Compare the sides of an assertion so that the difference is above 0 where it is true."""
    found = compare_sides(report, side, level)
    assert found is not None
    found = replace(found, p_value=1.0 if math.isnan(found.p_value) else found.p_value)
    if side.above:
        return found
    return replace(found, difference=-found.difference, low=-found.high, high=-found.low)


def parse_compared(entry: Mapping[str, Any], name: str) -> Statements | Equivalence:
    """Parse a comparison of a metric between two rows, in words."""
    for key in ("of", "than", "direction"):
        if key not in entry:
            raise ConfigError(f"{name}: a metric needs of, than and direction; '{key}' is missing")
    metric, of, than, direction = (entry[key] for key in ("metric", "of", "than", "direction"))
    choose({**_DIRECTIONS, "within": None}, direction, f"{name}: direction")
    margin = entry.get("margin", 0)
    if not isinstance(margin, (int, float)) or isinstance(margin, bool) or margin < 0:
        raise ConfigError(f"{name}: margin: expected a number >= 0, got {margin!r}")
    is_number = isinstance(than, (int, float))
    left, right = f"{metric}[{of}]", f"{than:g}" if is_number else f"{metric}[{than}]"
    by = _parse_share(entry["by"], f"{name}: by") if "by" in entry else None
    if by is not None and (margin or is_number):
        raise ConfigError(f"{name}: by: expected a row under 'than', and no margin")

    def side(compare: str, sign: int) -> Assertion:
        if by is not None:
            return parse_assertion(f"{left} {compare} {1 + sign * by:.12g}*{right}", name)
        shift = f" {'+' if sign > 0 else '-'} {margin:g}" if margin else ""
        return parse_assertion(f"{left} {compare} {right}{shift}", name)

    if direction != "within":
        change = None if by is None else (str(metric), str(of), str(than))
        return Statements.of(side(*_DIRECTIONS[direction]), change=change)
    if not margin and by is None:
        raise ConfigError(f"{name}: within: expected a margin above 0, or by: a share")
    text = f"{left} within {f'{margin:g}' if by is None else f'{by:.4g} of it'} of {right}"
    difference = parse_assertion(f"{left} >= {right}", name)
    plain = Statements.of(difference)
    sides = side(">=", -1), side("<=", 1)
    return Equivalence(text, plain.columns, plain.rows, difference, sides)


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
        within = split_list(within) if isinstance(within, str) else within
        if not isinstance(within, list) or not all(isinstance(key, str) for key in within):
            raise ConfigError(f"{name}.within: expected a list of keys, got {within!r}")
        r2 = given.get("r2")
        if r2 is not None and (not isinstance(r2, (int, float)) or not 0 < r2 < 1):
            raise ConfigError(f"{name}.r2: expected a number in (0, 1), got {r2!r}")
        of, over = str(given["of"]), str(given["over"])
        text = f"{of} {given['direction']} with {over}"
        text += f" within {', '.join(within)}" if within else ""
        text += f" with R² >= {r2:g}" if r2 is not None else ""
        return cls(
            text,
            (of,),  # it may be over a config key, which is no column
            (),
            of,
            over,
            choose(_SLOPES, given["direction"], f"{name}.direction"),
            choose(_POINTS, given.get("points", "rows"), f"{name}.points"),
            tuple(within),
            None if r2 is None else float(r2),
        )

    def judge(self, reports: ClaimReports, claim: Claim) -> Finding:
        report = reports.of(claim)
        if self.over not in report.keys:
            report = reports.build(claim, (self.of, self.over))
        xs, ys, groups = self._points(report)
        line = regress(xs, ys, groups if self.within else None)
        slope = line.slope
        low, high = sorted((self.sign * slope.low, self.sign * slope.high))
        verdict, p_value, bounds = _by_interval(low, high, 0.0), line.p_value, ""
        if self.r2 is not None:
            verdict, p_value, bounds = self._judge_r2(line, self.r2)
        half, needed = (slope.high - slope.low) / 2, None
        if math.isfinite(half) and half > 0 and slope.value:
            # Points for a power of 80 %, by the normal approximation.
            quantiles = float(ndtri(1 - LEVEL / 2)), float(ndtri(_POWER))
            ratio = sum(quantiles) / quantiles[0] * half / abs(slope.value)
            needed = min(math.ceil(line.n * ratio**2), MOST_SEEDS + 1)
        unit = "runs" if self.of_runs else "rows"
        reason = (
            f"{self.text}: slope {slope.value:+.4g}, {_show_interval(slope.low, slope.high)}, "
            f"R² = {show(line.r_squared.value)}{bounds} over {line.n} {unit}"
        )
        numbers = slope.value, slope.low, slope.high, line.n, p_value
        finding = Finding(verdict, reason, *numbers, needed=needed, unit=unit)
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
        bound = math.sqrt(least)
        ends = [show(max(end, 0.0) ** 2) for end in (low, high)]
        shown = "" if math.isnan(low) else f", 95 % interval [{ends[0]}, {ends[1]}]"
        return _by_interval(low, high, bound), correlation_p_value(r, n, bound), shown

    def _points(self, report: Report) -> tuple[list[float], list[float], list[str]]:
        """Return the points' x, y and the values of the keys that the trend is within, as JSON."""
        for key in self.within:
            if not any(key in row.group for row in report.rows):
                raise ReportError(
                    f"'{key}', which the trend is within, tells no rows apart; expected some of "
                    f"{', '.join(report.keys)}"
                )
        points: list[tuple[float, float, str]] = []
        for row in report.rows:
            if row.is_untrained:
                continue
            places = _places(row, self.over)
            found = [
                (places[seed], y)
                for seed, y in row.by_seed(self.of).items()
                if seed in places and math.isfinite(places[seed] + y)
            ]
            if not self.of_runs and found:
                x, y = (math.fsum(values) / len(found) for values in zip(*found, strict=True))
                found = [(x, y)]
            group = json.dumps([row.group.get(key) for key in self.within])
            points += [(x, y, group) for x, y in found]
        return [x for x, _, _ in points], [y for _, y, _ in points], [g for _, _, g in points]


def _by_interval(low: float, high: float, bound: float) -> ClaimVerdict:
    """Return the verdict on the claim that a number is above a bound."""
    if low > bound:
        return ClaimVerdict.HOLDS
    return ClaimVerdict.CONTRADICTED if high < bound else ClaimVerdict.CANNOT_TELL


def _places(row: Row, over: str) -> dict[SeedKey, float]:
    """Return where each seed of a row lies: its value of a key, or of a column."""
    value = row.group.get(over)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return dict.fromkeys(row.seeds, float(value))
    return row.by_seed(over) if over in row.cells else {}


def check_keys(given: Mapping[str, Any], known: Sequence[str], name: str) -> None:
    """Refuse keys that are not known.

    Raises:
        ConfigError: a key is not known; the message suggests the nearest.
    """
    for key in given:
        if key not in known:
            raise ConfigError(f"{name}: no key is called '{key}'; {nearest(str(key), known)}")


def choose(choices: Mapping[str, Any], given: Any, where: str) -> Any:
    """Return the choice of a name.

    Raises:
        ConfigError: there is no such choice.
    """
    if given not in list(choices):
        raise ConfigError(f"{where}: expected one of {', '.join(choices)}, got {given!r}")
    return choices[given]
