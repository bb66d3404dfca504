"""pass@k and answer entropies, from counts of samples."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import scipy as sp
from numpy.typing import ArrayLike

from advsweep.errors import AdvsweepError

if TYPE_CHECKING:
    from jaxtyping import Float, Int


def pass_at_k(n: ArrayLike, c: ArrayLike, k: ArrayLike) -> Float[np.ndarray, " problems"]:
    """Return the unbiased estimate of pass@k: 1 - C(n-c, k) / C(n, k) (Chen et al., 2021).

    The arguments broadcast; the result has the broadcast shape. It is computed as a product of
    ratios in logarithms, with full relative precision for any n, even if pass@k is tiny.

    Args:
        n: number of samples of each problem.
        c: number of correct samples.
        k: number of attempts.

    Returns:
        pass@k of each problem; NaN where n < k, because it is undefined there.

    Raises:
        AdvsweepError: a count that is not an integer, c outside 0..n, or k below 1.
    """
    n, c, k = np.broadcast_arrays(n, c, k)
    if n.size and not all(np.issubdtype(array.dtype, np.integer) for array in (n, c, k)):
        raise AdvsweepError("pass@k: expected n, c and k to be integers")
    if np.any((c < 0) | (c > n)):
        raise AdvsweepError("pass@k: expected 0 <= c <= n: as many correct samples as drawn ones")
    if np.any(k < 1):
        raise AdvsweepError("pass@k: expected k >= 1")
    # C(n-c, k) / C(n, k) is symmetric in c and k; the shorter product runs over the smaller.
    fewer = np.minimum(c, k)
    more = np.maximum(c, k)
    log_fail = np.zeros(n.shape)
    with np.errstate(divide="ignore"):
        for i in range(int(fewer.max(initial=0))):
            share = more / np.maximum(n - i, 1)
            log_fail += np.where(i < fewer, np.log1p(-np.minimum(share, 1.0)), 0.0)
    return np.where(n < k, np.nan, -np.expm1(log_fail))


def mean_over_problems(values: Float[np.ndarray, "*means problems"]) -> Float[np.ndarray, "*means"]:
    """Return the mean over the problems that have a value; NaN if no problem has one.

    A problem has no pass@k if fewer than k of its samples could be scored.
    """
    defined = ~np.isnan(values)
    with np.errstate(invalid="ignore"):
        means: Float[np.ndarray, "*means"] = np.where(defined, values, 0.0).sum(-1) / defined.sum(
            -1
        )
    return means


def answer_entropy(counts: ArrayLike) -> float:
    """Return the entropy in nats of a distribution of answers: -Σ f log f over f = count / n.

    Args:
        counts: number of occurrences of each distinct answer, with unreadable answers as one
            class (`list(Counter(answers).values())`); zeros do not matter.

    Raises:
        AdvsweepError: there is no answer, or a count is negative.
    """
    numbers = np.asarray(counts, dtype=np.float64)
    numbers = numbers[numbers != 0]
    if numbers.size == 0 or (numbers < 0).any():
        raise AdvsweepError("answer entropy: expected counts of answers, at least one above 0")
    shares = numbers / numbers.sum()
    # `+ 0.0` turns the -0.0 of a single answer into 0.0.
    return float(-(shares * np.log(shares)).sum()) + 0.0


# The m of `entropy/right_rarefied` unless the column names another.
#
# With 128 samples it takes a solve rate of 1/16. On the hard levels of `routes` 64 % of the
# problems have 8 right answers of the base model, 81 % have 4 and 37 % have 16; the range is log 8
# = 2.08.
RAREFIED = 8


def rarefied_entropy(
    counts: Int[np.ndarray, " answers"], totals: Int[np.ndarray, " problems"], m: int = RAREFIED
) -> Float[np.ndarray, " problems"]:
    """Return the expected entropy of m answers drawn without replacement, in nats.

    It is the mean of the plug-in entropy over all choices of m answers. The number Y of drawn
    answers of a class that came x of c times is hypergeometric, so that by linearity it is
    -Σ_classes Σ_y P(Y = y) (y/m) log(y/m), P(Y = y) = C(x, y) C(c - x, m - y) / C(c, m).

    Source: rarefaction of species counts (Hurlbert 1971), for Shannon's entropy.

    Args:
        counts: how often each distinct answer came, problem after problem.
        totals: the number of answers to each problem: the sum of its counts.

    Returns:
        NaN for problems with fewer than m answers.
    """
    owner = np.searchsorted(np.cumsum(totals), np.cumsum(counts))
    of_class = counts[:, None]
    of_problem = totals[owner][:, None]
    drawn = np.arange(1, m + 1)
    possible = (drawn <= of_class) & (m - drawn <= of_problem - of_class) & (m <= of_problem)
    log_chances = (
        _log_choose(of_class, drawn)
        + _log_choose(of_problem - of_class, m - drawn)
        - _log_choose(of_problem, np.array(m))
    )
    chances = np.exp(np.where(possible, log_chances, -np.inf))
    shares = drawn / m
    entropies = -(chances * shares * np.log(shares)).sum(axis=1)
    sums = np.bincount(owner, weights=entropies, minlength=len(totals))
    return np.where(totals >= m, sums, np.nan)


def _log_choose(
    n: Int[np.ndarray, "*shape"], k: Int[np.ndarray, "*shape"]
) -> Float[np.ndarray, "*shape"]:
    """Return log C(n, k) for k within 0..n; for others that of the nearest k."""
    k = np.clip(k, 0, n)
    chosen: Float[np.ndarray, "*shape"] = (
        sp.special.gammaln(n + 1) - sp.special.gammaln(k + 1) - sp.special.gammaln(n - k + 1)
    )
    return chosen
