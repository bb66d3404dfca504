"""`advsweep plot`: draw figures of runs from the store."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from advsweep.cli import options
from advsweep.cli.collection import without_collection
from advsweep.cli.completion import complete_target
from advsweep.cli.output import echo_line, print_json, print_listing
from advsweep.cli.runs import find_targets
from advsweep.errors import ConfigError
from advsweep.store import Store, open_store
from advsweep.writing import plain_value

if TYPE_CHECKING:
    from advsweep.report.data.filters import Filter
    from advsweep.report.figures.chart import Chart
    from advsweep.report.figures.data import FigureData

NumberFormat = Literal["csv", "json"]

# Inches of a figure of a paper.
_NARROWEST = 2.0
_WIDEST = 12.0

EXAMPLES = (
    "advsweep plot demo",
    "advsweep plot demo forest -o figure.pdf",
    "advsweep plot demo --figure passk,acr -o figures --format svg",
    "advsweep plot demo --figure curves --metric reward/mean -o rewards.pdf",
    "advsweep plot grid --figure heatmap --x optimizer.lr --y group_size",
    "advsweep plot demo --figure matched --at pass@1=0.45",
)


def plot(
    targets: Annotated[
        list[str] | None,
        typer.Argument(
            show_default=False,
            metavar="[SWEEP|RUN|FIGURE...]",
            autocompletion=complete_target,
            help="A sweep, or runs: ids, starts of identities, 'last' (default: every run); and "
            "figures, as with --figure.",
        ),
    ] = None,
    where: options.Where = None,
    figure: Annotated[
        list[str] | None,
        typer.Option(
            "--figure",
            metavar="NAME,...",
            help="Draw these figures (default: all that the runs have data for).",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE|FOLDER",
            help="Write to a .png, .svg or .pdf file, or into a folder (default: SWEEP-"
            "FIGURE.png).",
        ),
    ] = None,
    width: Annotated[
        float | None,
        typer.Option(
            "--width",
            metavar="INCHES",
            min=_NARROWEST,
            max=_WIDEST,
            help="Draw for a paper, so wide and without title and caption, which is printed "
            "(default: 3.25, a column, for .pdf; a page with both for others).",
        ),
    ] = None,
    output_format: Annotated[
        Literal["png", "svg", "pdf", "csv", "json"] | None,
        typer.Option(
            "--format",
            metavar="png|svg|pdf|csv|json",
            help="Choose the files' format, or print the numbers.",
        ),
    ] = None,
    metrics: Annotated[
        list[str] | None,
        typer.Option(
            "--metric",
            metavar="NAME,...",
            help="Draw these metrics, or columns.",
        ),
    ] = None,
    smooth: Annotated[
        int,
        typer.Option(
            "--smooth",
            metavar="STEPS",
            min=1,
            help="Smooth curves by a trailing mean over STEPS.",
        ),
    ] = 1,
    x: Annotated[
        str | None,
        typer.Option(
            "--x",
            metavar="KEY",
            help="Draw rate and frontier over this config key in place of the rate, and the heat "
            "map with it across.",
        ),
    ] = None,
    y: Annotated[
        str | None,
        typer.Option(
            "--y",
            metavar="KEY",
            help="Draw the heat map with this config key up.",
        ),
    ] = None,
    baseline: Annotated[
        str | None,
        typer.Option(
            "--baseline",
            metavar="ROW",
            help="Compare with this row in forest, frontier and matched (default: the first).",
        ),
    ] = None,
    margin: Annotated[
        list[str] | None,
        typer.Option(
            "--margin",
            metavar="[OUTCOME=]NUMBER,...",
            help="Shade a margin of equivalence in the forest plot: of every pass@k, or of one "
            "outcome.",
        ),
    ] = None,
    at: Annotated[
        str | None,
        typer.Option(
            "--at",
            metavar="COLUMN[=NUMBER]",
            help="Compare rows of the matched figure where this column is equal (default: pass@1, "
            "at the lower end of each pair of runs).",
        ),
    ] = None,
    task: Annotated[
        str | None,
        typer.Option(
            "--task",
            metavar="NAME",
            help="Use evaluations on this task (default: the task of the runs).",
        ),
    ] = None,
    store: options.Store = None,
) -> None:
    """Draw figures of runs with 95 % intervals over seeds."""
    from advsweep.report.data.filters import parse_conditions
    from advsweep.report.figures.draw import check_target, choose_path
    from advsweep.report.figures.registry import FIGURES, check_options, collect_figures

    words = targets or []
    chosen = _split(figure)
    # Before the store is opened, a word is taken for a figure wherever it can be one.
    called = [word for word in words if word in FIGURES] + chosen
    values = {
        "metrics": _split(metrics),
        "smooth": smooth if smooth > 1 else None,
        "x": x,
        "y": y,
        "task": task,
        "baseline": baseline,
        "margin": _split(margin),
        "at": at,
    }
    figure_options = {name: value for name, value in values.items() if value}
    check_options(list(dict.fromkeys(called)) or list(FIGURES), figure_options)
    number_format, suffix = _split_format(output_format)
    check_target(output, suffix)
    filters = parse_conditions(where)
    opened = open_store(store, create=False)
    keys, figures = _split_words(opened, words)
    names = list(dict.fromkeys([*figures, *chosen]))
    with without_collection():
        data = _figure_data(opened, keys, filters, task)
        charts = collect_figures(data, names, figure_options).charts
    if number_format == "csv":
        _check_single(charts)
    if output is None and number_format is None:
        what = names[0] if len(names) == 1 else "figures"
        output = choose_path(data.name, what, suffix)
    if output is not None:
        _write_pictures(charts, output, suffix, width, has_numbers=number_format is not None)
    if number_format is not None:
        _print_numbers(charts, number_format)


def _split_format(output_format: str | None) -> tuple[NumberFormat | None, str | None]:
    """Return the format of numbers to print, and the suffix of files; one of them at most."""
    match output_format:
        case None:
            return None, None
        case "csv" | "json":
            return output_format, None
        case _:
            return None, f".{output_format}"


def _split_words(store: Store, words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return which words are of sweeps and runs, and which of figures.

    A sweep that is called like a figure comes first.
    """
    from advsweep.report.figures.registry import FIGURES

    figures = [word for word in words if word in FIGURES]
    if figures:
        sweeps = store.sweeps.names()
        figures = [word for word in figures if word not in sweeps]
    keys = [word for word in words if word not in figures]
    return keys, figures


