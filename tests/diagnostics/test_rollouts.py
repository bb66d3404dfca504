"""The metrics of one step's rollouts."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from advsweep.diagnostics import StepRollouts, rollout_metrics, stacked_rollout_metrics
from advsweep.estimators import Advantages, GroupBatch, build_estimator


def metrics_of(batch: GroupBatch, name: str = "dr_grpo", **options: Any) -> dict[str, float]:
    return rollout_metrics(batch, build_estimator(name).compute(batch), **options)


def assert_values(metrics: dict[str, float], expected: dict[str, float]) -> None:
    """Metrics have these values and no other names; a new metric needs its value here."""
    lines = "".join(
        f'\n    "{name}": {metrics[name]!r},  # the arithmetic'
        for name in metrics.keys() - expected
    )
    assert not lines, f"work out the values of new metrics by hand, and add them:{lines}"
    assert metrics == pytest.approx(expected)


ROWS = torch.tensor([[1.0, 1, 0, 0], [0, 0, 0, 0], [1, 1, 1, 1], [1, 0, 0, 0]])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_all_metrics(dtype: torch.dtype) -> None:
    entropy = torch.full_like(ROWS, 0.5)
    entropy[0] = 1.5
    batch = GroupBatch(
        rewards=ROWS.to(dtype), token_entropy=entropy, token_entropy_exact=2 * entropy
    )
    metrics = metrics_of(batch)
    assert all(type(value) is float for value in metrics.values())
    # dr_grpo: ±1/2 in the first group, 3/4 and -1/4 in the last.
    # Weights of the groups: 1/2, 0, 0 and 3/8; by successes 0, 3/8, 1/2, (1/4), 0.
    table = [0, 3 / 8, 1 / 2, 1 / 4, 0]
    variances = []
    for p in (1 / 2, 1 / 4):
        chances = [math.comb(4, k) * p**k * (1 - p) ** (4 - k) for k in range(5)]
        mean = sum(c * w for c, w in zip(chances, table, strict=True))
        square = sum(c * w**2 for c, w in zip(chances, table, strict=True))
        variances.append(square - mean**2)
    expected = {
        "reward/mean": 7 / 16,
        "reward/std": (0.5 + math.sqrt(3) / 4) / 4,
        "collapse/acr": 0.5,
        "collapse/all_wrong": 0.25,
        "collapse/all_correct": 0.25,
        "collapse/acr_after": 0.5,
        "advantage/zero_fraction": 0.5,
        "advantage/abs_mean": (4 * 0.5 + 0.75 + 3 * 0.25) / 16,
        "mass/success": (2 * 0.5 + 0.75) / 16,
        "mass/failure": (2 * 0.5 + 3 * 0.25) / 16,
        "reward/unscorable": 0.0,
        "prompts/fully_unsolved": 1.0,
        "cost/rollouts": 1.0,
        "cost/utilisation": 1.0,
        "entropy/token": 1.5,
        "entropy/token_sampled": 0.75,
        "entropy/drift": 0.0,
        "entropy/covariance": 0.0,
        "mass/sign_ratio": 7 / 9,
        "weight/effective_prompts": (7 / 8) ** 2 / (1 / 4 + 9 / 64),
        "weight/variance": (sum(variances) / 2) / (7 / 16) ** 2,
        # w is 1/2 at p = 1/2, where v0 = 1/(4 p q) = 1, and 3/8 at p = 1/4, where v0 = 4/3.
        "update/quality": (7 / 8) ** 2
        / (1 / 4 + 2 * variances[0] + 9 / 64 * 4 / 3 + 7 / 3 * variances[1]),
        "solved/0": 0.25,
        "solved/1": 0.25,
        "solved/2": 0.25,
        "solved/3": 0.0,
        "solved/4": 0.25,
    }
    assert_values(metrics, expected)


def test_collapse_by_level() -> None:
    nan = float("nan")
    rewards = torch.cat((ROWS, torch.full((1, 4), nan)))
    batch = GroupBatch(rewards=rewards, mask=rewards.isfinite())
    metrics = metrics_of(batch, levels=[3, 5, 3, 3, 7])
    assert metrics["collapse/acr/level_3"] == pytest.approx(1 / 3)
    assert metrics["collapse/acr/level_5"] == 1
    # Nothing of this level could be scored.
    assert "collapse/acr/level_7" not in metrics


def test_shares_of_solved_groups_are_of_verdicts() -> None:
    shaped = GroupBatch(rewards=ROWS + 0.5)
    metrics = metrics_of(shaped, verdicts=ROWS)
    assert [metrics[f"solved/{k}"] for k in range(5)] == [0.25, 0.25, 0.25, 0.0, 0.25]


def test_treatment_of_collapsed_groups_shows_after_but_not_before() -> None:
    batch = GroupBatch(rewards=ROWS[1:3])
    metrics = metrics_of(batch, "avspo")
    assert metrics["collapse/acr"] == 1.0
    assert metrics["collapse/acr_after"] == 0.0
    assert metrics["estimator/acr_after"] == 0.0


def test_masked_rollouts_do_not_count() -> None:
    nan = float("nan")
    rewards = torch.tensor([[1.0, 0.0, nan], [nan, nan, nan], [0.0, nan, nan]])
    mask = rewards.isfinite()
    entropy = torch.tensor([[0.2, 0.4, nan], [nan, nan, nan], [0.9, nan, nan]])
    batch = GroupBatch(rewards=rewards, mask=mask, token_entropy=entropy)
    metrics = metrics_of(batch)
    assert metrics["reward/mean"] == pytest.approx(1 / 3)
    assert metrics["reward/std"] == pytest.approx(0.25)
    assert metrics["collapse/acr"] == pytest.approx(0.5)
    assert metrics["advantage/zero_fraction"] == pytest.approx(1 / 3)
    assert metrics["mass/success"] == pytest.approx(0.5 / 3)
    assert metrics["mass/failure"] == pytest.approx(0.5 / 3)
    assert metrics["prompts/fully_unsolved"] == 1.0
    assert metrics["entropy/token_sampled"] == pytest.approx(0.5)
    assert metrics["cost/utilisation"] == pytest.approx(3 / 9)


def test_nothing_scorable_gives_nan_and_no_error() -> None:
    rewards = torch.full((2, 2), float("nan"))
    batch = GroupBatch(rewards=rewards, mask=torch.zeros(2, 2, dtype=torch.bool))
    metrics = metrics_of(batch)
    assert math.isnan(metrics["reward/mean"])
    assert math.isnan(metrics["collapse/acr"])
    assert metrics["prompts/fully_unsolved"] == 0.0
    assert metrics["cost/utilisation"] == 0.0


def test_rewards_are_of_all_that_was_drawn_and_advantages_of_what_is_trained_on() -> None:
    groups = torch.tensor([3, 0])
    drawn = GroupBatch(rewards=ROWS, token_entropy=torch.arange(16.0).view(4, 4))
    advantages = build_estimator("dr_grpo").compute(drawn.select(groups))
    metrics = rollout_metrics(drawn, advantages, groups=groups, prompts=2)
    assert metrics["reward/mean"] == 7 / 16
    assert metrics["collapse/acr"] == 0.5
    assert metrics["prompts/fully_unsolved"] == 1.0
    assert metrics["entropy/token_sampled"] == 7.5
    assert metrics["collapse/acr_after"] == 0.0
    assert metrics["advantage/zero_fraction"] == 0.0
    assert metrics["mass/success"] == pytest.approx((2 * 0.5 + 0.75) / 8)
    assert metrics["cost/rollouts"] == 2.0
    assert metrics["cost/utilisation"] == 0.5


def test_groups_in_another_order_keep_their_outcomes_and_masks() -> None:
    # Only the second group's successes count, and its last rollout does not.
    mask = torch.tensor([[True, True, True, True], [True, True, True, False]])
    batch = GroupBatch(rewards=torch.tensor([[0.0, 0, 0, 1], [0, 1, 1, 1]]), mask=mask)
    groups = torch.tensor([1])
    advantages = Advantages(values=torch.tensor([[-2.0, 1.0, 4.0, 9.0]]), keep=mask[groups])
    metrics = rollout_metrics(batch, advantages, groups=groups)
    assert metrics["mass/success"] == pytest.approx(5 / 3)
    assert metrics["mass/failure"] == pytest.approx(2 / 3)
    assert metrics["reward/unscorable"] == 1 / 8
    assert metrics["cost/utilisation"] == 3 / 8


def test_nothing_to_train_on_leaves_what_was_drawn() -> None:
    nothing = Advantages(values=torch.empty(0, 4), keep=torch.empty(0, 4, dtype=torch.bool))
    groups = torch.empty(0, dtype=torch.int64)
    metrics = rollout_metrics(GroupBatch(rewards=ROWS[1:3]), nothing, groups=groups)
    expected = {
        "reward/mean": 0.5,
        "reward/std": 0.0,
        "collapse/acr": 1.0,
        "collapse/all_wrong": 0.5,
        "collapse/all_correct": 0.5,
        "reward/unscorable": 0.0,
        "prompts/fully_unsolved": 1.0,
        "cost/rollouts": 1.0,
        "cost/utilisation": 0.0,
        "solved/0": 0.5,
        "solved/1": 0.0,
        "solved/2": 0.0,
        "solved/3": 0.0,
        "solved/4": 0.5,
    }
    assert_values(metrics, expected)


def test_the_collapse_rate_is_undefined_without_a_verifier() -> None:
    metrics = metrics_of(GroupBatch(rewards=ROWS), verifier_free=True)
    gone = {"collapse/acr", "collapse/all_wrong", "collapse/all_correct"}
    assert metrics_of(GroupBatch(rewards=ROWS)).keys() - metrics.keys() == gone


def test_verdicts_decide_on_success_where_rewards_are_mixed() -> None:
    # 0.9 for a right answer and 0.1 for its format.
    rewards = torch.tensor([[1.0, 0.9, 0.1, 0.0], [0.1, 0.1, 0.1, 0.0]])
    verdicts = torch.tensor([[1.0, 1.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]])
    metrics = metrics_of(GroupBatch(rewards=rewards), verdicts=verdicts)
    assert metrics["mass/success"] == pytest.approx((0.5 + 0.4) / 8)
    assert metrics["prompts/fully_unsolved"] == 1.0
    assert metrics["collapse/acr"] == metrics["collapse/all_wrong"] == 0.5
    of_rewards = metrics_of(GroupBatch(rewards=rewards), verdicts=verdicts, judged=rewards)
    assert of_rewards["collapse/acr"] == 0.0
    assert of_rewards["mass/success"] == metrics["mass/success"]


def random_batch(runs: int, prompts: int, rollouts: int) -> tuple[GroupBatch, torch.Tensor]:
    """Rewards mixed of verdicts and another term, with all that metrics are made of; verdicts.

    The first run solves nothing.
    """
    generator = torch.Generator().manual_seed(0)

    def noise() -> torch.Tensor:
        return torch.rand(runs * prompts, rollouts, generator=generator)

    solve_rates = torch.rand(runs * prompts, 1, generator=generator)
    solve_rates[:prompts] = 0.0
    verdicts = (noise() < solve_rates).float()
    batch = GroupBatch(
        rewards=0.9 * verdicts + 0.1 * (noise() < 0.1),
        lengths=(10 * noise()).ceil(),
        token_entropy=noise(),
        token_entropy_exact=noise(),
    )
    return batch, verdicts


@pytest.mark.parametrize("estimator", ["grpo", "reinforce", "softmax"])
@pytest.mark.parametrize(
    ("prompts", "rollouts"), [(1, 2), (1, 9), (3, 5), (7, 3), (64, 8), (257, 17)]
)
def test_a_run_of_a_stack_has_the_metrics_it_has_alone(
    estimator: str, prompts: int, rollouts: int
) -> None:
    """To the bit. 257 groups of 17 do not fit into one of numpy's buffers."""
    count = 5
    batch, verdicts = random_batch(count, prompts, rollouts)
    levels = np.arange(count * prompts).reshape(count, prompts) % 11
    advantages = build_estimator(estimator).compute(batch)
    advantages.keep[::3, 0] = False
    infos = [{"tau": float(run)} for run in range(count)]
    free = [False, True, False, False, True]
    step = StepRollouts(
        batch=batch,
        advantages=advantages,
        verdicts=verdicts,
        levels=levels,
        prompts=prompts,
        references=3,
    )
    together = stacked_rollout_metrics(step, infos, verifier_free=free)
    for run in range(count):
        groups = torch.arange(run * prompts, (run + 1) * prompts)
        alone = rollout_metrics(
            batch.select(groups),
            Advantages(
                values=advantages.values[groups], keep=advantages.keep[groups], info=infos[run]
            ),
            groups=torch.arange(prompts),
            verdicts=verdicts[groups],
            levels=levels[run].tolist(),
            prompts=prompts,
            references=3,
            verifier_free=free[run],
        )
        assert together[run] == alone


