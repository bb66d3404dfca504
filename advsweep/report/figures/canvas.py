"""What figures share: colours, and files that come out the same each time."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from advsweep.errors import ReportError
from advsweep.working_folder import outside_working_folder

if TYPE_CHECKING:
    from matplotlib.figure import Figure, FigureBase

# Okabe and Ito's colours, told apart with any kind of colour vision; their yellow is too pale
# for lines on white.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
SUFFIXES = (".png", ".svg", ".pdf")
_DPI = 150

# Nothing in a file that depends on when or where it was made.
_METADATA = {
    ".png": {"Software": None},
    ".svg": {"Date": None, "Creator": None},
    ".pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}
# Type 42 keeps letters in a PDF letters, which journals ask for.
_STYLE = {"svg.hashsalt": "advsweep", "pdf.fonttype": 42}


@functools.cache
def load_matplotlib() -> None:
    """Imports matplotlib, which would read the file `matplotlibrc` of the working folder."""
    with outside_working_folder():
        import matplotlib.style  # noqa: F401


@contextmanager
def house_style(extra: Mapping[str, Any] | None = None) -> Iterator[None]:
    """matplotlib's own defaults, whatever the user's are, and ids that do not change."""
    load_matplotlib()
    import matplotlib.style

    with matplotlib.style.context(["default", {**_STYLE, **(extra or {})}]):
        yield


def check_path(path: Path) -> None:
    """Refuses a path that no figure can be written to, before the work is done.

    Raises:
        ReportError: the suffix is none of `SUFFIXES`, or the folder is not there.
    """
    if path.suffix.lower() not in SUFFIXES:
        raise ReportError(
            f"{path}: expected a file ending in {', '.join(SUFFIXES)}, got '{path.suffix}'"
        )
    if not path.parent.is_dir():
        raise ReportError(f"{path}: there is no folder {path.parent}; make it first")


def save(figure: Figure, path: Path) -> None:
    """Writes a figure in the format of the path's suffix.

    Raises:
        ReportError: the file cannot be written.
    """
    check_path(path)
    with house_style(), _writing(path):
        _settle(figure)
        figure.savefig(path, dpi=_DPI, metadata=_METADATA[path.suffix.lower()])


def save_pages(figures: Iterable[Figure], path: Path) -> None:
    """Writes a PDF with a page for each figure.

    Raises:
        ReportError: the file cannot be written.
    """
    check_path(path)
    with house_style(), _writing(path):
        from matplotlib.backends.backend_pdf import PdfPages

        with PdfPages(path, metadata=_METADATA[".pdf"]) as pages:
            for figure in figures:
                _settle(figure)
                pages.savefig(figure, dpi=_DPI)


def _settle(figure: Figure) -> None:
    """Lays a figure out, once and at rounded places.

    What solves for the layout adds up in no fixed order, and a last bit would be another id.
    """
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    _round_parts(figure)
    for axes in figure.axes:
        left, bottom, width, height = axes.get_position().bounds
        axes.set_position((round(left, 6), round(bottom, 6), round(width, 6), round(height, 6)))


def _round_parts(figure: FigureBase) -> None:
    for part in figure.subfigs:
        # Places of axes are relative to these.
        part.bbox_relative.set_points(part.bbox_relative.get_points().round(6))
        _round_parts(part)


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ReportError(f"{path}: cannot be written ({error.strerror})") from error
