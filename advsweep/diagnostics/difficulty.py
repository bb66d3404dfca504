"""How a step's weight is spread over groups and solve rates."""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from advsweep.diagnostics.group_statistics import ratio
from advsweep.diagnostics.masses import chances, groups_by_count

if TYPE_CHECKING:
    from jaxtyping import Float, Num

    from advsweep.diagnostics.group_statistics import CountPerGroup, PerGroup, PerRun

    # A number for each number of successes of a group, from 0.
    PerCount = Float[np.ndarray, "*runs successes"]

# For larger groups, numbers of successes are merged into 17 equal steps.
BINS = 16


def effective_prompts(weights: PerGroup) -> PerRun:
    """Kish's effective sample size, (Σ w)² / Σ w², in prompts (FADE, Eq. 10).

    It is the number of equally weighted prompts that would average out as much noise. NaN if all
    weights are 0.
    """
    return ratio(weights.sum(axis=-1) ** 2, (weights * weights).sum(axis=-1))


class WeightNoise(NamedTuple):
    """Noise of the weights of runs.

    Attributes:
        variance: Var(w(p̂)) / E[w]²: how much a group's weight depends on its G random draws.
        quality: FADE's update quality, see `weight_noise`.
    """

    variance: PerRun
    quality: PerRun


def weight_noise(
    weights: PerGroup, successes: CountPerGroup, rollouts: CountPerGroup
) -> WeightNoise:
    """Return the variance of the weights, and the update quality Q(w), of a step.

    FADE, Eq. 9 and 31, estimated from the step itself: w(k) is the mean weight of the groups
    with k of G successes, linear between those that occur, and every group's variance is that
    of w(k) over k ~ Binomial(G, p̂) at its own solve rate p̂. Only groups of unequal rewards
    count, because draws at p̂ = 0 or 1 do not vary. E[w] is the mean over the same groups.

    Q = M E[w]² / E[w² v₀ + (1 + v₀) Var(w(p̂))] over the M groups of unequal rewards, with the
    raw noise v₀ = 1/(G p̂ q̂) of a group's gradient: the squared signal-to-noise ratio of the
    step if every prompt's gradient signal is 1. It does not depend on the scale of w.

    Source: FADE, Eq. 9-10 and sec. 14. Departures: Eq. 10 prints a product of ratios that diverges
    at the ends; this is the ratio of the step as a whole, which gives sec. 14.1's optima. The
    paper's delta method needs w'(p), which requires a closed form.

    Args:
        weights: mean |A| of each group; 0 of one without a scorable rollout.
        successes: of each group, out of its scorable rollouts.
        rollouts: scorable rollouts of each group.

    Returns:
        NaN for a run without a group of unequal rewards, or where none of them has a weight.
    """
    size = int(rollouts.max())
    bins = (*rollouts.shape[:-1], size + 1)
    cells = _cells(successes, rollouts, size)
    # Groups with the same number of successes share a cell; their mean weight is w(k).
    groups = _tally(cells, rollouts > 0, bins)
    sums = _tally(cells, weights, bins)
    mixed = groups[..., 1:-1]
    mixed_sums = sums[..., 1:-1]
    if not mixed.any():
        nothing = np.full(bins[:-1], np.nan)
        return WeightNoise(nothing, nothing)
    table = _means(sums, groups)[..., None]
    variances = _variances(table)
    above = (mixed * variances).sum(axis=-1) * mixed.sum(axis=-1)
    total = mixed_sums.sum(axis=-1) ** 2
    rates = np.arange(1, size) / size
    # The ends have no variance: there p̂ q̂ is 0.
    raw = 1 / (size * rates * (1 - rates))
    noise = mixed * (table[..., 1:-1, 0] ** 2 * raw + (1 + raw) * variances)
    return WeightNoise(ratio(above, total), ratio(total, noise.sum(axis=-1)))


def weight_variance_of_parts(
    weights: PerGroup,
    successes: CountPerGroup,
    rollouts: CountPerGroup,
    parts: CountPerGroup,
    count: int,
) -> Float[np.ndarray, " parts"]:
    """Return the variance of the weights of each part of some groups.

    w(k) is the mean over all groups; the variances and E[w] are those of the part.

    Args:
        weights, successes, rollouts: as in `weight_noise`.
        parts: the part that each group belongs to, from 0.
        count: number of parts.
    """
    size = int(rollouts.max(initial=0))
    if size < 2:
        return np.full(count, np.nan)
    cells = _cells(successes, rollouts, size)
    groups = _tally(cells, rollouts > 0, (1, size + 1))
    table = _means(_tally(cells, weights, (1, size + 1)), groups)[0, :, None]
    shape = (count, size + 1)
    cells = cells + (size + 1) * parts
    mixed = _tally(cells, rollouts > 0, shape)[:, 1:-1]
    sums = _tally(cells, weights, shape)[:, 1:-1].sum(axis=1)
    variances = _variances(table)
    return ratio((mixed * variances).sum(axis=1) * mixed.sum(axis=1), sums**2)


