"""Gradient masses: of groups, expected, and of a population."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from advsweep.diagnostics import expected_masses, group_masses, masses, population_masses
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


def test_the_population_is_reached_as_groups_grow() -> None:
    for spec, tolerance in (("grpo", 2e-3), ("passk_analytic", 1e-2), ("a_grae", 2e-3)):
        population = population_masses(build_estimator(spec), 0.3)
        assert expected(spec, 0.3, 512) == pytest.approx(population, rel=tolerance)
        assert expected(spec, 0.3, 8) != pytest.approx(population, rel=tolerance)
    # The largest group that is counted through.
    assert expected("rloo", 0.3, 1024) == pytest.approx((0.21, 0.21))


def test_references_are_a_solve_rate() -> None:
    # m_S = E[√(p̂q̂)] + δ_high p (1-p₀), m_F = E[√(p̂q̂)] + |δ_low| q p₀, of which the first
    # term is grpo's; with the test of `aapo` itself, over all groups and all references.
    for p, p0 in ((0.3, 0.6), (0.8, 0.0), (0.5, 1.0)):
        base = expected("grpo", p)[0]
        assert expected("aapo", p, ref_rewards=p0) == pytest.approx(
            (base + 0.28 * p * (1 - p0), base + 0.2 * (1 - p) * p0)
        )


def test_missing_inputs_and_impossible_rates_are_refused() -> None:
    with pytest.raises(BatchError, match="needs token_entropy"):
        expected("fade", 0.3)
    for p in (-0.1, 1.1, float("nan")):
        with pytest.raises(BatchError, match=r"solve_rate: expected a number in \[0, 1\]"):
            expected("grpo", p)
        with pytest.raises(BatchError, match=r"solve_rate: expected a number in \[0, 1\]"):
            population_masses(build_estimator("grpo"), p)
    for size in (0, 1025):
        with pytest.raises(BatchError, match=rf"group_size: expected 1 to 1024 .* got {size}"):
            expected("grpo", 0.3, size)
    for k in (-1, 9):
        with pytest.raises(BatchError, match=f"successes: expected 0 to 8, got {k}"):
            group_masses(build_estimator("grpo"), k, 8)


def test_populations_between_two_groups_are_interpolated() -> None:
    # maxrl: q on both sides, which is linear in p; with a group of 10,000 rates below 1/10,000
    # lie between nothing and one success, of which q is 0 and 0.9999.
    estimator = build_estimator("maxrl")
    assert population_masses(estimator, 0.123456) == pytest.approx((0.876544,) * 2)
    assert population_masses(estimator, 0.00004) == pytest.approx((0.4 * 0.9999,) * 2)
    assert population_masses(estimator, 1.0) == (0, 0)


# Where the order of a group's rollouts matters.


@pytest.mark.parametrize("p", [0.0, 0.2, 0.5, 0.9])
@pytest.mark.parametrize(("k", "group_size"), [(1, 8), (2, 8), (4, 8), (3, 12), (8, 8)])
def test_pass_at_k_in_blocks(k: int, group_size: int, p: float) -> None:
    # A lone success of its block of k: p q^(k-1) per rollout, and nothing for failures.
    spec = {"name": "passk_loo", "k": k}
    assert expected(spec, p, group_size) == pytest.approx((p * (1 - p) ** (k - 1), 0), abs=1e-12)


def test_large_ordered_groups_and_populations_are_refused() -> None:
    estimator = build_estimator("passk_loo", k=4)
    with pytest.raises(BatchError, match=r"expected 1 to 16 .* all orders .* got 20"):
        expected_masses(estimator, 0.3, 20)
    with pytest.raises(BatchError, match=r"order .* compute its expected or group masses"):
        population_masses(estimator, 0.3)


@pytest.mark.parametrize("name", estimator_names())
def test_the_estimator_is_left_as_it_was(name: str) -> None:
    estimator = build_estimator(name)
    before = estimator.state_dict()
    inputs = dict.fromkeys(estimator.needs, 0.4)
    first = expected_masses(estimator, 0.3, 8, **inputs)
    assert estimator.state_dict() == before
    assert expected_masses(estimator, 0.3, 8, **inputs) == first


def test_the_rest_of_the_batch_may_have_another_solve_rate() -> None:
    """Statistics of the batch are the rest's, the masses those of the groups asked for."""
    a_grae = build_estimator("a_grae", alpha=0.5)
    for p in RATES:
        # ω = 0.2 and min(1, ω/α) = 0.4 whatever p is.
        success, failure = expected_masses(a_grae, p, 8, batch_rate=0.2)
        assert success == pytest.approx(0.4 * failure)
        group = group_masses(a_grae, 2, 8, batch_rate=0.2)
        # p = 1/4: (ω √q + (1-ω) √p)/2.
        assert group.failure == pytest.approx((0.2 * math.sqrt(0.75) + 0.8 * 0.5) / 2)
        population = population_masses(a_grae, p, batch_rate=0.2)
        assert population.failure == pytest.approx((0.2 * (1 - p) ** 0.5 + 0.8 * p**0.5) / 2)
    assert expected_masses(a_grae, 0.3, 8, batch_rate=0.3) == pytest.approx(
        expected_masses(a_grae, 0.3, 8)
    )
    with pytest.raises(BatchError, match=r"batch_rate: expected a number in \[0, 1\], got 2"):
        expected_masses(a_grae, 0.3, 8, batch_rate=2)
