"""What every statistic asks of the numbers that it is given."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from advsweep.errors import AdvsweepError

if TYPE_CHECKING:
    from jaxtyping import Float

ROUNDING = 1e-12
"""What is this small beside the numbers that it was computed from is rounding, not spread."""


def as_sample(values: ArrayLike) -> Float[np.ndarray, " n"]:
    """Some numbers as an array of one axis.

    Raises:
        AdvsweepError: they are not a list of numbers.
    """
    sample = np.asarray(values, dtype=np.float64)
    if sample.ndim != 1:
        raise AdvsweepError(f"expected a list of numbers, got an array of shape {sample.shape}")
    return sample


def as_pairs(x: ArrayLike, y: ArrayLike) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, " n"]]:
    """Two lists of numbers of which each has one for each of the other.

    Raises:
        AdvsweepError: they are not two lists of numbers of the same length.
    """
    xs, ys = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    if xs.ndim != 1 or xs.shape != ys.shape:
        raise AdvsweepError(
            f"expected two lists of numbers of the same length, got arrays of shapes {xs.shape} "
            f"and {ys.shape}"
        )
    return xs, ys


def check_share(name: str, value: float) -> None:
    """Refuses a level or a power that is not in (0, 1)."""
    if not 0 < value < 1:
        raise AdvsweepError(f"{name}: expected a number in (0, 1), got {value:g}")


def sample_sd(values: Float[np.ndarray, " n"], scale: float) -> float:
    """The sample standard deviation; exactly 0 where it is but rounding.

    Args:
        scale: the size of the numbers that the values were computed from.
    """
    sd = float(values.std(ddof=1))
    return sd if sd > ROUNDING * scale else 0.0
