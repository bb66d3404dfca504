"""The catalogue of metrics and columns: `metrics.yaml`, read once.

A test compares it with what runs of the backends record; columns, the reference and the page take
units, directions, ranges, headers and meanings from it.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from advsweep.yaml_files import read_yaml

_PLACEHOLDERS = {"K": r"\d+", "L": r"-?\d+", "T": r"\d+", "I": r"\d+", "COST": r"[a-z]+"}
_PLACEHOLDERS |= {"LAW": r"[a-z_]+", "NAME": r".+"}


class MetricDirection(Enum):
    """Which values of a metric are better."""

    HIGHER = "higher"
    LOWER = "lower"
    NEITHER = "neither"


@dataclass(frozen=True)
class CatalogueEntry:
    """A metric of training steps, or a column of an evaluation or a whole run.

    Attributes:
        name: its name; words in capitals stand for numbers or names.
        meaning: what it is.
        unit: `share` for parts of a whole; empty for a number without a unit.
        better: which values are better.
        header: its label in tables and figures; empty for the name itself.
        is_signed: whether a share is a difference, which may be below 0 or above 1.
        paper: the paper that defines it; empty if there is none.
    """

    name: str
    meaning: str
    unit: str = ""
    better: MetricDirection = MetricDirection.NEITHER
    header: str = ""
    is_signed: bool = False
    paper: str = ""

    @property
    def is_bounded(self) -> bool:
        """Whether its values are between 0 and 1."""
        return self.unit == "share" and not self.is_signed

    @functools.cached_property
    def pattern(self) -> re.Pattern[str]:
        """The names that the metric stands for."""
        parts = re.split(r"(?<![A-Za-z])([A-Z]+)(?![a-z])", self.name)
        return re.compile("".join(_PLACEHOLDERS.get(part, re.escape(part)) for part in parts))


@functools.cache
def read_catalogue() -> Mapping[str, Sequence[CatalogueEntry]]:
    """Return the entries by subject."""
    subjects = read_yaml(Path(__file__).with_name("metrics.yaml"))
    catalogue: dict[str, list[CatalogueEntry]] = {}
    for subject, entries in subjects.items():
        catalogue[subject] = [_read_entry(name, fields) for name, fields in entries.items()]
    return catalogue


def _read_entry(name: str, fields: Mapping[str, Any]) -> CatalogueEntry:
    better = MetricDirection(fields.get("better", "neither"))
    return CatalogueEntry(name, **{**fields, "better": better})


@functools.cache
def find_metric(name: str) -> CatalogueEntry | None:
    """Return the entry of a metric or a column; None if there is none."""
    entries = [metric for metrics in read_catalogue().values() for metric in metrics]
    return next((metric for metric in entries if metric.pattern.fullmatch(name)), None)
