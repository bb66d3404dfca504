"""Bands: a mean and its interval at each of many places."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import stdtrit

from advsweep.errors import AdvsweepError
from advsweep.statistics.samples import check_share

if TYPE_CHECKING:
    from jaxtyping import Float, Int


class Band(NamedTuple):
    """What `student_t_interval` says at each place.

    Attributes:
        mean: NaN where n = 0.
        low, high: NaN where n < 2.
        n: how many values there are.
    """

    mean: Float[np.ndarray, " places"]
    low: Float[np.ndarray, " places"]
    high: Float[np.ndarray, " places"]
    n: Int[np.ndarray, " places"]


def student_t_band(values: ArrayLike, level: float = 0.95) -> Band:
    """The mean over runs at each place and its Student t interval, as `student_t_interval`.

    Args:
        values: [runs, places]. What is not finite is left out where it stands.

    Raises:
        AdvsweepError: the values are no table, or the level is not in (0, 1).
    """
    check_share("level", level)
    table = np.asarray(values, dtype=np.float64)
    if table.ndim != 2:
        raise AdvsweepError(f"expected a row of values for each run, got shape {table.shape}")
    known = np.isfinite(table)
    n = known.sum(axis=0)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = np.where(known, table, 0.0).sum(axis=0) / n
        deviations = np.where(known, table - mean, 0.0)
        sd = np.sqrt((deviations**2).sum(axis=0) / np.where(n > 1, n - 1, np.nan))
        half = stdtrit(np.where(n > 1, n - 1.0, np.nan), (1 + level) / 2) * sd / np.sqrt(n)
    return Band(mean, mean - half, mean + half, n)
