"""What figures share: colours, and files that come out the same each time."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from advsweep.errors import ReportError
from advsweep.local_files import outside_working_folder
from advsweep.report.data.filters import show_key
from advsweep.report.data.grouping import Group

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


_PALETTE = COLOURS[:-1]
BLACK = COLOURS[-1]
"""Base models and models without a run are black."""

_MARKERS = ("o", "s", "^", "D", "v", "P", "<", ">", "d", "p", "h", "8")
_DASHES: tuple[tuple[float, ...], ...] = ((), (5, 1.8), (6, 1.6, 1.4, 1.6), (1.4, 1.4))
_HATCHES = ("", "/////", "xxxxx", ".....")
_FILLINGS = (None, "white", "#bbbbbb", "black")
MOST_STYLES = len(_PALETTE) * len(_DASHES)
"""So many styles there are."""
MOST_SHADES = len(_MARKERS)
"""So many shades."""


class RowStyle(NamedTuple):
    """How a row's lines, points and bars are drawn.

    Attributes:
        variant: which of the rows of this colour it is: each has other dashes, fillings of
            markers and hatches.
    """

    colour: str
    marker: str
    variant: int = 0

    @property
    def linestyle(self) -> Any:
        dashes = _DASHES[self.variant]
        return (0, dashes) if dashes else "-"

    @property
    def points(self) -> dict[str, Any]:
        """How markers are drawn, for matplotlib's lines."""
        own = {"marker": self.marker, "color": self.colour}
        if self.colour == BLACK:
            return own
        if self.variant == 0:
            return {**own, "markeredgecolor": "white", "markeredgewidth": 0.5}
        return {**own, "markerfacecolor": _FILLINGS[self.variant]}

    @property
    def hatch(self) -> str:
        return _HATCHES[self.variant]


UNTRAINED = (
    RowStyle(BLACK, "X", 3),
    RowStyle(BLACK, "*", 1),
    RowStyle(BLACK, "X", 2),
    RowStyle(BLACK, "*", 0),
)
"""Styles of base models and models without a run, in this order."""


def choose_styles(groups: Sequence[Group], estimators: Sequence[str]) -> list[RowStyle]:
    """A style for each row: the estimator's colour and marker, and dashes by its variants.

    Where all rows have one estimator, each has a colour.

    Args:
        groups: what names the rows.
        estimators: every one that may need a colour, in a fixed order: that of a whole sweep
            gives an estimator the same colour whichever of the sweep's runs are drawn.
    """
    places = {name: place for place, name in enumerate(estimators)}
    variants: dict[int, int] = {}
    styles = []
    for number, group in enumerate(groups):
        place = places[group["estimator"]] if len(places) > 1 else number
        variant = variants.get(place, 0)
        variants[place] = variant + 1
        cycle, shade = divmod(place, len(_PALETTE))
        marker = _MARKERS[place % len(_MARKERS)]
        styles.append(RowStyle(_PALETTE[shade], marker, (variant + 2 * cycle) % len(_DASHES)))
    return styles


def shaded_styles(count: int) -> list[RowStyle]:
    """Looks of values that are in an order: from dark to light, each with a marker."""
    load_matplotlib()
    import matplotlib

    shades = matplotlib.colormaps["cividis"]
    # The lightest shades are too pale on white.
    at = [0.9 * place / max(count - 1, 1) for place in range(count)]
    return [
        RowStyle(matplotlib.colors.to_hex(shades(share)), _MARKERS[place % len(_MARKERS)])
        for place, share in enumerate(at)
    ]


def label_of(group: Group) -> str:
    """A row in few words, such as `fade h_star=0.5, group_size=8`."""
    own, others = [str(group["estimator"])], []
    for key, value in group.items():
        if key == "estimator":
            continue
        node, _, rest = key.partition(".")
        if node == "estimator":
            own.append(f"{rest}={show_key(value)}")
        else:
            others.append(f"{key}={show_key(value)}")
    return ", ".join([" ".join(own), *others])
