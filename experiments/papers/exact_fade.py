"""Exact checks of FADE: masses of weights, the change of entropy, and the power family."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from exact import advantages, build, chances, check, compare, groups_by_count, random_policies
from exact_advantages import Findings
from torch import Tensor

from advsweep.diagnostics import expected_masses, group_masses, masses, population_masses

RATES = (0.1, 0.3, 0.5, 0.8)
G = 8


@check(
    "FA01",
    "masses of four weights, of large groups, of groups of 8, and of random groups",
    "Of groups of G the masses of mean GRPO are p(1-p)(1 - 1/G).",
)
def split() -> Findings:
    printed: dict[str, Callable[[float], tuple[float, float]]] = {
        "reinforce": lambda p: (p, 0.0),
        "dr_grpo": lambda p: (p * (1 - p), p * (1 - p)),
        "maxrl": lambda p: (1 - p, 1 - p),
        "grpo": lambda p: (math.sqrt(p * (1 - p)), math.sqrt(p * (1 - p))),
    }
    for name, formula in printed.items():
        got = [population_masses(build(name), p) for p in RATES]
        yield compare(f"m_S and m_F of {name}, large groups", got, "=", [formula(p) for p in RATES])
    factor = 1 - 1 / G
    got = [expected_masses(build("dr_grpo"), p, G) for p in RATES]
    finite = [(p * (1 - p) * factor,) * 2 for p in RATES]
    yield compare(f"m_S and m_F of dr_grpo, G = {G}, by p(1-p)(1 - 1/G)", got, "=", finite)
    generator = torch.Generator().manual_seed(11)
    drawn = (torch.rand(20_000, G, generator=generator, dtype=torch.float64) < 0.3).double()
    weights = advantages("dr_grpo", drawn)
    error = 3 * float((weights * drawn).mean(dim=1).std()) / math.sqrt(len(drawn))
    quantity = "m_S of dr_grpo, 20,000 random groups at p = .3, within 3 standard errors"
    yield compare(quantity, masses(weights, drawn == 1).success, "=", 0.21 * factor, error)


def predicted_change(drift: float, covariance: float) -> float:
    """Return the change of entropy that Eq. 7 prints, per unit of the rate."""
    return drift - covariance


@check(
    "FA03",
    "natural-gradient steps of 40 tabular policies with δ = .3",
    "The step that the paper's assumption makes exact has the covariance term alone: a constant "
    "added to A does not change the expected gradient.",
)
def entropy_change() -> Findings:
    """A natural-gradient step changes a tabular softmax's logits by η (A - E[A])."""
    rate = 1e-6
    got, printed, covariances = [], [], []
    for policy in random_policies(40, 8, seed=12):
        rewards = (torch.arange(8) % 2).double()
        solved = float(policy @ rewards)
        # The advantages of a large group of this solve rate.
        mass = population_masses(build("asym_grpo", delta=0.3), solved)
        weights = rewards * mass.success / solved - (1 - rewards) * mass.failure / (1 - solved)
        log, mean = policy.log(), float(policy @ weights)
        entropy = float(-(policy @ log))
        after = torch.softmax(log + rate * (weights - mean), dim=0)
        got.append((float(-(after @ after.log())) - entropy) / rate)
        covariance = float(policy @ (weights * log)) + mean * entropy
        printed.append(predicted_change(mean * entropy, covariance))
        covariances.append(-covariance)
    yield compare("change of entropy per unit of η, δ = .3", got, "=", printed, 1e-3)
    yield compare("the same by -Cov(A, log π) alone", got, "=", covariances, 1e-3)


def power_masses(alpha: float, size: int) -> Tensor:
    """Return m_S of `power_alpha` for every number of successes."""
    rewards = groups_by_count(size)
    return (advantages("power_alpha", rewards, alpha=alpha) * rewards).mean(dim=1)


