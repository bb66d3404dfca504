"""Figures over the training: metrics, gradient masses, controllers, entropy and solve rates."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from advsweep.errors import FitError, NotFoundError, ReportError
from advsweep.report.data.columns import Curve, metric_range, parse_column
from advsweep.report.figures import chart
from advsweep.report.figures.data import FigureData, Replicates
from advsweep.statistics import regress
from advsweep.statistics.intervals import ROUNDING, Band, student_t_band

if TYPE_CHECKING:
    from jaxtyping import Float, Int

STANDARD = ("reward/mean", "collapse/acr", "entropy/token", "advantage/zero_fraction")
_CONTROLLED = "estimator/"
_ENTROPIES = ("entropy/token", "entropy/token_sampled")
_CHANGES = ("entropy/change", "entropy/drift", "entropy/covariance")
_SOLVED = re.compile(r"solved/(\d{1,9})", re.ASCII)
_WINDOWS = 60  # at most, along the steps


def curves(data: FigureData, options: chart.Options) -> chart.Chart:
    """Draw metrics over the training."""
    recorded = [name for name in STANDARD if name in data.metric_names]
    metrics = list(dict.fromkeys(options.metrics)) or recorded
    if not metrics:
        raise ReportError(f"no run of {data.name} recorded any of {', '.join(STANDARD)}")
    return _curves(data, options, "training curves", metrics)


def masses(data: FigureData, options: chart.Options) -> chart.Chart:
    """Draw m_S and m_F over the training."""
    note = "per rollout, of the advantages that the step trained on"
    metrics = ["mass/success", "mass/failure"]
    return _curves(data, options, "gradient masses", metrics, note, is_shared=True)


def controllers(data: FigureData, options: chart.Options) -> chart.Chart:
    """Draw what estimators set themselves while training."""
    metrics = sorted(name for name in data.metric_names if name.startswith(_CONTROLLED))
    if not metrics:
        raise ReportError(
            f"no estimator of {data.name} sets anything by itself: there is no metric "
            f"{_CONTROLLED}*"
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
    scaled = [together if is_shared else own for own in lines.values()]
    evaluated = [metric for metric in metrics if _is_evaluated(metric)]
    smoothed = []
    if options.smooth > 1 and len(evaluated) < len(metrics):
        but = f"; evaluations ({', '.join(evaluated)}) are not" if evaluated else ""
        smoothed = [f"each run is smoothed: the mean of its last {options.smooth} steps{but}"]
    counts = [int(max(line.n)) for line in together]
    return chart.Chart(
        title=f"{data.name}: {title}",
        notes=[*chart.seeds_note(counts, "bands"), *chart.cut_note(scaled), *smoothed, *notes],
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
                y_limits=chart.limits(scale),
                within=metric_range(metric),
                height=2.3 if len(metrics) > 1 else 3.0,
            )
            for (metric, own), scale in zip(lines.items(), scaled, strict=True)
        ],
        columns=chart.grid_columns(len(metrics)),
    )


def _is_evaluated(metric: str) -> bool:
    column = parse_column(metric)
    return column is not None and column.is_single


def _lines(data: FigureData, metric: str, smooth: int) -> list[chart.Series]:
    """Return the mean curve of each row that has the metric.

    Raises:
        ReportError: it is not a number anywhere.
    """
    found = data.series(metric)
    # Evaluations are few and far between: a mean over them would be of the whole training.
    smooth = 1 if _is_evaluated(metric) else smooth
    lines = []
    for row in data.distinct_rows():
        own = [found[run.id] for run in row.runs if run.id in found]
        if own:
            steps, band = mean_curve(own, smooth)
            if band.n.any():
                lines.append(chart.Series.of_band(row.label, row.style, steps, band))
    if not lines:
        raise ReportError(f"{metric} is not a number at any step of any run of {data.name}")
    return lines


def mean_curve(series: Sequence[Curve], smooth: int = 1) -> tuple[Int[np.ndarray, " steps"], Band]:
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
        means: Float[np.ndarray, " points"] = (sums[1:] - sums[first]) / (
            counts[1:] - counts[first]
        )
    return means


def entropy(data: FigureData, options: chart.Options) -> chart.Chart:
    """Draw token entropy, and its change against FADE's prediction (arXiv:2607.01490, Eq. 7)."""
    metric = next((name for name in _ENTROPIES if name in data.metric_names), _ENTROPIES[0])
    made = _curves(data, options, "entropy dynamics", [metric])
    changes = _changes(data)
    names = ("change", "drift", "minus_covariance")
    records = []
    for record in made.records:
        of_row = changes.get(record["row"], {})
        known = of_row.get(record["step"], [None] * len(names))
        fields = {"row": record["row"], "step": record["step"], "entropy": record["mean"]}
        fields |= {name: record[name] for name in ("low", "high", "n")}
        records.append(fields | dict(zip(names, known, strict=True)))
    styles = {row.label: row.style for row in data.rows}
    tables = {label: np.array(list(own.values())) for label, own in changes.items()}
    # Terms are sums of columns: the drift, the covariance, and both.
    terms = {"drift, (m_S - m_F) H": [1], "-Cov(A, log π)": [2], "drift - Cov(A, log π)": [1, 2]}
    panels = [
        chart.Panel(
            title=_describe_fits(
                [(own[:, columns].sum(axis=1), own[:, 0]) for own in tables.values()]
            ),
            series=[
                chart.Series(
                    label, styles[label], own[:, columns].sum(axis=1), own[:, 0], chart.FAINT
                )
                for label, own in tables.items()
            ],
            x_label=term,
            y_label="measured change, nats" if columns == [1] else "",
            guides=[("x", 0.0), ("y", 0.0)],
            height=2.4,
        )
        for term, columns in terms.items()
    ]
    note = "no change was measured: that is backend.entropy_change=true"
    if changes:
        note = (
            "small points: a step each, mean over seeds; R² of a line through each row's, and "
            "the slope's sign; predictions are per unit of the learning rate"
        )
    [first] = made.panels
    return chart.Chart(
        title=made.title,
        notes=[*made.notes, note],
        records=records,
        panels=[
            replace(first, title=f"{metric}, nats", height=2.6, is_wide=True),
            *(panels if changes else ()),
        ],
        columns=len(terms),
    )


