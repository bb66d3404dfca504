"""Difficulty levels by solve rate: how often a model, the selector, answers correctly."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from jaxtyping import Float, Int

LOWER_BOUNDS = (0.95, 0.8, 0.5, 0.3, 0.1, 0.01)
"""The least solve rates of the levels 0 to 5; below the last is level 6.

Source: AVSPO, App. A.1. Departures: the signs of comparison are not in the text we have; a rate
on a bound is taken for the easier level, so that the levels are exhaustive.
"""


def solve_rate_levels(rates: Float[np.ndarray, " problems"]) -> Int[np.ndarray, " problems"]:
    """The levels 0 (nearly always solved) to 6 (nearly never) of some solve rates."""
    levels: Int[np.ndarray, " problems"] = np.sum(rates[:, None] < np.array(LOWER_BOUNDS), axis=1)
    return levels
