"""Claims about rows: statements, relative changes, equivalence, spread and failed runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from advsweep.errors import ReportError
from advsweep.report.claims.claim_reports import ClaimReports
from advsweep.report.claims.expressions import (
    Assertion,
    AssertionResult,
    ClaimVerdict,
    Term,
    compare_sides,
    find_row,
    judge_assertion,
)
from advsweep.report.claims.findings import RANK, Finding, by_interval, by_p_value, interval_text
from advsweep.report.claims.kinds import Equivalence, Failures, RelativeChange, Spread, Statements
from advsweep.report.claims.lists import Claim
from advsweep.report.tables.comparison import LEVEL, count_seeds
from advsweep.report.tables.layout import show
from advsweep.report.tables.types import Report, Row
from advsweep.statistics import (
    Comparison,
    difference_of_shares,
    fisher_p_value,
    ratio_of_means,
    ratio_of_spreads,
)
from advsweep.statistics.ranks import holm

_TOST_LEVEL = 0.90  # two one-sided tests at 5 %


def judge_statements(
    report: Report, kind: Statements, at_chance: Callable[[Sequence[Term]], str] | None = None
) -> Finding:
    """Judges assertions that must all hold: the one with the worst verdict decides.

    They hold together if each does, with the largest p. They are contradicted if one is, after the
    correction of Holm for their number.

    Args:
        at_chance: says which rows of an assertion are at chance; empty if none is.
    """
    found = []
    for assertion in kind.assertions:
        finding = _finding(judge_assertion(report, assertion))
        reason = "" if at_chance is None else at_chance(assertion.terms)
        found.append(withhold(finding, ClaimVerdict.AT_CHANCE, reason) if reason else finding)
    tested = [place for place, own in enumerate(found) if not math.isnan(own.p_value)]
    for place, p_value in zip(tested, holm([found[i].p_value for i in tested]), strict=True):
        if found[place].verdict is ClaimVerdict.CONTRADICTED and len(tested) > 1:
            found[place] = _corrected(found[place], p_value, len(tested))
    return min(found, key=lambda own: (RANK[own.verdict], _order(own)))


def withhold(finding: Finding, verdict: ClaimVerdict, reason: str) -> Finding:
    """Returns a finding whose numbers are no test of the claim, and why."""
    text = f"{reason}; {finding.reason}" if reason else finding.reason
    return replace(
        finding, verdict=verdict, reason=text, p_value=math.nan, needed=None, tested=None
    )


def _corrected(finding: Finding, p_value: float, parts: int) -> Finding:
    """Returns a contradicted part of a claim with its p among those of all parts."""
    settled = p_value <= LEVEL
    reason = f"{finding.reason}; p = {p_value:.3g} among {parts} parts (Holm)"
    if not settled:
        reason += ", alone it would be contradicted"
    verdict = ClaimVerdict.CONTRADICTED if settled else ClaimVerdict.NOT_SETTLED
    return replace(finding, verdict=verdict, reason=reason, p_value=p_value)


def _order(finding: Finding) -> float:
    """The clearest of contradicted parts comes first, and the least clear of others."""
    p_value = finding.p_value
    if math.isnan(p_value):
        # Without a test a number is certain, or there is none.
        p_value = 1.0 if finding.verdict is ClaimVerdict.CANNOT_TELL else 0.0
    return p_value if finding.verdict is ClaimVerdict.CONTRADICTED else -p_value


def judge_change(report: Report, claim: Claim, kind: RelativeChange) -> Finding:
    """Judges a relative change by the t-test of of - (1 + by) than, which is Fieller's test.

    Raises:
        ReportError: the number that it is relative to is not above 0.
    """
    of, than = (find_row(report, name, f"claim {claim.id}") for name in (kind.of, kind.than))
    if not all(value > 0 for value in than.cells[kind.metric].values if math.isfinite(value)):
        raise ReportError(
            f"{kind.text}: a relative change needs values of [{kind.than}] above 0, got "
            f"{show(min(than.cells[kind.metric].values))}"
        )
    finding = _finding(judge_assertion(report, kind.assertion))
    ratio = ratio_of_means(_by_seed(of, kind.metric), _by_seed(than, kind.metric))
    change, low, high = (value - 1 for value in ratio)
    reason = f"{finding.reason}; relative change {change:+.1%}"
    if math.isfinite(low):
        reason += f", 95 % interval (Fieller) [{low:+.1%}, {high:+.1%}]"
    return replace(finding, reason=reason, difference=change, low=low, high=high)


def judge_equivalence(report: Report, kind: Equivalence) -> Finding:
    """Judges equivalence within a margin by two one-sided tests at 5 % (Schuirmann, 1987).

    It holds if the 90 % interval of the difference is inside the margin, and is contradicted if
    the whole 95 % interval is outside.
    """
    sides = [(kind.lower, 1), (kind.upper, -1)]
    narrow = [(compare_sides(report, own, _TOST_LEVEL), sign) for own, sign in sides]
    whole = [(compare_sides(report, own), sign) for own, sign in sides]
    shown = compare_sides(report, kind.difference)
    if shown is None:
        return replace(_finding(judge_assertion(report, kind.difference)), needed=None)
    outside = [c for c, sign in whole if c is not None and _is_beyond(c, -sign)]
    inside = all(c is not None and _is_beyond(c, sign) for c, sign in narrow)
    if inside:
        verdict = ClaimVerdict.HOLDS
    else:
        verdict = ClaimVerdict.CONTRADICTED if outside else ClaimVerdict.CANNOT_TELL
    p_value = _p_value(outside[0]) if outside and not inside else _one_sided(whole)
    close = compare_sides(report, kind.difference, _TOST_LEVEL) or shown
    over = "seeds" if shown.paired else "seeds of each, unpaired"
    return Finding(
        verdict,
        f"{kind.text}: difference {shown.difference:+.4g}, {interval_text(shown.low, shown.high)}, "
        f"90 % interval [{close.low:+.4g}, {close.high:+.4g}] over {shown.n} {over}",
        shown.difference,
        shown.low,
        shown.high,
        n=shown.n,
        p_value=p_value if shown.sd > 0 else math.nan,
        needed=_seeds_for_equivalence(whole),
    )


def judge_spread(report: Report, claim: Claim, kind: Spread) -> Finding:
    """Judges standard deviations over seeds by the test of Pitman and Morgan, or by F."""
    of, than = (find_row(report, name, f"claim {claim.id}") for name in (kind.of, kind.than))
    ratio = ratio_of_spreads(_by_seed(of, kind.metric), _by_seed(than, kind.metric))
    if math.isnan(ratio.value):
        return Finding(
            ClaimVerdict.CANNOT_TELL,
            f"{kind.text}: that takes two seeds or more of each that differ",
            n=ratio.n,
        )
    test = "Pitman and Morgan, paired" if ratio.paired else "F test, unpaired"
    return Finding(
        by_interval(ratio.low - 1, ratio.high - 1, kind.direction.sign),
        f"{kind.text}: ratio of the standard deviations {ratio.value:.4g}, 95 % interval "
        f"[{ratio.low:.4g}, {ratio.high:.4g}] over {ratio.n} seeds ({test})",
        ratio.value - 1,
        ratio.low - 1,
        ratio.high - 1,
        n=ratio.n,
        p_value=ratio.p_value,
    )


def judge_failures(reports: ClaimReports, claim: Claim, kind: Failures) -> Finding:
    """Judges numbers of failed runs by Fisher's exact test, or counts them against a number."""
    failed, runs = reports.count_failures(claim, kind.of, kind.when)
    if isinstance(kind.than, int):
        gap = (failed - kind.than) * kind.direction.sign
        verdict = ClaimVerdict.HOLDS if gap > 0 else ClaimVerdict.CONTRADICTED
        return Finding(
            verdict if runs else ClaimVerdict.CANNOT_TELL,
            f"{kind.text}: {failed} of {runs} runs of [{kind.of}] failed, a count without a test",
            n=runs,
            unit="runs",
        )
    others, all_others = reports.count_failures(claim, kind.than, kind.when)
    share = difference_of_shares(failed, runs, others, all_others)
    p_value = fisher_p_value(failed, runs, others, all_others)
    return Finding(
        by_p_value(share.value, p_value, kind.direction.sign),
        f"{kind.text}: {failed} of {runs} runs of [{kind.of}] and {others} of {all_others} of "
        f"[{kind.than}] failed, p = {p_value:.3g} (Fisher's exact test)",
        *share,
        n=min(runs, all_others),
        p_value=p_value,
        unit="runs",
    )


