"""The beta distribution of solve rates over prompts."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import betaln, chdtrc, gammaln, psi

from advsweep.errors import AdvsweepError, FitError, counted
from advsweep.statistics.intervals import LEVEL, Estimate, as_sample

if TYPE_CHECKING:
    from jaxtyping import Float

LEAST_PROMPTS = 10
"""Least number of prompts of a fit, five for each parameter."""

ALIKE = 0.05
"""p above which all prompts may have the same solve rate, so no distribution can be fitted."""

EXPECTED_IN_A_CELL = 5
"""Neighbouring counts are pooled until this number of prompts is expected, for the χ² test."""

_PARAMETERS = 2
# Bounds of ln alpha and ln beta, and how near to them a fit has run away.
_EDGES = np.array([[math.log(1e-3)] * 2, [math.log(1e4)] * 2])
_NEAR_AN_EDGE = 0.05


@dataclass(frozen=True, eq=False)
class SolveRateFit:
    """Prompts whose solve rates are p ~ Beta(α, β), of which G rollouts show k successes.

    Attributes:
        shares: the expected share of prompts with each number of successes, 0..G.
        sse: sum of squared residuals of the shares of prompts with k = 0..G.
        chi_square: Pearson's, neighbouring counts pooled until 5 prompts are expected.
        degrees: its degrees of freedom: pooled counts - 1 - parameters.
        p_value: the chance of an equally bad fit if the law is right; NaN without degrees of
            freedom. It is slightly too small, because least squares do not minimise χ².
    """

    alpha: Estimate
    beta: Estimate
    shares: Float[np.ndarray, " counts"]
    sse: float
    chi_square: float
    degrees: int
    p_value: float


def fit_solve_rates(histogram: ArrayLike, resamples: int = 200, seed: int = 0) -> SolveRateFit:
    """Fit a beta-binomial by least squares on the shares of prompts.

    Schaeffer et al. (2025) and FADE (arXiv:2607.01490), sec. 12. Intervals are quantiles of
    fits to resampled prompts; an end at which a shape diverges is 0 or ∞.

    Args:
        histogram: [G+1], the number of prompts with k = 0..G successes in G rollouts.

    Raises:
        FitError: the prompts do not support a fit: fewer than 10, at most 2 different counts, a
            spread that a single solve rate explains (p > .05), or a best fit whose parameters
            diverge.
        AdvsweepError: no histogram.
    """
    counts = as_sample(histogram)
    if counts.size < 2 or not ((counts >= 0) & (counts == np.floor(counts))).all():
        raise AdvsweepError("expected how many prompts had each number of successes, 0 to G")
    prompts = int(counts.sum())
    _refuse_hopeless(counts)
    at, cost = _solve(counts / prompts, _by_moments(counts))
    if (at > _EDGES[1] - _NEAR_AN_EDGE).any():
        raise FitError("the best fit runs away: solve rates differ no more than chance has it")
    if (at < _EDGES[0] + _NEAR_AN_EDGE).any():
        raise FitError("the best fit runs away: prompts are solved never or always")
    # Whole prompts are resampled: the G rollouts of one are not independent of each other.
    drawn = np.random.default_rng(seed).multinomial(prompts, counts / prompts, size=resamples)
    again = np.stack([_solve(other / prompts, at)[0] for other in drawn])
    # A shape at an edge of the bounds has diverged: its interval is open there. Without spread
    # both shapes grow without limit at a constant ratio.
    shapes = np.exp(again)
    shapes[again < _EDGES[0] + _NEAR_AN_EDGE] = 0.0
    shapes[(again > _EDGES[1] - _NEAR_AN_EDGE).any(axis=1)] = np.inf
    tails = [(1 - LEVEL) / 2, (1 + LEVEL) / 2]
    low, high = np.quantile(shapes, tails, axis=0, method="nearest")
    alpha, beta = (Estimate(*map(float, ends)) for ends in zip(np.exp(at), low, high, strict=True))
    shares = _shares(at, counts.size - 1)
    chi_square, degrees = _pearson(counts, shares * prompts)
    p_value = float(chdtrc(degrees, chi_square)) if degrees else math.nan
    return SolveRateFit(alpha, beta, shares, 2 * cost, chi_square, degrees, p_value)


def _shares(at: Float[np.ndarray, " shapes"], group_size: int) -> Float[np.ndarray, " counts"]:
    """Return the chance of k successes: C(G,k) B(α+k, β+G-k)/B(α, β)."""
    a, b = np.exp(at)
    k = np.arange(group_size + 1.0)
    ways = gammaln(group_size + 1) - gammaln(k + 1) - gammaln(group_size - k + 1)
    return np.asarray(np.exp(ways + betaln(a + k, b + group_size - k) - betaln(a, b)))


def _solve(
    observed: Float[np.ndarray, " counts"], start: Float[np.ndarray, " shapes"]
) -> tuple[Float[np.ndarray, " shapes"], float]:
    """Return ln α and ln β of the best fit, and half the sum of squares."""
    from scipy.optimize import least_squares

    group_size = observed.size - 1
    k = np.arange(group_size + 1.0)

    def residuals(at: Float[np.ndarray, " shapes"]) -> Float[np.ndarray, " counts"]:
        return np.asarray(_shares(at, group_size) - observed)

    def jacobian(at: Float[np.ndarray, " shapes"]) -> Float[np.ndarray, "counts shapes"]:
        a, b = np.exp(at)
        shares = _shares(at, group_size)
        common = psi(a + b) - psi(a + b + group_size)
        by_a = shares * a * (psi(a + k) - psi(a) + common)
        by_b = shares * b * (psi(b + group_size - k) - psi(b) + common)
        return np.stack([by_a, by_b], axis=-1)

    found = least_squares(
        residuals, np.clip(start, *_EDGES), jac=jacobian, bounds=tuple(_EDGES), x_scale="jac"
    )
    return found.x, float(found.cost)


def _by_moments(counts: Float[np.ndarray, " counts"]) -> Float[np.ndarray, " shapes"]:
    """Return ln α and ln β of the beta-binomial with the mean and variance of some counts."""
    group_size = counts.size - 1
    # Half a prompt at each end keeps the mean off the ends.
    padded = counts.copy()
    padded[[0, -1]] += 0.5
    k = np.arange(group_size + 1.0)
    mean = float(padded @ k / padded.sum() / group_size)
    variance = float(padded @ (k / group_size - mean) ** 2 / padded.sum())
    # Variance over that of one rate is (1 + (G-1) ρ) / G; 1/ρ = α + β + 1.
    rho = (group_size * variance / (mean * (1 - mean)) - 1) / max(group_size - 1, 1)
    total = 1 / min(max(rho, 0.005), 0.98) - 1
    return np.log([mean * total, (1 - mean) * total])


def _refuse_hopeless(counts: Float[np.ndarray, " counts"]) -> None:
    prompts, different = int(counts.sum()), int((counts > 0).sum())
    if prompts < LEAST_PROMPTS:
        raise FitError(f"{counted(prompts, 'prompt')}: a fit needs at least {LEAST_PROMPTS}")
    if different <= _PARAMETERS:
        raise FitError(
            f"{different} of the counts 0 to {counts.size - 1} occur: a fit of {_PARAMETERS} "
            "parameters needs more"
        )
    # Dispersion test: if all prompts have one rate, the scaled squares are χ² distributed.
    k = np.arange(counts.size)
    mean = float(counts @ k) / prompts
    squares = float(counts @ (k - mean) ** 2) / (mean * (1 - mean / (counts.size - 1)))
    chance = float(chdtrc(prompts - 1, squares))
    if chance > ALIKE:
        raise FitError(
            f"solve rates differ no more than chance has it (p = {chance:.2g}): one rate, "
            f"{mean / (counts.size - 1):.3g}, fits all prompts"
        )


def _pearson(
    counts: Float[np.ndarray, " counts"], expected: Float[np.ndarray, " counts"]
) -> tuple[float, int]:
    """Return Pearson's χ² and its degrees of freedom."""
    pools = [[0.0, 0.0]]
    for pair in zip(counts, expected, strict=True):
        if pools[-1][1] >= EXPECTED_IN_A_CELL:
            pools.append([0.0, 0.0])
        pools[-1] = [sum(both) for both in zip(pools[-1], pair, strict=True)]
    if len(pools) > 1 and pools[-1][1] < EXPECTED_IN_A_CELL:
        rest = pools.pop()
        pools[-1] = [sum(both) for both in zip(pools[-1], rest, strict=True)]
    chi_square = sum((seen - due) ** 2 / due for seen, due in pools)
    return float(chi_square), max(len(pools) - 1 - _PARAMETERS, 0)
