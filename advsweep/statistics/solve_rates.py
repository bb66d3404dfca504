"""The distribution of solve rates over prompts: one beta distribution, or a mixture of two."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import betaln, chdtrc, expit, gammaln, logit, psi, xlogy

from advsweep.errors import AdvsweepError, FitError, counted
from advsweep.statistics.intervals import LEVEL, Estimate, as_sample

if TYPE_CHECKING:
    from jaxtyping import Float

PROMPTS_FOR_A_PARAMETER = 5
"""Least number of prompts per parameter of a fit."""

ALIKE = 0.05
"""p above which all prompts may have the same solve rate, so no distribution can be fitted."""

EXPECTED_IN_A_CELL = 5
"""Neighbouring counts are pooled until this number of prompts is expected, for the χ² test."""

# Bounds of ln alpha and ln beta, and of the logit of a weight.
_SHAPES = (math.log(1e-3), math.log(1e4))
_WEIGHTS = (-7.0, 7.0)
_NEAR_AN_EDGE = 0.05
_LEAST, _LARGEST = math.exp(_SHAPES[0] + _NEAR_AN_EDGE), math.exp(_SHAPES[1] - _NEAR_AN_EDGE)


class BetaComponent(NamedTuple):
    """One Beta(alpha, beta) of a mixture, and its share of the prompts."""

    weight: Estimate
    alpha: Estimate
    beta: Estimate


@dataclass(frozen=True, eq=False)
class SolveRateFit:
    """Prompts whose solve rates are p ~ Σ w Beta(α, β), of which G rollouts show k successes.

    Attributes:
        components: harder ones first.
        shares: the expected share of prompts with each number of successes, 0..G.
        sse: sum of squared residuals of the shares of prompts with k = 0..G.
        chi_square: Pearson's, neighbouring counts pooled until 5 prompts are expected.
        degrees: its degrees of freedom: pooled counts - 1 - parameters.
        p_value: the chance of an equally bad fit if the law is right; NaN without degrees of
            freedom. It is slightly too small, because least squares do not minimise χ².
        aic: 2 · parameters - 2 ln likelihood; lower is better. It decides between one beta and
            two. The likelihood is that of the least-squares fit, slightly below the maximum.
    """

    components: tuple[BetaComponent, ...]
    shares: Float[np.ndarray, " counts"]
    sse: float
    chi_square: float
    degrees: int
    p_value: float
    aic: float


def fit_solve_rates(
    histogram: ArrayLike,
    components: int = 1,
    resamples: int = 200,
    seed: int = 0,
) -> SolveRateFit:
    """Fit one beta-binomial, or a mixture of two, by least squares on the shares of prompts.

    Schaeffer et al. (2025) and FADE (arXiv:2607.01490), sec. 12. Intervals are quantiles of
    fits to resampled prompts; an end at which a shape diverges is 0 or ∞.

    Args:
        histogram: [G+1], the number of prompts with k = 0..G successes in G rollouts.
        components: 1 or 2.

    Raises:
        FitError: the prompts do not support a fit: fewer than 5 per parameter (of 2 or 5), at
            most as many different counts as parameters, a spread that a single solve rate
            explains (p > .05), or a best fit whose parameters diverge.
        AdvsweepError: no histogram, or another number of components.
    """
    if components not in (1, 2):
        raise AdvsweepError(f"components: expected 1 or 2, got {components}")
    counts = as_sample(histogram)
    if counts.size < 2 or not ((counts >= 0) & (counts == np.floor(counts))).all():
        raise AdvsweepError("expected how many prompts had each number of successes, 0 to G")
    prompts = int(counts.sum())
    starts = list(_starts(counts, components))
    _refuse_hopeless(counts, starts[0].size)
    at, cost = min(
        (_solve(counts / prompts, start) for start in starts), key=lambda found: found[1]
    )
    _refuse_runaway(at)
    # Whole prompts are resampled: the G rollouts of one are not independent of each other.
    drawn = np.random.default_rng(seed).multinomial(prompts, counts / prompts, size=resamples)
    resampled = np.stack([_solve(again / prompts, at)[0] for again in drawn])
    shares = _shares(at, counts.size - 1)
    chi_square, degrees = _pearson(counts, shares * prompts, at.size)
    # Shares that are 0 where no prompt is do not count (0 ln 0 = 0).
    log_likelihood = float(xlogy(counts, shares).sum())
    return SolveRateFit(
        components=_components(at, resampled),
        shares=shares,
        sse=2 * cost,
        chi_square=chi_square,
        degrees=degrees,
        p_value=float(chdtrc(degrees, chi_square)) if degrees else math.nan,
        aic=2 * at.size - 2 * log_likelihood,
    )


def _unpacked(at: Float[np.ndarray, " parameters"]) -> tuple[Float[np.ndarray, " components"], ...]:
    """Return weights, alphas, betas of (ln α, ln β) or (logit w, ln α₁, ln β₁, ln α₂, ln β₂)."""
    first = expit(at[: at.size % 2])
    shapes = np.exp(at[at.size % 2 :])
    return np.append(first, 1 - first.sum()), shapes[::2], shapes[1::2]


def _shares(at: Float[np.ndarray, " parameters"], group_size: int) -> Float[np.ndarray, " counts"]:
    """Return the share of prompts with each number of successes."""
    return np.asarray(_counts_given(at, group_size) @ _unpacked(at)[0])


def _counts_given(
    at: Float[np.ndarray, " parameters"], group_size: int
) -> Float[np.ndarray, "counts components"]:
    """Return each component's chance of k successes: C(G,k) B(α+k, β+G-k)/B(α, β)."""
    _, a, b = _unpacked(at)
    k = np.arange(group_size + 1.0)[:, None]
    ways = gammaln(group_size + 1) - gammaln(k + 1) - gammaln(group_size - k + 1)
    return np.asarray(np.exp(ways + betaln(a + k, b + group_size - k) - betaln(a, b)))


