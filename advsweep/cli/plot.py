"""`advsweep plot`: draw figures of runs from the store alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from advsweep.cli import options
from advsweep.cli.completion import complete_figure, complete_target
from advsweep.cli.output import echo_line
from advsweep.errors import ConfigError

if TYPE_CHECKING:
    from advsweep.report.data.runs import Filter
    from advsweep.report.figures.chart import Chart, Options
    from advsweep.report.figures.data import FigureData
    from advsweep.store import Store

_PICTURE = ".png"


class PlotFormat(Enum):
    """Output format of a figure."""

    PNG = "png"
    SVG = "svg"
    PDF = "pdf"
    CSV = "csv"
    JSON = "json"


_NUMBERS = (PlotFormat.CSV, PlotFormat.JSON)


def plot(
    keys: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[SWEEP|RUN...]",
            help="A sweep, or runs: ids, starts of identities, 'last' (default: every run).",
            autocompletion=complete_target,
        ),
    ] = None,
    where: options.Where = None,
    figure: Annotated[
        list[str] | None,
        typer.Option(
            "--figure",
            metavar="NAME,...",
            help="Draw these figures (default: all that the runs have data for).",
            autocompletion=complete_figure,
        ),
    ] = None,
    target: Path | None = None,
    output: PlotFormat | None = None,
    metrics: list[str] | None = None,
    smooth: int = 1,
    x: str | None = None,
    baseline: str | None = None,
    margin: list[str] | None = None,
    task: str | None = None,
    store: options.Store = None,
) -> None:
    """Options:
        --output, -o FILE|FOLDER (target): Write all figures to a .png, .svg or .pdf file (a
            PDF has a page per figure), or to a folder with a file per figure (default:
            SWEEP-FIGURE.png).
        --format (output): png, svg or pdf: format of the files if -o does not name it; csv
            or json: print the numbers, in addition to the files of -o.
        --metric NAME,... (metrics): Metrics of curves, or columns of other figures: pass@8
            or collapse/acr@end.
        --smooth STEPS >= 1: Smooth the curves of metrics (not of evaluations) by a trailing
            mean over STEPS.
        --x KEY[,KEY]: Config keys of a heat map's axes; of rate and frontier in place of
            the rate.
        --baseline ROW: Compare with this row in the forest plot and the frontier (default:
            the first).
        --margin [OUTCOME=]NUMBER,...: Shade a margin of equivalence in the forest plot: of
            every pass@k, or of one outcome.
        --task NAME: Use evaluations on this task (default: the task of the runs).

    Examples:
    advsweep plot demo
    advsweep plot demo --figure passk,acr -o figures --format svg
    advsweep plot demo --figure curves --metric reward/mean --smooth 10 -o rewards.pdf
    """
    from advsweep.report.data.runs import parse_where
    from advsweep.report.figures.chart import Options
    from advsweep.report.figures.registry import FIGURES, collect, collect_all, find_figures
    from advsweep.store import open_store

    chosen = find_figures(_split(figure))
    across, up, *others = [*_split([x] if x else None), None, None]
    if any(others):
        raise ConfigError(f"--x: expected one key or two, got {x}")
    chart_options = Options(
        metrics=tuple(_split(metrics)),
        smooth=smooth,
        x=across,
        y=up,
        task=task,
        baseline=baseline,
        margin=tuple(_split(margin)),
    )
    _refuse_unused(chart_options, {f.name: f.uses for f in chosen or FIGURES.values()})
    numbers = output if output in _NUMBERS else None
    chart_options = replace(chart_options, intervals=numbers is not None)
    suffix = f".{output.value}" if output is not None and numbers is None else None
    if target is not None:
        _check_target(target, suffix)
    filters = [filter for text in where or () for filter in parse_where(text)]
    opened = open_store(store, create=False)
    data = _figure_data(opened, keys or [], filters, task)
    if chosen:
        charts = [collect(f, data, chart_options) for f in chosen]
    else:
        charts, refused = collect_all(data, chart_options)
        for reason in dict.fromkeys(refused.values()):
            names = [name for name, own in refused.items() if own == reason]
            echo_line(f"Skipped figures {', '.join(names)}: {reason}", err=True)
    if numbers is PlotFormat.CSV:
        _refuse_several(charts)
    if target is not None or numbers is None:
        where_to = target or _default_target(data, charts, suffix, chosen=bool(chosen))
        for path in _write(charts, where_to, suffix):
            line = str(path) if numbers is None else f"Wrote {path}."
            echo_line(line, err=numbers is not None)
    if numbers is not None:
        _print(charts, numbers)


def _split(texts: Sequence[str] | None) -> list[str]:
    from advsweep.report.data.runs import split_list

    return [part for text in texts or () for part in split_list(text) if part]


def _refuse_unused(chart_options: Options, uses: Mapping[str, frozenset[str]]) -> None:
    """Checks that at least one figure uses each given option.

    Raises:
        ConfigError: an option would have no effect.
    """
    for name in chart_options.given():
        if not any(name in used for used in uses.values()):
            option = {"metrics": "metric"}.get(name, name)
            raise ConfigError(
                f"--{option}: expected a figure that uses this option, got {', '.join(uses)}; "
                "`advsweep list figures` lists all"
            )


def _check_target(target: Path, suffix: str | None) -> None:
    from advsweep.errors import ReportError
    from advsweep.report.figures.draw import check_path

    if _is_folder(target):
        if target.exists() and not target.is_dir():
            raise ReportError(f"{target}: expected a folder, or a file ending in .png, .svg, .pdf")
        return
    check_path(target)
    if suffix not in (None, target.suffix.lower()):
        raise ConfigError(f"--format: {target} has another format than {suffix}; give only one")


def _is_folder(target: Path) -> bool:
    return target.is_dir() or not target.suffix


def _figure_data(
    store: Store, keys: Sequence[str], where: Sequence[Filter], task: str | None
) -> FigureData:
    """Collects the named runs and a title for them."""
    from advsweep.cli.runs import find_targets
    from advsweep.errors import NotFoundError, nearest
    from advsweep.report.figures.data import FigureData

    if not keys:
        return FigureData(
            store, store.runs.select(newest_first=False), Path(store.name).stem, where, task
        )
    try:
        targets = find_targets(store, keys)
    except NotFoundError as error:
        if len(keys) > 1:
            raise
        sweeps = [sweep.name for sweep in store.sweeps.select()]
        raise NotFoundError(f"{error}; sweeps: {nearest(keys[0], sweeps)}") from error
    names = [*targets.sweeps]
    if targets.named:
        some = sorted(targets.named)
        names.append(("run " if len(some) == 1 else "runs ") + ", ".join(map(str, some)))
    # Tunings and declared outcomes are those of a sweep.
    sweep = names[0] if len(names) == 1 and not targets.named else None
    return FigureData(store, targets.runs, ", ".join(names), where, task, sweep)


def _default_target(
    data: FigureData, charts: Sequence[Chart], suffix: str | None, *, chosen: bool
) -> Path:
    what = charts[0].name if chosen and len(charts) == 1 else "figures"
    return Path(f"{_file_name(data.name)}-{what}{suffix or _PICTURE}")


def _write(charts: Sequence[Chart], target: Path, suffix: str | None) -> Iterator[Path]:
    """Draws figures into a file or a folder; yields each path once it is written."""
    from advsweep.errors import ReportError
    from advsweep.report.figures.draw import write

    if not _is_folder(target):
        write(charts, target)
        yield target
        return
    try:
        target.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ReportError(f"{target}: cannot create the folder ({error.strerror})") from error
    for chart in charts:
        path = target / f"{chart.name}{suffix or _PICTURE}"
        write([chart], path)
        yield path


def _file_name(name: str) -> str:
    return "".join(c if c.isalnum() or c in "-_." else "-" for c in name)


def _refuse_several(charts: Sequence[Chart]) -> None:
    if len(charts) > 1:
        names = ", ".join(chart.name for chart in charts)
        raise ConfigError(f"--format csv: expected one figure, got {names}; select with --figure")


def _print(charts: Sequence[Chart], output: PlotFormat) -> None:
    from advsweep.cli.output import print_csv, print_json

    if output is PlotFormat.JSON:
        print_json(
            [
                {"figure": c.name, "title": c.title, "notes": c.notes, "values": c.records}
                for c in charts
            ]
        )
        return
    for note in charts[0].notes:
        echo_line(note, err=True)
    records = charts[0].records
    print_csv(list(records[0]), (_cells(record) for record in records))


def _cells(record: Mapping[str, object]) -> list[object]:
    """Returns unrounded cells; missing and non-finite values are empty."""
    from advsweep.writing import plain_value

    plain = [plain_value(value) for value in record.values()]
    return ["" if value is None else value for value in plain]
