"""`advsweep version`: what `--version` prints."""

from __future__ import annotations

from advsweep import __version__
from advsweep.cli.output import echo_line

EXAMPLES = ("advsweep version",)


def version() -> None:
    """Print the version."""
    echo_line(f"advsweep {__version__}")
