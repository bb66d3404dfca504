"""The kinds of claims: how each is written, what it says as text, and how runs judge it.

docs/claims.md says how each kind is judged, with sources.
"""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

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
from advsweep.report.data.runs import Filter, parse_where
from advsweep.report.tables.comparison import LEVEL, count_seeds
from advsweep.report.tables.types import Report, Row
from advsweep.statistics import (
    Comparison,
    difference_of_shares,
    fisher_p_value,
    holm,
    ratio_of_means,
    ratio_of_spreads,
)
from advsweep.writing import show

if TYPE_CHECKING:
    from advsweep.report.claims.lists import Claim
    from advsweep.report.claims.reports import ClaimReports

WORST_FIRST = (
    *(ClaimVerdict.CONTRADICTED, ClaimVerdict.EQUAL, ClaimVerdict.STEP_NOT_MATCHED),
    *(ClaimVerdict.AT_CHANCE, ClaimVerdict.CANNOT_TELL, ClaimVerdict.NOT_SETTLED),
    ClaimVerdict.HOLDS,
)
"""The first verdict among those on the parts of a claim is the claim's."""

_TOST_LEVEL = 0.90  # two one-sided tests at 5 %
_SIDES = {"higher": 1, "lower": -1}
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
    text = f"{reason}; {finding.reason}" if reason else finding.reason
    return replace(
        finding,
        verdict=verdict,
        reason=text,
        p_value=math.nan,
        p_adjusted=math.nan,
        family="",
        needed=None,
    )


def above_chance(
    finding: Finding, reports: ClaimReports, claim: Claim, baselines: Mapping[str, Sequence[str]]
) -> Finding:
    """Withhold the verdict where base or baselines (rows by column) are at chance."""
    reason = reports.describe_chance(claim, baselines)
    return withhold(finding, ClaimVerdict.AT_CHANCE, reason) if reason else finding


def _baselines(terms: Sequence[Term]) -> dict[str, list[str]]:
    """Return the rows that terms subtract, by column."""
    baselines: dict[str, list[str]] = {term.column: [] for term in terms}
    for term in terms:
        baselines[term.column] += [term.row] if term.factor < 0 else []
    return baselines


def by_interval(low: float, high: float, sign: int) -> ClaimVerdict:
    """Return the verdict on the claim that a number is above 0, or below 0 for the sign -1."""
    low, high = (low, high) if sign > 0 else (-high, -low)
    if low > 0:
        return ClaimVerdict.HOLDS
    return ClaimVerdict.CONTRADICTED if high < 0 else ClaimVerdict.CANNOT_TELL


def by_p_value(value: float, p_value: float, sign: int) -> ClaimVerdict:
    """Return the verdict on the sign of a number whose test has this two-sided p."""
    if not p_value <= LEVEL or not value:
        return ClaimVerdict.CANNOT_TELL
    return ClaimVerdict.HOLDS if value * sign > 0 else ClaimVerdict.CONTRADICTED


def show_interval(low: float, high: float, level: str = "95") -> str:
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
            found.append(above_chance(finding, reports, claim, _baselines(assertion.terms)))
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
        if not all(value > 0 for value in than.cells[metric].values if math.isfinite(value)):
            raise ReportError(
                f"{self.text}: a relative change needs values of [{self.rows[1]}] above 0, got "
                f"{show(min(than.cells[metric].values))}"
            )
        ratio = ratio_of_means(_seeds(of, metric), _seeds(than, metric))
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


