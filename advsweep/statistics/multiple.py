"""p-values of many comparisons at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from advsweep.errors import AdvsweepError
from advsweep.statistics.samples import as_sample

if TYPE_CHECKING:
    from jaxtyping import Float


def benjamini_hochberg(p_values: ArrayLike) -> Float[np.ndarray, " tests"]:
    """p-values adjusted for there being many (Benjamini & Hochberg, 1995).

    Of m values the i-th smallest becomes min over j ≥ i of m p₍ⱼ₎/j. If those up to α are
    called differences, at most a share α of these calls is expected to be false; so for
    independent tests, and for ones that depend positively, such as many methods against one
    baseline.

    Args:
        p_values: [tests]; NaN, a test that could not be made, stays NaN and does not count.

    Raises:
        AdvsweepError: not a list of numbers, or one outside [0, 1].
    """
    values = as_sample(p_values)
    made = np.flatnonzero(~np.isnan(values))
    if ((values[made] < 0) | (values[made] > 1)).any():
        raise AdvsweepError("p-values: expected numbers in [0, 1], or NaN for tests not made")
    falling = made[np.argsort(-values[made])]
    ranks = np.arange(made.size, 0, -1)
    adjusted = np.full(values.shape, np.nan)
    adjusted[falling] = np.minimum.accumulate(np.minimum(values[falling] * (made.size / ranks), 1))
    return adjusted
