"""What counts as a point where a line is laid through a sweep."""

from __future__ import annotations

from enum import Enum


class Points(Enum):
    """What is a point of a regression: each run, or each row's mean over its seeds."""

    RUNS = "runs"
    ROWS = "rows"
