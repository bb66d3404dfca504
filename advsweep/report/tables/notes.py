"""Sentences below a report's tables: what the numbers are, and what they do not say."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from advsweep.errors import counted, first_of
from advsweep.names import ROLLOUT_COST
from advsweep.report.data.labels import name_group
from advsweep.report.data.metrics import MetricDirection
from advsweep.report.data.windows import END_STEPS
from advsweep.report.tables.baselines import MOST_ROWS
from advsweep.report.tables.marks import SEEDS_FOR_A_MARK
from advsweep.report.tables.provenance import NOT_MATCHED
from advsweep.report.tables.types import NoteKind, Report, Row, Subject, count_states
from advsweep.writing import Mark

_NAMED = 6  # of what is listed at most

# What the marks of a table mean.
LEGEND = {
    Mark.BEST: f"significantly better than all other rows with at least {SEEDS_FOR_A_MARK} seeds",
    Mark.SECOND: "significantly better than all rows below",
}


def notes(report: Report) -> list[str]:
    """Return sentences about the numbers: what they are, and what they do not say."""
    return [
        *_describe_numbers(report),
        *report.texts(NoteKind.EARLY_END),
        *describe_unknown_seeds(report),
        *report.remarks,
        *report.texts(NoteKind.REVISION),
        *report.texts(NoteKind.WITHOUT_SIGNAL),
        *report.texts(NoteKind.CAUTION),
        *_describe_rates(report),
        *_describe_left_out(report),
        *_describe_missing(report),
    ]


def _describe_numbers(report: Report) -> list[str]:
    """Say what the numbers of the cells are."""
    rows = report.rows
    columns = report.columns
    lines = [f"mean ± half the 95 % Student t interval over {unit_of(report)}; n: runs"]
    cells = [row.cells[column.name] for row in rows for column in columns]
    if any(not math.isnan(cell.over_problems) for cell in cells):
        lines.append(
            "(±): of one evaluation, half the 95 % interval over problems like these (bootstrap), "
            "which says nothing of another training"
        )
    lines += _describe_bases(rows)
    at_end = [column.header for column in columns if column.is_mean_of_last_steps]
    if at_end:
        lines.append(f"{', '.join(at_end)}: mean over the last {END_STEPS} steps")
    cost = [column.header for column in columns if column.name.startswith(ROLLOUT_COST)]
    if cost:
        lines.append(f"{', '.join(cost)}: generated ones, per rollout that the steps ask for")
    without_spread = _rows_without_spread(report)
    if without_spread:
        lines.append(
            "zero spread, so that ±0 is no interval: all seeds of "
            f"{first_of(without_spread, _NAMED)} have the same value"
        )
    return lines


def _describe_bases(rows: Sequence[Row]) -> list[str]:
    """Say what the base is where each seed has one of its own; nothing where all share one."""
    bases = [row for row in rows if row.subject is Subject.BASE and row.seeds]
    if not bases:
        return []
    if any(row.models > 1 for row in bases):
        return [
            "base: the models that runs start from, one for each seed; a difference to it is of "
            "each seed's runs to the seed's own base"
        ]
    return [
        "base: the model that all runs start from, on the problems of each seed; a difference to "
        "it is of each seed's runs to the base on the seed's own problems"
    ]


def _rows_without_spread(report: Report) -> list[str]:
    """Return the rows whose seeds have the same value, with the columns."""
    # Costs that no seed changes are expected.
    columns = [c for c in report.columns if c.direction is not MetricDirection.NEITHER]
    named = []
    for row in report.rows:
        headers = [c.header for c in columns if row.cells[c.name].has_no_spread]
        if headers:
            named.append(f"{name_group(row.group)} ({first_of(headers, _NAMED)})")
    return named


def _describe_rates(report: Report) -> list[str]:
    """Say how learning rates were matched."""
    rates = report.provenance["learning_rates"]
    return [f"learning rates: {'; '.join(map(_describe_matched, rates))}"] if rates else []


def _describe_left_out(report: Report) -> list[str]:
    """Say which runs and samples are not among the numbers."""
    lines = []
    if report.left_out:
        lines.append(f"left out, as they are not done: {count_states(report.left_out)}")
    if report.unscorable:
        lines.append(
            f"{report.unscorable:.2%} of the samples could not be scored, through no fault of the "
            "model's; they count as not correct"
        )
    if report.unjudged:
        lines.append(
            "problems left out of pass@k, as none of their samples could be scored: "
            f"{report.unjudged} (as a rule their gold answer cannot be read)"
        )
    for row in report.rows:
        if row.pruned:
            lines.append(
                f"{name_group(row.group)}: {row.pruned} of {row.runs + row.pruned} runs were "
                "pruned, so that its means are those of the runs that did well early"
            )
    return lines


def _describe_missing(report: Report) -> list[str]:
    """Say which columns lack numbers of runs; of columns with one header, the last counts."""
    trained = report.trained
    seeds = sum(row.n for row in trained)
    missing: dict[str, int] = {}
    for column in report.columns:
        missing[column.header] = seeds - sum(row.cells[column.name].n for row in trained)
    return [f"{header}: {n} of {seeds} runs have no number" for header, n in missing.items() if n]


POOLED_SPREAD = (
    "that of a randomised block ANOVA (Fisher, 1935) of the sweep's arms that ran the same seeds "
    "of the same tasks and bases, shown or not; an arm whose spread is larger than that of the "
    "others (F test, p < .05) has its own, with n - 1"
)


_NO_PRIMARY = "no primary outcome has a difference"


def difference_notes(report: Report) -> list[str]:
    """Return sentences about the tables of differences, on what is shown there."""
    if not report.differences:
        return explain_no_tests(report)
    comparisons = [difference.comparison for difference in report.differences]
    if any(comparison.paired for comparison in comparisons):
        test = _describe_paired_test(report)
        is_pooled = any(comparison.pooled for comparison in comparisons)
        spread = POOLED_SPREAD if is_pooled else "that of the pairs' differences alone"
        freedom = f"of the spread, {spread}"
        needed = "pairs"
    else:
        test = (
            "of unpaired runs, with the p of Welch's t-test; effect: in pooled standard "
            "deviations (Hedges)"
        )
        freedom = "of Welch's t-test, after Satterthwaite"
        needed = "seeds of each row"
    lines = [f"differences: {test}"]
    if any(difference.improvement is not None for difference in report.differences):
        lines[0] += "; P(better): probability that a run does better than one of the baseline"
    lines.append(describe_family(report) if report.primary else _NO_PRIMARY)
    lines.append(f"df: degrees of freedom {freedom}")
    if report.primary:
        lines.append(
            f"seeds needed: {needed} that would give 80 % power {_describe_target(report)}, if "
            "its spread is as estimated here"
        )
        lines.append(describe_equivalence(report))
    if not all(comparison.paired for comparison in comparisons):
        lines.append("unpaired: rows that share fewer than two known seeds, by Welch's t-test")
    return lines


def _describe_paired_test(report: Report) -> str:
    """Describe the differences of pairs, with the p values that the tables show."""
    p_values = ""
    if report.primary:
        p_values = ", with the t-test's p"
    if any(not math.isnan(d.comparison.p_permutation) for d in report.primary):
        p_values += " (p perm: of flipped signs)"
    return (
        f"paired by seed{p_values}; effect: in standard deviations of the pairs' differences "
        "(Hedges)"
    )


def explain_no_tests(report: Report) -> list[str]:
    """Say why nothing is tested; nothing where that is what the user asked for."""
    if report.differences:
        return [] if report.primary else [_NO_PRIMARY]
    if report.baseline is None:
        if len(report.trained) > MOST_ROWS:
            return [f"not compared, with more than {MOST_ROWS} rows: --baseline names one"]
        return list(report.texts(NoteKind.UNTESTED))
    has_replicates = all(row.n > 1 for row in report.trained)
    why = "no column has an interval" if has_replicates else "that takes two seeds of each"
    return [f"not compared with {report.baseline}: {why}"]


def _describe_target(report: Report) -> str:
    """Say which difference the seeds needed are counted for."""
    first = report.differences[0]
    if first.target == first.comparison.difference:
        return "at the observed effect"
    return f"for a difference of {first.target:g}"


def unit_of(report: Report) -> str:
    """Return what the numbers of a report are means over: seeds, or runs of unknown seeds."""
    return "runs" if any(row.unknown_seeds for row in report.trained) else "seeds"


def describe_unknown_seeds(report: Report) -> list[str]:
    """Return a sentence on the rows with runs whose seed nobody knows; none without any."""
    rows = [row for row in report.trained if row.unknown_seeds]
    if not rows:
        return []
    compared = [
        difference.comparison
        for difference in report.differences
        if any(report.rows[i] in rows for i in (difference.row, difference.baseline))
    ]
    named = []
    for row in rows:
        of = "" if row.unknown_seeds == row.n else f" of {row.n}"
        named.append(f"{name_group(row.group)} ({row.unknown_seeds}{of})")
    text = f"seeds unknown: not paired: {first_of(named, _NAMED)}"
    if any(not comparison.paired for comparison in compared):
        text += "; differences are by Welch's t-test"
    if any(comparison.paired for comparison in compared):
        text += "; rows that share two known seeds or more are compared by these alone"
    return [text]


def describe_family(report: Report) -> str:
    """Describe which differences the p of the report's differences are adjusted over."""
    outcomes = ", ".join(dict.fromkeys(d.column.header for d in report.primary))
    declared = f", declared by {report.declared_by}" if report.declared_by else ""
    return f"p adj is adjusted over {report.family} ({outcomes}{declared}), by Benjamini-Hochberg"


