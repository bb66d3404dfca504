"""Entropy over the training, and its change at each step against what predicts it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from advsweep.errors import FitError, NotFoundError
from advsweep.report.figures.chart import (
    GREY,
    Chart,
    Options,
    add_legend,
    cut_note,
    draw_curve,
    handle,
    legend_height,
    limits,
    seeds_note,
)
from advsweep.report.figures.data import Material, mean_curve
from advsweep.report.figures.style import Look
from advsweep.report.figures.training import Line, lines_of
from advsweep.statistics import Regression, regress
from advsweep.statistics.samples import ROUNDING

if TYPE_CHECKING:
    from jaxtyping import Float
    from matplotlib.figure import FigureBase

_ENTROPIES = ("entropy/token", "entropy/token_sampled")
_CHANGE, _DRIFT, _COVARIANCE = "entropy/change", "entropy/drift", "entropy/covariance"
TERMS = {
    "drift": "drift, (m_S - m_F) H",
    "covariance": "-Cov(A, log π)",
    "sum": "drift - Cov(A, log π)",
}


@dataclass(frozen=True)
class _Cloud:
    """A row's steps: the measured change and the terms, means over its runs."""

    label: str
    look: Look
    steps: Sequence[int]
    change: Float[np.ndarray, " steps"]
    terms: dict[str, Float[np.ndarray, " steps"]]


@dataclass(frozen=True, kw_only=True)
class EntropyDynamics(Chart):
    """FADE's prediction of the entropy change (arXiv:2607.01490, Eq. 7) against its measure."""

    name: ClassVar[str] = "entropy"
    summary: ClassVar[str] = (
        "token entropy over the training, and its change at each step against FADE's two terms"
    )
    uses: ClassVar[frozenset[str]] = frozenset({"smooth"})

    metric: str
    lines: Sequence[Line]
    clouds: Sequence[_Cloud]

    @classmethod
    def collect(cls, material: Material, options: Options) -> Self:
        metric = next((name for name in _ENTROPIES if name in material.metric_names), _ENTROPIES[0])
        lines = lines_of(material, metric, options.smooth)
        notes = seeds_note([int(line.curve.band.n.max()) for line in lines], "bands") + cut_note(
            [[line.curve.band for line in lines]]
        )
        if options.smooth > 1:
            notes.append(
                f"each run's entropy is smoothed: the mean of its last {options.smooth} steps"
            )
        clouds = _clouds(material)
        if clouds:
            notes.append(
                "small points: a step each, mean over seeds; R² of a line through each row's, and "
                "the slope's sign; predictions are per unit of the learning rate"
            )
        else:
            notes.append("no change was measured: that is backend.entropy_change=true")
        return cls(
            title=f"{material.name}: entropy dynamics",
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
        grid = canvas.add_gridspec(2 if self.clouds else 1, len(TERMS))
        axes = canvas.add_subplot(grid[0, :])
        axes.set_title(f"{self.metric}, nats")
        axes.set_xlabel("training step")
        axes.set_ylim(limits([line.curve.band for line in self.lines]))
        for i, line in enumerate(self.lines):
            draw_curve(axes, line.curve, line.look, i, len(self.lines))
        first = None
        for column, (term, label) in enumerate(TERMS.items() if self.clouds else ()):
            axes = canvas.add_subplot(grid[1, column], sharey=first)
            first = first or axes
            for cloud in self.clouds:
                axes.plot(
                    cloud.terms[term],
                    cloud.change,
                    cloud.look.marker,
                    color=cloud.look.colour,
                    markersize=2.6,
                    markeredgewidth=0,
                    alpha=0.55,
                    rasterized=sum(len(c.steps) for c in self.clouds) > 2000,
                )
            axes.axhline(0, color=GREY, linewidth=0.7, linestyle=":")
            axes.axvline(0, color=GREY, linewidth=0.7, linestyle=":")
            axes.locator_params(axis="x", nbins=4)
            axes.set_xlabel(label)
            axes.set_title(self._in_words(term), color=GREY, fontsize=8.5)
            if column == 0:
                axes.set_ylabel("measured change, nats")
        add_legend(canvas, {line.label: handle(line.look) for line in self.lines})

    def _in_words(self, term: str) -> str:
        """What the term explains of the change within rows, whose scales differ."""
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
                "entropy": float(mean),
                "low": float(low),
                "high": float(high),
                "n": int(n),
                **_of_step(measured.get(line.label), int(step)),
            }
            for line in self.lines
            for step, mean, low, high, n in zip(line.curve.steps, *line.curve.band, strict=True)
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
    """The change over a term; None where there is no line, or nothing for it to explain."""
    try:
        line = regress(cloud.terms[term], cloud.change)
    except FitError:
        return None
    return None if math.isnan(line.r_squared.value) else line


def _clouds(material: Material) -> list[_Cloud]:
    try:
        change, drift, covariance = map(material.series, (_CHANGE, _DRIFT, _COVARIANCE))
    except NotFoundError:
        return []
    clouds = []
    for row in material.rows:
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
        # m_S = m_F but for rounding is no drift.
        first = np.where(np.abs(first) < ROUNDING, 0.0, first)
        terms = {"drift": first, "covariance": -second, "sum": first - second}
        clouds.append(_Cloud(row.label, row.look, steps, measured, terms))
    return clouds
