"""Checks of the numbers that a statistic is computed from."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from advsweep.errors import AdvsweepError

if TYPE_CHECKING:
    from jaxtyping import Float

ROUNDING = 1e-12
"""Relative size below which a difference or a spread counts as rounding error."""


def as_sample(values: ArrayLike) -> Float[np.ndarray, " n"]:
    """Return numbers as a one-dimensional array.

    Raises:
        AdvsweepError: the argument is not a list of numbers.
    """
    sample = np.asarray(values, dtype=np.float64)
    if sample.ndim != 1:
        raise AdvsweepError(f"expected a list of numbers, got an array of shape {sample.shape}")
    return sample


def as_pairs(x: ArrayLike, y: ArrayLike) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, " n"]]:
    """Return two lists of numbers as arrays of the same length.

    Raises:
        AdvsweepError: the arguments are not two lists of numbers of the same length.
    """
    xs, ys = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    if xs.ndim != 1 or xs.shape != ys.shape:
        raise AdvsweepError(
            f"expected two lists of numbers of the same length, got arrays of shapes {xs.shape} "
            f"and {ys.shape}"
        )
    return xs, ys


def check_share(name: str, value: float) -> None:
    """Refuse a level or a power outside (0, 1)."""
    if not 0 < value < 1:
        raise AdvsweepError(f"{name}: expected a number in (0, 1), got {value:g}")


def sample_sd(values: Float[np.ndarray, " n"], scale: float) -> float:
    """Return the sample standard deviation; exactly 0 if it is only rounding error.

    Args:
        scale: magnitude of the numbers from which the values were computed.
    """
    sd = float(values.std(ddof=1))
    return sd if sd > ROUNDING * scale else 0.0