def _seeds(row: Row, column: str) -> dict[int, float]:
    if not row.seeds:
        raise ReportError(f"a base model of one evaluation has no seeds: '{row.group}'")
    return row.by_seed(column)


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
        return above_chance(finding, reports, claim, _baselines(self.difference.terms))

    def _judge(self, report: Report) -> Finding:
        shown = compare_sides(report, self.difference)
        close = compare_sides(report, self.difference, _TOST_LEVEL)
        if shown is None or close is None:
            return replace(judge_assertion(report, self.difference), needed=None)
        found = [compare_sides(report, side) for side in self.sides]
        narrow = [compare_sides(report, side, _TOST_LEVEL) for side in self.sides]
        # Distances to the two ends of the margin, above 0 inside.
        wide = [_turned(own, sign) for own, sign in zip(found, (1, -1), strict=True)]
        inside = all(_turned(own, sign)[1] > 0 for own, sign in zip(narrow, (1, -1), strict=True))
        outside = [p for _, _, high, p in wide if high < 0]
        verdict = ClaimVerdict.CONTRADICTED if outside else ClaimVerdict.CANNOT_TELL
        p_value = max(p / 2 if distance > 0 else 1 - p / 2 for distance, _, _, p in wide)
        if inside:
            verdict = ClaimVerdict.HOLDS
        elif outside:
            p_value = outside[0]
        needed = None
        if all(distance > 0 for distance, *_ in wide):
            nearest_end = min(filter(None, found), key=lambda own: abs(own.difference))
            needed = count_seeds(nearest_end, nearest_end.difference)
        over = "seeds" if shown.paired else "seeds of each, unpaired"
        reason = (
            f"{self.text}: difference {shown.difference:+.4g}, "
            f"{show_interval(shown.low, shown.high)}, "
            f"{show_interval(close.low, close.high, '90')} over {shown.n} {over}"
        )
        p_value = p_value if shown.sd > 0 else math.nan
        numbers = shown.difference, shown.low, shown.high, shown.n, p_value
        return Finding(verdict, reason, *numbers, needed=needed)


def _turned(found: Comparison | None, sign: int) -> tuple[float, float, float, float]:
    """Return a difference, the ends of its interval, times a sign, and its p."""
    if found is None:
        return math.nan, math.nan, math.nan, 1.0
    low, high = (found.low, found.high) if sign > 0 else (-found.high, -found.low)
    p_value = 1.0 if math.isnan(found.p_value) else found.p_value
    return sign * found.difference, low, high, p_value


def parse_compared(entry: Mapping[str, Any], name: str) -> Statements | Equivalence:
    """Parse a comparison of a metric between two rows, in words."""
    for key in ("of", "than", "direction"):
        if key not in entry:
            raise ConfigError(f"{name}: a metric needs of, than and direction; '{key}' is missing")
    metric, of, than, direction = (entry[key] for key in ("metric", "of", "than", "direction"))
    if direction not in (*_DIRECTIONS, "within"):
        expected = ", ".join((*_DIRECTIONS, "within"))
        raise ConfigError(f"{name}: direction: expected one of {expected}, got {direction!r}")
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
class Spread(Kind):
    """A row's metric has a larger or smaller standard deviation over seeds than another's.

    Judged by the test of Pitman and Morgan, or by F. `sign` is 1 if it is to be larger.
    """

    sign: int

    @classmethod
    def parse(cls, given: Any, name: str) -> Spread:
        name = f"{name}: spread"
        check_mapping(given, ("metric", "of", "than", "direction"), (), name)
        metric, of, than = (str(given[key]) for key in ("metric", "of", "than"))
        sign = choose(_SIDES, given["direction"], f"{name}.direction")
        text = f"spread of {metric}[{of}] {given['direction']} than [{than}]"
        return cls(text, (metric,), (of, than), sign)

    def judge(self, reports: ClaimReports, claim: Claim) -> Finding:
        report, [metric] = reports.of(claim), self.columns
        of, than = (find_row(report, name, f"claim {claim.id}") for name in self.rows)
        ratio = ratio_of_spreads(_seeds(of, metric), _seeds(than, metric))
        test = "Pitman and Morgan, paired" if ratio.paired else "F test, unpaired"
        if math.isnan(ratio.value):
            reason = f"{self.text}: that takes two seeds or more of each that differ"
            finding = Finding(ClaimVerdict.CANNOT_TELL, reason, n=ratio.n)
        else:
            low, high = ratio.low - 1, ratio.high - 1
            reason = (
                f"{self.text}: ratio of the standard deviations {ratio.value:.4g}, 95 % interval "
                f"[{ratio.low:.4g}, {ratio.high:.4g}] over {ratio.n} seeds ({test})"
            )
            verdict = by_interval(low, high, self.sign)
            finding = Finding(verdict, reason, ratio.value - 1, low, high, ratio.n, ratio.p_value)
        return above_chance(finding, reports, claim, {metric: [self.rows[1]]})


