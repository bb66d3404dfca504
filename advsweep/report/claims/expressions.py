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
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum

import numpy as np

from advsweep.errors import ConfigError, NotFoundError, ReportError, nearest
from advsweep.report.data.columns import Column, MetricDirection
from advsweep.report.data.filters import parse_where, show_key
from advsweep.report.data.grouping import key_order
from advsweep.report.data.outcomes import find_outcome
from advsweep.report.data.windows import NUMBER
from advsweep.report.tables.comparison import (
    LEVEL,
    BaselineRows,
    count_seeds,
    name_group,
    parse_baseline,
    show_seeds,
    with_baseline,
)
from advsweep.report.tables.layout import show, show_p
from advsweep.report.tables.spread import Spreads
from advsweep.report.tables.types import Difference, Report, Row
from advsweep.statistics import Comparison, compare_paired, compare_unpaired
from advsweep.writing import NO_NUMBER

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
    its family. The others are of claims alone. `AT_CHANCE`: pass@k of the base or the baseline is
    that of guessing. `STEP_NOT_MATCHED`: the list says that its rows differ in the length of their
    steps as well. `NOT_JUDGED`: it names what does not exist.
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
class Term:
    """A column of a row, times a factor."""

    factor: float
    column: str
    row: str

    @property
    def text(self) -> str:
        return f"{self.column}[{self.row}]"


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


@dataclass(frozen=True)
class AssertionResult:
    """The verdict on an assertion, with a sentence that has the numbers.

    Attributes:
        comparison: compares the left side with the right side over seeds; None where too few
            seeds have both.
        difference: the difference in a primary outcome that the assertion is about; None for any
            other comparison.
        family: what its p is adjusted over.
    """

    assertion: Assertion
    verdict: ClaimVerdict
    text: str
    comparison: Comparison | None = None
    difference: Difference | None = None
    family: str = ""


def parse_assertion(text: str, origin: str = "--assert") -> Assertion:
    """Parses an assertion.

    Args:
        origin: the option or claim that gave it, for messages.

    Raises:
        ConfigError: the text is no assertion; the message quotes the first part that is wrong.
    """
    left, compare, right = _split(text, origin)
    terms, constant = _side(left, text, origin)
    others, other = _side(right, text, origin)
    if not terms and not others:
        raise ConfigError(f"{origin}: expected COLUMN[ROW] on a side at least, got {text!r}")
    moved = [Term(-term.factor, term.column, term.row) for term in others]
    return Assertion(
        text=text.strip(),
        terms=(*terms, *moved),
        constant=constant - other,
        above=compare in (">=", ">"),
        strict=compare in (">", "<"),
        origin=origin,
    )


def _split(text: str, origin: str) -> tuple[str, str, str]:
    parts = _COMPARE.split(text)
    if len(parts) != 3:
        raise ConfigError(
            f"{origin}: expected one of >=, >, <= and < between two sides, as in {_EXAMPLE}, "
            f"got {text!r}"
        )
    left, compare, right = parts
    return left, compare, right


def _side(side: str, text: str, origin: str) -> tuple[list[Term], float]:
    """Returns the terms of a side, and the sum of its numbers."""
    terms: list[Term] = []
    constant, place = 0.0, 0
    while place < len(side) or not place:
        match = _TERM.match(side, place)
        if match is None or (place and not match["sign"]):
            raise ConfigError(
                f"{origin}: expected numbers and COLUMN[ROW] with + or - between them, as in "
                f"{_EXAMPLE}, got {side[place:].strip()!r} in {text!r}"
            )
        factor = float(match["factor"] or 1) * (-1 if match["sign"] == "-" else 1)
        if match["column"]:
            terms.append(Term(factor, match["column"], match["row"].strip()))
        else:
            constant += factor * float(match["number"])
        place = match.end()
    return terms, constant


def evaluate_assertion(report: Report, assertion: Assertion) -> AssertionResult:
    """Evaluate an assertion on a report that has the assertion's columns.

    One about the difference of two rows in a primary outcome has the verdict that a report has on
    it, after the correction. Any other has that of its interval alone.

    Raises:
        NotFoundError: a row does not exist; the message suggests the nearest.
        ConfigError: several rows have the name.
    """
    result = judge_assertion(report, assertion)
    if result.difference is None:
        return result
    p_adjusted = result.difference.p_adjusted
    verdict, text = correct(result.verdict, result.text, p_adjusted, result.family)
    return replace(result, verdict=verdict, text=text)


