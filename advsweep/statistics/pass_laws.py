"""Rival laws of pass@k over k, fitted to the same points and compared by AIC.

shifted_power    exp(-a (k+c)^-b)           FADE (arXiv:2607.01490), sec. 12
power            exp(-a k^-b)               Brown et al. 2024 (arXiv:2407.21787)
exponential      1 - a exp(-b k)
logarithmic      a + b ln k
logistic         1/(1 + exp(-(a + b ln k)))
beta             1 - B(a, b+k)/B(a, b): solve rates drawn from Beta(a, b)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import betaln, expit

from advsweep.errors import FitError
from advsweep.statistics.power_law import checked_curve, fit_pass_at_k

if TYPE_CHECKING:
    from jaxtyping import Float

    Points = Float[np.ndarray, " points"]

SHIFTED_POWER = "shifted_power"

_EDGE = 30.0  # of the logarithm of a parameter


@dataclass(frozen=True)
class LawFit:
    """A law at its best fit.

    Attributes:
        parameters: a, b and for `shifted_power` c.
        mse: mean squared residual, in pass@k squared.
        aicc: n ln(mse) + 2 p + 2 p (p+1)/(n - p - 1) for n points and p parameters, the spread
            of the residuals among them; infinite where n <= p + 1.
    """

    law: str
    parameters: tuple[float, ...]
    mse: float
    aicc: float


def _power(k: Points, at: Points) -> Points:
    return np.asarray(np.exp(-np.exp(at[0] - np.exp(at[1]) * np.log(k))))


def _exponential(k: Points, at: Points) -> Points:
    return np.asarray(1 - expit(at[0]) * np.exp(-np.exp(at[1]) * k))


def _logarithmic(k: Points, at: Points) -> Points:
    return np.asarray(at[0] + at[1] * np.log(k))


def _logistic(k: Points, at: Points) -> Points:
    return np.asarray(expit(at[0] + at[1] * np.log(k)))


def _beta(k: Points, at: Points) -> Points:
    a, b = np.exp(at)
    return np.asarray(-np.expm1(betaln(a, b + k) - betaln(a, b)))


_Law = Callable[["Points", "Points"], "Points"]

# Each law with its starting points, and its parameters as they are printed.
_RIVALS: Mapping[str, tuple[_Law, tuple[tuple[float, float], ...], Callable[[Points], Points]]] = {
    "power": (_power, ((0.0, -1.0), (1.0, 0.0)), np.exp),
    "exponential": (
        _exponential,
        ((0.0, -3.0), (2.0, -1.0), (2.0, -5.0)),
        lambda at: np.array([expit(at[0]), np.exp(at[1])]),
    ),
    "logarithmic": (_logarithmic, ((0.3, 0.1),), np.asarray),
    "logistic": (_logistic, ((0.0, 0.5), (-2.0, 1.0)), np.asarray),
    "beta": (_beta, ((-1.0, 0.0), (0.0, 1.0), (-1.0, 3.0)), np.exp),
}

LAWS = (SHIFTED_POWER, *_RIVALS)
"""The names of the laws."""


def compare_laws(k: ArrayLike, values: ArrayLike) -> dict[str, LawFit]:
    """Fit every law by least squares in pass@k, and return the fits by name.

    Points of one evaluation share their samples, so their residuals are not independent: AICc
    orders the laws, but its differences are no test.

    Args:
        k: [points], without repetition.
        values: pass@k of each; a k with NaN is left out.

    Returns:
        The laws that could be fitted; `shifted_power` may be missing.

    Raises:
        FitError: no law can be fitted, as in `fit_pass_at_k`.
        AdvsweepError: as there.
    """
    ks, curve = checked_curve(k, values)
    fits = {}
    for name, (law, starts, printed) in _RIVALS.items():
        at, mse = _fit(law, starts, ks, curve)
        parameters = tuple(float(value) for value in printed(at))
        fits[name] = LawFit(name, parameters, mse, _aicc(ks.size, len(at) + 1, mse))
    try:
        shifted = fit_pass_at_k(ks, curve)
    except FitError:
        return fits
    parameters = (shifted.a.value, shifted.b.value, shifted.c.value)
    own = LawFit(SHIFTED_POWER, parameters, shifted.mse, _aicc(ks.size, 4, shifted.mse))
    return {SHIFTED_POWER: own, **fits}


def _fit(
    law: _Law, starts: tuple[tuple[float, float], ...], k: Points, curve: Points
) -> tuple[Points, float]:
    from scipy.optimize import least_squares

    def residuals(at: Points) -> Points:
        return np.asarray(law(k, at) - curve)

    fits = [
        least_squares(residuals, start, bounds=(-_EDGE, _EDGE), x_scale="jac") for start in starts
    ]
    best = min(fits, key=lambda found: float(found.cost))
    return np.asarray(best.x), float(2 * best.cost / k.size)


def _aicc(points: int, parameters: int, mse: float) -> float:
    if points <= parameters + 1:
        return math.inf
    # A perfect fit has a likelihood without bound.
    fit = points * math.log(mse) if mse > 0 else -math.inf
    return fit + 2 * parameters * (1 + (parameters + 1) / (points - parameters - 1))
