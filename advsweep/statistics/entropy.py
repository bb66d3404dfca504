"""Entropy of the answers that a model gives to one problem."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from advsweep.errors import AdvsweepError


def answer_entropy(counts: ArrayLike, *, base: float = math.e) -> float:
    """The entropy of an empirical distribution of answers: -Σ f log f over f = count / n.

    Args:
        counts: how often each distinct answer was given, unreadable answers being one
            class of their own (`list(Counter(answers).values())`); zeros do not matter.
        base: of the logarithm; e gives nats, 2 gives bits.

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
