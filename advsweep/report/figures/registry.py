"""All figures by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from advsweep.errors import ConfigError, NotFoundError, ReportError, UnknownNameError, nearest
from advsweep.report.figures.chart import Chart
from advsweep.report.figures.comparisons import acr, forest
from advsweep.report.figures.data import FigureData
from advsweep.report.figures.evaluations import diversity, passk
from advsweep.report.figures.heatmaps import heatmap
from advsweep.report.figures.matched import matched
from advsweep.report.figures.rates import frontier, rate
from advsweep.report.figures.training import curves
from advsweep.report.figures.turns import turns
from advsweep.synonyms import VALUES

# The function of each figure: its parameters are the options that have an effect on it.
#
# It raises ReportError or NotFoundError if there is nothing to draw.
FIGURES: Mapping[str, Callable[..., Chart]] = {
    function.__name__: function
    for function in (forest, rate, heatmap, frontier, matched, curves, turns, passk, acr, diversity)
}


def summary_of(name: str) -> str:
    """Return what a figure shows."""
    first, *_ = inspect.getdoc(FIGURES[name]).split("\n\n")  # type: ignore[union-attr]
    return " ".join(first.split()).removeprefix("Draw ").rstrip(".")


def nearest_figure(name: str) -> str:
    """Return a hint for a mistyped name of a figure."""
    return nearest(name, FIGURES, f"{VALUES}.figure")


def options_of(name: str) -> set[str]:
    """Return the options that have an effect on a figure.

    Raises:
        UnknownNameError: there is no such figure; the message suggests the nearest.
    """
    if name not in FIGURES:
        raise UnknownNameError(f"no figure is called '{name}'; {nearest_figure(name)}")
    taken = set(inspect.signature(FIGURES[name]).parameters)
    # A figure of one number has this parameter in the singular; those of a training have no task.
    of_evaluations = set() if name in (curves.__name__, turns.__name__) else {"task"}
    return taken | ({"metrics"} & {f"{n}s" for n in taken}) | of_evaluations


def check_options(names: Sequence[str], options: Mapping[str, Any]) -> None:
    """Refuse options without an effect, before the runs are read.

    Args:
        names: the figures to be drawn.
        options: the options that were set, by name.

    Raises:
        UnknownNameError: there is no such figure; the message suggests the nearest.
        ConfigError: an option has an effect on none of the figures.
    """
    effective = {option for name in names for option in options_of(name)}
    for option in options:
        if option not in effective:
            flag = "metric" if option == "metrics" else option
            raise ConfigError(
                f"--{flag}: expected a figure that uses this option, got {', '.join(names)}; "
                "`advsweep list figures` lists all"
            )


@dataclass(frozen=True)
class CollectedFigures:
    """Figures of some runs.

    Attributes:
        charts: the figures, in the order in which they were asked for.
        skipped: why other figures are missing, by their names.
    """

    charts: Sequence[Chart]
    skipped: Mapping[str, str]


def collect_figures(
    data: FigureData, names: Sequence[str], options: Mapping[str, Any]
) -> CollectedFigures:
    """Make figures of some runs; without names, every figure that the runs have data for.

    Args:
        options: the options that were set, by name, as `check_options` has them.

    Raises:
        ConfigError: an option has a wrong value.
        ReportError, NotFoundError: a figure with a name has nothing to draw, or none has.
    """
    if names:
        return CollectedFigures([collect(name, data, **options) for name in names], {})
    charts: list[Chart] = []
    skipped: dict[str, str] = {}
    for name in FIGURES:
        try:
            charts.append(collect(name, data, **options))
        except (ReportError, NotFoundError) as error:
            skipped[name] = str(error)
    if not charts:
        raise ReportError(f"nothing of {data.name} can be drawn: {'; '.join(skipped.values())}")
    _check_effect(options, skipped)
    return CollectedFigures(charts, skipped)


def _check_effect(options: Mapping[str, Any], skipped: Mapping[str, str]) -> None:
    """Refuse an option that has an effect on missing figures alone, such as an unknown metric.

    Raises:
        ReportError: there is one; the message says why the first of its figures is missing.
    """
    for option in options:
        affected = [name for name in FIGURES if option in options_of(name)]
        if skipped.keys() >= set(affected):
            raise ReportError(skipped[affected[0]])


def collect(name: str, data: FigureData, **options: Any) -> Chart:
    """Make a figure of some runs, with a note on their selection.

    Args:
        options: its parameters by name, and `metrics` also of a figure of one number; others have
            no effect.

    Raises:
        ConfigError: there are several metrics where one is drawn.
        ReportError, NotFoundError: there is nothing to draw; the message says why.
    """
    taken = inspect.signature(FIGURES[name]).parameters
    if "metric" in taken and (metrics := options.get("metrics")):
        if len(metrics) > 1:
            raise ConfigError(f"--metric: expected one number, got {', '.join(metrics)}")
        options["metric"] = metrics[0]
    made = FIGURES[name](data, **{key: own for key, own in options.items() if key in taken})
    notes = list(dict.fromkeys([*made.notes, *data.remarks]))
    return replace(made, name=name, notes=notes)
