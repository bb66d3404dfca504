"""Statistics of the batch: REINFORCE++, GDPO, whitening, σ of the batch; KL in the reward."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from advsweep.diagnostics import expected_masses
from advsweep.errors import BatchError, ConfigError
from advsweep.estimators import GroupBatch, build_estimator
from advsweep.estimators.batch import Groups
from advsweep.estimators.whitened import token_penalties
from advsweep.objectives import OBJECTIVES
from advsweep.objectives.base import LossInputs

REWARDS = torch.tensor([[1.0, 0.0], [0.0, 0.0]], dtype=torch.float64)
LENGTHS = torch.tensor([[1.0, 2.0], [2.0, 3.0]], dtype=torch.float64)
PAIR = GroupBatch(
    rewards=torch.tensor([[1.0, 0.0]], dtype=torch.float64),
    lengths=torch.tensor([[2.0, 1.0]], dtype=torch.float64),
    token_kl=torch.tensor([[[0.5, -0.5], [1.0, 9.0]]], dtype=torch.float64),
)

# One token of 8 has the reward 1: m = 1/8, and the variance is 1/8 over 7, 7/64 over 8.
VALUES: list[tuple[dict[str, Any], list[float]]] = [
    ({"name": "reinforce_pp"}, [2.4748737, -0.3535534, -0.3535534, -0.3535534]),  # 7/8 √8, -1/8 √8
    ({"name": "reinforce_pp", "preset": "openrlhf"}, [2.6457513, *[-0.3779645] * 3]),  # √7, -1/√7
    # Of 1/2, -1/2 (two tokens) and 0 (five tokens): m = -1/16, s² = (3/4 - 8/256)/7.
    ({"name": "reinforce_pp_baseline"}, [1.7554262, -1.3653315, 0.1950474, 0.1950474]),
    # Of 1, -1, 0, 0: m = 0, s = √(2/3) + 1e-4.
    ({"name": "whitened"}, [1.2245950, -1.2245950, 0, 0]),
    # The same over tokens: m = -1/8, s² = (3 - 8/64)/7.
    (
        {"name": "whitened", "over": "tokens", "preset": "verl"},
        [1.7554262, -1.3653315, *[0.1950474] * 2],
    ),
    # Over all rewards, m = 1/4: σ² = 3/16, and 1/4 over 3.
    ({"name": "grpo", "scope": "batch"}, [1.1547005, -1.1547005, 0, 0]),
    ({"name": "grpo", "scope": "batch", "std": "sample"}, [1, -1, 0, 0]),
    ({"name": "gpg", "alpha": "nonzero"}, [2, -2, 0, 0]),  # one of four rewards is not 0
]


@pytest.mark.parametrize(("spec", "expected"), VALUES, ids=str)
def test_worked_values(spec: dict[str, Any], expected: list[float]) -> None:
    values = build_estimator(spec)(GroupBatch(rewards=REWARDS, lengths=LENGTHS))
    assert values.flatten().tolist() == pytest.approx(expected, abs=1e-6)


def test_returns_with_a_discount_and_a_kl() -> None:
    # 1 + 0.2 · 0.5 = 1.1, then -0.1 + 0.5 · 1.1 = 0.45; the other rollout has -0.2. Mean 0.45,
    # sample σ 0.65.
    values = build_estimator("reinforce_pp", beta=0.2, gamma=0.5)(PAIR)
    assert values.flatten().tolist() == pytest.approx([0, 1, -1, 0], abs=1e-6)
    # 0.5 + 0.1 = 0.6, -0.1 + 0.6 = 0.5 and -0.5 - 0.2 = -0.7: mean 0.4/3, σ² = 1.1/3 - 0.16/9.
    values = build_estimator("reinforce_pp_baseline", beta=0.2, preset="openrlhf")(PAIR)
    expected = [0.6207659, 0.7900657, -1.4108316, 0]
    assert values.flatten().tolist() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(
    ("kl", "penalty"),
    [
        ("k1", 0.0 - 1.0),
        ("abs", 1.0 - 1.0),
        ("k2", (0.25 + 0.25 - 1) / 2),
        ("k3", math.exp(-0.5) + math.exp(0.5) - 2 - math.exp(-1)),
        ("low_var_kl", math.exp(-0.5) + math.exp(0.5) - 2 - math.exp(-1)),
    ],
)
def test_the_kl_is_subtracted_from_the_reward(kl: str, penalty: float) -> None:
    # The other reward of a pair is the baseline: 1 - 0.2 times the difference of their KLs.
    values = build_estimator("kl_in_reward", beta=0.2, kl=kl)(PAIR)
    expected = 1 - 0.2 * penalty
    assert values.flatten().tolist() == pytest.approx([expected, -expected])
    assert torch.equal(
        build_estimator("kl_in_reward", beta=0.0)(PAIR), build_estimator("rloo")(PAIR)
    )


@pytest.mark.parametrize("gap", [-45.0, -30.0, -3.0, 0.0, 2.0, 25.0])
@pytest.mark.parametrize("kl", ["k1", "k2", "k3", "abs", "low_var_kl"])
def test_an_estimate_has_the_meaning_that_it_has_in_objectives(kl: str, gap: float) -> None:
    # One name, one estimate: verl's bounds are in low_var_kl alone.
    gaps = torch.full((1, 1, 1), gap, dtype=torch.float64)
    ones = torch.ones(1, 1, dtype=torch.float64)
    batch = GroupBatch(rewards=ones, lengths=ones, token_kl=gaps)
    inputs = LossInputs(
        log_probs=gaps,
        old_log_probs=gaps,
        completion_mask=torch.ones(1, 1, 1, dtype=torch.bool),
        advantages=ones,
        rollouts=1,
        tokens=1,
        reference_log_probs=torch.zeros(1, 1, 1, dtype=torch.float64),
    )
    objective = OBJECTIVES.build("clipped", kl_coef=1.0, kl_estimator=kl)
    expected = objective.loss(inputs).metrics["loss/kl"].item()
    penalty = token_penalties(Groups(batch), kl).item()
    assert penalty == pytest.approx(expected, rel=1e-12)
    if kl == "low_var_kl":
        assert penalty <= 10
    if kl == "k3":
        assert penalty == pytest.approx(math.exp(min(-gap, 40)) - 1 + max(gap, -40))


def test_runs_with_k3_have_another_identity_than_before() -> None:
    # Until revision 1 the name stood for low_var_kl.
    for name in ("reinforce_pp", "reinforce_pp_baseline", "kl_in_reward"):
        assert build_estimator(name, kl="k3").identity()["revision"] == 2
        assert build_estimator(name, kl="low_var_kl").identity()["revision"] == 1


def test_an_openrlhf_kl_is_bounded() -> None:
    far = PAIR.select(slice(None))
    far.token_kl[..., 0] = 1e4  # type: ignore[index]
    near = PAIR.select(slice(None))
    near.token_kl[..., 0] = 10.0  # type: ignore[index]
    estimator = build_estimator("reinforce_pp", beta=0.2, preset="openrlhf")
    assert torch.equal(estimator(far), estimator(near))


@pytest.mark.parametrize("size", [2, 8])
@pytest.mark.parametrize("p", [0.1, 0.5])
def test_masses_of_reinforce_pp_do_not_depend_on_the_group(p: float, size: int) -> None:
    # With s = √(pq) of a large batch: p (1-p)/s and q p/s.
    masses = expected_masses(build_estimator("reinforce_pp"), p, size, lengths=1.0)
    assert masses == pytest.approx([math.sqrt(p * (1 - p))] * 2, rel=1e-6)


def test_the_running_deviation_is_that_of_all_rewards_so_far() -> None:
    estimator = build_estimator("grpo", scope="running", std="sample")
    seen: list[Tensor] = []
    for step in range(1, 4):
        torch.manual_seed(step)
        seen.append(torch.randn(4, 8, dtype=torch.float64) * step + step)
        values = estimator(GroupBatch(rewards=seen[-1]))
        expected = build_estimator("dr_grpo")(GroupBatch(rewards=seen[-1])) / torch.cat(seen).std()
        torch.testing.assert_close(values, expected, rtol=1e-12, atol=0)
    assert estimator.state_dict()["count"] == 96


# GDPO


def parts_of(*columns: list[float], **inputs: Any) -> GroupBatch:
    parts = torch.tensor([columns], dtype=torch.float64).transpose(1, 2)
    return GroupBatch(**{"rewards": parts.nansum(dim=2), "reward_parts": parts, **inputs})


def test_every_part_of_the_reward_counts_alike() -> None:
    # Of either part √3 and -1/√3: sums of ±2/√3, of sample σ 4/3.
    values = build_estimator("gdpo")(parts_of([1, 0, 0, 0], [0, 0, 1, 0]))
    expected = 2 / math.sqrt(3) / (4 / 3 + 1e-4)
    assert values[0].tolist() == pytest.approx([expected, -expected, expected, -expected])
    larger = build_estimator("gdpo")(parts_of([1, 0, 0, 0], [7, 7, 107, 7]))
    torch.testing.assert_close(larger, values)


def test_the_sum_may_be_normalised_instead() -> None:
    batch = parts_of([1, 0, 0, 0], [0, 0, 100, 0], part_weights=(3.0, 1.0))
    values = build_estimator("gdpo", order="sum_then_normalise")(batch)
    of_sum = GroupBatch(rewards=torch.tensor([[3.0, 0, 100, 0]], dtype=torch.float64))
    assert torch.equal(values, build_estimator("grpo")(of_sum))
    given = build_estimator("gdpo", order="sum_then_normalise", weights=(0.0, 1.0))(batch)
    assert given[0, 0] == given[0, 1]


def test_a_part_that_does_not_apply_adds_nothing() -> None:
    # Of the second part ±1 at the first and the last rollout.
    values = build_estimator("gdpo", weights=(0.0, 1.0))(
        parts_of([1, 0, 0, 0], [3, math.nan, math.nan, 1])
    )
    scale = math.sqrt(2 / 3) + 1e-4
    assert values[0].tolist() == pytest.approx([1 / scale, 0, 0, -1 / scale])


REFUSED: list[tuple[dict[str, Any], GroupBatch, str]] = [
    ({"name": "gdpo"}, parts_of([1, 0]), "at least 2 parts, got 1; take grpo"),
    ({"name": "gdpo", "weights": (1.0,)}, parts_of([1, 0], [0, 1]), "2 weights, got 1"),
    (
        {"name": "gdpo"},
        parts_of([1, 0], [math.inf, 1], rewards=PAIR.rewards),
        "parts: expected fin",
    ),
]


@pytest.mark.parametrize(("spec", "batch", "message"), REFUSED)
def test_what_does_not_fit_is_refused(spec: Any, batch: GroupBatch, message: str) -> None:
    with pytest.raises(BatchError, match=message):
        build_estimator(spec)(batch)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"name": "kl_in_reward", "base": "psr"}, "got 'psr', which is for rewards of 0 and 1"),
        ({"name": "kl_in_reward", "base": "rent"}, "got 'rent', which reads no rewards"),
        ({"name": "kl_in_reward", "base": "maxrl"}, "got 'maxrl', which reads their means as"),
        ({"name": "kl_in_reward", "base": "gdpo"}, "got 'gdpo', which reads the parts of"),
        ({"name": "aapo", "scale": "mean", "scope": "running"}, "scope: expected group with scale"),
        ({"name": "gdpo", "scope": "batch"}, "scope: expected group with order=normalise"),
        ({"name": "whitened", "base": "optimal_token_baseline"}, "gives one per token"),
    ],
)
def test_options_that_do_not_fit_are_refused(spec: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build_estimator(spec)
