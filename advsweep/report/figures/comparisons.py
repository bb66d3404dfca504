"""Figures that compare rows: differences to a baseline, and early collapse."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from advsweep.errors import FitError, ReportError
from advsweep.names import ACR
from advsweep.report.data.columns import (
    Column,
    find_outcome,
    label_column,
    parse_column,
    within_steps,
)
from advsweep.report.data.labels import label_rows
from advsweep.report.figures import chart
from advsweep.report.figures.axes import label_axis
from advsweep.report.figures.data import FigureData
from advsweep.report.figures.style import COLOURS, GREY, RowStyle
from advsweep.report.tables.comparison import LEVEL
from advsweep.report.tables.margins import parse_margins
from advsweep.report.tables.notes import describe_unknown_seeds
from advsweep.report.tables.types import NoteKind, Report
from advsweep.statistics import Regression, regress
from advsweep.tasks.controls import AA
from advsweep.writing import show

# What marks the label of a row that repeats the baseline.
AA_MARK = f"({AA.title})"
_NUMBERS = ("difference", "low", "high", "n", "paired")
# The number of steps that count as early.
FIRST = 100
# A difference that is so many times as far from 0 as the median one is drawn at the axis' end.
_FAR = 8


def forest(
    data: FigureData,
    metrics: Sequence[str] = (),
    baseline: str | None = None,
    margin: Sequence[str] = (),
) -> chart.Chart:
    """Draw differences to the baseline (--baseline) in the primary outcomes.

    `--margin` shades a margin of equivalence: a number for every pass@k, or OUTCOME=NUMBER.
    """
    # The differences are those of the report, so that figure and table cannot disagree.
    if data.task is not None:
        raise ReportError(
            "primary outcomes are of the runs' own task; without --task, "
            f"--metric 'pass@1[{data.task}]' names one of another"
        )
    report = data.report(metrics or None, baseline)
    if report.baseline is None:
        raise ReportError(f"{data.name} has no two rows, or too many; --baseline names one")
    table, remarks = _tabulate_differences(report, metrics)
    if table.empty:
        raise ReportError(
            f"no row of {data.name} can be compared with {report.baseline}: expected two "
            "seeds of each"
        )
    outcomes = list(table["outcome"].unique())
    margins = parse_margins(margin, outcomes)
    labels = _sort_labels(table, outcomes[0])
    table["place"] = table["row"].map(labels.index)
    table["margin"] = table["outcome"].map(margins)
    # Without a test p is NaN.
    table["is_filled"] = table["p_adjusted"] <= LEVEL
    by_outcome = [table[table["outcome"] == name].sort_values("place") for name in outcomes]
    records = pd.concat(by_outcome).drop(columns=["is_primary", "baseline", "place", "is_filled"])
    against = table["baseline"].unique()
    return chart.Chart(
        title=f"{data.name}: differences to {against[0] if len(against) == 1 else report.baseline}",
        notes=[
            *_forest_notes(table, margins, report.family),
            *report.texts(NoteKind.EARLY_END),
            *describe_unknown_seeds(report),
            *remarks,
        ],
        make_records=lambda: records.to_dict("records"),
        panels=[
            forest_panel(
                name, of_outcome, labels, margins.get(name, 0.0), is_named=name == outcomes[0]
            )
            for name, of_outcome in zip(outcomes, by_outcome, strict=True)
        ],
        columns=len(outcomes),
    )


def _tabulate_differences(
    report: Report, metrics: Sequence[str]
) -> tuple[pd.DataFrame, Sequence[str]]:
    """Return a report's differences in some metrics, and remarks on the labels of their rows.

    Args:
        metrics: the names of columns; empty for the primary outcomes.

    Returns:
        a line for each outcome and row, with the name of the row's baseline; remarks.
    """
    rows = [place for place, row in enumerate(report.rows) if not row.is_untrained]
    texts, remarks = label_rows([report.rows[row].group for row in rows])
    labels = dict(zip(rows, texts, strict=True))
    columns: Sequence[Column] = report.outcomes
    if metrics:
        columns = list(filter(None, map(parse_column, metrics)))
    lines = []
    for column in columns:
        for difference in report.differences:
            if not find_outcome(column, [difference.column]):
                continue
            numbers = {name: getattr(difference.comparison, name) for name in _NUMBERS}
            label = labels[difference.row]
            lines.append(
                {
                    "outcome": column.name,
                    "row": label,
                    "control": AA_MARK in label,
                    **numbers,
                    "p_adjusted": difference.p_adjusted,
                    "is_primary": difference.is_primary,
                    "baseline": labels.get(difference.baseline, report.baseline),
                }
            )
    table = pd.DataFrame(lines)
    if lines:
        table = table.drop_duplicates(["outcome", "row"], keep="last")
    return table, remarks


def _sort_labels(table: pd.DataFrame, outcome: str) -> list[str]:
    """Return the labels of rows: A/A rows on top, and the others by a first outcome."""
    first = table[table["outcome"] == outcome].set_index("row")["difference"].to_dict()

    def place_of(label: str) -> tuple[bool, float]:
        return AA_MARK not in label, -first.get(label, -math.inf)

    return sorted(table["row"].unique(), key=place_of)


def forest_panel(
    name: str, differences: pd.DataFrame, labels: Sequence[str], margin: float, *, is_named: bool
) -> chart.Panel:
    """Draw the differences in an outcome.

    Args:
        differences: with `difference`, `low`, `high`, the `place` of each row from the top, and
            whether it is a `control` and `is_filled`.
        labels: the rows from the top.
        margin: of equivalence, to shade; 0 for none.
        is_named: whether the panel shows the labels.
    """
    far = is_far(differences)
    # 0 and the margin stay in view, so that small differences look small.
    ends = differences.loc[~far, ["low", "high"]].to_numpy()
    wide = 1.2 * margin or float(np.abs(ends).max()) / 4 or 1.0
    low, high = min(ends.min(), -wide), max(ends.max(), wide)
    side = np.sign(differences["difference"]).where(far, 0).rename("side")
    series = []
    for (control, is_filled, beyond), alike in differences.groupby(["control", "is_filled", side]):
        colour, marker = (COLOURS[1], "D") if control else (COLOURS[0], "o")
        style = RowStyle(colour, {-1: "<", 1: ">"}.get(beyond, marker), int(not is_filled))
        x, x_low, x_high = (alike[name].clip(low, high) for name in ("difference", "low", "high"))
        series.append(
            chart.Series("", style, x, alike["place"], chart.POINTS, x_low=x_low, x_high=x_high)
        )
    pad = 0.05 * (high - low)
    return chart.Panel(
        title=label_column(name),
        series=series,
        x_label="difference",
        rows=labels if is_named else [""] * len(labels),
        x_limits=(low - pad, high + pad),
        guides=[("x", 0.0)],
        span=(-margin, margin) if margin else None,
        height=0.5 + 0.21 * len(labels),
    )


def is_far(differences: pd.DataFrame) -> pd.Series:
    """Say which differences are too far from 0 to be drawn to scale with the others."""
    ends = differences[["low", "high"]].abs().max(axis=1)
    return ends > _FAR * ends.median()


def _forest_notes(table: pd.DataFrame, margins: Mapping[str, float], family: str) -> list[str]:
    low, high = table["n"].min(), table["n"].max()
    paired = "paired by seed, "
    if not table["paired"].all():
        paired = "" if table["paired"].any() else "unpaired (Welch's t-test), "
    seeds = str(low) if low == high else f"{low} to {high}"
    notes = [f"means with 95 % intervals, {paired}over {seeds} seeds, as in the report"]
    is_tested = table.groupby("outcome", sort=False)["is_primary"].any()
    if is_tested.any():
        notes.append(f"filled: p of at most {LEVEL} after Benjamini-Hochberg over {family}")
    if not is_tested.all():
        untested = map(label_column, is_tested.index[~is_tested])
        notes.append(f"described without a test: {', '.join(untested)}")
    notes += describe_far(table)
    if margins:
        listed = ", ".join(f"{label_column(name)} {margin:g}" for name, margin in margins.items())
        notes.append(f"shaded: the margin of equivalence ({listed})")
    return [*notes, *describe_controls(table)]


def describe_far(table: pd.DataFrame) -> list[str]:
    """Say which differences are drawn as arrows, by outcome."""
    notes = []
    for name, of_outcome in table.groupby("outcome", sort=False):
        far = of_outcome[is_far(of_outcome)]
        texts = [f"{row} {show(x)}" for row, x in zip(far["row"], far["difference"], strict=True)]
        if texts:
            notes.append(
                f"at an arrow, off the axis of {label_column(str(name))}: {', '.join(texts)}"
            )
    return notes


def describe_controls(table: pd.DataFrame) -> list[str]:
    """Say what the marks of A/A rows are, if there are any."""
    if not table["control"].any():
        return []
    return ["diamonds: A/A rows, which repeat the baseline and show the noise"]


def acr(data: FigureData) -> chart.Chart:
    """Draw final pass@1 over the ACR of the first 100 steps, a point per run, with R².

    It is AVSPO's regression.
    """
    collapse = f"{ACR}@first{FIRST}"
    accuracy = data.on_task("pass@1")
    points = _tabulate_runs(data, collapse, accuracy)
    styles = dict(data.point_style(row) for row in data.rows)
    fit = None
    refused = None
    try:
        fit = regress(points["acr"], points["pass@1"])
    except FitError as error:
        refused = str(error)
    fields = {
        **chart.estimate_fields(fit, "slope", "intercept", "r_squared"),
        "p_value": None if fit is None else fit.p_value,
        "n": None if fit is None else fit.n,
        "refused": refused,
    }
    notes = ["a point for each run"]
    shortest = min(run.steps for run in data.runs)
    if shortest < FIRST:
        notes.append(f"runs of fewer than {FIRST} steps count with all of them ({shortest})")
    series = []
    title = ""
    if fit is None:
        notes.append(f"no line: {refused}")
    else:
        notes.append(
            "line of least squares, with the 95 % band of its mean as of independent points; "
            "seeds of one row are alike, so that the band is narrower than it should be"
        )
        series.append(_line_of(fit, points["acr"]))
        title = _describe_fit(fit)
    for label, of_row in points.groupby("row", sort=False):
        xs = of_row["acr"]
        series.append(chart.Series(label, styles[label], xs, of_row["pass@1"], chart.POINTS))
    return chart.Chart(
        title=f"{data.name}: early collapse and final accuracy",
        notes=notes,
        make_records=lambda: [point | fields for point in points.to_dict("records")],
        panels=[
            chart.Panel(
                title=title,
                series=series,
                x_label=_label_early(collapse, max(run.steps for run in data.runs)),
                y_label=label_axis(accuracy),
                height=3.1,
            )
        ],
    )


def _tabulate_runs(data: FigureData, collapse: str, accuracy: str) -> pd.DataFrame:
    """Return the numbers of the runs that have both, with the label of their row."""
    early = data.values(collapse)
    final = data.values(accuracy)
    points = []
    for row in data.rows:
        label, _ = data.point_style(row)
        for run in row.runs:
            if run.id in early and run.id in final:
                points.append((label, run.seed, early[run.id], final[run.id]))
    table = pd.DataFrame(points, columns=["row", "seed", "acr", "pass@1"])
    # Of objects, as an unknown seed would make floats of the others.
    table["seed"] = pd.Series([seed for _, seed, _, _ in points], dtype=object)
    return table


def _label_early(name: str, longest: int) -> str:
    """Return the label of a number of the first steps, as a report has it: of those there are."""
    column = parse_column(name)
    return name if column is None else within_steps(column, longest).header


def _line_of(fit: Regression, xs: pd.Series[float]) -> chart.Series:
    """Return the line of a regression with its band, a little beyond the points."""
    pad = 0.03 * (max(xs) - min(xs))
    places = np.linspace(min(xs) - pad, max(xs) + pad, 60)
    line, low, high = fit.band(places)
    return chart.Series("", RowStyle(GREY, "o"), places, line, chart.FIT, low=low, high=high)


def _describe_fit(fit: Regression) -> str:
    r2 = fit.r_squared
    slope = fit.slope
    return (
        f"R² = {r2.value:.2f} [{r2.low:.2f}, {r2.high:.2f}], slope {slope.value:.2f} "
        f"[{slope.low:.2f}, {slope.high:.2f}], p = {fit.p_value:.2g}, {fit.n} runs"
    )