def _changes(data: FigureData) -> dict[str, dict[int, list[float]]]:
    """Return the measured change, the drift and -Cov(A, log π) of each row, by step."""
    try:
        found = [data.series(name) for name in _CHANGES]
    except NotFoundError:
        return {}
    changes = {}
    for row in data.rows:
        runs = [run.id for run in row.runs if all(run.id in series for series in found)]
        if not runs:
            continue
        change, drift, covariance = (
            dict(zip(steps.tolist(), band.mean.tolist(), strict=True))
            for steps, band in (mean_curve([own[run] for run in runs]) for own in found)
        )
        changes[row.label] = {
            # Rounding errors of m_S = m_F are no drift.
            step: [value, 0.0 if abs(drift[step]) < ROUNDING else drift[step], -covariance[step]]
            for step, value in change.items()
            if step in drift and step in covariance
        }
    return changes


def _describe_fits(points: Sequence[tuple[Any, Any]]) -> str:
    """Describe how well a term explains the change within rows, whose scales differ."""
    fits = []
    for x, y in points:
        with suppress(FitError):
            fits.append(regress(x, y))
    fits = [fit for fit in fits if not math.isnan(fit.r_squared.value)]
    if not fits:
        return "R² undefined"
    shares = sorted({f"{fit.r_squared.value:.2f}" for fit in fits})
    spread = f"{shares[0]} to {shares[-1]}" if len(fits) > 1 else shares[0]
    signs = sorted({"+" if fit.slope.value > 0 else "-" for fit in fits})
    return f"R² {spread}, slopes {' and '.join(signs)}"


def solve_rates(data: FigureData, options: chart.Options) -> chart.Chart:
    """Draw a histogram of solve rates for each window of the training, as a heat map."""
    # An imported log may have other metrics with such a prefix.
    found = [match for name in data.metric_names if (match := _SOLVED.fullmatch(name))]
    names = [match[0] for match in sorted(found, key=lambda match: int(match[1]))]
    rows = [
        (row, *shares)
        for row in (data.distinct_rows() if names else ())
        if (shares := _shares(data, row, names)) is not None
    ]
    if not rows:
        raise NotFoundError(
            f"no run of {data.name} recorded how many groups have how many successes "
            "(solved/0, solved/1, ...); runs of an older advsweep did not"
        )
    window = max(int(np.diff(edges).max()) for _, edges, _ in rows)
    over = f", and over {window} steps each" if window > 1 else ""
    most = max(float(np.nanmax(band.mean)) for _, _, bands in rows for band in bands)
    panels, records = [], []
    for row, edges, bands in rows:
        size, last = row.runs[0].config["group_size"], len(bands) - 1
        counts = [k * size / last for k in range(last + 1)]
        ticks = {k: str(round(counts[k])) for k in sorted({0, last // 2, last})}
        records += [
            {
                "row": row.label,
                "group_size": size,
                "first_step": int(edges[i]),
                "last_step": int(edges[i + 1]) - 1,
                "successes": counts[k],
                "share": float(band.mean[i]),
                "low": float(band.low[i]),
                "high": float(band.high[i]),
                "n": int(band.n[i]),
            }
            for i in range(len(edges) - 1)
            for k, band in enumerate(bands)
        ]
        cells = chart.Cells(
            x=edges.tolist(),
            y=[k - 0.5 for k in range(len(bands) + 1)],
            values=np.array([band.mean for band in bands]),
            within=(0.0, most),
            label="share of groups",
            gamma=0.5,
            rows=[f"{round(count)} of {size} right" for count in counts],
        )
        panels.append(
            chart.Panel(
                title=row.label,
                cells=cells,
                x_label="training step",
                y_label="successes of G",
                y_ticks=ticks,
                height=1.9,
            )
        )
    return chart.Chart(
        title=f"{data.name}: solve rates over the training",
        notes=[f"shares of groups, means over seeds{over}; colours on a square-root scale"],
        records=records,
        panels=panels,
        columns=chart.grid_columns(len(panels)),
    )


def _shares(
    data: FigureData, row: Replicates, names: Sequence[str]
) -> tuple[Int[np.ndarray, " edges"], list[Band]] | None:
    """Return the edges of windows of steps, and the share of groups with each count in them.

    None for a row without such metrics, such as an imported one of unknown group size.
    """
    found = [data.series(name) for name in names]
    runs = [run.id for run in row.runs if run.id in found[0]]
    # Smaller groups have fewer possible counts, so some metrics are missing.
    curves = [series for series in found if all(run in series for run in runs)]
    if not runs or len(curves) < 2 or not isinstance(row.runs[0].config.get("group_size"), int):
        return None
    last = max(int(curves[0][run][0][-1]) for run in runs)
    width = max(math.ceil(last / _WINDOWS), 1)
    edges = np.arange(1, last + width + 1, width)
    bands = []
    for series in curves:
        table = []
        for steps, values in (series[run] for run in runs):
            known = np.isfinite(values)
            sums, _ = np.histogram(steps[known], edges, weights=values[known])
            counts, _ = np.histogram(steps[known], edges)
            table.append(sums / np.where(counts > 0, counts, np.nan))
        bands.append(student_t_band(table))
    return edges, bands
