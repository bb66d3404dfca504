"""Curves over the training: of metrics, gradient masses, controllers and entropy."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from advsweep.errors import FitError, NotFoundError, ReportError
from advsweep.report.data.columns import metric_range, parse_column
from advsweep.report.figures.chart import (
    GREY,
    Chart,
    Options,
    add_legend,
    band_records,
    cut_note,
    draw_curve,
    handle,
    legend_height,
    limits,
    seeds_note,
)
from advsweep.report.figures.data import Curve, FigureData, mean_curve
from advsweep.report.figures.style import RowStyle
from advsweep.statistics import Regression, regress
from advsweep.statistics.intervals import ROUNDING, Band

if TYPE_CHECKING:
    from jaxtyping import Float
    from matplotlib.axes import Axes
    from matplotlib.figure import FigureBase

STANDARD = ("reward/mean", "collapse/acr", "entropy/token", "advantage/zero_fraction")
_PANEL = 2.15  # inches
_CONTROLLED = "estimator/"


@dataclass(frozen=True)
class _Line:
    """The mean curve of one row."""

    label: str
    style: RowStyle
    curve: Curve


@dataclass(frozen=True, kw_only=True)
class _Curves(Chart):
    """Figures with a panel for each metric, and a line for each row that has it."""

    uses: ClassVar[frozenset[str]] = frozenset({"smooth"})

    panels: dict[str, list[_Line]]
    shared: bool = False  # the panels have one scale

    @classmethod
    def _collect(
        cls,
        data: FigureData,
        metrics: Sequence[str],
        options: Options,
        title: str,
        *,
        shared: bool = False,
        notes: Sequence[str] = (),
    ) -> Self:
        panels = {metric: _lines_of(data, metric, options.smooth) for metric in metrics}
        counts = [line.curve.band.n.max() for lines in panels.values() for line in lines]
        return cls(
            title=f"{data.name}: {title}",
            notes=[
                *seeds_note(counts, "bands"),
                *cut_note(_bands(panels, shared=shared)),
                *_smoothing_note(metrics, options.smooth),
                *notes,
            ],
            panels=panels,
            shared=shared,
        )

    @property
    def _labels(self) -> dict[str, RowStyle]:
        return {line.label: line.style for lines in self.panels.values() for line in lines}

    @property
    def height(self) -> float:
        rows = math.ceil(len(self.panels) / _columns(len(self.panels)))
        panel = _PANEL if len(self.panels) > 1 else 3.0
        return 0.35 + panel * rows + legend_height(list(self._labels))

    def draw(self, canvas: FigureBase) -> None:
        from matplotlib.ticker import MaxNLocator

        columns = _columns(len(self.panels))
        grid = canvas.add_gridspec(math.ceil(len(self.panels) / columns), columns)
        bands = _bands(self.panels, shared=self.shared)
        first: Axes | None = None
        for number, (metric, lines) in enumerate(self.panels.items()):
            axes = canvas.add_subplot(grid[divmod(number, columns)], sharey=first)
            first = first or (axes if self.shared else None)
            axes.set_title(metric)
            for i, line in enumerate(lines):
                draw_curve(axes, line.curve, line.style, i, len(lines), metric_range(metric))
            if number >= len(self.panels) - columns:
                axes.set_xlabel("training step")
            axes.set_ylim(limits(bands[number]))
            axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=7))
        add_legend(canvas, {label: handle(style) for label, style in self._labels.items()})

    def records(self) -> list[dict[str, Any]]:
        return [
            {"metric": metric, "row": line.label, "step": int(step), **fields}
            for metric, lines in self.panels.items()
            for line in lines
            for step, fields in zip(line.curve.steps, band_records(line.curve.band), strict=True)
        ]


class TrainingCurves(_Curves):
    name = "curves"
    summary = "metrics over the training, with bands over seeds (--metric, --smooth)"
    uses = frozenset({"metrics", "smooth"})

    @classmethod
    def collect(cls, data: FigureData, options: Options) -> Self:
        recorded = [name for name in STANDARD if name in data.metric_names]
        metrics = list(dict.fromkeys(options.metrics)) or recorded
        if not metrics:
            raise ReportError(f"no run of {data.name} recorded any of {', '.join(STANDARD)}")
        return cls._collect(data, metrics, options, "training curves")


class Masses(_Curves):
    name = "masses"
    summary = "weight that goes into pushing successes up and failures down, over the training"

    @classmethod
    def collect(cls, data: FigureData, options: Options) -> Self:
        return cls._collect(
            data,
            ["mass/success", "mass/failure"],
            options,
            "gradient masses",
            shared=True,
            notes=["per rollout, of the advantages that the step trained on"],
        )


class Controllers(_Curves):
    name = "controllers"
    summary = "what estimators set themselves while training: alpha, delta, tau, ..."

    @classmethod
    def collect(cls, data: FigureData, options: Options) -> Self:
        metrics = sorted(n for n in data.metric_names if n.startswith(_CONTROLLED))
        if not metrics:
            raise ReportError(
                f"no estimator of {data.name} sets anything by itself: there is no metric "
                f"{_CONTROLLED}*"
            )
        return cls._collect(data, metrics, options, "controller dynamics")


def _is_evaluation(metric: str) -> bool:
    column = parse_column(metric)
    return column is not None and column.is_single


def _smoothing_note(metrics: Sequence[str], smooth: int) -> list[str]:
    evaluations = [metric for metric in metrics if _is_evaluation(metric)]
    if smooth == 1 or len(evaluations) == len(metrics):
        return []
    but = f"; evaluations ({', '.join(evaluations)}) are not" if evaluations else ""
    return [f"each run is smoothed: the mean of its last {smooth} steps{but}"]


def _lines_of(data: FigureData, metric: str, smooth: int) -> list[_Line]:
    series = data.series(metric)
    # Evaluations are few and far between: a mean over them would be of the whole training.
    smooth = 1 if _is_evaluation(metric) else smooth
    lines = []
    for row in data.distinct_rows():
        own = [series[run.id] for run in row.runs if run.id in series]
        if own and (curve := mean_curve(own, smooth)).band.n.any():
            lines.append(_Line(row.label, row.style, curve))
    if not lines:
        raise ReportError(f"{metric} is not a number at any step of any run of {data.name}")
    return lines


def _bands(panels: Mapping[str, Sequence[_Line]], *, shared: bool) -> list[list[Band]]:
    """Returns the bands that determine the limits of each panel."""
    own = [[line.curve.band for line in lines] for lines in panels.values()]
    return [list(chain(*own))] * len(own) if shared else own


def _columns(panels: int) -> int:
    return 1 if panels == 1 else 2 if panels <= 4 else 3


_ENTROPIES = ("entropy/token", "entropy/token_sampled")
_CHANGE, _DRIFT, _COVARIANCE = "entropy/change", "entropy/drift", "entropy/covariance"
_TERMS = {
    "drift": "drift, (m_S - m_F) H",
    "covariance": "-Cov(A, log π)",
    "sum": "drift - Cov(A, log π)",
}


@dataclass(frozen=True)
class _Cloud:
    """The measured entropy change of a row and the terms that predict it, means over its runs."""

    label: str
    style: RowStyle
    steps: Sequence[int]
    change: Float[np.ndarray, " steps"]
    terms: dict[str, Float[np.ndarray, " steps"]]


@dataclass(frozen=True, kw_only=True)
class EntropyDynamics(Chart):
    """The measured entropy change against FADE's prediction of it (arXiv:2607.01490, Eq. 7)."""

    name: ClassVar[str] = "entropy"
    summary: ClassVar[str] = (
        "token entropy over the training, and its change at each step against FADE's two terms"
    )
    uses: ClassVar[frozenset[str]] = frozenset({"smooth"})

    metric: str
    lines: Sequence[_Line]
    clouds: Sequence[_Cloud]

    @classmethod
    def collect(cls, data: FigureData, options: Options) -> Self:
        metric = next((name for name in _ENTROPIES if name in data.metric_names), _ENTROPIES[0])
        lines = _lines_of(data, metric, options.smooth)
        notes = seeds_note([int(line.curve.band.n.max()) for line in lines], "bands") + cut_note(
            [[line.curve.band for line in lines]]
        )
        notes += _smoothing_note([metric], options.smooth)
        clouds = _clouds(data)
        if clouds:
            notes.append(
                "small points: a step each, mean over seeds; R² of a line through each row's, and "
                "the slope's sign; predictions are per unit of the learning rate"
            )
        else:
            notes.append("no change was measured: that is backend.entropy_change=true")
        return cls(
            title=f"{data.name}: entropy dynamics",
            notes=notes,
            metric=metric,
            lines=lines,
            clouds=clouds,
        )

    @property
    def height(self) -> float:
        below = 2.4 if self.clouds else 0.0
        return 2.9 + below + legend_height([line.label for line in self.lines])

    def draw(self, canvas: FigureBase) -> None:
        grid = canvas.add_gridspec(2 if self.clouds else 1, len(_TERMS))
        axes = canvas.add_subplot(grid[0, :])
        axes.set_title(f"{self.metric}, nats")
        axes.set_xlabel("training step")
        axes.set_ylim(limits([line.curve.band for line in self.lines]))
        for i, line in enumerate(self.lines):
            draw_curve(axes, line.curve, line.style, i, len(self.lines))
        first = None
        for column, (term, label) in enumerate(_TERMS.items() if self.clouds else ()):
            axes = canvas.add_subplot(grid[1, column], sharey=first)
            first = first or axes
            for cloud in self.clouds:
                axes.plot(
                    cloud.terms[term],
                    cloud.change,
                    cloud.style.marker,
                    color=cloud.style.colour,
                    markersize=2.6,
                    markeredgewidth=0,
                    alpha=0.55,
                    rasterized=sum(len(c.steps) for c in self.clouds) > 2000,
                )
            axes.axhline(0, color=GREY, linewidth=0.7, linestyle=":")
            axes.axvline(0, color=GREY, linewidth=0.7, linestyle=":")
            axes.locator_params(axis="x", nbins=4)
            axes.set_xlabel(label)
            axes.set_title(self._describe_fits(term), color=GREY, fontsize=8.5)
            if column == 0:
                axes.set_ylabel("measured change, nats")
        add_legend(canvas, {line.label: handle(line.style) for line in self.lines})

    def _describe_fits(self, term: str) -> str:
        """Describes how well the term explains the change within rows, whose scales differ."""
        lines = [line for cloud in self.clouds if (line := _line(cloud, term)) is not None]
        shares = sorted(round(line.r_squared.value, 2) for line in lines)
        if not shares:
            return "R² undefined"
        signs = {line.slope.value > 0 for line in lines}
        sign = "+ and -" if len(signs) > 1 else "+" if True in signs else "-"
        spread = f"{shares[0]:.2f}" + (f" to {shares[-1]:.2f}" if len(shares) > 1 else "")
        return f"R² {spread}, slopes {sign}"

    def records(self) -> list[dict[str, Any]]:
        measured = {cloud.label: cloud for cloud in self.clouds}
        return [
            {
                "row": line.label,
                "step": int(step),
                **{"entropy" if name == "mean" else name: value for name, value in fields.items()},
                **_of_step(measured.get(line.label), int(step)),
            }
            for line in self.lines
            for step, fields in zip(line.curve.steps, band_records(line.curve.band), strict=True)
        ]


