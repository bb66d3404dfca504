"""How matplotlib draws charts into files."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from advsweep.errors import ConfigError, ReportError, reason_of
from advsweep.local_files import outside_working_folder
from advsweep.printable import printable
from advsweep.report.figures.chart import LINE, POINTS, Cells, Chart, Panel, Series
from advsweep.report.figures.layout import CAPTION, PAGE, Layout, paper
from advsweep.report.figures.style import GREY

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, FigureBase

SUFFIXES = (".png", ".svg", ".pdf")
_PICTURE = ".png"
_SHADE = "#d9ead3"
_CELLS = "cividis"  # which any kind of colour vision distinguishes
_FRAME = 0.05  # of a cell, between its edge and its frame
_PAD = 0.055  # inches
_DPI = 150
_RC_PARAMS = {
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.labelsize": 9,
    "axes.titlelocation": "left",
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.color": "#e5e5e5",
    "grid.linewidth": 0.8,
    "legend.fontsize": 8.5,
    "legend.frameon": False,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    # Stable ids, and fonts embedded as text (type 42), as journals require.
    "svg.hashsalt": "advsweep",
    "pdf.fonttype": 42,
}
# No time and no version: the same figure gives the same bytes.
_METADATA: dict[str, Any] = {
    ".png": {"Software": None},
    ".svg": {"Date": None, "Creator": None},
    ".pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}


def check_path(path: Path) -> None:
    """Check the path of a figure before the work of drawing it.

    Raises:
        ReportError: the suffix is not in `SUFFIXES`, or the folder does not exist.
    """
    if path.suffix.lower() not in SUFFIXES:
        raise ReportError(
            f"{path}: expected a file ending in {', '.join(SUFFIXES)}, got '{path.suffix}'"
        )
    if not path.parent.is_dir():
        raise ReportError(f"{path}: there is no folder {path.parent}; make it first")


def check_target(target: Path | None, suffix: str | None) -> None:
    """Check where figures are to be written before the work of drawing them.

    Args:
        target: the file or folder; None for a file in the working folder.
        suffix: that of the files; None if the target decides it.

    Raises:
        ReportError: as `check_path`.
        ConfigError: the suffixes contradict each other.
    """
    if target is None or _is_folder(target):
        return
    check_path(target)
    if suffix not in (None, target.suffix.lower()):
        raise ConfigError(f"--format: {target} has another format than {suffix}")


def _is_folder(target: Path) -> bool:
    return target.is_dir() or not target.suffix


def choose_path(title: str, figure: str, suffix: str | None) -> Path:
    """Return the path of a file that the user did not name: `TITLE-FIGURE.png`.

    Args:
        title: a name for the runs; characters that a path could misread become hyphens.
    """
    safe = "".join(c if c.isalnum() or c in "-_." else "-" for c in title)
    return Path(f"{safe}-{figure}{suffix or _PICTURE}")


def choose_layout(target: Path | None, suffix: str | None, width: float | None) -> Layout:
    """Return the layout of files: that of a paper for a PDF, or with a width.

    Args:
        target, suffix: as `write_files` takes them.
        width: inches of a figure of a paper; None for a column.
    """
    if width is not None:
        return paper(width)
    if target is not None and not _is_folder(target):
        suffix = target.suffix.lower()
    return paper() if suffix == ".pdf" else PAGE


def write_files(
    charts: Sequence[Chart], target: Path, suffix: str | None, layout: Layout = PAGE
) -> Iterator[Path]:
    """Write figures to one file, or each to a file of a folder; yield each path once it is written.

    Args:
        target: a file or a folder, as `check_target` has checked it.
        suffix: that of the files of a folder; None for `.png`.
        layout: their sizes.

    Raises:
        ReportError: a file cannot be written.
    """
    if not _is_folder(target):
        write(charts, target, layout)
        yield target
        return
    target.mkdir(parents=True, exist_ok=True)
    for chart in charts:
        path = target / f"{chart.name}{suffix or _PICTURE}"
        write([chart], path, layout)
        yield path


def write(charts: Sequence[Chart], path: Path, layout: Layout = PAGE) -> None:
    """Write figures to one file: below each other, or a PDF with a page for each figure.

    Raises:
        ReportError: the path is wrong, or the file cannot be written.
    """
    check_path(path)
    suffix = path.suffix.lower()
    pages = [[chart] for chart in charts] if suffix == ".pdf" else [charts]
    with _settings(layout):
        from matplotlib.backends.backend_pdf import PdfPages

        try:
            figures = [_fixed(draw_page(page, layout)) for page in pages]
            if suffix != ".pdf":
                figures[0].savefig(path, dpi=_DPI, metadata=_METADATA[suffix])
                return
            with PdfPages(path, metadata=_METADATA[suffix]) as file:
                for figure in figures:
                    file.savefig(figure, dpi=_DPI)
        except OSError as error:
            raise ReportError(f"{path}: cannot be written ({reason_of(error)})") from error


def png_bytes(charts: Sequence[Chart]) -> bytes:
    """Return a picture of figures below each other."""
    buffer = io.BytesIO()
    with _settings(PAGE):
        figure = _fixed(draw_page(charts))
        figure.savefig(buffer, format="png", dpi=_DPI, metadata=_METADATA[_PICTURE])
    return buffer.getvalue()


@contextmanager
def _settings(layout: Layout) -> Iterator[None]:
    """Set matplotlib's defaults and ours, whatever the user's settings are."""
    # Its import reads `matplotlibrc` in the working folder, which may be a stranger's.
    with outside_working_folder():
        import matplotlib.style
    with matplotlib.style.context(["default", {**_RC_PARAMS, **layout.settings}]):
        yield


def draw_page(charts: Sequence[Chart], layout: Layout = PAGE) -> Figure:
    """Draw figures below each other."""
    with _settings(layout):
        from matplotlib.figure import Figure
        from matplotlib.layout_engine import ConstrainedLayoutEngine

        heights = [height for chart in charts for height in layout.heights(chart)]
        # Padding in inches; shares of the figure would grow with the page.
        pad = _PAD * layout.scale
        engine = ConstrainedLayoutEngine(h_pad=pad, w_pad=pad, hspace=0, wspace=0)
        figure = Figure(figsize=(layout.width, sum(heights)), layout=engine)
        parts = figure.subfigures(len(heights), 1, height_ratios=heights, squeeze=False)[:, 0]
        for chart, body, below in zip(charts, parts[::2], parts[1::2], strict=True):
            _draw_chart(chart, body, below, layout)
        return figure


def _fixed(figure: Figure) -> Figure:
    """Lay a figure out once, and round the positions.

    The layout solver adds numbers in no fixed order; without rounding, the last bit of a position
    could change the ids in the file.
    """
    layout = figure.get_layout_engine()
    assert layout is not None
    layout.execute(figure)
    figure.set_layout_engine("none")
    for part in figure.subfigs:
        # The positions of axes are relative to these.
        part.bbox_relative.set_points(part.bbox_relative.get_points().round(6))
    for axes in figure.axes:
        left, bottom, width, height = (round(side, 6) for side in axes.get_position().bounds)
        axes.set_position((left, bottom, width, height))
    return figure


def _draw_chart(chart: Chart, body: FigureBase, below: FigureBase, layout: Layout) -> None:
    """Draw a figure, with its title and its caption unless these are a paper's."""
    from matplotlib.text import Text

    if not layout.is_paper:
        body.suptitle(chart.title, x=0.012, ha="left", fontsize=10.5, fontweight="bold")
        # A point's width from the left edge, in line with the title.
        below.text(0.012, 1.0, chart.caption, ha="left", va="top", fontsize=CAPTION, color=GREY)
    lines = layout.lines_of(chart)
    heights = [max(layout.panel_height(chart, panel) for panel in line) for line in lines]
    grid = body.add_gridspec(len(lines), layout.columns_of(chart), height_ratios=heights)
    for row, line in enumerate(lines):
        drawn = []
        for column, panel in enumerate(line):
            axes = body.add_subplot(grid[row, column])
            drawn.append(axes)
            fitted = replace(
                panel,
                title=layout.panel_title(chart, panel),
                rows=layout.row_labels(chart, panel),
            )
            _draw_panel(axes, fitted, layout)
            if panel.cells is not None:
                _draw_cells(axes, panel.cells, layout)
        if line[0].cells is not None:
            _add_colour_bar(drawn, line[0].cells, body)
    if chart.labels:
        _add_legend(chart, body, layout)
    # No dollar sign starts a formula; an SVG must not have control characters.
    for canvas in (body, below):
        for text in canvas.findobj(Text):
            assert isinstance(text, Text)
            text.set_parse_math(False)
            text.set_text(printable(text.get_text()))


