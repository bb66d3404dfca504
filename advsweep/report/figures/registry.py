"""All figures by name, and the functions that collect, draw and write them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from advsweep.errors import NotFoundError, ReportError, UnknownNameError, nearest
from advsweep.report.figures.chart import RC_PARAMS, WIDTH, Chart, Options, compose, total_height
from advsweep.report.figures.collapse import EarlyCollapse
from advsweep.report.figures.data import FigureData
from advsweep.report.figures.forest import Forest
from advsweep.report.figures.frontier import Frontier
from advsweep.report.figures.heatmap import HeatMap
from advsweep.report.figures.pass_at_k import Diversity, Levels, PassAtK
from advsweep.report.figures.rate import Rate
from advsweep.report.figures.solve_rates import Difficulty, SolveRates
from advsweep.report.figures.style import house_style, save, save_pages
from advsweep.report.figures.training import Controllers, EntropyDynamics, Masses, TrainingCurves

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_IN_ONE_COLUMN = 3
_PAD = 0.055  # inches

FIGURES: dict[str, type[Chart]] = {
    figure.name: figure
    for figure in (
        Forest,
        Rate,
        Frontier,
        TrainingCurves,
        PassAtK,
        EarlyCollapse,
        Diversity,
        Levels,
        Difficulty,
        EntropyDynamics,
        Controllers,
        Masses,
        SolveRates,
        HeatMap,
    )
}


def find_figures(names: Sequence[str]) -> list[type[Chart]]:
    """Returns the figures with these names, each once.

    Raises:
        UnknownNameError: there is no such figure; the message suggests the nearest.
    """
    for name in names:
        if name not in FIGURES:
            raise UnknownNameError(f"no figure is called '{name}'; {nearest(name, FIGURES)}")
    return [FIGURES[name] for name in dict.fromkeys(names)]


def collect(figure: type[Chart], data: FigureData, options: Options) -> Chart:
    """Collects a figure of some runs, with a note on their selection.

    Raises:
        ReportError, NotFoundError: there is nothing to draw; the message says why.
    """
    chart = figure.collect(data, options)
    return replace(chart, notes=list(dict.fromkeys([*chart.notes, *data.remarks])))


def collect_all(data: FigureData, options: Options) -> tuple[list[Chart], dict[str, str]]:
    """Collects every figure that the runs have data for.

    Returns:
        The figures; and by name the reason why another figure is missing.

    Raises:
        ReportError: the runs have data for none.
    """
    charts: list[Chart] = []
    refused: dict[str, str] = {}
    for name, figure in FIGURES.items():
        try:
            charts.append(collect(figure, data, options))
        except (ReportError, NotFoundError) as error:
            refused[name] = str(error)
    if not charts:
        raise ReportError(f"nothing of {data.name} can be drawn: {'; '.join(refused.values())}")
    return charts, refused


def draw_page(charts: Sequence[Chart]) -> Figure:
    """Draws figures below each other; more than three of them in two columns."""
    columns = _columns(charts)
    heights = [sum(map(total_height, column)) for column in columns]
    with house_style(RC_PARAMS):
        from matplotlib.figure import Figure
        from matplotlib.layout_engine import ConstrainedLayoutEngine

        # Padding in inches; shares of the figure would grow with the page.
        layout = ConstrainedLayoutEngine(h_pad=_PAD, w_pad=_PAD, hspace=0, wspace=0)
        figure = Figure(figsize=(WIDTH * len(columns), max(heights)), layout=layout)
        places = figure.subfigures(1, len(columns), squeeze=False)[0]
        for column, place, height in zip(columns, places, heights, strict=True):
            # The empty rest of a shorter column.
            rest = [] if height == max(heights) else [max(heights) - height]
            ratios = [*map(total_height, column), *rest]
            canvases = place.subfigures(len(ratios), 1, height_ratios=ratios, squeeze=False)[:, 0]
            for chart, canvas in zip(column, canvases, strict=False):
                compose(chart, canvas)
    return figure


def _columns(charts: Sequence[Chart]) -> list[list[Chart]]:
    """Returns one column, or two columns of about equal height."""
    if len(charts) <= _IN_ONE_COLUMN:
        return [list(charts)]

    def taller(first: int) -> float:
        return max(sum(map(total_height, part)) for part in (charts[:first], charts[first:]))

    first = min(range(1, len(charts)), key=taller)
    return [list(charts[:first]), list(charts[first:])]


def write(charts: Sequence[Chart], path: Path) -> None:
    """Writes figures to one file: one page, or a PDF with a page for each figure."""
    if path.suffix.lower() != ".pdf":
        save(draw_page(charts), path)
    else:
        save_pages((draw_page([chart]) for chart in charts), path)
