"""avspo."""

from __future__ import annotations

import json
import math
import random
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from advsweep.estimators import Advantages, GroupBatch, build_estimator

WRONG, CORRECT = 0, 1


def batch_of(*successes: int, size: int = 8) -> GroupBatch:
    """A batch of binary groups with these numbers of successes."""
    rewards = (torch.arange(size) < torch.tensor(successes)[:, None]).double()
    return GroupBatch(rewards=rewards)


def with_virtual(number: int, **options: Any) -> Tensor:
    """An all-wrong and an all-correct group of 8 that are given `number` virtual rewards."""
    # ACR = 1, so N = ⌊λ · 8⌋.
    estimator = build_estimator("avspo", eps=0, lam=number / 8, **options)
    advantages = estimator.compute(batch_of(0, 8))
    assert advantages.info["virtual"] == number
    values = advantages.values
    assert (values == values[:, :1]).all(), "the rollouts of a collapsed group share one value"
    return values[:, 0]


# Worked values


@pytest.mark.parametrize(
    ("number", "wrong", "correct"),
    [
        # All wrong: -√(N/8). All correct, N = 1: v = 1/2, μ = 8.5/9, s = √8/2/9, so 1/√8.
        (1, -0.3535533906, 0.3535533906),
        # v = 1/3, 2/3: μ = 0.9, s = √(8·0.01 + 0.5667² + 0.2333²)/√10) = 0.2134374746
        (2, -0.5, 0.4685212857),
        (4, -0.7071067812, 0.6201736729),
    ],
)
def test_worked_values(number: int, wrong: float, correct: float) -> None:
    assert with_virtual(number).tolist() == pytest.approx([wrong, correct], abs=1e-9)


@pytest.mark.parametrize(("number", "wrong"), [(1, -0.3535533906), (2, -0.4685212857), (4, None)])
def test_a_ramp_mirrors_the_all_correct_case(number: int, wrong: float | None) -> None:
    values = with_virtual(number, all_wrong="ramp").tolist()
    assert values[WRONG] == pytest.approx(-0.6201736729 if wrong is None else wrong, abs=1e-9)
    assert values[WRONG] == pytest.approx(-values[CORRECT])


def test_three_steps_with_default_settings() -> None:
    estimator = build_estimator("avspo")
    # The mean reward goes 12/32, 13/32, 4/32; ACR is 3/4 each time, so N = ⌊4 √0.75⌋ = 3.
    # τ: no gain known yet; 0.5 + 0.01 · 0.25; 0.5025 - 0.01 · 0.2475.
    steps = [((0, 0, 8, 4), 0.5), ((0, 0, 8, 5), 0.5025), ((0, 0, 0, 4), 0.500025)]
    used = 0.5
    for successes, tau in steps:
        advantages = estimator.compute(batch_of(*successes))
        assert advantages.info == pytest.approx(
            {"acr": 0.75, "acr_after": 0, "tau": used, "triggered": 1, "virtual": 3}
        )
        used = estimator.state_dict()["tau"]
        assert used == pytest.approx(tau, abs=1e-15)
        # √(3/8); v = 1/4, 1/2, 3/4 beside eight ones.
        assert advantages.values[0, 0].item() == pytest.approx(-0.6123722982, abs=1e-9)
        if successes[2] == 8:
            assert advantages.values[2, 0].item() == pytest.approx(0.5523447484, abs=1e-9)


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


@given(st.lists(st.integers(0, 8), min_size=1, max_size=5), st.sampled_from([0.0, 1e-8, 0.1]))
def test_with_a_threshold_that_nothing_exceeds_it_is_grpo(successes: list[int], eps: float) -> None:
    batch = batch_of(*successes)
    values = build_estimator("avspo", fixed_tau=1, eps=eps)(batch)
    assert torch.equal(values, build_estimator("grpo", eps=eps)(batch))


def test_mixed_groups_are_grpo_when_triggered() -> None:
    batch = batch_of(0, 8, 3, 5)
    values = build_estimator("avspo", fixed_tau=0.4)(batch)
    grpo = build_estimator("grpo", eps=1e-8)(batch)
    assert torch.equal(values[2:], grpo[2:])
    assert (values[0] < 0).all()
    assert (values[1] > 0).all()


@pytest.mark.parametrize(("fixed_tau", "triggered"), [(0.3, 1.0), (0.5, 0.0), (0.7, 0.0)])
def test_a_fixed_threshold_stays(fixed_tau: float, triggered: float) -> None:
    estimator = build_estimator("avspo", fixed_tau=fixed_tau, tau0=0.4)
    for successes in ((0, 8, 3, 5), (0, 8, 4, 5), (0, 8, 1, 1)):
        info = estimator.compute(batch_of(*successes)).info
        assert (info["tau"], info["triggered"]) == (fixed_tau, triggered)
    assert estimator.state_dict()["tau"] == 0.4


