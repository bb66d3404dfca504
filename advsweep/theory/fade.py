"""Checks of FADE (arXiv:2607.01490): masses of weights, and the power family."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from advsweep.diagnostics import expected_masses, group_masses, masses, population_masses
from advsweep.diagnostics.masses import chances, groups_by_count
from advsweep.estimators import GroupBatch, build_estimator
from advsweep.theory.softmax import random_policies
from advsweep.theory.types import Finding, Relation, TheoryCheck, compare

_PAPER = "FADE (arXiv:2607.01490)"
_RATES = (0.1, 0.3, 0.5, 0.8)
_G = 8
# Divisible by 1 + α for α = 1, 2, 3 and 4.
_FINE = 420


def _tensor(numbers: list[float]) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


def _split() -> list[Finding]:
    printed: dict[str, Callable[[float], tuple[float, float]]] = {
        "reinforce": lambda p: (p, 0.0),
        "dr_grpo": lambda p: (p * (1 - p), p * (1 - p)),
        "maxrl": lambda p: (1 - p, 1 - p),
        "grpo": lambda p: (math.sqrt(p * (1 - p)), math.sqrt(p * (1 - p))),
    }
    findings = []
    for name, formula in printed.items():
        estimator = build_estimator(name)
        got = [m for p in _RATES for m in population_masses(estimator, p)]
        findings.append(
            compare(
                f"m_S and m_F of {name}, large groups",
                _tensor(got),
                Relation.EQUAL,
                _tensor([m for p in _RATES for m in formula(p)]),
            )
        )
    factor = 1 - 1 / _G
    got = [m for p in _RATES for m in expected_masses(build_estimator("dr_grpo"), p, _G)]
    finite = [m for p in _RATES for m in (p * (1 - p) * factor,) * 2]
    findings.append(
        compare(
            f"m_S and m_F of dr_grpo, G = {_G}, by p(1-p)(1 - 1/G)",
            _tensor(got),
            Relation.EQUAL,
            _tensor(finite),
        )
    )
    generator = torch.Generator().manual_seed(11)
    drawn = (torch.rand(20_000, _G, generator=generator, dtype=torch.float64) < 0.3).double()
    advantages = build_estimator("dr_grpo")(GroupBatch(rewards=drawn))
    per_group = (advantages * drawn).mean(dim=1)
    error = 3 * float(per_group.std()) / math.sqrt(len(drawn))
    findings.append(
        Finding(
            "m_S of dr_grpo, 20,000 random groups at p = .3, within 3 standard errors",
            masses(advantages, drawn == 1).success,
            Relation.EQUAL,
            0.21 * factor,
            error,
            len(drawn),
        )
    )
    return findings


def _predicted(drift: float, covariance: float) -> float:
    """The change of entropy that Eq. 7 prints, per unit of the rate."""
    return drift - covariance


def _entropy_change() -> list[Finding]:
    """A natural-gradient step changes a tabular softmax's logits by η (A - E[A])."""
    rate = 1e-6
    got, printed, covariances = [], [], []
    for policy in random_policies(40, 8, seed=12):
        rewards = (torch.arange(8) % 2).double()
        solved = float(policy @ rewards)
        # The advantages of a large group of this solve rate.
        mass = population_masses(build_estimator("asym_grpo", delta=0.3), solved)
        advantages = rewards * mass.success / solved - (1 - rewards) * mass.failure / (1 - solved)
        log = policy.log()
        entropy = float(-(policy @ log))
        after = torch.softmax(log + rate * (advantages - policy @ advantages), dim=0)
        got.append((float(-(after @ after.log())) - entropy) / rate)
        mean = float(policy @ advantages)
        covariance = float(policy @ (advantages * log)) + mean * entropy
        printed.append(_predicted(mean * entropy, covariance))
        covariances.append(-covariance)
    return [
        compare(
            "change of entropy per unit of η, δ = .3",
            _tensor(got),
            Relation.EQUAL,
            _tensor(printed),
            1e-3,
        ),
        compare(
            "the same by -Cov(A, log π) alone",
            _tensor(got),
            Relation.EQUAL,
            _tensor(covariances),
            1e-3,
        ),
    ]


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


def _retry() -> list[Finding]:
    generator = torch.Generator().manual_seed(13)
    estimator = build_estimator("rloo")  # its expected mass is p(1-p) at every G
    weight = build_estimator("power_alpha", alpha=2.0)
    findings = []
    for rate in (0.2, 0.5, 0.7):
        failed = torch.rand(40_000, generator=generator, dtype=torch.float64) >= rate
        again = torch.rand(40_000, _G, generator=generator, dtype=torch.float64) < rate
        advantages = estimator(GroupBatch(rewards=again.double()))
        added = failed * (advantages * again).mean(dim=1)
        findings.append(
            Finding(
                f"mass of the retries at p = {rate:g}, within 3 standard errors",
                float(added.mean()),
                Relation.EQUAL,
                population_masses(weight, rate).success,
                3 * float(added.std()) / math.sqrt(len(added)),
                len(added),
            )
        )
    exact = [(1 - p) * expected_masses(estimator, p, _G).success for p in _RATES]
    findings.append(
        compare(
            "the same in expectation, by p(1-p)²",
            _tensor(exact),
            Relation.EQUAL,
            _tensor([p * (1 - p) ** 2 for p in _RATES]),
        )
    )
    return findings


