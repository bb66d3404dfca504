"""Bands agree with the interval at each place."""

from __future__ import annotations

import numpy as np

from advsweep.statistics import student_t_interval
from advsweep.statistics.intervals import student_t_band


def test_each_place_has_the_interval_of_its_values():
    values = np.random.default_rng(0).normal(size=(5, 40))
    values[:2, 3] = np.nan
    values[0, 4] = np.inf
    values[1:, 5] = np.nan
    values[:, 6] = np.nan
    band = student_t_band(values, level=0.9)
    for place in range(40):
        own = values[:, place][np.isfinite(values[:, place])]
        expected = student_t_interval(own, level=0.9)
        found = [part[place] for part in band]
        np.testing.assert_allclose(found, expected, rtol=1e-12)
    assert band.n[[3, 4, 5, 6]].tolist() == [3, 4, 1, 0]
