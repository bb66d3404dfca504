"""pass@k from counts of correct samples."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from advsweep.errors import AdvsweepError

if TYPE_CHECKING:
    from jaxtyping import Float


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
    fewer, more = np.minimum(c, k), np.maximum(c, k)
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


def answer_entropy(counts: ArrayLike, *, base: float = math.e) -> float:
    """Return the entropy of an empirical distribution of answers: -Σ f log f over f = count / n.

    Args:
        counts: number of occurrences of each distinct answer, with unreadable answers as one
            class (`list(Counter(answers).values())`); zeros do not matter.
        base: base of the logarithm; e gives nats, 2 gives bits.

    Raises:
        AdvsweepError: there is no answer, or a count is negative.
    """
    numbers = np.asarray(counts, dtype=np.float64)
    numbers = numbers[numbers != 0]
    if numbers.size == 0 or (numbers < 0).any():
        raise AdvsweepError("answer entropy: expected counts of answers, at least one above 0")
    shares = numbers / numbers.sum()
    # `+ 0.0` turns the -0.0 of a single answer into 0.0.
    return float(-(shares * np.log(shares)).sum() / math.log(base)) + 0.0