def _draw_panel(axes: Axes, panel: Panel, layout: Layout) -> None:
    _write_texts(axes, panel, layout)
    _draw_guides(axes, panel)
    for place, series in enumerate(panel.series):
        _draw_series(axes, series, place, panel, layout.scale)
    _set_scales(axes, panel)
    if panel.rows is not None:
        _name_rows(axes, panel.rows)
    _set_ticks(axes, panel, layout)
    if panel.x_limits is not None:
        axes.set_xlim(*panel.x_limits)
    if panel.y_limits is not None:
        axes.set_ylim(*panel.y_limits)


def _draw_guides(axes: Axes, panel: Panel) -> None:
    """Draw what series are read against: the shaded span, and dotted lines."""
    if panel.span is not None:
        axes.axvspan(*panel.span, color=_SHADE, linewidth=0, zorder=0)
    for axis, value in panel.guides:
        draw = axes.axvline if axis == "x" else axes.axhline
        draw(value, color=GREY, linewidth=0.8, linestyle=":", zorder=0.5)


def _set_scales(axes: Axes, panel: Panel) -> None:
    axes.set_xscale(panel.x_scale)
    axes.set_yscale(panel.y_scale)
    if panel.threshold is not None:
        axes.set_yscale("symlog", linthresh=panel.threshold, linscale=0.5)
    for axis in (axes.xaxis, axes.yaxis):
        if axis.get_scale() != "linear":
            # Matplotlib's own are formulas, which texts here are not.
            axis.set_major_formatter(lambda value, _: f"{value:g}")


