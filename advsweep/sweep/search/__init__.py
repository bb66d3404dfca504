"""Searches: Optuna suggests trials, the scheduler trains them, the store has the results."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from advsweep.components import Component


@dataclass(kw_only=True)
class NoSearch(Component):
    """The default: the sweep has the runs that its space has."""

    name: ClassVar[str] = "none"