@dataclass(frozen=True)
class Failures(Kind):
    """More or fewer runs of a row fail than of another row, or than a number.

    Judged by Fisher's exact test; against a number by the count alone.

    Attributes:
        than: a row or a number.
        sign: 1 if more are to fail, -1 if fewer.
        when: filters on columns; a finished run that matches all of them counts as failed, too.
    """

    of: str
    than: str | int
    sign: int
    when: tuple[Filter, ...]

    @classmethod
    def parse(cls, given: Any, name: str) -> Failures:
        name = f"{name}: failures"
        check_mapping(given, ("of", "than", "direction"), ("when",), name)
        of, than, when = str(given["of"]), given["than"], given.get("when", "")
        if isinstance(than, bool) or not isinstance(than, (str, int)):
            raise ConfigError(f"{name}.than: expected a row or a number of runs, got {than!r}")
        if not isinstance(when, str):
            raise ConfigError(f"{name}.when: expected conditions such as pass@1<0.1, got {when!r}")
        sign = choose(_SIDES, given["direction"], f"{name}.direction")
        filters = tuple(parse_where(when, f"{name}.when")) if when else ()
        text = f"failed runs of [{of}] {given['direction']} than "
        text += f"{than}" if isinstance(than, int) else f"[{than}]"
        text += f", also where {' '.join(own.text for own in filters)}" if filters else ""
        columns = tuple(dict.fromkeys(own.key for own in filters))
        rows = (of, than) if isinstance(than, str) else (of,)
        return cls(text, columns, rows, of, than, sign, filters)

    def judge(self, reports: ClaimReports, claim: Claim) -> Finding:
        failed, runs = reports.count_failures(claim, self.of, self.when)
        if isinstance(self.than, int):
            more = (failed - self.than) * self.sign > 0
            verdict = ClaimVerdict.HOLDS if more else ClaimVerdict.CONTRADICTED
            verdict = verdict if runs else ClaimVerdict.CANNOT_TELL
            count = f"{failed} of {runs} runs of [{self.of}] failed, a count without a test"
            return Finding(verdict, f"{self.text}: {count}", n=runs, unit="runs")
        others, all_others = reports.count_failures(claim, self.than, self.when)
        share = difference_of_shares(failed, runs, others, all_others)
        p_value = fisher_p_value(failed, runs, others, all_others)
        verdict = by_p_value(share.value, p_value, self.sign)
        reason = (
            f"{self.text}: {failed} of {runs} runs of [{self.of}] and {others} of {all_others} of "
            f"[{self.than}] failed, p = {p_value:.3g} (Fisher's exact test)"
        )
        return Finding(verdict, reason, *share, min(runs, all_others), p_value, unit="runs")


def check_keys(given: Mapping[str, Any], known: Sequence[str], name: str) -> None:
    """Refuse keys that are not known.

    Raises:
        ConfigError: a key is not known; the message suggests the nearest.
    """
    for key in given:
        if key not in known:
            raise ConfigError(f"{name}: no key is called '{key}'; {nearest(str(key), known)}")


def check_mapping(given: Any, needed: Sequence[str], optional: Sequence[str], name: str) -> None:
    if not isinstance(given, Mapping) or not set(given) >= set(needed):
        raise ConfigError(f"{name}: expected a mapping of {', '.join(needed)}, got {given!r}")
    check_keys(given, (*needed, *optional), name)


def choose(choices: Mapping[str, Any], given: Any, where: str) -> Any:
    if given not in list(choices):
        raise ConfigError(f"{where}: expected {' or '.join(choices)}, got {given!r}")
    return choices[given]