def _single_success() -> list[Finding]:
    successes, failures, formula = [], [], []
    for k in (2, 4, 8):
        for p in _RATES:
            mass = expected_masses(build_estimator("passk_loo"), p, k)
            successes.append(k * mass.success)
            failures.append(mass.failure)
            formula.append(k * p * (1 - p) ** (k - 1))
    return [
        compare("k m_S, by k p(1-p)^(k-1)", _tensor(successes), Relation.EQUAL, _tensor(formula)),
        compare("m_F", _tensor(failures), Relation.EQUAL, 0.0),
    ]


def _analytic() -> list[Finding]:
    up, down, formula = [], [], []
    for size in (4, 8, 16):
        for k in range(1, size + 1):
            estimator = build_estimator("passk_analytic", k=k)
            for right in range(1, size):
                solved = 1 - math.comb(size - right, k) / math.comb(size, k)
                mass = group_masses(estimator, right, size)
                up.append(mass.success)
                down.append(mass.failure)
                formula.append(right / size * math.sqrt((1 - solved) / solved))
    rewards = groups_by_count(8)
    first = build_estimator("passk_analytic", k=1)(GroupBatch(rewards=rewards))
    return [
        compare("m_S, by p √((1-R)/R)", _tensor(up), Relation.EQUAL, _tensor(formula)),
        compare("m_F, by m_S", _tensor(down), Relation.EQUAL, _tensor(up)),
        compare(
            "A at k = 1, by GRPO's",
            first,
            Relation.EQUAL,
            build_estimator("grpo")(GroupBatch(rewards=rewards)),
        ),
    ]


def _median() -> list[Finding]:
    rewards = groups_by_count(_G)[1:-1]
    rate = rewards.mean(dim=1)
    advantages = build_estimator("mc_grpo")(GroupBatch(rewards=rewards))
    up = (advantages * rewards).mean(dim=1)
    down = -(advantages * (1 - rewards)).mean(dim=1)
    hard = rate <= 0.5
    return [
        compare("m_F of hard groups", down[hard], Relation.EQUAL, 0.0),
        compare("m_S of easy groups", up[~hard], Relation.EQUAL, 0.0),
        compare("m_S of hard groups, by p", up[hard], Relation.EQUAL, rate[hard]),
        compare("m_F of easy groups, by 1-p", down[~hard], Relation.EQUAL, 1 - rate[~hard]),
    ]


CHECKS = (
    TheoryCheck(
        "FA01",
        _PAPER,
        "Eq. 2-3, Sec. 8",
        "every weight has a success mass and a failure mass; those of mean GRPO are p(1-p)",
        "masses of four weights, of large groups, of groups of 8, and of random groups",
        _split,
        "Of groups of G the masses of mean GRPO are p(1-p)(1 - 1/G).",
    ),
    TheoryCheck(
        "FA03",
        _PAPER,
        "Eq. 7, Sec. 13",
        "a step changes entropy by η[(m_S - m_F)H - Cov(A, log π)]",
        "natural-gradient steps of 40 tabular policies with δ = .3",
        _entropy_change,
        "The step that the paper's assumption makes exact has the covariance term alone: a "
        "constant added to A does not change the expected gradient.",
    ),
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
    TheoryCheck(
        "FA22",
        _PAPER,
        "Sec. 9.2",
        "a retry of each failed attempt adds the mass p(1-p)² of power α = 2",
        "40,000 simulated retries at three solve rates, and the expected masses",
        _retry,
        "One failed attempt triggers its retry; a retry of groups that failed as a whole "
        "would add (1-p)^G p(1-p).",
    ),
    TheoryCheck(
        "FA24",
        _PAPER,
        "Sec. 8.4.1",
        "the leave-one-out pass@k weight has the masses kp(1-p)^(k-1) and 0",
        "expected masses for k = 2, 4 and 8 at four solve rates",
        _single_success,
    ),
    TheoryCheck(
        "FA25",
        _PAPER,
        "Sec. 8.4.2",
        "the analytic pass@k weight has equal masses p√((1-R)/R) and is GRPO at k = 1",
        "every k and number of successes of groups of 4, 8 and 16",
        _analytic,
    ),
    TheoryCheck(
        "FA26",
        _PAPER,
        "Sec. 8.6",
        "with a median baseline hard groups push successes alone, easy groups failures alone",
        "masses for every number of successes out of 8",
        _median,
        "True of a group's own share of successes. Groups of a prompt at p = .3 are at times "
        "easy, so that both masses are above 0 in expectation (.262 and .020 at G = 8).",
    ),
)
