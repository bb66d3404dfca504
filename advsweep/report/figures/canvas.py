"""What figures share: colours, and files that come out the same each time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from advsweep.errors import ReportError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Okabe and Ito's colours, told apart with any kind of colour vision; their yellow is too pale
# for lines on white.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
SUFFIXES = (".png", ".svg", ".pdf")

# Nothing in a file that depends on when or where it was made.
_METADATA = {
    ".png": {"Software": None},
    ".svg": {"Date": None, "Creator": None},
    ".pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}


@contextmanager
def house_style() -> Iterator[None]:
    """matplotlib's own defaults, whatever the user's are, and ids that do not change."""
    import matplotlib.style

    with matplotlib.style.context(["default", {"svg.hashsalt": "advsweep"}]):
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
    try:
        with house_style():
            figure.savefig(path, dpi=150, metadata=_METADATA[path.suffix.lower()])
    except OSError as error:
        raise ReportError(f"{path}: cannot be written ({error.strerror})") from error
