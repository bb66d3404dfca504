"""Assertions about a report, such as `pass@1[fade] >= pass@1[grpo] - 0.02`.

    SIDE >= SIDE     also >, <= and <
    SIDE             terms with + and - between them: NUMBER, COLUMN[ROW], NUMBER * COLUMN[ROW]
    ROW              a value of the table's first key, as fade; or estimator=fade group_size=8

COLUMN is any column of a table, also for one task or level (pass@1[gsm8k][fade]), with a window
or a cutoff (collapse/acr@share>0.5[fade], pass@32@pass@1=0.45[fade]). Seeds are the
unit: the difference of the two sides is computed for each seed that all rows have. The assertion
holds if the 95 % Student t interval of this difference lies on the asserted side of 0; an interval
on the other side contradicts it, and an interval that contains 0 leaves it open.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING

import numpy as np

from advsweep.errors import ConfigError, NotFoundError, ReportError, nearest
from advsweep.report.data.columns import Column, find_outcome
from advsweep.report.data.filters import parse_where, quote_value
from advsweep.report.data.labels import name_group, show_key
from advsweep.report.data.metrics import MetricDirection
from advsweep.report.data.windows import NUMBER
from advsweep.report.tables.baselines import BaselineRows, parse_baseline
from advsweep.report.tables.comparison import LEVEL, count_seeds, show_seeds, with_baseline
from advsweep.report.tables.designs import Spreads
from advsweep.report.tables.types import Difference, Report, Row
from advsweep.statistics import Comparison, compare_paired, compare_unpaired
from advsweep.store.seeds import SeedKey, seed_order
from advsweep.writing import NO_NUMBER, show, show_p

if TYPE_CHECKING:
    from advsweep.report.claims.lists import Claim

_NUMBER = r"(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"
# A column may end in brackets itself; the last brackets hold the row.
_COLUMN = (
    r"[A-Za-z_][\w/.]*"
    rf"(?:@[\w/.]+|\[[^\[\]]*\]|={NUMBER}|(?<=@share)[<>]{NUMBER})*"
)
# The > of @share>0.5 compares no sides.
_COMPARE = re.compile(r"(?<!@share)(>=|<=|>|<)")
_TERM = re.compile(
    rf"\s*(?P<sign>[-+])?\s*(?:(?P<factor>{_NUMBER})\s*\*\s*)?"
    rf"(?:(?P<column>{_COLUMN})\[(?P<row>[^\[\]]+)\]|(?P<number>{_NUMBER}))\s*(?=[-+]|$)"
)
_EXAMPLE = "'pass@1[fade] >= pass@1[grpo] - 0.02'"


class ClaimVerdict(Enum):
    """What the data say about an assertion, or a claim.

    `EQUAL`: rows that are to differ have the same numbers for every seed, as identical runs have.
    `NOT_SETTLED`: its own interval decides, but not its p after the correction for the tests of
    its family. Only claims have the following ones. `AT_CHANCE`: pass@k of the base or the baseline
    is that of guessing. `STEP_NOT_MATCHED`: the list says that its rows differ in the length of
    their steps as well. `NOT_JUDGED`: it names what does not exist.
    """

    HOLDS = "holds"
    CONTRADICTED = "contradicted"
    EQUAL = "equal by construction"
    CANNOT_TELL = "cannot tell"
    NOT_SETTLED = "not settled"
    AT_CHANCE = "not judged: at chance"
    STEP_NOT_MATCHED = "not judged: step not matched"
    NOT_JUDGED = "not judged"


DECIDED = (ClaimVerdict.HOLDS, ClaimVerdict.CONTRADICTED)


@dataclass(frozen=True)
class Finding:
    """What the data say about an assertion, or what one claim claims.

    Attributes:
        reason: a sentence with the numbers, without the verdict.
        difference, low, high: the number that decides and its 95 % interval; NaN where there is
            none. A relative change is given minus 1.
        n: the number of seeds or points, which `unit` names.
        p_value: two-sided p of the test that decides; NaN where there is nothing to test.
        p_adjusted: p after Benjamini and Hochberg of the primary difference that decides; NaN for
            any other comparison.
        family: what p is adjusted over; empty without an adjusted p.
        needed: seeds (points of a trend) that would decide with a power of 80 %.
        claim: the claim of a list that it is about.
        more: the further seeds (points) that a claim needs; None where that is unknown or 0.
    """

    verdict: ClaimVerdict
    reason: str
    difference: float = math.nan
    low: float = math.nan
    high: float = math.nan
    n: int = 0
    p_value: float = math.nan
    p_adjusted: float = math.nan
    family: str = ""
    needed: int | None = None
    unit: str = "seeds"
    claim: Claim | None = None
    more: int | None = None

    @property
    def text(self) -> str:
        """The verdict, and the sentence after it."""
        return f"{self.verdict.value}: {self.reason}"


@dataclass(frozen=True)
class Term:
    """A column of a row, times a factor."""

    factor: float
    column: str
    row: str


@dataclass(frozen=True)
class Assertion:
    """The assertion that a sum of terms and a constant is above 0, or below 0.

    Attributes:
        text: the assertion as the user wrote it.
        above: whether the sum is above 0; `strict` excludes 0 itself.
        origin: the option or claim that gave it, for messages.
    """

    text: str
    terms: tuple[Term, ...]
    constant: float
    above: bool
    strict: bool
    origin: str

    @property
    def columns(self) -> list[str]:
        return list(dict.fromkeys(term.column for term in self.terms))

    @property
    def is_of_two_rows(self) -> bool:
        """Whether it is about the difference of two rows in one column, margins aside."""
        if len(self.terms) != 2 or len(self.columns) != 1:
            return False
        one, other = self.terms
        return abs(one.factor) == 1 and one.factor == -other.factor


def parse_assertion(text: str, origin: str = "--assert") -> Assertion:
    """Parse an assertion.

    Args:
        origin: the option or claim that gave it, for messages.

    Raises:
        ConfigError: the text is no assertion; the message quotes the first part that is wrong.
    """
    parts = _COMPARE.split(text)
    if len(parts) != 3:
        raise ConfigError(
            f"{origin}: expected one of >=, >, <= and < between two sides, as in {_EXAMPLE}, "
            f"got {text!r}"
        )
    left, compare, right = parts
    left_terms, left_constant = _parse_side(left, text, origin)
    right_terms, right_constant = _parse_side(right, text, origin)
    subtracted = [Term(-term.factor, term.column, term.row) for term in right_terms]
    terms = (*left_terms, *subtracted)
    if not terms:
        raise ConfigError(f"{origin}: expected COLUMN[ROW] on a side at least, got {text!r}")
    return Assertion(
        text=text.strip(),
        terms=terms,
        constant=left_constant - right_constant,
        above=compare in (">=", ">"),
        strict=compare in (">", "<"),
        origin=origin,
    )


def _parse_side(side: str, text: str, origin: str) -> tuple[list[Term], float]:
    """Return the terms of a side, and the sum of its numbers."""
    terms: list[Term] = []
    constant = 0.0
    start = 0
    while start < len(side) or not start:
        match = _TERM.match(side, start)
        if match is None or (start and not match["sign"]):
            raise ConfigError(
                f"{origin}: expected numbers and COLUMN[ROW] with + or - between them, as in "
                f"{_EXAMPLE}, got {side[start:].strip()!r} in {text!r}"
            )
        factor = float(match["factor"] or 1)
        if match["sign"] == "-":
            factor = -factor
        if match["column"]:
            terms.append(Term(factor, match["column"], match["row"].strip()))
        else:
            constant += factor * float(match["number"])
        start = match.end()
    return terms, constant


def find_row(report: Report, name: str, origin: str) -> Row:
    """Return the row of a name: a value of the first key, or `KEY=VALUE ...`.

    Raises:
        NotFoundError: no row has the name; the message suggests the nearest.
        ConfigError: several rows have it.
    """
    titles = [show_key(row.group.get(report.keys[0], "")) for row in report.rows]
    if "=" in name:
        filters = parse_where(name, origin)
        rows = [
            row
            for row in report.rows
            if all(c.key in row.group and c.holds(row.group[c.key]) for c in filters)
        ]
    else:
        rows = [row for row, title in zip(report.rows, titles, strict=True) if title == name]
    if not rows:
        raise NotFoundError(f"{origin}: no row is called '{name}'; {nearest(name, {*titles})}")
    if len(rows) > 1:
        some = " and ".join(f"[{_show_keys(row)}]" for row in rows[:2])
        raise ConfigError(f"{origin}: [{name}] could be {some}; give more of its keys")
    return rows[0]


def _show_keys(row: Row) -> str:
    return " ".join(f"{key}={quote_value(show_key(value))}" for key, value in row.group.items())


def evaluate_assertion(report: Report, assertion: Assertion) -> Finding:
    """Evaluate an assertion on a report that has the assertion's columns.

    One about the difference of two rows in a primary outcome has the verdict that a report has on
    it, after the correction. Any other has that of its interval alone.

    Raises:
        NotFoundError: a row does not exist; the message suggests the nearest.
        ConfigError: several rows have the name.
    """
    return correct(judge_assertion(report, assertion))


def correct(finding: Finding) -> Finding:
    """Withdraw a verdict that the adjusted p does not bear out, and add that p to the sentence."""
    if math.isnan(finding.p_adjusted):
        return finding
    adjusted = f"p adj {show_p(finding.p_adjusted)}, adjusted over {finding.family}"
    if finding.verdict not in DECIDED or finding.p_adjusted <= LEVEL:
        return replace(finding, reason=f"{finding.reason}; {adjusted}")
    tendency = "would hold" if finding.verdict is ClaimVerdict.HOLDS else "would be contradicted"
    reason = (
        f"{finding.reason}; alone it {tendency}, but it is not significant after "
        f"Benjamini-Hochberg: {adjusted}"
    )
    return replace(finding, verdict=ClaimVerdict.NOT_SETTLED, reason=reason)


def judge_assertion(report: Report, assertion: Assertion) -> Finding:
    """Judge an assertion by its interval, before any correction.

    Raises:
        NotFoundError: a row does not exist; the message suggests the nearest.
        ConfigError: several rows have the name.
    """
    rows = {term.row: find_row(report, term.row, assertion.origin) for term in assertion.terms}
    comparison = compare_sides(report, assertion)
    if comparison is None:
        reason = _describe_missing_seeds(report, assertion, rows)
        return Finding(ClaimVerdict.CANNOT_TELL, reason)
    verdict = _judge_interval(assertion, comparison)
    if verdict is ClaimVerdict.CONTRADICTED and _have_same_numbers(assertion, rows):
        same = f"the rows have the same numbers for each of {comparison.n} seeds"
        return Finding(
            ClaimVerdict.EQUAL,
            f"{assertion.text}: {same} ({_show_means(assertion, rows)})",
            difference=comparison.difference,
            low=comparison.low,
            high=comparison.high,
            n=comparison.n,
        )
    seeds = count_seeds(comparison, comparison.difference)
    reason = _describe_interval(assertion, comparison, _show_means(assertion, rows))
    if verdict is ClaimVerdict.CANNOT_TELL:
        reason += "; the interval includes 0"
        if seeds is not None:
            reason += f"; {show_seeds(seeds)} seeds would give 80 % power at the observed effect"
    # Equal values for every seed are suspicious, except for costs, which seeds do not change.
    columns = [column for column in report.columns if column.name in assertion.columns]
    are_costs = all(column.direction is MetricDirection.NEITHER for column in columns)
    if comparison.sd == 0 and not are_costs:
        reason += "; it is the same for every seed, so that this is no interval: do seeds differ?"
    p_value = math.nan
    if comparison.sd > 0:
        p_value = 1.0 if math.isnan(comparison.p_value) else comparison.p_value
    p_adjusted, family = _adjusted(report, assertion, rows)
    return Finding(
        verdict,
        reason,
        difference=comparison.difference,
        low=comparison.low,
        high=comparison.high,
        n=comparison.n,
        p_value=p_value,
        p_adjusted=p_adjusted,
        family=family,
        needed=seeds,
    )


def _judge_interval(assertion: Assertion, comparison: Comparison) -> ClaimVerdict:
    """Return the verdict of the interval of the left side - the right side."""
    low = comparison.low
    high = comparison.high
    if not assertion.above:
        low, high = -high, -low
    if low > 0 or (low == 0 and not assertion.strict):
        return ClaimVerdict.HOLDS
    if high < 0 or (high == 0 and assertion.strict):
        return ClaimVerdict.CONTRADICTED
    return ClaimVerdict.CANNOT_TELL


def _have_same_numbers(assertion: Assertion, rows: Mapping[str, Row]) -> bool:
    """Return whether the rows of each column have the same number for every seed."""
    by_column: dict[str, list[Row]] = {}
    for term in assertion.terms:
        by_column.setdefault(term.column, []).append(rows[term.row])
    for column, compared in by_column.items():
        values = {(row.seeds, row.cells[column].values) for row in compared}
        if len(compared) == 1 or len(values) > 1:
            return False
    return True


def _show_means(assertion: Assertion, rows: Mapping[str, Row]) -> str:
    means = {}
    for term in assertion.terms:
        mean = rows[term.row].cells[term.column].mean
        means[f"{term.column}[{term.row}]"] = NO_NUMBER if math.isnan(mean) else show(mean)
    return ", ".join(f"{name} = {mean}" for name, mean in means.items())


def _describe_missing_seeds(report: Report, assertion: Assertion, rows: Mapping[str, Row]) -> str:
    """Say why the sides of an assertion cannot be compared."""
    missing = "that takes two seeds or more that all of its rows have"
    unknown = [name for name, row in rows.items() if row.unknown_seeds]
    if unknown:
        missing += f", and seeds of {', '.join(unknown)} are unknown: not paired"
    reason = f"{assertion.text}: {missing} ({_show_means(assertion, rows)})"
    # Runs that do not come to a cutoff have no number there.
    cutoffs = {c.at.text for c in report.columns if c.at and c.name in assertion.columns}
    texts = [note.text for note in report.notes if note.about in cutoffs]
    return "; ".join([reason, *texts])


def _describe_interval(assertion: Assertion, comparison: Comparison, means: str) -> str:
    over = f"{comparison.n} seeds"
    if not comparison.paired:
        over += " of each, unpaired (Welch's t-test)"
    return (
        f"{assertion.text}: left side - right side = {comparison.difference:+.4f}, 95 % interval "
        f"[{comparison.low:+.4f}, {comparison.high:+.4f}] over {over} ({means})"
    )


@dataclass(frozen=True)
class _SeededTerm:
    """A term of an assertion whose row has seeds: its factor, and the finite value of each seed."""

    factor: float
    values: Mapping[SeedKey, float]


def compare_sides(report: Report, assertion: Assertion, level: float = 0.95) -> Comparison | None:
    """Compare the sides of an assertion over seeds; None where too few seeds have both.

    The difference of two rows in one column has the spread that the report's differences have.

    Raises:
        NotFoundError: a row does not exist; the message suggests the nearest.
        ConfigError: several rows have the name.
    """
    rows = [find_row(report, term.row, assertion.origin) for term in assertion.terms]
    constant, seeded = _part_terms(assertion, rows)
    if not seeded or not math.isfinite(constant):
        return None
    shared = set.intersection(*(set(term.values) for term in seeded))
    if len(shared) > 1:
        sums = [
            constant + math.fsum(term.factor * term.values[seed] for term in seeded)
            for seed in sorted(shared, key=seed_order)
        ]
        pooled = None
        if assertion.is_of_two_rows:
            spreads = Spreads(report.arms)
            pooled = spreads.pooled(rows[0], rows[1], assertion.terms[0].column)
        comparison = compare_paired(sums, np.zeros(len(sums)), level, pooled=pooled)
    elif len(seeded) == 2:
        first, second = seeded
        left = [constant + first.factor * value for value in first.values.values()]
        right = [-second.factor * value for value in second.values.values()]
        comparison = compare_unpaired(left, right, level)
    else:
        return None
    return None if math.isnan(comparison.low) else comparison


def _part_terms(assertion: Assertion, rows: Sequence[Row]) -> tuple[float, list[_SeededTerm]]:
    """Return the sum of what has no seeds, and the terms that have a value for each seed."""
    constant = assertion.constant
    seeded = []
    for term, row in zip(assertion.terms, rows, strict=True):
        if not row.seeds:
            constant += term.factor * row.cells[term.column].mean
            continue
        values = row.by_seed(term.column)
        finite = {seed: value for seed, value in values.items() if math.isfinite(value)}
        seeded.append(_SeededTerm(term.factor, finite))
    return constant, seeded


def _adjusted(report: Report, assertion: Assertion, rows: Mapping[str, Row]) -> tuple[float, str]:
    """Return the adjusted p of the primary difference that it is about, and what it is over.

    The difference is that of the report if one of the two rows is its baseline, and else that of
    the report with the row that is subtracted as its baseline. Without one p is NaN.
    """
    if assertion.constant or not assertion.is_of_two_rows:
        return math.nan, ""
    [column] = [column for column in report.columns if column.name == assertion.columns[0]]
    outcome = find_outcome(column, report.outcomes)
    if outcome is None:
        return math.nan, ""
    pair = {name_group(rows[term.row].group) for term in assertion.terms}
    difference = _difference_of(report, outcome, pair)
    if difference is None:
        [name] = [term.row for term in assertion.terms if term.factor < 0]
        try:
            baseline = parse_baseline(name, report.rows, report.keys[0])
            report = with_baseline(report, baseline)
        except (NotFoundError, ReportError):
            # Names with other operators than = are no baselines, nor those that fit several rows.
            row = rows[name]
            report = with_baseline(report, BaselineRows(row.group, untrained=row.is_untrained))
        difference = _difference_of(report, outcome, pair)
    if difference is None or math.isnan(difference.p_adjusted):
        return math.nan, ""
    family = f"{report.family} against {report.baseline}"
    if report.provenance["sweep"]:
        family += f" in {report.provenance['sweep']}"
    return difference.p_adjusted, family


def _difference_of(report: Report, outcome: Column, pair: set[str]) -> Difference | None:
    """Return the primary difference of two rows, whichever of them is the baseline."""
    for difference in report.primary:
        names = {name_group(report.rows[i].group) for i in (difference.row, difference.baseline)}
        if names == pair and difference.column == outcome:
            return difference
    return None