def _solve(
    observed: Float[np.ndarray, " counts"], start: Float[np.ndarray, " parameters"]
) -> tuple[Float[np.ndarray, " parameters"], float]:
    """Return the parameters of the best fit, and half the sum of squares."""
    from scipy.optimize import least_squares

    group_size = observed.size - 1
    k = np.arange(group_size + 1.0)[:, None]

    def residuals(at: Float[np.ndarray, " parameters"]) -> Float[np.ndarray, " counts"]:
        return np.asarray(_shares(at, group_size) - observed)

    def jacobian(at: Float[np.ndarray, " parameters"]) -> Float[np.ndarray, "counts parameters"]:
        w, a, b = _unpacked(at)
        given = _counts_given(at, group_size)
        common = psi(a + b) - psi(a + b + group_size)
        by_a = w * given * a * (psi(a + k) - psi(a) + common)
        by_b = w * given * b * (psi(b + group_size - k) - psi(b) + common)
        by_shapes = np.stack([by_a, by_b], axis=-1).reshape(len(k), -1)
        by_weight = (given[:, :1] - given[:, 1:]) * w[0] * w[-1]
        return np.asarray(np.concatenate([by_weight, by_shapes], axis=1))

    edges = np.array([_WEIGHTS] * (start.size % 2) + [_SHAPES] * (start.size // 2 * 2)).T
    found = least_squares(
        residuals, np.clip(start, *edges), jac=jacobian, bounds=tuple(edges), x_scale="jac"
    )
    at = found.x
    # The two components may be exchanged without a change; the order makes them comparable.
    _, a, b = _unpacked(at)
    if at.size == 5 and a[0] * b[1] > a[1] * b[0]:  # the easier one is first
        at = np.concatenate([-at[:1], at[3:], at[1:3]])
    return at, float(found.cost)


def _starts(
    counts: Float[np.ndarray, " counts"], components: int
) -> Iterator[Float[np.ndarray, " parameters"]]:
    """Yield starts by moments: of all prompts, or of those below and above some counts."""
    if components == 1:
        yield _by_moments(counts)
        return
    below = np.cumsum(counts) / counts.sum()
    places = np.searchsorted(below, [0.25, 0.5, 0.75], side="right")
    k = np.arange(counts.size)
    for last in np.unique(np.clip([0, *places, counts.size // 2], 0, counts.size - 2)):
        weight = np.clip(below[last], 0.05, 0.95)
        hard, easy = np.where(k <= last, counts, 0), np.where(k > last, counts, 0)
        yield np.concatenate([[logit(weight)], _by_moments(hard), _by_moments(easy)])


def _by_moments(counts: Float[np.ndarray, " counts"]) -> Float[np.ndarray, " parameters"]:
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


def _refuse_hopeless(counts: Float[np.ndarray, " counts"], parameters: int) -> None:
    prompts, different = int(counts.sum()), int((counts > 0).sum())
    if prompts < PROMPTS_FOR_A_PARAMETER * parameters:
        raise FitError(
            f"{counted(prompts, 'prompt')}: a fit of {parameters} parameters needs at least "
            f"{PROMPTS_FOR_A_PARAMETER * parameters}"
        )
    if different <= parameters:
        raise FitError(
            f"{different} of the counts 0 to {counts.size - 1} occur: a fit of {parameters} "
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


def _refuse_runaway(at: Float[np.ndarray, " parameters"]) -> None:
    weights, a, b = _unpacked(at)
    if at.size == 5 and abs(at[0]) > _WEIGHTS[1] - _NEAR_AN_EDGE:
        raise FitError(f"the second component holds {weights.min():.1g} of the prompts: one fits")
    if max(a.max(), b.max()) > _LARGEST:
        raise FitError(
            "the best fit runs away: in a component solve rates differ no more than chance has it"
        )
    if min(a.min(), b.min()) < _LEAST:
        raise FitError("the best fit runs away: in a component prompts are solved never or always")


def _pearson(
    counts: Float[np.ndarray, " counts"], expected: Float[np.ndarray, " counts"], parameters: int
) -> tuple[float, int]:
    """Pearson's χ² and its degrees of freedom."""
    pools = [[0.0, 0.0]]
    for pair in zip(counts, expected, strict=True):
        if pools[-1][1] >= EXPECTED_IN_A_CELL:
            pools.append([0.0, 0.0])
        pools[-1] = [sum(both) for both in zip(pools[-1], pair, strict=True)]
    if len(pools) > 1 and pools[-1][1] < EXPECTED_IN_A_CELL:
        rest = pools.pop()
        pools[-1] = [sum(both) for both in zip(pools[-1], rest, strict=True)]
    chi_square = sum((seen - due) ** 2 / due for seen, due in pools)
    return float(chi_square), max(len(pools) - 1 - parameters, 0)


def _components(
    at: Float[np.ndarray, " parameters"],
    resampled: Float[np.ndarray, "resamples parameters"],
) -> tuple[BetaComponent, ...]:
    found = np.stack(_unpacked(at))
    again = np.stack([np.stack(_unpacked(other)) for other in resampled])
    # A shape at an edge of the bounds has diverged: its interval is open there. For a component
    # without spread both shapes grow without limit at a constant ratio.
    shapes = again[:, 1:]
    shapes[shapes < _LEAST] = 0.0
    shapes[np.broadcast_to((shapes > _LARGEST).any(axis=1, keepdims=True), shapes.shape)] = np.inf
    tails = [(1 - LEVEL) / 2, (1 + LEVEL) / 2]
    low, high = np.quantile(again, tails, axis=0, method="nearest")
    return tuple(
        BetaComponent(*(Estimate(*map(float, ends)) for ends in zip(*of_one, strict=True)))
        for of_one in zip(found.T, low.T, high.T, strict=True)
    )
