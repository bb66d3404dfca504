"""Entropy of equally many answers to each problem, drawn from those that were sampled.

The plug-in entropy of c answers is at most log c and grows with c: it compares a handful of right
answers to a hard problem with dozens to an easy one. Rarefaction draws m from each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from scipy.special import gammaln

if TYPE_CHECKING:
    from jaxtyping import Float, Int

RAREFIED = 8
"""The m of `entropy/right_rarefied` unless the column names another.

With 128 samples it takes a solve rate of 1/16. On the hard levels of `routes` 64 % of the problems
have 8 right answers of the base model, 81 % have 4 and 37 % have 16; the range is log 8 = 2.08.
"""


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
    of_class, of_problem = counts[:, None], totals[owner][:, None]
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
    chosen: Float[np.ndarray, "*shape"] = gammaln(n + 1) - gammaln(k + 1) - gammaln(n - k + 1)
    return chosen
