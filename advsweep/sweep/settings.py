"""Settings of a sweep that never enter a run's identity."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from advsweep.components import Component


@dataclass(kw_only=True)
class Resources(Component):
    """What a run occupies: one CPU thread."""

    name: ClassVar[str] = "default"


@dataclass(kw_only=True)
class Off(Component):
    """The choice of those who want no search, no early stopping or no tracking elsewhere."""

    name: ClassVar[str] = "none"
