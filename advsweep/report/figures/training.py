"""The figure of metrics over the training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from advsweep.errors import ReportError, first_of
from advsweep.names import (
    ACR,
    CREDIT_CORRELATION,
    REWARD_MEAN,
    TOKEN_ENTROPY,
    TURNS_COLLAPSED,
)
from advsweep.report.data.column_choice import results_first
from advsweep.report.data.columns import label_column, parse_column, range_of
from advsweep.report.data.windows import Curve
from advsweep.report.figures import chart
from advsweep.report.figures.axes import label_axis
from advsweep.report.figures.data import FigureData

if TYPE_CHECKING:
    from jaxtyping import Float, Int

_MOST = 4  # panels for the metrics of logs
_NAMED = 6  # runs of a note at most

# Those of turns are of runs with episodes alone.
STANDARD = (
    REWARD_MEAN,
    ACR,
    TOKEN_ENTROPY,
    "advantage/zero_fraction",
    TURNS_COLLAPSED,
    CREDIT_CORRELATION,
)


def curves(data: FigureData, metrics: Sequence[str] = (), smooth: int = 1) -> chart.Chart:
    """Draw metrics over the training, with bands over seeds."""
    recorded = [name for name in STANDARD if name in data.metric_names]
    # Logs of others may have none of our names.
    metrics = list(dict.fromkeys(metrics)) or recorded or results_first(data.metric_names)[:_MOST]
    if not metrics:
        raise ReportError(f"no run of {data.name} recorded any of {', '.join(STANDARD)}")
    styles = {row.label: row.style for row in data.distinct_rows()}
    series = {metric: data.series(metric) for metric in metrics}
    tables = {metric: _means(data, metric, series[metric], smooth) for metric in metrics}
    every = pd.concat([table.assign(metric=metric) for metric, table in tables.items()])
    notes = chart.seeds_note(every.groupby(["metric", "row"])["n"].max(), "bands")
    if smooth > 1:
        last = f"the mean of its last {smooth} steps"
        notes.append(f"each run is smoothed: {last}; evaluations are not")
    for metric in metrics:
        notes += _early_notes(data, metric, series[metric])
    columns = ["metric", "row", "step", "mean", "low", "high", "n"]
    return chart.Chart(
        title=f"{data.name}: training curves",
        notes=notes,
        make_records=lambda: every[columns].to_dict("records"),
        panels=[
            _panel(metric, chart.lines(tables[metric], styles, "step"), is_single=len(metrics) == 1)
            for metric in metrics
        ],
        columns=chart.grid_columns(len(metrics)),
    )


def _panel(metric: str, lines: Sequence[chart.Series], *, is_single: bool) -> chart.Panel:
    return chart.Panel(
        title=label_axis(metric),
        series=lines,
        x_label="training step",
        y_limits=chart.limits(lines, range_of(metric)),
        within=range_of(metric),
        height=3.0 if is_single else 2.3,
    )


def _early_notes(data: FigureData, metric: str, series: Mapping[int, Curve]) -> list[str]:
    """Return a sentence on the runs that have a metric to an earlier step than others, if any."""
    last = {
        run_id: int(steps[np.isfinite(values)][-1])
        for run_id, (steps, values) in series.items()
        if np.isfinite(values).any()
    }
    latest = max(last.values(), default=0)
    early = [
        f"{row.label} (run {run.id} at step {last[run.id]} of {latest})"
        for row in data.rows
        for run in row.runs
        if run.id in last and last[run.id] < latest and not row.group.get("steps")
    ]
    if not early:
        return []
    listed = first_of(early, _NAMED)
    return [
        f"ended early, so that later means are without them: {label_column(metric)} of {listed}"
    ]


def _means(data: FigureData, metric: str, series: Mapping[int, Curve], smooth: int) -> pd.DataFrame:
    """Return the mean over seeds of each `row` that has a metric, at each `step`.

    Args:
        series: the metric's curve of each run.
        smooth: the number of steps in the running mean of each run; fewer at its start.

    Raises:
        ReportError: it is not a number anywhere.
    """
    column = parse_column(metric)
    if column is not None and column.of_one_evaluation is not None:
        # Evaluations are few and far between: a mean over them would be of the whole training.
        smooth = 1
    # One frame of all points, as a frame of each run takes longer than all else here.
    labels = []
    steps = []
    values = []
    for row in data.rows:
        for run in row.runs:
            if run.id in series:
                run_steps, run_values = series[run.id]
                labels.append(np.full(len(run_steps), row.label, dtype=object))
                steps.append(run_steps)
                values.append(running_mean(run_steps, run_values, smooth))
    points = pd.DataFrame(
        {
            "row": np.concatenate(labels),
            "step": np.concatenate(steps),
            "value": np.concatenate(values),
        }
    )
    means = chart.means(points, "row", "step")
    means = means[means.groupby("row")["n"].transform("max") > 0]
    if means.empty:
        raise ReportError(f"{metric} is not a number at any step of any run of {data.name}")
    return means


def running_mean(
    steps: Int[np.ndarray, " points"], values: Float[np.ndarray, " points"], window: int
) -> Float[np.ndarray, " points"]:
    """Return the mean over the last `window` steps at each point of a curve.

    Steps without a point do not count, and neither do values that are not finite.
    """
    if window == 1:
        return values
    # Steps as seconds, since pandas has windows over the values of an index for times alone.
    known = np.where(np.isfinite(values), values, np.nan)
    by_step = pd.Series(known, pd.to_timedelta(steps, unit="s"))
    means: Float[np.ndarray, " points"] = by_step.rolling(f"{window}s").mean().to_numpy()
    return means