def _name_rows(axes: Axes, rows: Sequence[str]) -> None:
    """Name the rows of a panel from the top."""
    axes.set_yticks(range(len(rows)), rows)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.grid(visible=False, axis="y")
    axes.tick_params(axis="y", length=0)


def _set_ticks(axes: Axes, panel: Panel, layout: Layout) -> None:
    from matplotlib.ticker import MaxNLocator

    if panel.x_ticks is not None:
        axes.set_xticks(list(panel.x_ticks), list(panel.x_ticks.values()))
        axes.minorticks_off()
    elif panel.x_scale == "linear":
        nbins = 7 if panel.rows is None and not layout.is_paper else 4
        axes.xaxis.set_major_locator(MaxNLocator(nbins=nbins, steps=[1, 2, 5, 10]))
    if panel.y_ticks is not None:
        axes.set_yticks(list(panel.y_ticks), list(panel.y_ticks.values()))


def _write_texts(axes: Axes, panel: Panel, layout: Layout) -> None:
    """Write the title of a panel and what its axes are."""
    title = axes.set_title(panel.title)
    if len(panel.title) > 40 and not layout.is_paper:
        title.set_fontsize(8.5)
    axes.set_xlabel(panel.x_label)
    axes.set_ylabel(panel.y_label)


def _draw_cells(axes: Axes, cells: Cells, layout: Layout) -> None:
    """Draw a heat map, with a number in each cell and frames around those that may be the best."""
    rows, columns = cells.values.shape
    low, high = cells.limits
    edges = (np.arange(columns + 1) - 0.5, np.arange(rows + 1) - 0.5)
    axes.pcolormesh(*edges, cells.values, cmap=_CELLS, vmin=low, vmax=high, rasterized=True)
    # Where every cell may be the best, frames would say nothing.
    framed = cells.candidates if len(cells.candidates) < len(cells.texts) else ()
    for at in np.ndindex(rows, columns):
        if at not in cells.texts:
            _mark_missing(axes, at, layout)
            continue
        # Both colours of text are readable in the middle of the colours.
        colour = "white" if cells.values[at] <= (low + high) / 2 else "black"
        _write_in_cell(axes, at, cells.texts[at], size=layout.cell_size, colour=colour)
        if at in framed:
            _frame_cell(axes, at, colour, is_only=len(framed) == 1)
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)


def _mark_missing(axes: Axes, at: tuple[int, ...], layout: Layout) -> None:
    """Hatch the cell at a row and a column, as it has no number."""
    from matplotlib.patches import Rectangle

    row, column = at
    corner = (column - 0.5, row - 0.5)
    axes.add_patch(Rectangle(corner, 1, 1, fc="white", ec="#d0d0d0", hatch="///", lw=0))
    _write_in_cell(axes, at, "missing", size=layout.cell_size - 1, colour=GREY)