def describe_equivalence(report: Report) -> str:
    """Describe the margins within which rows are equivalent to the baseline, and their tests."""
    text = (
        "equal within: the smallest margin within which two one-sided t-tests at 5 % (Schuirmann, "
        "1987) show a row to be equivalent to the baseline, each by itself"
    )
    margins = {d.column.header: d.margin for d in report.primary if not math.isnan(d.margin)}
    if not margins:
        return f"{text}; --margin tests one that was chosen beforehand"
    tests = sum(not math.isnan(d.p_equal) for d in report.primary)
    listed = ", ".join(f"{header} {margin:g}" for header, margin in margins.items())
    return (
        f"{text}; p equal: of these tests at the given margin ({listed}), adjusted over "
        f"{counted(tests, 'test')} by Benjamini-Hochberg"
    )


def _describe_matched(rates: Mapping[str, Any]) -> str:
    """Describe how learning rates were matched, and the results."""
    if rates["match"] == NOT_MATCHED:
        return "not matched"
    some = [
        f"{estimator} {'/'.join(f'{rate:.3g}' for rate in values)}"
        for estimator, values in rates["rates"].items()
        if values
    ]
    listed = f" ({', '.join(some)})" if some else ""
    return f"matched by {rates['match']} to {rates['reference']}{listed}"