@pytest.mark.parametrize(
    ("rule", "tau0", "second", "expected"),
    [
        # ACR = 3/4, then: rose; fell; the same. From 0.5 and from 0.8 ≥ ACR.
        ("piecewise", 0.5, (0, 0, 8, 5), 0.5025),
        ("piecewise", 0.5, (0, 0, 8, 3), 0.4975),
        ("piecewise", 0.5, (0, 0, 8, 4), 0.4975),
        ("piecewise", 0.8, (0, 0, 8, 5), 0.7995),
        ("piecewise", 0.8, (0, 0, 8, 3), 0.8),
        ("sign", 0.8, (0, 0, 8, 5), 0.7995),
        ("sign", 0.8, (0, 0, 8, 3), 0.8005),
        ("sign", 0.8, (0, 0, 8, 4), 0.8005),
        ("sign", 0.5, (0, 0, 8, 3), 0.4975),
    ],
)
def test_threshold_rules(rule: str, tau0: float, second: tuple[int, ...], expected: float) -> None:
    estimator = build_estimator("avspo", threshold_rule=rule, tau0=tau0)
    estimator(batch_of(0, 0, 8, 4))
    assert estimator.state_dict()["tau"] == tau0, "the first step knows no gain"
    estimator(batch_of(*second))
    assert estimator.state_dict()["tau"] == pytest.approx(expected, abs=1e-15)


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
    ("options", "size", "collapsed", "number"),
    [
        # λ G √ACR = 4 √(1/4) = 2; 4 √(2/4) = 2.83; 4 √(3/4) = 3.46
        ({}, 8, 1, 2),
        ({}, 8, 2, 2),
        ({"rounding": "nearest"}, 8, 2, 3),
        ({"rounding": "nearest"}, 8, 3, 3),
        ({"rounding": "ceil"}, 8, 3, 4),
        ({"lam": 0.1}, 8, 2, 1),  # 0.57, at least 1
        ({"lam": 1.0}, 8, 4, 8),
        ({"lam": 1.0, "rounding": "ceil"}, 3, 4, 3),
        ({"lam": 0.29}, 100, 4, 29),  # 0.29 · 100 is 28.999999999999996 in floating point
    ],
)
def test_number_of_virtual_rewards(
    options: dict[str, Any], size: int, collapsed: int, number: int
) -> None:
    estimator = build_estimator("avspo", fixed_tau=0.1, **options)
    successes = [0] * collapsed + [1] * (4 - collapsed)
    assert estimator.compute(batch_of(*successes, size=size)).info["virtual"] == number


# Values


@given(st.integers(1, 16), st.floats(0.1, 1), st.floats(0.001, 10))
def test_bounds_on_collapsed_groups(size: int, lam: float, anchor: float) -> None:
    estimator = build_estimator("avspo", lam=lam, anchor=anchor, fixed_tau=0.0, eps=0)
    advantages = estimator.compute(batch_of(0, size, size=size))
    wrong, correct = advantages.values[0, 0].item(), advantages.values[1, 0].item()
    bound = math.sqrt(advantages.info["virtual"] / size)
    # The size of the anchor cancels.
    assert wrong == pytest.approx(-bound)
    assert 0 < correct <= bound + 1e-12


def test_group_size_of_one() -> None:
    values = build_estimator("avspo", eps=0)(batch_of(0, 1, size=1))
    assert values.flatten().tolist() == pytest.approx([-1, 1])


def test_graded_groups_that_collapse_below_one() -> None:
    # r = 0.6 eight times, N = 4: v = 0.12, 0.24, 0.36, 0.48; all scales with r.
    rewards = torch.full((1, 8), 0.6, dtype=torch.float64)
    values = build_estimator("avspo", eps=0)(GroupBatch(rewards=rewards))
    assert values[0].tolist() == pytest.approx([0.6201736729] * 8)


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
    # Three collapsed groups of four, N = 3, all correct: (1 - μ) / s of ones and these.
    values = build_estimator("avspo", strategy=strategy, eps=0)(batch_of(8, 0, 8, 4))
    rewards = [1.0] * 8 + virtual
    mean = sum(rewards) / 11
    std = math.sqrt(sum((r - mean) ** 2 for r in rewards) / 11)
    assert values[0, 0].item() == pytest.approx((1 - mean) / std)
    assert (values[1] < 0).all()


def test_random_virtual_rewards_follow_seed_and_call() -> None:
    def two_steps(seed: int) -> list[Tensor]:
        estimator = build_estimator("avspo", strategy="random_uniform", seed=seed)
        return [estimator(batch_of(0, 0, 8, 8)) for _ in range(2)]

    first, again, other = two_steps(0), two_steps(0), two_steps(1)
    assert torch.equal(first[0], again[0])
    assert torch.equal(first[1], again[1])
    assert not torch.equal(first[0], first[1])
    assert not torch.equal(first[0], other[0])
    assert not torch.equal(first[0][0], first[0][1]), "each group has its own"
    assert (first[0][:2] < 0).all()
    assert (first[0][2:] > 0).all()