def _write_in_cell(axes: Axes, at: tuple[int, ...], text: str, *, size: float, colour: str) -> None:
    """Write in the middle of the cell at a row and a column."""
    row, column = at
    axes.text(column, row, text, ha="center", va="center", fontsize=size, color=colour)


def _frame_cell(axes: Axes, at: tuple[int, ...], colour: str, *, is_only: bool) -> None:
    """Frame the cell at a row and a column: in a solid line if no other is framed."""
    from matplotlib.patches import Rectangle

    row, column = at
    corner = (column - 0.5 + _FRAME, row - 0.5 + _FRAME)
    side = 1 - 2 * _FRAME
    style = "-" if is_only else (0, (3, 2))
    axes.add_patch(Rectangle(corner, side, side, fill=False, ec=colour, lw=1.5, linestyle=style))


def _add_colour_bar(axes: Sequence[Axes], cells: Cells, canvas: FigureBase) -> None:
    """Add the colours of a line of heat maps at its end."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    colours = ScalarMappable(Normalize(*cells.limits), cmap=_CELLS)
    bar = canvas.colorbar(colours, ax=list(axes), label=cells.label, pad=0.015)
    bar.outline.set_visible(False)


def _draw_series(axes: Axes, series: Series, place: int, panel: Panel, scale: float) -> None:
    """Draw the series at an index of a panel; the more bands there are, the paler they are.

    Args:
        scale: of lines and markers.
    """
    mark, style = series.mark, series.style
    if not len(series.x):
        # An empty line that is not clipped would count as one at the origin of the page.
        return
    among = len(panel.series)
    if series.low is not None and mark.is_band:
        ends = panel.within or (None, None)
        low, high = (np.clip(end, *ends) for end in (series.low, series.high))
        alpha = min(0.14, 0.56 / among)
        axes.fill_between(series.x, low, high, color=style.colour, alpha=alpha, linewidth=0)
    elif series.low is not None or series.x_low is not None:
        axes.errorbar(
            series.x,
            series.y,
            _arms(series.y, series.low, series.high),
            _arms(series.x, series.x_low, series.x_high),
            fmt="none",
            ecolor=style.colour,
            elinewidth=1.1 * scale,
            capsize=2.5 * scale,
        )
    options = dict(style.points)
    if mark.is_hollow:
        options["markerfacecolor"] = "none"
    if mark is LINE:
        # A few markers, at other steps than those of other lines.
        every = max(1, len(series.x) // 6)
        options["markevery"] = (min(place * every // among, len(series.x) - 1), every)
    axes.plot(
        series.x,
        series.y,
        **options,
        linestyle=style.linestyle if mark.line is None else mark.line,
        linewidth=mark.width * scale,
        markersize=mark.size * scale,
        alpha=mark.alpha,
        solid_joinstyle="round",
        rasterized=len(series.x) > 2000,
        clip_on=mark is not POINTS,
    )


def _arms(middle: Any, low: Any, high: Any) -> Any:
    """Return the lengths of whiskers; of values without an interval none."""
    if low is None:
        return None
    return np.nan_to_num([np.subtract(middle, low), np.subtract(high, middle)])


def _add_legend(chart: Chart, canvas: FigureBase, layout: Layout) -> None:
    """Add a legend below all axes."""
    from matplotlib.lines import Line2D

    handles: dict[str, Artist] = {}
    shown = [series for panel in chart.panels for series in panel.series]
    for label in chart.labels:
        # A row that has a line anywhere has one here.
        labelled = [series for series in shown if series.label == label]
        [first, *_] = sorted(labelled, key=lambda series: series.mark.line == "none")
        line: Any = first.style.linestyle if first.mark.line is None else first.mark.line
        size = 5.2 * layout.scale if any(series.mark.size for series in labelled) else 0
        handles[textwrap.fill(label, layout.legend_letters)] = Line2D(
            [],
            [],
            **first.style.points,
            markersize=size,
            linestyle=line,
            linewidth=1.6 * layout.scale,
        )
    canvas.legend(
        list(handles.values()),
        list(handles),
        loc="outside lower center",
        ncols=layout.legend_columns(chart.labels),
        handlelength=3.2,
        **({"columnspacing": 1.2, "borderpad": 0.1} if layout.is_paper else {}),
    )
