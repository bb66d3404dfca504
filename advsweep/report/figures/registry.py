"""All figures by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from advsweep.errors import NotFoundError, ReportError, UnknownNameError, nearest
from advsweep.report.figures import chart
from advsweep.report.figures.comparisons import acr, forest, heatmap
from advsweep.report.figures.data import FigureData
from advsweep.report.figures.evaluations import difficulty, diversity, passk
from advsweep.report.figures.rates import frontier, rate
from advsweep.report.figures.training import controllers, curves, masses


class Figure(NamedTuple):
    """A figure: what it shows, the options that have an effect on it, and its function.

    The function raises ReportError or NotFoundError if there is nothing to draw.
    """

    name: str
    summary: str
    uses: frozenset[str]
    collect: Callable[[FigureData, chart.Options], chart.Chart]


_ROWS = (
    (
        forest,
        "metrics baseline margin",
        "differences to the baseline in the primary outcomes (--baseline), with a margin of "
        "equivalence (--margin)",
    ),
    (
        rate,
        "x metrics task",
        "pass@1 (--metric) over the learning rate (--x) of each arm, with the chosen rate and the "
        "rates near the best; of a tuned sweep its tuning",
    ),
    (
        frontier,
        "x metrics task baseline",
        "pass@1 against the entropy of correct answers (--metric) over rates (--x) and steps, and "
        "differences off the frontier of the baseline (--baseline)",
    ),
    (curves, "metrics smooth", "metrics over the training, with bands over seeds"),
    (passk, "task", "pass@k over k after training, with shifted power laws fitted to it"),
    (acr, "task", "final pass@1 over the ACR of the first 100 steps, a point per run, with R²"),
    (diversity, "task", "pass@1 against pass@k at a quarter of the samples, and answer entropy"),
    (difficulty, "task", "solve rates of problems after training, with a fitted beta"),
    (
        controllers,
        "smooth",
        "what estimators set themselves while training: alpha, delta, tau, ...",
    ),
    (
        masses,
        "smooth",
        "weight that goes into pushing successes up and failures down, over the training",
    ),
    (heatmap, "x y metrics task", "a number over two swept keys (--x, --metric)"),
)

FIGURES = {
    function.__name__: Figure(function.__name__, summary, frozenset(uses.split()), function)
    for function, uses, summary in _ROWS
}


def find_figures(names: Sequence[str]) -> list[Figure]:
    """Return the figures with these names, each once.

    Raises:
        UnknownNameError: there is no such figure; the message suggests the nearest.
    """
    for name in names:
        if name not in FIGURES:
            raise UnknownNameError(f"no figure is called '{name}'; {nearest(name, FIGURES)}")
    return [FIGURES[name] for name in dict.fromkeys(names)]


def collect(figure: Figure, data: FigureData, options: chart.Options) -> chart.Chart:
    """Make a figure of some runs, with a note on their selection.

    Raises:
        ReportError, NotFoundError: there is nothing to draw; the message says why.
    """
    made = figure.collect(data, options)
    notes = list(dict.fromkeys([*made.notes, *data.remarks]))
    return replace(made, name=figure.name, notes=notes)


def collect_all(
    data: FigureData, options: chart.Options
) -> tuple[list[chart.Chart], dict[str, str]]:
    """Make every figure that the runs have data for.

    Returns:
        The figures; and by name the reason why another figure is missing.

    Raises:
        ReportError: the runs have data for none.
    """
    charts: list[chart.Chart] = []
    refused: dict[str, str] = {}
    for name, figure in FIGURES.items():
        try:
            charts.append(collect(figure, data, options))
        except (ReportError, NotFoundError) as error:
            refused[name] = str(error)
    if not charts:
        raise ReportError(f"nothing of {data.name} can be drawn: {'; '.join(refused.values())}")
    return charts, refused