def test_random_virtual_rewards_do_not_hang_on_the_default_device() -> None:
    def step() -> Tensor:
        return build_estimator("avspo", strategy="random_uniform")(batch_of(0, 8))

    expected = step()
    with torch.device("meta"):
        batch = GroupBatch(rewards=torch.tensor([[0.0] * 8, [1.0] * 8], device="cpu").double())
        values = build_estimator("avspo", strategy="random_uniform")(batch)
    assert torch.equal(values, expected)


def test_random_virtual_rewards_resume() -> None:
    estimator = build_estimator("avspo", strategy="random_uniform")
    estimator(batch_of(0, 0))
    resumed = build_estimator("avspo", strategy="random_uniform")
    resumed.load_state_dict(json.loads(json.dumps(estimator.state_dict())))
    assert torch.equal(estimator(batch_of(0, 0)), resumed(batch_of(0, 0)))


def test_virtual_rewards_of_ragged_groups() -> None:
    # λ = 0.5 and ACR = 1: N = 4 of 8, 2 of 4 and 1 of 1 scorable rollouts; -√(N/n).
    rewards = torch.zeros(4, 8, dtype=torch.float64)
    mask = torch.arange(8) < torch.tensor([[8], [4], [1], [0]])
    estimator = build_estimator("avspo", eps=0)
    advantages = estimator.compute(GroupBatch(rewards=rewards, mask=mask))
    assert advantages.info["acr"] == 1.0
    expected = torch.tensor([[-math.sqrt(0.5)], [-math.sqrt(0.5)], [-1.0], [0.0]]).double() * mask
    assert torch.allclose(advantages.values, expected)


# A long run


def reference(rows: list[list[float]], tau: float, previous: float | None, rule: str) -> Any:
    """One step in plain Python: advantages, next τ, mean reward."""

    def moments(rewards: list[float]) -> tuple[float, float]:
        mean = sum(rewards) / len(rewards)
        return mean, math.sqrt(sum((r - mean) ** 2 for r in rewards) / len(rewards))

    collapsed = [moments(row)[1] < 1e-6 for row in rows]
    acr = sum(collapsed) / len(rows)
    advantages = []
    for row, is_collapsed in zip(rows, collapsed, strict=True):
        rewards = list(row)
        if acr > tau and is_collapsed:
            number = min(len(row), max(1, math.floor(0.5 * len(row) * math.sqrt(acr))))
            for j in range(1, number + 1):
                rewards.append(max(row) * j / (number + 1) if max(row) > 0 else max(row) + 0.1)
        mean, std = moments(rewards)
        advantages.append([(r - mean) / (std + 1e-8) for r in row])
    mean_reward = sum(map(sum, rows)) / (len(rows) * len(rows[0]))
    if previous is not None:
        gain = mean_reward - previous
        if gain > 0:
            tau += 0.01 * (acr - tau)
        elif acr > tau or rule == "sign":
            tau -= 0.01 * (acr - tau)
        tau = min(max(tau, 0.1), 0.9)
    return advantages, tau, mean_reward


@pytest.mark.parametrize("rule", ["piecewise", "sign"])
def test_two_hundred_steps_against_a_plain_loop(rule: str) -> None:
    rng = random.Random(5)
    estimator = build_estimator("avspo", threshold_rule=rule)
    tau, previous = 0.5, None
    triggered, rules_differ = 0.0, 0
    for step in range(200):
        spread = 0.5 + 0.5 * math.sin(step / 20)  # collapse comes and goes
        rates = [rng.choice([spread / 2, 0.02, 0.98]) for _ in range(12)]
        rows = [[float(rng.random() < rate) for _ in range(6)] for rate in rates]
        result: Advantages = estimator.compute(
            GroupBatch(rewards=torch.tensor(rows, dtype=torch.float64))
        )
        assert result.info["tau"] == pytest.approx(tau, abs=1e-12)
        before = previous
        expected, tau, previous = reference(rows, tau, previous, rule)
        if before is not None and previous <= before and result.info["acr"] < result.info["tau"]:
            rules_differ += 1
        assert torch.allclose(
            result.values, torch.tensor(expected, dtype=torch.float64), rtol=1e-9, atol=1e-9
        )
        triggered += result.info["triggered"]
    assert 20 < triggered < 200
    assert rules_differ > 5
    state = estimator.state_dict()
    assert state["tau"] == pytest.approx(tau, abs=1e-12)
    assert state["previous_mean"] == pytest.approx(previous)
    assert state["calls"] == 200