def _of_step(cloud: _Cloud | None, step: int) -> dict[str, float | None]:
    if cloud is None or step not in cloud.steps:
        return dict.fromkeys(("change", "drift", "minus_covariance"))
    at = cloud.steps.index(step)
    return {
        "change": float(cloud.change[at]),
        "drift": float(cloud.terms["drift"][at]),
        "minus_covariance": float(cloud.terms["covariance"][at]),
    }


def _line(cloud: _Cloud, term: str) -> Regression | None:
    """Fits the change over a term; None where there is no line, or the change does not vary."""
    try:
        line = regress(cloud.terms[term], cloud.change)
    except FitError:
        return None
    return None if math.isnan(line.r_squared.value) else line


def _clouds(data: FigureData) -> list[_Cloud]:
    try:
        change, drift, covariance = map(data.series, (_CHANGE, _DRIFT, _COVARIANCE))
    except NotFoundError:
        return []
    clouds = []
    for row in data.rows:
        runs = [r.id for r in row.runs if r.id in change and r.id in drift and r.id in covariance]
        if not runs:
            continue
        curves = [
            mean_curve([series[run] for run in runs]) for series in (change, drift, covariance)
        ]
        steps = sorted(set.intersection(*(set(curve.steps.tolist()) for curve in curves)))
        measured, first, second = (
            curve.band.mean[np.searchsorted(curve.steps, steps)] for curve in curves
        )
        # Rounding errors of m_S = m_F are no drift.
        first = np.where(np.abs(first) < ROUNDING, 0.0, first)
        terms = {"drift": first, "covariance": -second, "sum": first - second}
        clouds.append(_Cloud(row.label, row.style, steps, measured, terms))
    return clouds
