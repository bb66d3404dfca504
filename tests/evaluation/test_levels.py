"""Levels by solve rate, as AVSPO has them."""

from __future__ import annotations

import numpy as np

from advsweep.evaluation.evaluate import solve_rate_levels


def test_levels_of_solve_rates():
    rates = [1.0, 0.95, 0.94, 0.8, 0.79, 0.5, 0.49, 0.3, 0.29, 0.1, 0.09, 0.01, 0.009, 0.0]
    expected = [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6]
    assert solve_rate_levels(np.array(rates)).tolist() == expected
