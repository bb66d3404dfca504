"""What the tests of the TRL backend share: a task whose groups are mixed, and stock TRL."""

from __future__ import annotations

import runpy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from advsweep.backends.run import Run
from advsweep.tasks.base import Problem
from advsweep.tasks.countdown.task import Countdown

pytest.importorskip("trl", minversion="1.16")

STOCK = Path(__file__).parent / "stock.py"


@dataclass(kw_only=True)
class Parity(Countdown):
    """Countdown's prompts; an answer of even length is right, so that most groups are mixed."""

    name: ClassVar[str] = "parity"

    def score(self, problems: Sequence[Problem], completions: Sequence[str]) -> np.ndarray:
        return np.array([float(len(text) % 2 == 0) for text in completions])


@pytest.fixture
def parity_run(small_run: Callable[..., Run]) -> Callable[..., Run]:
    """Builds a small run whose groups are mixed."""

    def build(**changes: Any) -> Run:
        task = Parity(levels=(0, 1), held_out_per_level=3)
        return replace(small_run("trl", **changes), task=task)

    return build


@pytest.fixture
def stock_training(tmp_path: Path) -> Callable[..., tuple[list[float], dict[str, Any]]]:
    """Trains as a run would be, by TRL alone; returns the loss of every pass and the weights."""
    train_stock = runpy.run_path(str(STOCK))["train_stock"]
    return lambda run, **settings: train_stock(run, tmp_path / "stock", **settings)


@pytest.fixture
def stock_script() -> Path:
    """The same as a program, which torchrun starts."""
    return STOCK
