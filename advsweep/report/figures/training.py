"""Figures over the training: metrics, gradient masses and what estimators set themselves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from advsweep.errors import ReportError
from advsweep.report.data.columns import Curve, metric_range, parse_column
from advsweep.report.figures import chart
from advsweep.report.figures.data import FigureData
from advsweep.statistics.intervals import Band, student_t_band

if TYPE_CHECKING:
    from jaxtyping import Float, Int

STANDARD = ("reward/mean", "collapse/acr", "entropy/token", "advantage/zero_fraction")


def curves(data: FigureData, options: chart.Options) -> chart.Chart:
    """Draw metrics over the training."""
    recorded = [name for name in STANDARD if name in data.metric_names]
    metrics = list(dict.fromkeys(options.metrics)) or recorded
    if not metrics:
        raise ReportError(f"no run of {data.name} recorded any of {', '.join(STANDARD)}")
    return _curves(data, options, "training curves", metrics)


def masses(data: FigureData, options: chart.Options) -> chart.Chart:
    """Draw m_S and m_F over the training, on one scale."""
    note = "per rollout, of the advantages that the step trained on"
    metrics = ["mass/success", "mass/failure"]
    return _curves(data, options, "gradient masses", metrics, note, is_shared=True)


def controllers(data: FigureData, options: chart.Options) -> chart.Chart:
    """Draw what estimators set themselves while training."""
    metrics = sorted(name for name in data.metric_names if name.startswith("estimator/"))
    if not metrics:
        raise ReportError(
            f"no estimator of {data.name} sets anything by itself: there is no metric estimator/*"
        )
    return _curves(data, options, "controller dynamics", metrics)


def _curves(
    data: FigureData,
    options: chart.Options,
    title: str,
    metrics: Sequence[str],
    *notes: str,
    is_shared: bool = False,
) -> chart.Chart:
    """Draw a panel for each metric, with a line for each row; all on one scale if shared."""
    lines = {metric: _lines(data, metric, options.smooth) for metric in metrics}
    together = [line for own in lines.values() for line in own]
    counts = [int(max(line.n)) for line in together]
    smoothed = []
    if options.smooth > 1:
        last = f"the mean of its last {options.smooth} steps"
        smoothed = [f"each run is smoothed: {last}; evaluations are not"]
    return chart.Chart(
        title=f"{data.name}: {title}",
        notes=[*chart.seeds_note(counts, "bands"), *smoothed, *notes],
        records=[
            {"metric": metric, "row": line.label, "step": step, **record}
            for metric, own in lines.items()
            for line in own
            for step, record in zip(np.asarray(line.x).tolist(), line.records, strict=True)
        ],
        panels=[
            chart.Panel(
                title=metric,
                series=own,
                x_label="training step",
                y_limits=chart.limits(together if is_shared else own),
                within=metric_range(metric),
                height=2.3 if len(metrics) > 1 else 3.0,
            )
            for metric, own in lines.items()
        ],
        columns=chart.grid_columns(len(metrics)),
    )


def _lines(data: FigureData, metric: str, smooth: int) -> list[chart.Series]:
    """Return the mean curve of each row that has the metric.

    Raises:
        ReportError: it is not a number anywhere.
    """
    found = data.series(metric)
    column = parse_column(metric)
    if column is not None and column.is_single:
        # Evaluations are few and far between: a mean over them would be of the whole training.
        smooth = 1
    lines = []
    for row in data.distinct_rows():
        own = [found[run.id] for run in row.runs if run.id in found]
        if own:
            steps, band = _mean_curve(own, smooth)
            if band.n.any():
                lines.append(chart.Series.of_band(row.label, row.style, steps, band))
    if not lines:
        raise ReportError(f"{metric} is not a number at any step of any run of {data.name}")
    return lines


def _mean_curve(series: Sequence[Curve], smooth: int) -> tuple[Int[np.ndarray, " steps"], Band]:
    """Return the steps that any run has, and the mean over runs at each.

    Args:
        smooth: the number of steps in the running mean of each run; fewer at its start.
    """
    steps = np.unique(np.concatenate([own for own, _ in series]))
    table = np.full((len(series), len(steps)), np.nan)
    for row, (own, values) in zip(table, series, strict=True):
        row[np.searchsorted(steps, own)] = running_mean(own, values, smooth)
    return steps, student_t_band(table)


def running_mean(
    steps: Int[np.ndarray, " points"], values: Float[np.ndarray, " points"], window: int
) -> Float[np.ndarray, " points"]:
    """Return the mean over the last `window` steps at each point of a curve.

    Steps without a point do not count, and neither do values that are not finite.
    """
    if window == 1:
        return values
    known = np.isfinite(values)
    sums, counts = (
        np.concatenate([[0.0], np.cumsum(part)]) for part in (np.where(known, values, 0.0), known)
    )
    first = np.searchsorted(steps, steps - window, side="right")
    with np.errstate(invalid="ignore"):
        return np.asarray((sums[1:] - sums[first]) / (counts[1:] - counts[first]))
