"""Curves over the training: of any metric, of the masses, of what controllers do."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, ClassVar, Self

from advsweep.errors import ReportError
from advsweep.report.data.columns import metric_range
from advsweep.report.figures.chart import (
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
from advsweep.report.figures.data import Curve, Material, mean_curve
from advsweep.report.figures.style import Look
from advsweep.statistics.intervals import Band

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import FigureBase

STANDARD = ("reward/mean", "collapse/acr", "entropy/token", "advantage/zero_fraction")
_PANEL = 2.15  # inches
_CONTROLLED = "estimator/"


@dataclass(frozen=True)
class Line:
    """The mean curve of one row."""

    label: str
    look: Look
    curve: Curve


@dataclass(frozen=True, kw_only=True)
class _Curves(Chart):
    """A panel for each metric with a line for each row that has it."""

    uses: ClassVar[frozenset[str]] = frozenset({"smooth"})

    panels: dict[str, list[Line]]
    shared: bool = False  # the panels have one scale

    @classmethod
    def _collect(
        cls,
        material: Material,
        metrics: Sequence[str],
        options: Options,
        title: str,
        *,
        shared: bool = False,
        notes: Sequence[str] = (),
    ) -> Self:
        panels = {metric: lines_of(material, metric, options.smooth) for metric in metrics}
        counts = [line.curve.band.n.max() for lines in panels.values() for line in lines]
        smoothed = f"each run is smoothed: the mean of its last {options.smooth} steps"
        return cls(
            title=f"{material.name}: {title}",
            notes=[
                *seeds_note(counts, "bands"),
                *cut_note(_bands(panels, shared=shared)),
                *([smoothed] if options.smooth > 1 else []),
                *notes,
            ],
            panels=panels,
            shared=shared,
        )

    @property
    def _labels(self) -> dict[str, Look]:
        return {line.label: line.look for lines in self.panels.values() for line in lines}

    @property
    def height(self) -> float:
        rows = math.ceil(len(self.panels) / _columns(len(self.panels)))
        panel = _PANEL if len(self.panels) > 1 else 3.0
        return 0.35 + panel * rows + legend_height(list(self._labels))

    def draw(self, canvas: FigureBase) -> None:
        draw_panels(canvas, self.panels, shared=self.shared)
        add_legend(canvas, {label: handle(look) for label, look in self._labels.items()})

    def records(self) -> list[dict[str, Any]]:
        return [
            {
                "metric": metric,
                "row": line.label,
                "step": int(step),
                "mean": float(mean),
                "low": float(low),
                "high": float(high),
                "n": int(n),
            }
            for metric, lines in self.panels.items()
            for line in lines
            for step, mean, low, high, n in zip(line.curve.steps, *line.curve.band, strict=True)
        ]


class TrainingCurves(_Curves):
    name = "curves"
    summary = "metrics over the training, with bands over seeds (--metric, --smooth)"
    uses = frozenset({"metrics", "smooth"})

    @classmethod
    def collect(cls, material: Material, options: Options) -> Self:
        recorded = [name for name in STANDARD if name in material.metric_names]
        metrics = list(dict.fromkeys(options.metrics)) or recorded
        if not metrics:
            raise ReportError(f"no run of {material.name} recorded any of {', '.join(STANDARD)}")
        return cls._collect(material, metrics, options, "training curves")


class Masses(_Curves):
    name = "masses"
    summary = "weight that goes into pushing successes up and failures down, over the training"

    @classmethod
    def collect(cls, material: Material, options: Options) -> Self:
        return cls._collect(
            material,
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
    def collect(cls, material: Material, options: Options) -> Self:
        metrics = sorted(n for n in material.metric_names if n.startswith(_CONTROLLED))
        if not metrics:
            raise ReportError(
                f"no estimator of {material.name} sets anything by itself: there is no metric "
                f"{_CONTROLLED}*"
            )
        return cls._collect(material, metrics, options, "controller dynamics")


def lines_of(material: Material, metric: str, smooth: int) -> list[Line]:
    series = material.series(metric)
    lines = []
    for row in material.rows_told_apart():
        own = [series[run.id] for run in row.runs if run.id in series]
        if own and (curve := mean_curve(own, smooth)).band.n.any():
            lines.append(Line(row.label, row.look, curve))
    if not lines:
        raise ReportError(f"{metric} is not a number at any step of any run of {material.name}")
    return lines


def draw_panels(
    canvas: FigureBase, panels: dict[str, list[Line]], *, shared: bool = False
) -> list[Axes]:
    """Axes for each metric, beside and below each other."""
    from matplotlib.ticker import MaxNLocator

    columns = _columns(len(panels))
    grid = canvas.add_gridspec(math.ceil(len(panels) / columns), columns)
    bands = _bands(panels, shared=shared)
    drawn: list[Axes] = []
    for number, (metric, lines) in enumerate(panels.items()):
        place = grid[divmod(number, columns)]
        axes = canvas.add_subplot(place, sharey=drawn[0] if shared and drawn else None)
        axes.set_title(metric)
        for i, line in enumerate(lines):
            draw_curve(axes, line.curve, line.look, i, len(lines), metric_range(metric))
        if number >= len(panels) - columns:
            axes.set_xlabel("training step")
        axes.set_ylim(limits(bands[number]))
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=7))
        drawn.append(axes)
    return drawn


def _bands(panels: Mapping[str, Sequence[Line]], *, shared: bool) -> list[list[Band]]:
    """What the limits of each panel are made of."""
    own = [[line.curve.band for line in lines] for lines in panels.values()]
    return [list(chain(*own))] * len(own) if shared else own


def _columns(panels: int) -> int:
    return 1 if panels == 1 else 2 if panels <= 4 else 3