def test_partial_credit_is_seen_without_a_threshold() -> None:
    """Two groups nearly solved and two nearly failed have no success, and no group is equal."""
    rows = torch.tensor([[0.95, 0.98], [1.0, 0.0]]), torch.tensor([[0.05, 0.02], [0.0, 0.0]])
    batch = GroupBatch(rewards=torch.cat((*rows, torch.eye(2))))
    advantages = build_estimator("dr_grpo").compute(batch)
    step = StepRollouts(batch=batch, advantages=advantages)
    high, low, binary = stacked_rollout_metrics(step, [{}, {}, {}])
    names = ("reward/partial", "reward/best", "reward/worst")
    # Largest rewards .98 and 1, smallest .95 and 0; then .05, 0 and .02, 0.
    assert [high[name] for name in names] == pytest.approx([0.5, 0.99, 0.475])
    assert [low[name] for name in names] == pytest.approx([0.5, 0.025, 0.01])
    assert not binary.keys() & {*names}
    # Of rewards that may be graded they are there in every step, and are shares of groups.
    verdicts = GroupBatch(rewards=torch.eye(2))
    estimator = build_estimator("dr_grpo")
    known = rollout_metrics(verdicts, estimator.compute(verdicts), graded=True)
    assert [known[name] for name in names] == [0.0, 1 - known["solved/0"], known["solved/2"]]
    # A rollout that could not be scored counts in none.
    masked = GroupBatch(rewards=rows[0], mask=torch.tensor([[True, False], [True, True]]))
    own = rollout_metrics(masked, estimator.compute(masked))
    assert [own[name] for name in names] == pytest.approx([1 / 3, 0.975, 0.475])
