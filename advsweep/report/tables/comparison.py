"""The fourth step of a report: each row compared with its baseline.

Differences are paired by seed where rows share seeds. Those of the primary outcomes have an
adjusted p and a verdict; all others are described.

The spread of a difference is that of the rows' design, or their own; `designs.py` has the rule.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from advsweep.errors import ConfigError
from advsweep.report.data.columns import Column, find_outcome
from advsweep.report.data.evaluation_sources import PassAtK
from advsweep.report.data.metrics import MetricDirection
from advsweep.report.data.sources import Reached
from advsweep.report.tables.baselines import BaselineRows, choose_baseline
from advsweep.report.tables.designs import Spreads
from advsweep.report.tables.margins import parse_margins
from advsweep.report.tables.request import NO_BASELINE, ReportRequest
from advsweep.report.tables.rows import Rows
from advsweep.report.tables.types import Arm, Difference, Report, Row
from advsweep.statistics import (
    Comparison,
    benjamini_hochberg,
    equivalence_p_value,
    improvement_share,
    seeds_needed,
)

# The largest adjusted p of a significant difference.
LEVEL = 0.05

# Numbers of seeds above this are not given: a spread from a few seeds cannot tell them.
MOST_SEEDS = 100

_SMALLEST = 0.2  # in standard deviations: smaller takes more than MOST_SEEDS


@dataclass(frozen=True)
class Compared:
    """The rows of a report compared with a baseline.

    Attributes:
        baseline: the rows that others are compared with, in words; None without a comparison.
        differences: every difference to it, those of the primary outcomes first.
    """

    baseline: str | None = None
    differences: Sequence[Difference] = ()


@dataclass(frozen=True)
class Comparing:
    """What is compared.

    Attributes:
        baseline: the rows that others are compared with.
        outcomes: the primary outcomes.
        others: the columns that are described.
        target: the difference that seeds are counted for; None for the observed one.
        margins: those of tests of equivalence, by the name of an outcome.
    """

    baseline: BaselineRows
    outcomes: Sequence[Column]
    others: Sequence[Column] = ()
    target: float | None = None
    margins: Mapping[str, float] = field(default_factory=dict)


def compare(rows: Rows, request: ReportRequest, *, tuned: str) -> Compared:
    """Compare the rows of a report with its baseline.

    Args:
        tuned: the key whose value each row has chosen for itself; empty without a tuning.

    Raises:
        NotFoundError: no row is the baseline that the user names.
        ReportError: the user's baseline is none, or a row could be compared with several.
        ConfigError: a margin cannot be read, or is of no primary outcome, or there is nothing to
            compare with.
    """
    if request.baseline == NO_BASELINE and request.margins:
        raise ConfigError(
            f"--margin: expected a baseline to be equivalent to, got --baseline {NO_BASELINE}; "
            "leave out one of the two"
        )
    margins = parse_margins(request.margins, [outcome.name for outcome in rows.outcomes])
    baseline = choose_baseline(request.baseline, planned=rows.planned, listed=rows.listed)
    if baseline is None:
        return Compared()
    comparing = Comparing(
        replace(baseline, tuned=tuned),
        outcomes=rows.outcomes,
        others=_described_columns(rows, request),
        target=request.target,
        margins=margins,
    )
    return Compared(baseline.text, compare_rows(rows.listed, rows.arms, comparing))


def _described_columns(rows: Rows, request: ReportRequest) -> list[Column]:
    """Return the columns besides the outcomes whose differences are described.

    They are those that the user names, or the runs' own pass@k.
    """
    if not request.described:
        return []
    settled = [*rows.outcomes, *rows.equal]
    others = [column for column in rows.columns if find_outcome(column, settled) is None]
    if request.columns is None:
        return [column for column in others if _is_pass_of_own_task(column)]
    return [column for column in others if not isinstance(column.source, Reached)]


def _is_pass_of_own_task(column: Column) -> bool:
    return isinstance(column.source, PassAtK) and column.source.problems.task is None


def compare_rows(
    rows: Sequence[Row], arms: Sequence[Arm], comparing: Comparing
) -> list[Difference]:
    """Compare every row with its baseline, in each column where both have at least two seeds.

    The p values of the primary outcomes are adjusted together, and no others. So are those of
    their tests of equivalence.

    Args:
        arms: those whose spread counts, whether or not they are among the rows.

    Raises:
        ReportError: a row could be compared with several.
    """
    pairs: list[tuple[int, int]] = []
    for place, row in enumerate(rows):
        baseline = None if row.is_untrained else comparing.baseline.of(row, rows)
        if baseline is not None:
            pairs.append((place, baseline))
    spreads = Spreads(arms)
    differences: list[Difference] = []
    for number, column in enumerate([*comparing.outcomes, *comparing.others]):
        for place, baseline in pairs:
            comparison = spreads.compare(rows[place], rows[baseline], column.name)
            # Single seeds have no interval.
            if math.isnan(comparison.low):
                continue
            target = comparison.difference if comparing.target is None else comparing.target
            difference = Difference(
                row=place,
                baseline=baseline,
                column=column,
                comparison=comparison,
                is_primary=number < len(comparing.outcomes),
                p_adjusted=math.nan,
                improvement=_improvement(column, rows[place], rows[baseline]),
                seeds=count_seeds(comparison, target),
                target=target,
                margin=comparing.margins.get(column.name, math.nan),
            )
            differences.append(difference)
    primary = [difference for difference in differences if difference.is_primary]
    return [*_adjust(primary), *differences[len(primary) :]]


def _improvement(column: Column, row: Row, baseline: Row) -> float | None:
    """Return the probability that a run of a row beats one of its baseline.

    None in a column without a better direction.
    """
    if column.direction is MetricDirection.NEITHER:
        return None
    sign = 1 if column.direction is MetricDirection.HIGHER else -1
    values = [sign * value for value in row.cells[column.name].values]
    return improvement_share(values, [sign * v for v in baseline.cells[column.name].values])


def _adjust(differences: Sequence[Difference]) -> list[Difference]:
    """Return differences with their p adjusted together.

    Only primary outcomes are corrected: whatever columns a table shows must not change the p of
    another table.
    """
    # Without variation there is nothing to test.
    p_values = [d.comparison.p_value if d.comparison.sd > 0 else math.nan for d in differences]
    adjusted = benjamini_hochberg(p_values)
    equal = benjamini_hochberg([_equivalence_p(difference) for difference in differences])
    return [
        replace(difference, p_adjusted=float(p_value), p_equal=float(p_equal))
        for difference, p_value, p_equal in zip(differences, adjusted, equal, strict=True)
    ]


def _equivalence_p(difference: Difference) -> float:
    if math.isnan(difference.margin):
        return math.nan
    return equivalence_p_value(difference.comparison, difference.margin)


def with_baseline(report: Report, baseline: BaselineRows) -> Report:
    """Return a report with the differences of its primary outcomes to another baseline.

    Raises:
        ReportError: a row could be compared with several.
    """
    comparing = Comparing(replace(baseline, tuned=report.tuned), report.outcomes)
    differences = compare_rows(report.rows, report.arms, comparing)
    return replace(report, baseline=baseline.text, differences=differences)


def count_seeds(comparison: Comparison, target: float) -> int | None:
    """Count the seeds that show a difference with a power of 80 %; `MOST_SEEDS` + 1 for more.

    Returns None where nothing varies or the difference is 0.
    """
    sd = comparison.sd
    if not (sd > 0 and math.isfinite(target) and target):
        return None
    if abs(target) < _SMALLEST * sd:
        return MOST_SEEDS + 1
    return min(seeds_needed(sd, target), MOST_SEEDS + 1)


def show_seeds(seeds: int) -> str:
    """Write a number of seeds needed, `> 100` for those above `MOST_SEEDS`."""
    return f"> {MOST_SEEDS}" if seeds > MOST_SEEDS else str(seeds)