@check("FA14", "masses of power α = 1 to 4 for every number of successes out of 420")
def mode() -> Findings:
    size = 420  # divisible by 1 + α
    p = torch.arange(size + 1, dtype=torch.float64) / size
    found = {alpha: power_masses(alpha, size) for alpha in (1.0, 2.0, 3.0, 4.0)}
    peaks = [float(own.argmax()) / size for own in found.values()]
    quantity = "p at which the mass of power α = 1, 2, 3, 4 is largest"
    yield compare(quantity, peaks, "=", [1 / (1 + alpha) for alpha in found])
    shapes = torch.stack([own - p * (1 - p) ** alpha for alpha, own in found.items()])
    yield compare("the mass less p(1-p)^α", shapes, "=", 0.0)


def noise(alpha: float, rate: float, size: int) -> float:
    """Return Var(w) / w² of the weight w(p̂) of a group of G, enumerated."""
    weights, drawn = power_masses(alpha, size), chances(size, rate)
    variance = float(drawn @ (weights - drawn @ weights) ** 2)
    return variance / (rate * (1 - rate) ** alpha) ** 2


@check(
    "FA15",
    "exact variances over the number of successes, G = 64 and 1,024, α = 1 to 3",
    "First order in 1/G: at the peak the variance is of order 1/G² and not 0.",
)
def weight_noise() -> Findings:
    size = 1024
    got, formula, falls = [], [], []
    for alpha in (1.0, 2.0, 3.0):
        for rate in (0.1, 0.2, 0.4, 0.6, 0.7):
            distance = 1 - (1 + alpha) * rate
            if abs(distance) > 0.3:
                got.append(size * noise(alpha, rate, size))
                formula.append(distance**2 / (rate * (1 - rate)))
        small, large = (g * noise(alpha, 1 / (1 + alpha), g) for g in (64, size))
        falls.append(large / small)
    quantity = f"G Var(w)/w² away from the peak, G = {size}, within 10 %"
    yield compare(quantity, got, "=", formula, [0.1 * number for number in formula])
    yield compare(f"G Var(w)/w² at the peak, G = {size} over G = 64", falls, "≤", 0.1)


def signal_to_noise(weights: np.ndarray, signal: np.ndarray, rates: np.ndarray) -> float:
    """Return the squared ratio of a weighted step, with noise 1/(p(1-p)) per prompt."""
    return float((weights * signal).mean() ** 2 / (weights**2 / (rates * (1 - rates))).mean())


def population_weights(alpha: float, rates: np.ndarray) -> np.ndarray:
    estimator = build("power_alpha", alpha=alpha)
    return np.array([population_masses(estimator, p).success for p in rates])


def break_even(rate: float) -> float:
    """Return the signal at p over that at 1/2 from which α = 3 beats α = 1."""
    rates = np.array([rate, 0.5])
    mild, strong = population_weights(1.0, rates), population_weights(3.0, rates)
    low, high = 0.1, 10.0
    for _ in range(60):
        middle = (low + high) / 2
        signal = np.array([middle, 1.0])
        if signal_to_noise(strong, signal, rates) > signal_to_noise(mild, signal, rates):
            high = middle
        else:
            low = middle
    return low


def best_alpha(slope: float) -> float:
    """Return the α of the best step for solve rates spread evenly and signal exp(-slope p)."""
    rates = np.arange(0.0005, 1, 0.001)
    signal = np.exp(-slope * rates)
    alphas = np.arange(1.0, 2.0, 0.01)
    found = [signal_to_noise(rates * (1 - rates) ** a, signal, rates) for a in alphas]
    return float(alphas[int(np.argmax(found))])


@check(
    "FA16",
    "the signal-to-noise ratio of steps on prompts at p = .25 and .5",
    "[2(1-p)]² is the signal ratio for which α = 3 is the best weight of all; it beats α = 1 from "
    "a smaller ratio on. The criterion is the paper's own (Eq. 10, in the form that gives its best "
    "α).",
)
def enrichment() -> Findings:
    quantity = "signal ratio from which α = 3 beats α = 1, prompts at p = .25 and .5"
    yield compare(quantity, break_even(0.25), "≥", 2.25, 0.01)
    rates = np.array([0.1, 0.25, 0.4, 0.5])
    ratios = population_weights(3.0, rates) / population_weights(1.0, rates)
    quantity = "weight of α = 3 over that of α = 1, relative to p = 1/2, by [2(1-p)]²"
    yield compare(quantity, ratios[:3] / ratios[3], "=", [3.24, 2.25, 1.44])
    quantity = "best α for signals exp(-p/2) and exp(-p), printed as 1.2 and 1.44"
    yield compare(quantity, [best_alpha(0.5), best_alpha(1.0)], "=", [1.2, 1.44], 0.011)


