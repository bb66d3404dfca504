"""Differences of rows where a number is equal: diversity at equal pass@1.

`report.tables.matched` has the rule. The points come from the evaluations along the trainings of a
sweep, or from a table of them, such as `runs.csv` of a study.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import pandas as pd

from advsweep.errors import ConfigError, ReportError
from advsweep.report.data.columns import label_column
from advsweep.report.data.labels import label_rows
from advsweep.report.figures import chart
from advsweep.report.figures.comparisons import (
    AA_MARK,
    describe_controls,
    describe_far,
    forest_panel,
)
from advsweep.report.figures.data import FigureData
from advsweep.report.figures.equal_samples import with_equal_samples
from advsweep.report.tables.baselines import BaselineRows, choose_baseline
from advsweep.report.tables.comparison import LEVEL
from advsweep.report.tables.matched import MatchedDifference, Matching, compare_matched
from advsweep.report.tables.types import Report
from advsweep.statistics.matching import MAX_SHARE

_ACCURACY = "pass@1"


@dataclass(frozen=True)
class MatchedRows:
    """What is compared where a number is equal.

    Attributes:
        name: of the runs, for the title.
        points: the evaluations, as `compare_matched` takes them.
        baselines: the baseline of each row.
        notes: on the selection of rows and evaluations.
    """

    name: str
    points: pd.DataFrame
    baselines: Mapping[str, str]
    notes: Sequence[str] = ()


def matched(
    data: FigureData,
    metrics: Sequence[str] = (),
    baseline: str | None = None,
    at: str | None = None,
) -> chart.Chart:
    """Draw differences to the baseline (--baseline) in diversity and pass@k at equal pass@1.

    `--at pass@1=0.45` compares at this value; by default each run is compared with that of its
    seed at the lower of the ends of the two. `--metric` names other outcomes.
    """
    report = data.report(metrics or None, baseline)
    chosen = choose_baseline(baseline, planned=report.trained, listed=report.rows)
    if chosen is None:
        raise ReportError(f"{data.name} has no two rows, or too many; --baseline names one")
    column, level = _parse_level(at) if at else (data.on_task(_ACCURACY), None)
    wanted = metrics or [each.name for each in report.outcomes]
    # What is equal does not differ.
    outcomes = [name for name in wanted if name != column]
    if not outcomes:
        raise ReportError(f"{data.name} has no outcome but {column}; --metric names one")
    pairs = _pair_rows(report, replace(chosen, tuned=report.tuned))
    rows = _rows_of(data, report, pairs, [column, *outcomes])
    return draw_matched(rows, Matching(column, outcomes, level))


def _parse_level(text: str) -> tuple[str, float | None]:
    """Parse `COLUMN` or `COLUMN=NUMBER`.

    Raises:
        ConfigError: the text is neither.
    """
    # A column may have an = of its own: pass@1[level=3].
    name, _, number = text.strip().rpartition("=")
    level = None
    try:
        level = float(number)
    except ValueError:
        name = text.strip()
    if not name or (level is not None and not math.isfinite(level)):
        raise ConfigError(f"--at: expected COLUMN, or COLUMN=NUMBER, got {text!r}")
    return name, level


def _pair_rows(report: Report, baseline: BaselineRows) -> dict[int, int]:
    """Return the place of the baseline of each trained row that has one.

    Raises:
        ReportError: no row has a trained baseline, or a row could be compared with several.
    """
    pairs = {}
    for place, row in enumerate(report.rows):
        other = None if row.is_untrained else baseline.of(row, report.rows)
        if other is not None and not report.rows[other].is_untrained:
            pairs[place] = other
    if not pairs:
        raise ReportError(
            f"no row can be compared with {baseline.text}: none is alike in all other keys"
        )
    return pairs


def _rows_of(
    data: FigureData, report: Report, pairs: Mapping[int, int], columns: Sequence[str]
) -> MatchedRows:
    """Return the evaluations of a report's rows, and the baseline of each.

    Args:
        pairs: the places of rows, and of their baselines.

    Raises:
        NotFoundError: no run has one of the columns.
    """
    places = sorted({*pairs, *pairs.values()})
    labels, remarks = label_rows([report.rows[place].group for place in places])
    named = dict(zip(places, labels, strict=True))
    baselines = {named[row]: named[other] for row, other in pairs.items()}
    label_of = {report.rows[place].arm: label for place, label in named.items()}
    runs = [run for run in data.runs if run.config_hash in label_of]
    index = pd.DataFrame(
        {
            "row": [label_of[run.config_hash] for run in runs],
            "seed": [run.seed_key for run in runs],
        },
        index=pd.Index([run.id for run in runs], name="run"),
    )
    notes: list[str] = []
    curves = []
    for name in columns:
        kept, fewer = with_equal_samples(data, name, data.series(name))
        notes += fewer
        values = {run: pd.Series(ys, index=steps) for run, (steps, ys) in kept.items()}
        curves.append(pd.concat(values, names=["run", "step"]).rename(name))
    points = pd.concat(curves, axis=1).reset_index().join(index, on="run", how="inner")
    return MatchedRows(data.name, points, baselines, [*notes, *remarks])


def draw_matched(rows: MatchedRows, matching: Matching) -> chart.Chart:
    """Draw a forest plot of rows that are compared where a number is equal.

    Raises:
        ReportError: no row has two seeds that can be compared.
    """
    differences = compare_matched(rows.points, rows.baselines, matching)
    records = pd.DataFrame([_record(one) for one in differences])
    table = records[records["low"].notna()]
    if table.empty:
        values = rows.points[matching.column]
        raise ReportError(
            f"no row of {rows.name} has two seeds whose evaluations come to an equal "
            f"{matching.column}; it is from {values.min():.3g} to {values.max():.3g}, and "
            "evaluation.at or evaluation.every makes more evaluations"
        )
    first = table[table["outcome"] == table["outcome"].iloc[0]]
    of_first = dict(zip(first["row"], first["difference"], strict=True))
    order = sorted(
        table["row"].unique(), key=lambda row: (AA_MARK not in row, -of_first.get(row, -math.inf))
    )
    table = table.assign(
        place=table["row"].map(order.index), is_filled=table["p_adjusted"] <= LEVEL
    )
    levels = table.drop_duplicates("row").set_index("row")
    labels = [_label(row, levels.loc[row]) for row in order]
    drawn = [name for name in matching.outcomes if (table["outcome"] == name).any()]
    panels = []
    for name in drawn:
        of_outcome = table[table["outcome"] == name].sort_values("place")
        panels.append(forest_panel(name, of_outcome, labels, 0.0, is_named=name == drawn[0]))
    against = sorted(set(rows.baselines.values()))
    what = against[0] if len(against) == 1 else "the baseline"
    return chart.Chart(
        title=f"{rows.name}: differences to {what} at equal {label_column(matching.column)}",
        notes=[*_notes(records, matching), *describe_far(table), *rows.notes],
        make_records=lambda: records.to_dict("records"),
        panels=panels,
        columns=len(panels),
    )


def _record(one: MatchedDifference) -> chart.Record:
    comparison = one.comparison
    return {
        "outcome": one.outcome,
        "row": one.row,
        "baseline": one.baseline,
        "control": AA_MARK in one.row,
        "difference": comparison.difference,
        "low": comparison.low,
        "high": comparison.high,
        "n": comparison.n,
        "seeds": one.seeds,
        "level": one.level,
        "level_low": min(one.levels, default=math.nan),
        "level_high": max(one.levels, default=math.nan),
        "gap": one.gap,
        "p": comparison.p_value,
        "p_adjusted": one.p_adjusted,
    }


def _label(row: str, record: pd.Series) -> str:
    """Name a row with its mean level, and its pairs where a seed has none."""
    fewer = "" if record["n"] == record["seeds"] else f", {record['n']} of {record['seeds']} seeds"
    return f"{row} at {record['level']:.2f}{fewer}"


def _notes(records: pd.DataFrame, matching: Matching) -> list[str]:
    """Return what the caption says of the comparison and of what is not compared."""
    tested = int(records["p_adjusted"].notna().sum())
    label = label_column(matching.column)
    level = "the lower of the two ends" if matching.level is None else f"{matching.level:g}"
    where = f"{label} first comes to {level}"
    notes = [
        f"each run less that of the baseline of its seed, both where {where}, on the straight line "
        "between evaluations; behind each name: that value in the mean",
        f"means with 95 % intervals, paired by seed (t-tests with their own spread); filled: p of "
        f"at most {LEVEL} after Benjamini-Hochberg over {tested} differences",
        f"the longest line is {records['gap'].max():.2g}",
    ]
    listed = []
    for row, of_row in records.groupby("row", sort=False):
        most = int(of_row["n"].max())
        if most < 2:
            listed.append(f"{row} ({most} of {of_row['seeds'].max()} seeds)")
    if listed:
        notes.append(
            f"not drawn, as fewer than two seeds come to an equal {label}, on lines of "
            f"at most {MAX_SHARE:.0%} of the way from the start: {', '.join(listed)}"
        )
    return [*notes, *describe_controls(records)]
