"""Columns of the laws of pass@k: parameters at the best fit, and how well rivals fit.

law/a, law/b, law/c    of exp(-a (k+c)^-b)
law/mse/LAW            mean squared residual of a law (`statistics.pass_laws`)
law/aic/LAW            AICc of a law minus that of exp(-a (k+c)^-b): above 0 where that is better
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from advsweep.errors import FitError

if TYPE_CHECKING:
    from jaxtyping import Float

NAMES = ("shifted_power", "power", "exponential", "logarithmic", "logistic", "beta")
"""The laws of `statistics.pass_laws`, which loads scipy; a test compares them."""

PATTERN = rf"law/(?:[abc]|(?:mse|aic)/(?:{'|'.join(NAMES)}))"


def fitted_k(samples: int) -> list[int]:
    """Returns the k that a law is fitted to: powers of two up to half the samples.

    Near n pass@k of n samples has its largest variance.
    """
    return [2**i for i in range((samples // 2).bit_length()) if 2**i <= samples // 2]


def law_values(
    name: str, samples: Sequence[int], pass_at: Callable[[int], Sequence[float]]
) -> list[float]:
    """Returns a column's number for some evaluations; NaN where no law can be fitted.

    Args:
        samples: samples per problem of each evaluation.
        pass_at: returns pass@k of each evaluation.
    """
    ks = fitted_k(max(samples, default=0))
    table = np.array([pass_at(k) for k in ks]).T if ks else np.empty((len(samples), 0))
    return [
        _number(name, ks, np.where(np.array(ks) <= n // 2, row, np.nan))
        for n, row in zip(samples, table, strict=True)
    ]


def _number(name: str, ks: Sequence[int], curve: Float[np.ndarray, " points"]) -> float:
    from advsweep.statistics.pass_laws import compare_laws, fit_pass_at_k

    try:
        if match := re.fullmatch(r"law/([abc])", name):
            return float(getattr(fit_pass_at_k(ks, curve), match[1]).value)
        fits = compare_laws(ks, curve)
    except FitError:
        return math.nan
    _, quantity, law = name.split("/")
    if law not in fits:
        return math.nan
    if quantity == "mse":
        return fits[law].mse
    return fits[law].aicc - fits[NAMES[0]].aicc if NAMES[0] in fits else math.nan