def _variances(table: Float[np.ndarray, "*runs successes 1"]) -> Float[np.ndarray, "*runs mixed"]:
    """Return the variance of w(k) over k ~ Binomial(G, p̂) at each p̂ between 0 and 1."""
    drawn = _binomial(table.shape[-2] - 1)[1:-1]
    # Squares of deviations, because E[w²] - E[w]² can round below 0. A shift leaves no deviation
    # at all where the weights are equal.
    shifted = table - table[..., :1, :]
    # One matrix product per run, so that its bits do not depend on the other runs.
    means = drawn @ shifted
    deviations = np.swapaxes(shifted, -1, -2) - means
    variances: Float[np.ndarray, "*runs mixed"]
    variances = (drawn * deviations**2).sum(axis=-1)
    return variances


def _cells(successes: CountPerGroup, rollouts: CountPerGroup, size: int) -> CountPerGroup:
    """Return each group's index among 0 to `size` successes of the first run, the second, ...

    Groups without a scorable rollout have 0 successes. Groups with masked rollouts count at the
    nearest share of the full size. Groups of unequal rewards never round to its ends.
    """
    k = np.rint(successes / np.maximum(rollouts, 1) * size).astype(np.int64)
    runs = k.shape[:-1]
    return np.asarray(k + (size + 1) * np.arange(math.prod(runs)).reshape(*runs, 1))


def _tally(
    cells: CountPerGroup, weights: Num[np.ndarray, "*runs groups"], bins: tuple[int, ...]
) -> PerCount:
    """Sum the weights at each number of successes."""
    return np.bincount(cells.ravel(), weights.ravel(), math.prod(bins)).reshape(bins)


def _means(sums: PerCount, groups: PerCount) -> PerCount:
    """Return means at every k: linear between the k that occur, constant beyond them."""
    means = ratio(sums, groups).reshape(-1, sums.shape[-1])
    seen = groups.reshape(means.shape) > 0
    rows = np.arange(len(means))
    ends = means[rows, seen.argmax(axis=1)], means[rows, -1 - seen[:, ::-1].argmax(axis=1)]
    # With both ends known for each run, one interpolation serves all runs in a row.
    means[:, 0], means[:, -1] = ends
    seen[:, 0] = seen[:, -1] = True
    seen_cells = seen.ravel().nonzero()[0]
    table = np.interp(np.arange(seen.size), seen_cells, means.ravel()[seen_cells])
    return np.asarray(table.reshape(sums.shape))


@functools.lru_cache(maxsize=4)
def _binomial(size: int) -> Float[np.ndarray, "rates successes"]:
    """Return the chance of k successes in `size` draws at the rates 0, 1/size, ..., 1."""
    kinds = groups_by_count(size)
    return np.stack([chances(kinds, rate / size).numpy() for rate in range(size + 1)])


def sign_ratio(success: PerRun, failure: PerRun, solve_rate: PerRun) -> PerRun:
    """Return ρ = m_S p / (m_F q) at the batch's solve rate p (FADE, sec. 11.3); q = 1 - p.

    It is p/q for weights with balanced signs, and NaN where m_F or q is 0.
    """
    return ratio(success * solve_rate, failure * (1 - solve_rate))


def solve_rate_histogram(
    successes: CountPerGroup, rollouts: CountPerGroup, size: int
) -> Float[np.ndarray, "*runs bins"]:
    """Return the share of groups with each number of successes from 0 to `size`.

    Args:
        rollouts: scorable rollouts of each group. A group with masked rollouts counts at the
            nearest number out of `size`; a group without scorable rollouts does not count.
        size: G; above 16 numbers are merged, and share K is that of groups that solved K/16.
    """
    size = min(size, BINS)
    counted = rollouts > 0
    cells = _cells(successes, rollouts, size)
    groups = _tally(cells, counted, (*rollouts.shape[:-1], size + 1))
    shares: Float[np.ndarray, "*runs bins"] = groups / np.maximum(
        counted.sum(axis=-1, keepdims=True), 1
    )
    return shares