def correct(
    verdict: ClaimVerdict, text: str, p_adjusted: float, family: str
) -> tuple[ClaimVerdict, str]:
    """Withdraw a verdict that the adjusted p does not bear out, and add that p to its sentence.

    Args:
        text: begins with the verdict.
        family: what p is adjusted over.
    """
    adjusted = f"p adj {show_p(p_adjusted)}, adjusted over {family}"
    if verdict not in DECIDED or not p_adjusted > LEVEL:
        return verdict, text if math.isnan(p_adjusted) else f"{text}; {adjusted}"
    alone = "would hold" if verdict is ClaimVerdict.HOLDS else "would be contradicted"
    reason = (
        f"{text.removeprefix(f'{verdict.value}: ')}; alone it {alone}, but it is not significant "
        f"after Benjamini-Hochberg: {adjusted}"
    )
    return ClaimVerdict.NOT_SETTLED, f"{ClaimVerdict.NOT_SETTLED.value}: {reason}"


def judge_assertion(report: Report, assertion: Assertion) -> AssertionResult:
    """Judge an assertion by its interval, before any correction.

    Raises:
        NotFoundError: a row does not exist; the message suggests the nearest.
        ConfigError: several rows have the name.
    """
    rows = _rows(report, assertion)
    numbers = ", ".join(
        dict.fromkeys(
            f"{term.text} = {_shown(rows[term.row].cells[term.column].mean)}"
            for term in assertion.terms
        )
    )
    comparison = _difference(report, assertion, rows)
    if comparison is None or math.isnan(comparison.low):
        missing = "that takes two seeds or more that all of its rows have"
        cutoffs = {c.at.text for c in report.columns if c.at and c.name in assertion.columns}
        where = tuple(f"@{cutoff}: " for cutoff in cutoffs)
        whys = "".join(f"; {remark}" for remark in report.remarks if remark.startswith(where))
        text = f"cannot tell: {assertion.text}: {missing} ({numbers}){whys}"
        return AssertionResult(assertion, ClaimVerdict.CANNOT_TELL, text)
    verdict = _verdict(assertion, comparison)
    if verdict is ClaimVerdict.CONTRADICTED and _are_identical(assertion, rows):
        text = f"{ClaimVerdict.EQUAL.value}: {assertion.text}: the rows have the same numbers for "
        text += f"each of {comparison.n} seeds ({numbers})"
        return AssertionResult(assertion, ClaimVerdict.EQUAL, text, comparison)
    over = f"{comparison.n} seeds" + ("" if comparison.paired else " of each, unpaired")
    text = (
        f"{verdict.value}: {assertion.text}: left side - right side = "
        f"{comparison.difference:+.4f}, 95 % interval [{comparison.low:+.4f}, "
        f"{comparison.high:+.4f}] over {over} ({numbers})"
    )
    if verdict is ClaimVerdict.CANNOT_TELL:
        text += f"; {_needed(comparison)}"
    # Equal values for every seed are suspicious, except for costs, which seeds do not change.
    directed = {
        column.name for column in report.columns if column.direction is not MetricDirection.NEITHER
    }
    if comparison.sd == 0 and directed & set(assertion.columns):
        text += "; it is the same for every seed, so that this is no interval: do seeds differ?"
    difference, family = _primary_difference(report, assertion, rows)
    return AssertionResult(assertion, verdict, text, comparison, difference, family)


def compare_sides(report: Report, assertion: Assertion, level: float = 0.95) -> Comparison | None:
    """Compares the sides of an assertion over seeds; None where too few seeds have both.

    Raises:
        NotFoundError: a row does not exist; the message suggests the nearest.
        ConfigError: several rows have the name.
    """
    comparison = _difference(report, assertion, _rows(report, assertion), level)
    return None if comparison is None or math.isnan(comparison.low) else comparison


def _rows(report: Report, assertion: Assertion) -> dict[str, Row]:
    return {term.row: find_row(report, term.row, assertion.origin) for term in assertion.terms}


def find_row(report: Report, name: str, origin: str) -> Row:
    """Returns the row of a name: a value of the first key, or `KEY=VALUE ...`.

    Raises:
        NotFoundError: no row has the name; the message suggests the nearest.
        ConfigError: several rows have it.
    """
    keys = sorted({key for row in report.rows for key in row.group}, key=key_order)
    if "=" in name:
        filters = parse_where(name, origin)
        found = [
            row
            for row in report.rows
            if all(c.key in row.group and c.holds(row.group[c.key]) for c in filters)
        ]
    else:
        found = [row for row in report.rows if show_key(row.group.get(keys[0], "")) == name]
    if not found:
        names = [show_key(row.group.get(keys[0], "")) for row in report.rows]
        raise NotFoundError(f"{origin}: no row is called '{name}'; {nearest(name, {*names})}")
    if len(found) > 1:
        some = " and ".join(f"[{_full_name(row)}]" for row in found[:2])
        raise ConfigError(f"{origin}: [{name}] could be {some}; give more of its keys")
    return found[0]


def _shown(value: float) -> str:
    return NO_NUMBER if math.isnan(value) else show(value)


def _full_name(row: Row) -> str:
    return " ".join(f"{key}={show_key(value)}" for key, value in row.group.items())


