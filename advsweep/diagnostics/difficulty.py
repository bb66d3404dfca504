"""Which prompts a step learns from: how its weight is spread over groups and solve rates."""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING

import numpy as np

from advsweep.diagnostics.enumeration import chances, groups_by_count

if TYPE_CHECKING:
    from jaxtyping import Float, Int

    from advsweep.diagnostics.masses import Masses

BINS = 16
"""Groups larger than this have their numbers of successes merged into 17 equal steps."""


def effective_prompts(weights: Float[np.ndarray, " groups"]) -> float:
    """Kish's effective sample size, (Σ w)² / Σ w², in prompts (FADE, Eq. 10).

    As many prompts of equal weight would average out as much noise. NaN if all weights are 0.
    """
    squares = float((weights**2).sum())
    return float(weights.sum()) ** 2 / squares if squares > 0 else math.nan


def weight_variance(
    weights: Float[np.ndarray, " groups"],
    successes: Int[np.ndarray, " groups"],
    rollouts: Int[np.ndarray, " groups"],
) -> float:
    """Var(w(p̂)) / E[w]²: how far a group's weight is a matter of its G draws.

    FADE, Eq. 9 and 31, estimated from the step itself: w(k) is the mean weight of the groups
    with k of G successes, linear between those that occur, and every group's variance is that
    of w(k) over k ~ Binomial(G, p̂) at its own solve rate p̂. Groups of unequal rewards count
    alone, since p̂ = 0 and p̂ = 1 leave nothing to draw. E[w] is the mean over the same groups.

    Departures: the paper's delta method needs w'(p), which only a closed form gives.

    Args:
        weights: mean |A| of each group.
        successes: of each group, out of its scorable rollouts.
        rollouts: scorable rollouts of each group.

    Returns:
        NaN without a group of unequal rewards, or where none of them has a weight.
    """
    mixed = (successes > 0) & (successes < rollouts)
    if not mixed.any() or weights[mixed].sum() == 0:
        return math.nan
    size = int(rollouts.max())
    # Groups that lack a rollout stand at the nearest share of the full size.
    k = np.rint(successes / np.maximum(rollouts, 1) * size).astype(np.int64)
    counted = rollouts > 0
    number = np.bincount(k[counted], minlength=size + 1)
    seen = number.nonzero()[0]
    means = np.bincount(k[counted], weights[counted], minlength=size + 1)[seen] / number[seen]
    table = np.interp(np.arange(size + 1), seen, means)
    drawn = _binomial(size)
    variances = drawn @ table**2 - (drawn @ table) ** 2
    here = k[mixed]
    return float(variances[here].mean() / weights[mixed].mean() ** 2)


@functools.lru_cache(maxsize=4)
def _binomial(size: int) -> Float[np.ndarray, "rates successes"]:
    """The chance of k successes in `size` draws at each of the rates 0, 1/size, ..., 1."""
    kinds = groups_by_count(size)
    return np.stack([chances(kinds, rate / size).numpy() for rate in range(size + 1)])


def sign_ratio(mass: Masses, solve_rate: float) -> float:
    """ρ = m_S p / (m_F q) at the batch's solve rate p (FADE, sec. 11.3); q = 1 - p.

    p/q for weights whose signs are in balance. NaN where m_F or q is 0.
    """
    below = mass.failure * (1 - solve_rate)
    return mass.success * solve_rate / below if below else math.nan


def solve_rate_histogram(
    successes: Int[np.ndarray, " groups"], rollouts: Int[np.ndarray, " groups"], size: int
) -> dict[str, float]:
    """The share of groups with each number of successes, as `solved/K`.

    Args:
        rollouts: scorable rollouts of each group; a group that lacks some counts at the
            nearest number out of `size`, and one without any does not count.
        size: G; above 16 numbers are merged, and `solved/K` is of groups that solved K/16.
    """
    counted = rollouts > 0
    bins = min(size, BINS)
    k = np.rint(successes[counted] / rollouts[counted] * bins).astype(np.int64)
    shares = np.bincount(k, minlength=bins + 1) / max(len(k), 1)
    return {f"solved/{number}": float(share) for number, share in enumerate(shares)}
