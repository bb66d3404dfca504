"""Masses of a population, against closed forms; expected ones: tests/diagnostics/test_masses.py."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from advsweep.diagnostics import expected_masses, population_masses
from advsweep.estimators import build_estimator


def expected(spec: Any, p: float, group_size: int = 8) -> tuple[float, float]:
    return tuple(expected_masses(build_estimator(spec), p, group_size))


# Of a population, where nearly all closed forms are exact.
def both(form: Callable[[float, float], float]) -> Callable[[float, float], tuple[float, float]]:
    return lambda p, q: (form(p, q), form(p, q))


def gap(p: float, q: float) -> tuple[float, float]:
    """`ha_dw` at C = 0.4."""
    root = 1.3 * math.sqrt(p * q)
    return root * math.exp(0.4 - p), root * math.exp(p - 0.4)


def rs_grpo(p: float, q: float) -> float:
    """RS-GRPO with β = 2."""
    grown = math.exp(2) - 1
    return p * q * grown / (2 * (1 + p * grown))


def fade(p: float, q: float) -> tuple[float, float]:
    """With β = 0, p̂ = p; H = 0.2, H* = 0.6: δ = 0.6."""
    mass = p * q ** min(max(1.5 * q / p, 1), 3)
    return mass, mass / 0.6


def a_grae(p: float, q: float) -> tuple[float, float]:
    """ω = p, α = 0.8."""
    failure = (p * math.sqrt(q) + q * math.sqrt(p)) / 2
    return failure * min(1, p / 0.8), failure


def passk(p: float, q: float) -> float:
    return p * math.sqrt(q**3 / (1 - q**3))


def grpo_lead(p: float, q: float) -> tuple[float, float]:
    """Of short answers: the weights of p and of q, on `grpo`."""
    weight_p, weight_q = (0.4 + 1.1 / (1 + math.exp(10 * (x - 0.75))) for x in (p, q))
    return weight_p * math.sqrt(p * q), weight_q * math.sqrt(p * q)


Form = Callable[[float, float], tuple[float, float]]
POPULATION: list[tuple[dict[str, Any], Form]] = [
    ({"name": "reinforce"}, lambda p, q: (p, 0)),
    ({"name": "dr_grpo"}, both(lambda p, q: p * q)),
    ({"name": "grpo"}, both(lambda p, q: math.sqrt(p * q))),
    ({"name": "rloo"}, both(lambda p, q: p * q * 10_000 / 9_999)),
    ({"name": "gpg"}, both(lambda p, q: p * q)),
    ({"name": "gpg", "f_norm": "sigma"}, both(lambda p, q: math.sqrt(p * q))),
    ({"name": "min_baseline"}, lambda p, q: (p, 0)),
    ({"name": "relu"}, lambda p, q: (p * q, 0)),
    ({"name": "skew_r"}, both(lambda p, q: (p * q) ** 1.5)),
    ({"name": "power_norm", "gamma": 0.2}, both(lambda p, q: (p * q) ** 0.8)),
    ({"name": "power_norm", "gamma": -0.5}, both(lambda p, q: (p * q) ** 1.5)),
    ({"name": "power_alpha", "alpha": 2.5}, both(lambda p, q: p * q**2.5)),
    # C = 4⁴ / (4 · 3³)
    ({"name": "power_alpha", "alpha": 3, "normalize": True}, both(lambda p, q: 64 / 27 * p * q**3)),
    ({"name": "easy_power", "alpha": 2.5}, both(lambda p, q: p**2.5 * q)),
    (
        {"name": "asym_power_alpha", "alpha_s": 2, "alpha_f": 1.5},
        lambda p, q: (p * q**2, p**1.5 * q),
    ),
    ({"name": "asym_grpo", "delta": 0.3}, lambda p, q: (p * q, p * q / 0.3)),
    (
        {"name": "asym_grpo", "delta": 0.3, "scale": "std"},
        lambda p, q: (math.sqrt(p * q), math.sqrt(p * q) / 0.3),
    ),
    ({"name": "maxrl"}, both(lambda p, q: q)),
    ({"name": "binary_contrastive"}, both(lambda p, q: p)),
    # Equal lengths change nothing: R is a linear function of r.
    ({"name": "t2t", "alpha": 0.4}, both(lambda p, q: math.sqrt(p * q))),
    # A lone success is none of a population.
    ({"name": "passk_loo"}, lambda p, q: (0, 0)),
    ({"name": "passk_analytic", "k": 1}, both(lambda p, q: math.sqrt(p * q))),
    ({"name": "passk_mix", "k": 3}, both(lambda p, q: p * passk(p, q) + q * math.sqrt(p * q))),
    ({"name": "passk_analytic", "k": 3}, both(passk)),
    ({"name": "asym_re", "delta": 0.03}, lambda p, q: (p * (q - 0.03), q * (p + 0.03))),
    (
        {"name": "asym_re", "delta": 0.03, "baseline": "none"},
        lambda p, q: (p * 0.97, q * 0.03),
    ),
    ({"name": "asym_re", "delta": 0.03, "baseline": "min"}, lambda p, q: (p * 0.97, q * 0.03)),
    ({"name": "quantile", "tau": 0.3}, lambda p, q: (p, 0) if p <= 0.3 else (0, q)),
    (
        {"name": "quantile", "tau": 0.3, "convention": "standard"},
        lambda p, q: (p, 0) if p <= 0.7 else (0, q),
    ),
    ({"name": "softmax", "beta": 2, "normalise": "rs"}, both(rs_grpo)),
    ({"name": "mc_grpo"}, lambda p, q: (p, 0) if p <= 0.5 else (0, q)),
    (
        {"name": "mc_grpo", "median": "midpoint"},
        lambda p, q: (0.25, 0.25) if p == 0.5 else (p, 0) if p < 0.5 else (0, q),
    ),
    ({"name": "ha_dw", "c0": 0.4}, gap),
    ({"name": "psr"}, lambda p, q: (p, 0)),
    ({"name": "nsr"}, lambda p, q: (0, q)),
    ({"name": "w_reinforce", "lam": 0.3}, lambda p, q: (0.3 * p, q)),
    (
        {"name": "positive_dominant", "beta": 5},
        lambda p, q: (5 * math.sqrt(p * q), math.sqrt(p * q)),
    ),
    (
        {"name": "negative_dominant", "beta": 5},
        lambda p, q: (math.sqrt(p * q) / 5, math.sqrt(p * q)),
    ),
    ({"name": "hard_focused", "gamma": 0.7}, both(lambda p, q: 0.7 * math.sqrt(q))),
    ({"name": "easy_focused", "gamma": 0.7}, both(lambda p, q: 0.7 * math.sqrt(p))),
    ({"name": "a_grae", "alpha": 0.8}, a_grae),
    # References of solve rate 0.4.
    (
        {"name": "aapo"},
        lambda p, q: (math.sqrt(p * q) + 0.28 * p * 0.6, math.sqrt(p * q) + 0.2 * q * 0.4),
    ),
    ({"name": "grpo_n"}, lambda p, q: (0, math.sqrt(p * q))),
    ({"name": "filter_drop"}, both(lambda p, q: math.sqrt(p * q))),
    # Groups of a population do not collapse.
    ({"name": "avspo", "eps": 0}, both(lambda p, q: math.sqrt(p * q))),
    ({"name": "fade", "beta": 0, "h_star": 0.6}, fade),
    ({"name": "grpo_lead"}, grpo_lead),
    # At the first visit of each prompt.
    ({"name": "dcpo"}, both(lambda p, q: math.sqrt(p * q))),
]
INPUTS = {"lengths": 7.0, "ref_rewards": 0.4, "token_entropy": 0.2, "prompt_ids": 0.0}
# The subsets of pass@k are drawn from 10,000 without replacement; σ is over 9,999 of 10,000.
TOLERANCES = {"passk_analytic": 2e-3, "passk_mix": 2e-3, "dcpo": 1e-4, "grpo_lead": 1e-4}


@pytest.mark.parametrize(
    ("spec", "form"), POPULATION, ids=["-".join(map(str, s.values())) for s, _ in POPULATION]
)
def test_population_masses(spec: dict[str, Any], form: Form) -> None:
    estimator = build_estimator(spec)
    inputs = {name: INPUTS[name] for name in estimator.needs}
    for p in (0.05, 0.3, 0.5, 0.7, 0.9):
        found = population_masses(estimator, p, **inputs)
        tolerance = TOLERANCES.get(spec["name"], 1e-9)
        assert found == pytest.approx(form(p, 1 - p), rel=tolerance, abs=1e-12)


def test_log_mean_exp_does_not_have_the_printed_masses() -> None:
    # Summed over the group at p = 0.3, β = 1: 0.244 and 0.225 by enumeration, but as printed
    # p e/(p e + q) = 0.538 and q/(p e + q) = 0.462.
    m_success, m_failure = expected("log_mean_exp", 0.3)
    assert (8 * m_success, 8 * m_failure) == pytest.approx((0.2444, 0.2249), abs=5.1e-5)
    # The same count in both means lifts all advantages above 0, so m_F falls below it.
    same_count = {"name": "log_mean_exp", "variant": "loo_same_count"}
    assert expected(same_count, 0.3)[1] < 0


def test_avspo_triggered_by_strategy() -> None:
    # K = ⌈8 √ACR⌉ at ACR = p⁸ + q⁸; grpo's mass, and q⁸ √(K/8) for failures.
    p, q = 0.05, 0.95
    number = math.ceil(8 * math.sqrt(p**8 + q**8))
    base = expected("grpo", p)[0]
    spec = {"name": "avspo", "cases": "error_only", "all_wrong": "constant", "eps": 0}
    assert expected(spec, p) == pytest.approx((base, base + q**8 * math.sqrt(number / 8)))