def on_columns(kind: Statements | RelativeChange, names: Mapping[str, str]) -> Statements:
    """Returns a claim's assertions about other columns: those that `names` has for its own."""
    assertions = kind.assertions if isinstance(kind, Statements) else (kind.assertion,)

    def other(own: Assertion) -> Assertion:
        terms = [replace(term, column=names.get(term.column, term.column)) for term in own.terms]
        return replace(own, terms=tuple(terms))

    return Statements(tuple(map(other, assertions)))


def _finding(result: AssertionResult) -> Finding:
    comparison = result.comparison
    reason = result.text.removeprefix(f"{result.verdict.value}: ")
    if comparison is None:
        return Finding(result.verdict, reason)
    is_tested = comparison.sd > 0 and result.verdict is not ClaimVerdict.EQUAL
    return Finding(
        result.verdict,
        reason,
        comparison.difference,
        comparison.low,
        comparison.high,
        n=comparison.n,
        p_value=_p_value(comparison) if is_tested else math.nan,
        needed=count_seeds(comparison, comparison.difference),
        tested=result.difference,
        family=result.family,
    )


def _p_value(comparison: Comparison | None) -> float:
    return 1.0 if comparison is None or math.isnan(comparison.p_value) else comparison.p_value


def _is_beyond(comparison: Comparison, sign: int) -> bool:
    """Whether a whole interval is above 0, or below 0 for the sign -1."""
    return comparison.low > 0 if sign > 0 else comparison.high < 0


def _one_sided(whole: Sequence[tuple[Comparison | None, int]]) -> float:
    """Returns the larger p of the two one-sided tests."""
    found = []
    for comparison, sign in whole:
        half = _p_value(comparison) / 2
        right = comparison is not None and comparison.difference * sign > 0
        found.append(half if right else 1 - half)
    return max(found)


def _seeds_for_equivalence(whole: Sequence[tuple[Comparison | None, int]]) -> int | None:
    """Counts the seeds for the nearer end of the margin; None where it is already beyond."""
    near = [c for c, sign in whole if c is not None and c.difference * sign > 0]
    if len(near) < len(whole):
        return None
    nearest = min(near, key=lambda c: abs(c.difference))
    return count_seeds(nearest, nearest.difference)


def _by_seed(row: Row, column: str) -> dict[int, float]:
    if not row.seeds:
        raise ReportError(f"a base model of one evaluation has no seeds: '{row.group}'")
    return row.by_seed(column)
