"""Checks of FADE (arXiv:2607.01490): the power family, its noise and what it pays for."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from advsweep.diagnostics import population_masses
from advsweep.diagnostics.masses import chances, groups_by_count
from advsweep.estimators import GroupBatch, build_estimator
from advsweep.theory.types import Finding, Relation, TheoryCheck, compare

_PAPER = "FADE (arXiv:2607.01490)"
# Divisible by 1 + α for α = 1, 2, 3 and 4.
_FINE = 420


def _tensor(numbers: list[float]) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


def _weights(alpha: float, size: int) -> Tensor:
    """Returns m_S of `power_alpha` for every number of successes."""
    rewards = groups_by_count(size)
    advantages = build_estimator("power_alpha", alpha=alpha)(GroupBatch(rewards=rewards))
    return (advantages * rewards).mean(dim=1)


def _mode() -> list[Finding]:
    peaks = [float(_weights(alpha, _FINE).argmax()) / _FINE for alpha in (1.0, 2.0, 3.0, 4.0)]
    shapes = []
    for alpha in (1.0, 2.0, 3.0, 4.0):
        p = torch.arange(_FINE + 1, dtype=torch.float64) / _FINE
        shapes.append(_weights(alpha, _FINE) - p * (1 - p) ** alpha)
    return [
        compare(
            "p at which the mass of power α = 1, 2, 3, 4 is largest",
            _tensor(peaks),
            Relation.EQUAL,
            _tensor([1 / 2, 1 / 3, 1 / 4, 1 / 5]),
        ),
        compare("the mass less p(1-p)^α", torch.stack(shapes), Relation.EQUAL, 0.0),
    ]


def _noise(alpha: float, rate: float, size: int) -> float:
    """Returns Var(w) / w² of the weight w(p̂) of a group of G, enumerated."""
    weights, drawn = _weights(alpha, size), chances(groups_by_count(size), rate)
    mean = float(drawn @ weights)
    variance = float(drawn @ (weights - mean) ** 2)
    return variance / float(rate * (1 - rate) ** alpha) ** 2


def _weight_noise() -> list[Finding]:
    size = 1024
    got, formula, at_peak = [], [], []
    for alpha in (1.0, 2.0, 3.0):
        for rate in (0.1, 0.2, 0.4, 0.6, 0.7):
            distance = 1 - (1 + alpha) * rate
            if abs(distance) > 0.3:
                got.append(size * _noise(alpha, rate, size))
                formula.append(distance**2 / (rate * (1 - rate)))
        at_peak += [g * _noise(alpha, 1 / (1 + alpha), g) for g in (64, size)]
    limits = 0.1 * _tensor(formula)
    falls = _tensor(at_peak).reshape(3, 2)
    return [
        compare(
            f"G Var(w)/w² away from the peak, G = {size}, within 10 %",
            _tensor(got),
            Relation.EQUAL,
            _tensor(formula),
            limits,
        ),
        compare(
            f"G Var(w)/w² at the peak, G = {size} over G = 64",
            falls[:, 1] / falls[:, 0],
            Relation.AT_MOST,
            0.1,
        ),
    ]


def _snr(weights: np.ndarray, signal: np.ndarray, rates: np.ndarray) -> float:
    """Squared ratio of signal to noise of a weighted step, with noise 1/(p(1-p)) per prompt."""
    return float((weights * signal).mean() ** 2 / (weights**2 / (rates * (1 - rates))).mean())


def _break_even(rate: float) -> float:
    """Signal at p over that at 1/2 from which α = 3 beats α = 1, for prompts at p and 1/2."""
    rates = np.array([rate, 0.5])
    estimators = [build_estimator("power_alpha", alpha=alpha) for alpha in (1.0, 3.0)]
    mild, strong = (
        np.array([population_masses(estimator, p).success for p in rates])
        for estimator in estimators
    )
    low, high = 0.1, 10.0
    for _ in range(60):
        middle = (low + high) / 2
        signal = np.array([middle, 1.0])
        if _snr(strong, signal, rates) > _snr(mild, signal, rates):
            high = middle
        else:
            low = middle
    return low


def _best_alpha(slope: float) -> float:
    """The α of the best step for solve rates spread evenly and signal exp(-slope p)."""
    rates = np.arange(0.0005, 1, 0.001)
    alphas = np.arange(1.0, 2.0, 0.01)
    scores = [_snr(rates * (1 - rates) ** a, np.exp(-slope * rates), rates) for a in alphas]
    return float(alphas[int(np.argmax(scores))])


def _enrichment() -> list[Finding]:
    alphas = [build_estimator("power_alpha", alpha=a) for a in (1.0, 3.0)]
    ratios = []
    for rate in (0.1, 0.25, 0.4):
        mild, strong = (population_masses(a, rate).success for a in alphas)
        mild_half, strong_half = (population_masses(a, 0.5).success for a in alphas)
        ratios.append(strong / mild / (strong_half / mild_half))
    return [
        Finding(
            "signal ratio from which α = 3 beats α = 1, prompts at p = .25 and .5",
            _break_even(0.25),
            Relation.AT_LEAST,
            2.25,
            0.01,
        ),
        compare(
            "weight of α = 3 over that of α = 1, relative to p = 1/2, by [2(1-p)]²",
            _tensor(ratios),
            Relation.EQUAL,
            _tensor([3.24, 2.25, 1.44]),
        ),
        compare(
            "best α for signals exp(-p/2) and exp(-p), printed as 1.2 and 1.44",
            _tensor([_best_alpha(0.5), _best_alpha(1.0)]),
            Relation.EQUAL,
            _tensor([1.2, 1.44]),
            0.011,
        ),
    ]


CHECKS = (
    TheoryCheck(
        "FA14",
        _PAPER,
        "Eq. 8, Sec. 14",
        "the weight of power α is p(1-p)^α and peaks at 1/(1+α)",
        "masses of power α = 1 to 4 for every number of successes out of 420",
        _mode,
    ),
    TheoryCheck(
        "FA15",
        _PAPER,
        "Eq. 31",
        "the relative variance of the estimated weight is [1-(1+α)p]²/(Gp(1-p)), 0 at the peak",
        "exact variances over the number of successes, G = 64 and 1,024, α = 1 to 3",
        _weight_noise,
        "First order in 1/G: at the peak the variance is of order 1/G² and not 0.",
    ),
    TheoryCheck(
        "FA16",
        _PAPER,
        "Sec. 4.3, Sec. 14, Table 8",
        "α = 3 pays over GRPO only if the signal at p is [2(1-p)]² of that at p = 1/2 or more",
        "the signal-to-noise ratio of steps on prompts at p = .25 and .5",
        _enrichment,
        "[2(1-p)]² is the signal ratio for which α = 3 is the best weight of all; it beats "
        "α = 1 from a smaller ratio on. The criterion is the paper's own (Eq. 10, in the form "
        "that gives its best α).",
    ),
)
