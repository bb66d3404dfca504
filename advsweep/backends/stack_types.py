"""Runs that are trained together: which can be, and what a backend gets of each."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from advsweep.backends.base import Reporter, Run


@dataclass(frozen=True)
class StackMember:
    """A run that is trained together with others.

    Attributes:
        directory: the run's directory.
        guard: makes a context that records and swallows errors, which end this run alone.
    """

    run: Run
    directory: Path
    reporter: Reporter
    guard: Callable[[], AbstractContextManager[None]] = nullcontext


class StackKey(NamedTuple):
    """Tells which runs can be trained together.

    Attributes:
        shape: runs with the same shape can be trained together.
        kind: runs that also have the same kind are fastest together.
    """

    shape: Hashable
    kind: Hashable