@check(
    "FA22",
    "40,000 simulated retries at three solve rates, and the expected masses",
    "One failed attempt triggers its retry; a retry of groups that failed as a whole would add "
    "(1-p)^G p(1-p).",
)
def retry() -> Findings:
    generator = torch.Generator().manual_seed(13)
    weight = build("power_alpha", alpha=2.0)
    for rate in (0.2, 0.5, 0.7):
        failed = torch.rand(40_000, generator=generator, dtype=torch.float64) >= rate
        again = torch.rand(40_000, G, generator=generator, dtype=torch.float64) < rate
        # The expected mass of rloo is p(1-p) at every G.
        added = failed * (advantages("rloo", again.double()) * again).mean(dim=1)
        expected = population_masses(weight, rate).success
        error = 3 * float(added.std()) / math.sqrt(len(added))
        quantity = f"mass of the retries at p = {rate:g}, within 3 standard errors"
        yield compare(quantity, added.mean(), "=", expected, error)
    exact = [(1 - p) * expected_masses(build("rloo"), p, G).success for p in RATES]
    formula = [p * (1 - p) ** 2 for p in RATES]
    yield compare("the same in expectation, by p(1-p)²", exact, "=", formula)


@check("FA24", "expected masses for k = 2, 4 and 8 at four solve rates")
def single_success() -> Findings:
    pairs = [(k, p) for k in (2, 4, 8) for p in RATES]
    found = [expected_masses(build("passk_loo"), p, k) for k, p in pairs]
    successes = [k * mass.success for (k, _), mass in zip(pairs, found, strict=True)]
    formula = [k * p * (1 - p) ** (k - 1) for k, p in pairs]
    yield compare("k m_S, by k p(1-p)^(k-1)", successes, "=", formula)
    yield compare("m_F", [mass.failure for mass in found], "=", 0.0)


@check("FA25", "every k and number of successes of groups of 4, 8 and 16")
def analytic() -> Findings:
    up, down, formula = [], [], []
    for size in (4, 8, 16):
        for k in range(1, size + 1):
            for right in range(1, size):
                solved = 1 - math.comb(size - right, k) / math.comb(size, k)
                mass = group_masses(build("passk_analytic", k=k), right, size)
                up.append(mass.success)
                down.append(mass.failure)
                formula.append(right / size * math.sqrt((1 - solved) / solved))
    yield compare("m_S, by p √((1-R)/R)", up, "=", formula)
    yield compare("m_F, by m_S", down, "=", up)
    rewards = groups_by_count(8)
    first = advantages("passk_analytic", rewards, k=1)
    yield compare("A at k = 1, by GRPO's", first, "=", advantages("grpo", rewards))


@check(
    "FA26",
    "masses for every number of successes out of 8",
    "True of a group's own share of successes. Groups of a prompt at p = .3 are at times easy, so "
    "that both masses are above 0 in expectation (.262 and .020 at G = 8).",
)
def median() -> Findings:
    rewards = groups_by_count(G)[1:-1]
    rate = rewards.mean(dim=1)
    weights = advantages("mc_grpo", rewards)
    up, down = (weights * rewards).mean(dim=1), -(weights * (1 - rewards)).mean(dim=1)
    hard = rate <= 0.5
    yield compare("m_F of hard groups", down[hard], "=", 0.0)
    yield compare("m_S of easy groups", up[~hard], "=", 0.0)
    yield compare("m_S of hard groups, by p", up[hard], "=", rate[hard])
    yield compare("m_F of easy groups, by 1-p", down[~hard], "=", 1 - rate[~hard])
