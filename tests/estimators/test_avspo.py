"""avspo."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from advsweep.estimators import GroupBatch, build_estimator

WRONG, CORRECT = 0, 1


def batch_of(*successes: int, size: int = 8) -> GroupBatch:
    """A batch of binary groups with these numbers of successes."""
    rewards = (torch.arange(size) < torch.tensor(successes)[:, None]).double()
    return GroupBatch(rewards=rewards)


SCALED = {"count": "scaled"}
EARLIER = {"count": "scaled", "all_wrong": "constant", "threshold_rule": "piecewise"}


def collapsed_values(successes: tuple[int, ...], size: int, **options: Any) -> tuple[int, Tensor]:
    """K, and the values that an all-wrong and an all-correct group share with ε = 0.

    Args:
        successes: of each group; the first is all wrong, the second all correct.
    """
    estimator = build_estimator("avspo", **{"eps": 0, "fixed_tau": 0.0, **options})
    advantages = estimator.compute(batch_of(*successes, size=size))
    values = advantages.values[:2]
    assert (values == values[:, :1]).all(), "the rollouts of a collapsed group share one value"
    return int(advantages.info["virtual"]), values[:, 0]


# Worked values


@pytest.mark.parametrize(
    ("size", "collapsed", "groups", "number", "value"),
    [
        # K = ⌈G √ACR⌉; one virtual reward of 1/2 beside G ones: (1/2)/(G+1) over √G/2/(G+1).
        (8, 2, 200, 1, 0.3535533906),
        (8, 3, 4, 7, 0.7718449850),
        (8, 2, 2, 8, 0.8115026712),
        (4, 2, 2, 4, 0.8451542547),
        (2, 2, 8, 1, 0.7071067812),
        (2, 2, 2, 2, 0.9045340337),
    ],
)
def test_worked_values(size: int, collapsed: int, groups: int, number: int, value: float) -> None:
    successes = (0, size) + (0,) * (collapsed - 2) + (1,) * (groups - collapsed)
    found, values = collapsed_values(successes, size)
    assert found == number
    assert values.tolist() == pytest.approx([-value, value], abs=1e-9)
    # A = (K/2) / √((G+K) K (2K+1)/(6(K+1)) - K²/4)
    spread = (size + number) * number * (2 * number + 1) / (6 * (number + 1)) - number**2 / 4
    assert values[CORRECT].item() == pytest.approx(number / 2 / math.sqrt(spread))


# The released code


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        # (1/(G+1)) / (1/√(G+1) + 1e-4)
        ([[0] * 4], [[-0.4471136179] * 4]),
        ([[1] * 4], [[0.4471136179] * 4]),
        ([[0] * 4, [0] * 4], [[-0.4471136179] * 4] * 2),
        ([[0] * 4, [1] * 4], [[0] * 4] * 2),
        # Sample σ = 1/2: 3/4 and -1/4 over that and 1e-4.
        ([[0] * 4, [1, 0, 0, 0]], [[0] * 4, [1.4997000600] + [-0.4999000200] * 3]),
        ([[1, 1, 0, 0]], [[0.8658754298] * 2 + [-0.8658754298] * 2]),
        ([[0.5] * 4], [[0] * 4]),
    ],
)
def test_worked_values_of_the_released_code(
    rows: list[list[float]], expected: list[list[float]]
) -> None:
    estimator = build_estimator("avspo", preset="released")
    values = estimator(GroupBatch(rewards=torch.tensor(rows).double()))
    assert torch.allclose(values, torch.tensor(expected).double(), atol=1e-9)


def test_the_released_code_augments_only_uniform_steps() -> None:
    estimator = build_estimator("avspo", preset="released")
    uniform = estimator.compute(batch_of(0, 0))
    assert uniform.info == {"acr": 1.0, "acr_after": 0.0, "triggered": 1.0, "virtual": 1.0}
    mixed = estimator.compute(batch_of(0, 8))
    assert mixed.info == {"acr": 1.0, "acr_after": 1.0, "triggered": 0.0, "virtual": 0.0}
    grpo = build_estimator("grpo", std="sample", eps=1e-4)
    batch = batch_of(0, 3, 8, 5)
    assert torch.allclose(estimator(batch), grpo(batch), rtol=1e-12)


def test_the_released_code_looks_at_scorable_rollouts_alone() -> None:
    rewards = torch.tensor([[1.0, 1.0, 0.0], [0.0, 0.0, 0.0]], dtype=torch.float64)
    mask = torch.tensor([[True, True, False], [False, False, False]])
    estimator = build_estimator("avspo", preset="released")
    values = estimator(GroupBatch(rewards=rewards, mask=mask))
    expected = (1 / 3) / (1 / math.sqrt(3) + 1e-4)
    assert values[0].tolist() == pytest.approx([expected, expected, 0])
    assert values[1].tolist() == [0, 0, 0]


# Triggering


def test_at_the_threshold_it_is_grpo() -> None:
    batch = batch_of(0, 8, 3, 5)  # ACR = 0.5 = τ
    advantages = build_estimator("avspo", eps=0).compute(batch)
    assert torch.equal(advantages.values, build_estimator("grpo")(batch))
    assert advantages.info == {
        "acr": 0.5,
        "acr_after": 0.5,
        "tau": 0.5,
        "triggered": 0.0,
        "virtual": 0.0,
    }


@pytest.mark.parametrize(("fixed_tau", "triggered"), [(0.3, 1.0), (0.5, 0.0), (0.7, 0.0)])
def test_a_fixed_threshold_stays(fixed_tau: float, triggered: float) -> None:
    estimator = build_estimator("avspo", fixed_tau=fixed_tau, tau0=0.4)
    for successes in ((0, 8, 3, 5), (0, 8, 4, 5), (0, 8, 1, 1)):
        info = estimator.compute(batch_of(*successes)).info
        assert (info["tau"], info["triggered"]) == (fixed_tau, triggered)
    assert estimator.state_dict()["tau"] == 0.4


def test_the_threshold_stays_between_its_bounds() -> None:
    rising = build_estimator("avspo", eta=1, tau0=0.5)
    for successes in ((0, 0), (8, 8)):
        rising(batch_of(*successes))
    assert rising.state_dict()["tau"] == 0.9
    falling = build_estimator("avspo", eta=1, tau0=0.5)
    for successes in ((4, 4), (5, 5)):
        falling(batch_of(*successes))
    assert falling.state_dict()["tau"] == 0.1


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        # ACR 0.5, 0.75, 0.25, 0.75, 1; the mean reward rises, falls, stays and falls.
        ("sign", [0.4, 0.575, 0.7375, 0.7375, 0.60625]),
        ("piecewise", [0.4, 0.575, 0.575, 0.4875, 0.23125]),
    ],
)
def test_the_threshold_moves_by_half_the_way(rule: str, expected: list[float]) -> None:
    estimator = build_estimator("avspo", threshold_rule=rule, eta=0.5, tau0=0.4)
    found = []
    for successes in ((0, 0, 4, 4), (0, 0, 8, 4), (0, 4, 4, 2), (0, 0, 8, 2), (0, 0, 0, 0)):
        estimator(batch_of(*successes))
        found.append(estimator.state_dict()["tau"])
    assert found == pytest.approx(expected)


@pytest.mark.parametrize(
    ("options", "size", "collapsed", "number"),
    [
        # G ACR^α = 8 √(1/4) = 4; 8 √(2/4) = 5.66; 8 √(3/4) = 6.93
        ({}, 8, 1, 4),
        ({}, 8, 2, 6),
        ({}, 8, 3, 7),
        ({"rounding": "floor"}, 8, 2, 5),
        # The printed K falls with α: 8 · 0.25^0.3 = 5.28, 8 · 0.25^0.7 = 3.03, 8 · 0.25 = 2.
        ({"alpha": 0.3}, 8, 1, 6),
        ({"alpha": 0.7}, 8, 1, 4),
        ({"alpha": 1.0}, 100, 1, 25),
        # λ G √ACR = 4 √(1/4) = 2; 4 √(2/4) = 2.83; 4 √(3/4) = 3.46
        (SCALED, 8, 1, 2),
        ({**SCALED, "rounding": "nearest"}, 8, 2, 3),
        ({**SCALED, "rounding": "nearest"}, 8, 3, 3),
        ({**SCALED, "lam": 0.1}, 8, 2, 1),  # 0.57, at least 1
        ({**SCALED, "lam": 1.0, "rounding": "ceil"}, 3, 4, 3),
        ({**SCALED, "lam": 0.29}, 100, 4, 29),  # 0.29 · 100 is 28.999999999999996
    ],
)
def test_number_of_virtual_rewards(
    options: dict[str, Any], size: int, collapsed: int, number: int
) -> None:
    estimator = build_estimator("avspo", fixed_tau=0.1, **options)
    successes = [0] * collapsed + [1] * (4 - collapsed)
    assert estimator.compute(batch_of(*successes, size=size)).info["virtual"] == number


# Values


def test_groups_below_eps_acr_count_as_collapsed() -> None:
    rewards = torch.tensor([[1.0, 1.0 - 1e-8], [1.0, 1.0 - 1e-3]], dtype=torch.float64)
    batch = GroupBatch(rewards=rewards)
    assert build_estimator("avspo").compute(batch).info["acr"] == 0.5
    assert build_estimator("avspo", eps_acr=1e-9).compute(batch).info["acr"] == 0.0


@pytest.mark.parametrize(
    ("cases", "wrong", "correct", "acr_after"),
    [
        ("both", True, True, 0.0),
        ("error_only", True, False, 0.25),
        ("correct_only", False, True, 0.5),
    ],
)
def test_cases(cases: str, wrong: bool, correct: bool, acr_after: float) -> None:
    advantages = build_estimator("avspo", cases=cases).compute(batch_of(0, 0, 8, 4))
    assert (advantages.values[:2] != 0).all().item() is wrong
    assert (advantages.values[2] != 0).all().item() is correct
    assert (advantages.values[3] != 0).all()
    assert advantages.info["acr_after"] == pytest.approx(acr_after)


@pytest.mark.parametrize(
    ("strategy", "virtual"),
    [
        ("stratified", [0.25, 0.5, 0.75]),
        ("fixed_partial", [0.5, 0.5, 0.5]),
        ("exponential_decay", [math.exp(-1), math.exp(-2), math.exp(-3)]),
    ],
)
def test_strategies(strategy: str, virtual: list[float]) -> None:
    # Three collapsed groups of four, K = ⌊3.46⌋, all correct: (1 - μ) / s of ones and these.
    values = build_estimator("avspo", strategy=strategy, eps=0, **SCALED)(batch_of(8, 0, 8, 4))
    rewards = [1.0] * 8 + virtual
    mean = sum(rewards) / 11
    std = math.sqrt(sum((r - mean) ** 2 for r in rewards) / 11)
    assert values[0, 0].item() == pytest.approx((1 - mean) / std)
    assert (values[1] < 0).all()


def test_random_virtual_rewards_follow_seed_and_call() -> None:
    def two_steps(seed: int) -> list[Tensor]:
        estimator = build_estimator("avspo", strategy="random_uniform", seed=seed)
        return [estimator(batch_of(0, 8, 8, 8)) for _ in range(2)]

    first, again, other = two_steps(0), two_steps(0), two_steps(1)
    assert torch.equal(first[0], again[0])
    assert torch.equal(first[1], again[1])
    assert not torch.equal(first[0], first[1])
    assert not torch.equal(first[0], other[0])
    assert not torch.equal(first[0][1], first[0][2]), "each group has its own"
    assert (first[0][1:] > 0).all()


def test_virtual_rewards_of_ragged_groups() -> None:
    # λ = 0.5 and ACR = 1: K = 4 of 8, 2 of 4 and 1 of 1 scorable rollouts; -√(K/n).
    rewards = torch.zeros(4, 8, dtype=torch.float64)
    mask = torch.arange(8) < torch.tensor([[8], [4], [1], [0]])
    estimator = build_estimator("avspo", eps=0, **EARLIER)
    advantages = estimator.compute(GroupBatch(rewards=rewards, mask=mask))
    assert advantages.info["acr"] == 1.0
    expected = torch.tensor([[-math.sqrt(0.5)], [-math.sqrt(0.5)], [-1.0], [0.0]]).double() * mask
    assert torch.allclose(advantages.values, expected)
