"""Gradient masses, by group and expected."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from advsweep.diagnostics import expected_masses, masses
from advsweep.errors import BatchError
from advsweep.estimators import build_estimator, estimator_names

RATES = (0.1, 0.3, 0.5, 0.8)


def expected(spec: Any, p: float, group_size: int = 8, **inputs: float) -> tuple[float, float]:
    return tuple(expected_masses(build_estimator(spec), p, group_size, **inputs))


def test_masses_of_a_batch() -> None:
    advantages = torch.tensor([[3.0, -1.0], [0.5, -2.0]])
    successes = torch.tensor([[True, False], [True, True]])
    # (3 + 0.5 - 2)/4 and 1/4; their difference is the mean advantage 0.5/4.
    assert masses(advantages, successes) == (0.375, 0.25)
    mask = torch.tensor([[True, True], [True, False]])
    assert masses(advantages, successes, mask) == pytest.approx((3.5 / 3, 1 / 3))


# The table of enumerated masses at G = 8: m_S and m_F at p = 0.1, 0.3, 0.5, 0.8.
TABLE = [
    ("grpo", [0.2095, 0.4122, 0.4639, 0.3371], 1),
    ("dr_grpo", [0.0788, 0.1838, 0.2188, 0.1400], 1),
    ("rloo", [0.0900, 0.2100, 0.2500, 0.1600], 1),
    ({"name": "power_alpha", "alpha": 2}, [0.0630, 0.1194, 0.1094, 0.0385], 1),
    ({"name": "power_alpha", "alpha": 3}, [0.0511, 0.0813, 0.0598, 0.0127], 1),
    ({"name": "asym_grpo", "delta": 0.5}, [0.0788, 0.1838, 0.2188, 0.1400], 2),
    ("maxrl", [0.4695, 0.6424, 0.4961, 0.2000], 1),
    ({"name": "passk_analytic", "k": 4}, [0.0710, 0.0980, 0.0574, 0.0039], 1),
    ("grpo_n", [0.0, 0.0, 0.0, 0.0], None),
]


@pytest.mark.parametrize(("spec", "success", "ratio"), TABLE)
def test_enumerated_masses(spec: Any, success: list[float], ratio: float | None) -> None:
    for p, mass in zip(RATES, success, strict=True):
        m_success, m_failure = expected(spec, p)
        # The table has four decimals, rounded half up.
        assert m_success == pytest.approx(mass, abs=5.1e-5)
        if ratio is None:
            assert m_failure == pytest.approx(expected("grpo", p)[1])
        else:
            assert m_failure == pytest.approx(m_success * ratio)


CLOSED_FORMS: list[tuple[Any, Callable[[float, float, int], tuple[float, float]]]] = [
    ("reinforce", lambda p, q, G: (p, 0)),
    ("dr_grpo", lambda p, q, G: (p * q * (1 - 1 / G),) * 2),
    ("rloo", lambda p, q, G: (p * q,) * 2),
    (
        {"name": "asym_grpo", "delta": 0.3},
        lambda p, q, G: (p * q * (1 - 1 / G), p * q * (1 - 1 / G) / 0.3),
    ),
    (
        {"name": "power_alpha", "alpha": 2},
        lambda p, q, G: (((G - 1) * (G - 2) * p * q**2 + (G - 1) * p * q) / G**2,) * 2,
    ),
    ("maxrl", lambda p, q, G: (q - q**G if p > 0 else 0.0,) * 2),
]


@pytest.mark.parametrize(("spec", "form"), CLOSED_FORMS)
@pytest.mark.parametrize("group_size", [2, 5, 8, 16])
@pytest.mark.parametrize("p", [0.0, 0.07, 0.3, 0.5, 0.95, 1.0])
def test_closed_forms(spec: Any, form: Any, group_size: int, p: float) -> None:
    assert expected(spec, p, group_size) == pytest.approx(form(p, 1 - p, group_size), abs=1e-12)


def test_group_masses_are_reached_as_groups_grow() -> None:
    # Population masses: √(pq), and p √(qᵏ/(1-qᵏ)).
    p, q = 0.3, 0.7
    assert expected("grpo", p, 512)[0] == pytest.approx((p * q) ** 0.5, rel=2e-3)
    population = p * (q**4 / (1 - q**4)) ** 0.5
    assert expected("passk_analytic", p, 512)[0] == pytest.approx(population, rel=1e-2)


def test_avspo_adds_the_masses_of_collapsed_groups() -> None:
    # Triggered with N = max(1, ⌊0.05 · 8 ...⌋) = 1: p⁸ A_right and q⁸ |A_wrong| on top of
    # grpo, both 1/√8 for one virtual reward.
    spec = {"name": "avspo", "fixed_tau": 0.0, "lam": 0.05, "eps": 0}
    for p in RATES:
        base = expected("grpo", p)[0]
        share = 8**-0.5
        assert expected(spec, p) == pytest.approx(
            (base + p**8 * share, base + (1 - p) ** 8 * share)
        )


def test_avspo_sees_the_collapse_rate_of_the_solve_rate() -> None:
    # p⁸ + q⁸ is 0.43 at p = 0.1 and 0.66 at 0.05: only the second exceeds τ = 0.5.
    assert expected("avspo", 0.1) == pytest.approx(expected("grpo", 0.1), abs=1e-6)
    assert expected("avspo", 0.05)[1] > expected("grpo", 0.05)[1] + 0.1


def test_fade_keeps_its_ratio() -> None:
    # β = 0: p̂ = p = 0.4, α = 2.25; δ = 1 + 0.1 - 0.6 = 0.5.
    spec = {"name": "fade", "beta": 0, "h_star": 0.6}
    m_success, m_failure = expected(spec, 0.4, token_entropy=0.1)
    power = expected({"name": "power_alpha", "alpha": 2.25}, 0.4)
    assert m_success == pytest.approx(power[0])
    assert m_failure == pytest.approx(m_success / 0.5)


def test_a_grae_sees_the_solve_rate_as_omega() -> None:
    m_success, m_failure = expected({"name": "a_grae", "alpha": 0.5}, 0.3)
    assert m_success == pytest.approx(m_failure * 0.6)  # ω/α


def test_counters_and_entropies_can_be_given() -> None:
    spec = {"name": "fade", "mode": "log_schedule"}
    m_success, m_failure = expected(spec, 0.3, step=10, total_steps=10)
    assert m_failure == pytest.approx(m_success / 0.802)


def test_missing_inputs_and_impossible_rates_are_refused() -> None:
    with pytest.raises(BatchError, match="needs token_entropy"):
        expected("fade", 0.3)
    for p in (-0.1, 1.1, float("nan")):
        with pytest.raises(BatchError, match=r"solve_rate: expected a number in \[0, 1\]"):
            expected("grpo", p)


@pytest.mark.parametrize("name", estimator_names())
def test_the_estimator_is_left_as_it_was(name: str) -> None:
    estimator = build_estimator(name)
    before = estimator.state_dict()
    inputs = dict.fromkeys(estimator.needs, 0.4)
    first = expected_masses(estimator, 0.3, 8, **inputs)
    assert estimator.state_dict() == before
    assert expected_masses(estimator, 0.3, 8, **inputs) == first