def _write_pictures(
    charts: Sequence[Chart],
    output: Path,
    suffix: str | None,
    width: float | None,
    *,
    has_numbers: bool,
) -> None:
    """Write figures into files, and print their paths: to stderr where stdout has numbers."""
    from advsweep.report.figures.draw import choose_layout, write_files

    layout = choose_layout(output, suffix, width)
    with without_collection():
        for path in write_files(charts, output, suffix, layout):
            line = f"Wrote {path}." if has_numbers else str(path)
            echo_line(line, err=has_numbers)
    if layout.is_paper:
        _print_captions(charts)


def _check_single(charts: Sequence[Chart]) -> None:
    """Refuse several figures, as each has columns of its own.

    Raises:
        ConfigError: there are several.
    """
    if len(charts) > 1:
        several = ", ".join(chart.name for chart in charts)
        raise ConfigError(f"--format csv: expected one figure, got {several}; select with --figure")


def _print_captions(charts: Sequence[Chart]) -> None:
    """Print what a paper has to say below its figures."""
    for chart in charts:
        echo_line(f"Caption of {chart.name}: {' '.join(chart.caption.split())}", err=True)


def _print_numbers(charts: Sequence[Chart], number_format: NumberFormat) -> None:
    if number_format == "csv":
        for note in charts[0].notes:
            echo_line(note, err=True)
        print_listing([plain_value(record) for record in charts[0].records], "csv")
        return
    print_json(
        [
            {
                "figure": chart.name,
                "title": chart.title,
                "notes": chart.notes,
                "values": chart.records,
            }
            for chart in charts
        ]
    )


def _split(texts: Sequence[str] | None) -> list[str]:
    from advsweep.report.data.filters import split_list

    return [part for text in texts or () for part in split_list(text) if part]


def _figure_data(
    store: Store, keys: Sequence[str], where: Sequence[Filter], task: str | None
) -> FigureData:
    """Collect the named runs and a title for them."""
    from advsweep.report.figures.data import FigureData, NamedRuns
    from advsweep.report.figures.registry import nearest_figure

    def hint_figure(word: str) -> str:
        return f"figures: {nearest_figure(word)}"

    if not keys:
        every = NamedRuns(store.runs.select(newest_first=False), Path(store.name).stem)
        return FigureData(store, every, where, task)
    targets = find_targets(store, keys, hint=hint_figure)
    names = [*targets.sweeps]
    if targets.named:
        some = sorted(targets.named)
        names.append(("run " if len(some) == 1 else "runs ") + ", ".join(map(str, some)))
    # Tunings and declared outcomes are those of a sweep.
    sweep = names[0] if len(names) == 1 and not targets.named else None
    return FigureData(store, NamedRuns(targets.runs, ", ".join(names), sweep), where, task)
