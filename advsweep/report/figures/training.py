"""The figure of metrics over the training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from advsweep.errors import ReportError, first_of
from advsweep.report.data.column_choice import results_first
from advsweep.report.data.columns import parse_column, range_of
from advsweep.report.figures import chart
from advsweep.report.figures.data import FigureData

if TYPE_CHECKING:
    from jaxtyping import Float, Int

_MOST = 4  # panels for the metrics of logs
_NAMED = 6  # runs of a note at most

STANDARD = ("reward/mean", "collapse/acr", "entropy/token", "advantage/zero_fraction")


def curves(data: FigureData, metrics: Sequence[str] = (), smooth: int = 1) -> chart.Chart:
    """Draw metrics over the training, with bands over seeds."""
    recorded = [name for name in STANDARD if name in data.metric_names]
    # Logs of others may have none of our names.
    metrics = list(dict.fromkeys(metrics)) or recorded or results_first(data.metric_names)[:_MOST]
    if not metrics:
        raise ReportError(f"no run of {data.name} recorded any of {', '.join(STANDARD)}")
    styles = {row.label: row.style for row in data.distinct_rows()}
    tables = {metric: _means(data, metric, smooth) for metric in metrics}
    lines = {metric: chart.lines(table, styles, "step") for metric, table in tables.items()}
    every = pd.concat([table.assign(metric=metric) for metric, table in tables.items()])
    smoothed = []
    if smooth > 1:
        last = f"the mean of its last {smooth} steps"
        smoothed = [f"each run is smoothed: {last}; evaluations are not"]
    return chart.Chart(
        title=f"{data.name}: training curves",
        notes=[
            *chart.seeds_note(every.groupby(["metric", "row"])["n"].max(), "bands"),
            *smoothed,
            *_early_notes(data, metrics),
        ],
        records=every[["metric", "row", "step", "mean", "low", "high", "n"]].to_dict("records"),
        panels=[
            chart.Panel(
                title=metric,
                series=own,
                x_label="training step",
                y_limits=chart.limits(own),
                within=range_of(metric),
                height=2.3 if len(metrics) > 1 else 3.0,
            )
            for metric, own in lines.items()
        ],
        columns=chart.grid_columns(len(metrics)),
    )


def _early_notes(data: FigureData, metrics: Sequence[str]) -> list[str]:
    """Return a sentence for each metric that some runs have to an earlier step than others."""
    notes = []
    for metric in metrics:
        last = {
            run_id: int(steps[np.isfinite(values)][-1])
            for run_id, (steps, values) in data.series(metric).items()
            if np.isfinite(values).any()
        }
        latest = max(last.values(), default=0)
        early = [
            f"{row.label} (run {run.id} at step {last[run.id]} of {latest})"
            for row in data.rows
            for run in row.runs
            if run.id in last and last[run.id] < latest and not row.group.get("steps")
        ]
        if early:
            notes.append(
                f"ended early, so that later means are without them: {metric} of "
                f"{first_of(early, _NAMED)}"
            )
    return notes


def _means(data: FigureData, metric: str, smooth: int) -> pd.DataFrame:
    """Return the mean over seeds of each `row` that has a metric, at each `step`.

    Args:
        smooth: the number of steps in the running mean of each run; fewer at its start.

    Raises:
        ReportError: it is not a number anywhere.
    """
    found = data.series(metric)
    column = parse_column(metric)
    if column is not None and column.of_one_evaluation is not None:
        # Evaluations are few and far between: a mean over them would be of the whole training.
        smooth = 1
    parts = []
    for label, run in ((row.label, run) for row in data.rows for run in row.runs):
        if run.id in found:
            steps, values = found[run.id]
            smoothed = running_mean(steps, values, smooth)
            parts.append(pd.DataFrame({"row": label, "step": steps, "value": smoothed}))
    means = chart.means(pd.concat(parts), "row", "step")
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