def _primary_difference(
    report: Report, assertion: Assertion, rows: Mapping[str, Row]
) -> tuple[Difference | None, str]:
    """Return the primary difference that an assertion is about, and what its p is adjusted over.

    It is that of the report if one of the two rows is its baseline, and else that of the report
    with the row that is subtracted as its baseline.
    """
    if assertion.constant or not _is_of_two_rows(assertion):
        return None, ""
    [column] = [column for column in report.columns if column.name == assertion.columns[0]]
    outcome = find_outcome(column, report.outcomes)
    if outcome is None:
        return None, ""
    pair = {name_group(rows[term.row].group) for term in assertion.terms}
    difference = _difference_of(report, outcome, pair)
    if difference is None:
        [name] = [term.row for term in assertion.terms if term.factor < 0]
        report = _against(report, name, rows[name])
        difference = _difference_of(report, outcome, pair)
    sweep = report.provenance.sweep
    where = f" in {sweep}" if sweep else ""
    return difference, f"{report.family.text} against {report.baseline}{where}"


def _difference_of(report: Report, outcome: Column, pair: set[str]) -> Difference | None:
    """Return the primary difference of two rows, whichever of them is the baseline."""
    for difference in report.primary:
        own = {name_group(report.rows[i].group) for i in (difference.row, difference.baseline)}
        if own == pair and difference.column == outcome:
            return difference
    return None


def _against(report: Report, name: str, row: Row) -> Report:
    """Return a report with another baseline: the rows that a name fits, or else one row.

    Args:
        name: a value of the first key, or `KEY=VALUE ...`, as `--baseline` takes it.
    """
    try:
        return with_baseline(report, parse_baseline(name, report.rows, report.keys[0]))
    except (NotFoundError, ReportError):
        # Names with other operators than = are no baselines, nor those that fit several rows.
        return with_baseline(report, BaselineRows(row.group, untrained=row.is_base))


def _is_of_two_rows(assertion: Assertion) -> bool:
    """Tell whether it is about the difference of two rows in one column, margins aside."""
    if len(assertion.terms) != 2 or len(assertion.columns) != 1:
        return False
    one, other = assertion.terms
    return abs(one.factor) == 1 and one.factor == -other.factor


def _difference(
    report: Report, assertion: Assertion, rows: Mapping[str, Row], level: float = 0.95
) -> Comparison | None:
    """Compare the sides over seeds; None where no seeds have both sides.

    The difference of two rows in one column has the spread that the report's differences have.
    """
    constant = assertion.constant
    varying: list[tuple[float, dict[int, float]]] = []
    for term in assertion.terms:
        row = rows[term.row]
        if not row.seeds:
            constant += term.factor * row.cells[term.column].mean
        else:
            values = row.by_seed(term.column)
            finite = {seed: value for seed, value in values.items() if math.isfinite(value)}
            varying.append((term.factor, finite))
    if not varying or not math.isfinite(constant):
        return None
    shared = sorted(set.intersection(*(set(values) for _, values in varying)))
    if len(shared) > 1:
        sums = [constant + math.fsum(f * values[seed] for f, values in varying) for seed in shared]
        pooled = None
        if _is_of_two_rows(assertion):
            one, other = (rows[term.row] for term in assertion.terms)
            spreads = Spreads(report.rows, report.spread, report.tuned)
            pooled = spreads.pooled(one, other, assertion.terms[0].column)
        return compare_paired(sums, np.zeros(len(sums)), level, pooled=pooled)
    if len(varying) != 2:
        return None
    (f, a), (g, b) = varying
    left = [constant + f * value for value in a.values()]
    return compare_unpaired(left, [-g * value for value in b.values()], level)


def _are_identical(assertion: Assertion, rows: Mapping[str, Row]) -> bool:
    """Whether all rows of an assertion have the same numbers for every seed, in each column."""
    columns: dict[str, list[Row]] = {}
    for term in assertion.terms:
        columns.setdefault(term.column, []).append(rows[term.row])
    return all(
        len(own) > 1 and len({(row.seeds, row.cells[column].values) for row in own}) == 1
        for column, own in columns.items()
    )


def _verdict(assertion: Assertion, comparison: Comparison) -> ClaimVerdict:
    low, high = comparison.low, comparison.high
    if not assertion.above:
        low, high = -high, -low
    if low > 0 or (low == 0 and not assertion.strict):
        return ClaimVerdict.HOLDS
    if high < 0 or (high == 0 and assertion.strict):
        return ClaimVerdict.CONTRADICTED
    return ClaimVerdict.CANNOT_TELL


def _needed(comparison: Comparison) -> str:
    seeds = count_seeds(comparison, comparison.difference)
    if seeds is None:
        return "the interval includes 0"
    return (
        f"the interval includes 0; {show_seeds(seeds)} seeds would give 80 % power at the observed "
        "effect"
    )
