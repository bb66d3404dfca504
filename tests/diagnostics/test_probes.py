"""What estimators and policies make of made-up groups, found by running them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from advsweep.diagnostics.probes import (
    advantage_size,
    groups_kept,
    has_advantages,
    learning_rate_scale,
    representative_groups,
)
from advsweep.errors import BatchError
from advsweep.estimators import Estimator, build_estimator, estimator_names
from advsweep.estimators.batch import Groups
from advsweep.rollouts import ROLLOUTS


@pytest.mark.parametrize("size", [1, 2, 8, 9, 300])
def test_groups_have_both_ends_and_are_not_all_in_order(size: int) -> None:
    groups = representative_groups(size)
    assert groups.shape[1] == size
    assert set(groups.unique().tolist()) == {0, 1}
    counts = set(groups.sum(dim=1).int().tolist())
    assert {0, 1, size - 1, size} <= counts
    if size > 2:
        assert ((groups.diff(dim=1) > 0).any(dim=1) & (groups.diff(dim=1) < 0).any(dim=1)).any()


def test_shaped_rewards_lie_between_their_ends() -> None:
    groups = representative_groups(4, -1.0, 3.0, binary=False)
    assert (groups.min().item(), groups.max().item()) == (-1, 3)
    assert ((groups > -1) & (groups < 3)).any()
    alike = representative_groups(4, -1.0, 3.0, binary=False, alike=True)
    assert torch.equal(alike, alike[:, :1].expand(-1, 4))


@pytest.mark.parametrize(
    ("spec", "size", "expected"),
    [
        ("grpo", 1, False),
        ("grpo", 2, True),
        ("reinforce", 1, True),
        ("intuitor", 1, False),
        ("intuitor", 2, True),
        ({"name": "grpo_n", "base": "dr_grpo"}, 1, False),
        ({"name": "quantile", "tau": 0.5}, 4, True),
        ({"name": "passk_analytic", "k": 4}, 4, False),
        ({"name": "passk_loo"}, 300, True),
        ({"name": "passk_mix"}, 8, True),
    ],
)
def test_advantages_are_looked_for_by_the_estimator_itself(
    spec: str, size: int, expected: bool
) -> None:
    estimator = build_estimator(spec)
    assert has_advantages(estimator, representative_groups(size), total_steps=9) is expected


def test_memory_stays_as_it_is() -> None:
    estimator = build_estimator("fade")
    before = estimator.state_dict()
    assert has_advantages(estimator, representative_groups(4), total_steps=9)
    assert estimator.state_dict() == before


def test_a_policy_keeps_what_it_collects() -> None:
    groups = representative_groups(2)
    for name, kept in {"plain": 4, "filter_drop": 2, "dynamic_sampling": 2}.items():
        found, reason = groups_kept(ROLLOUTS.build(name), groups, 3)
        assert len(found) == kept
        assert bool(reason) is (name == "dynamic_sampling")
    few = ROLLOUTS.build({"name": "dynamic_sampling", "max_draws": 1, "draw_prompts": 2})
    found, reason = groups_kept(few, groups, 3)
    assert len(found) == 0
    assert "raise rollout.max_draws" in reason


R7 = math.sqrt(7)


def scale(spec: Any, size: Any, group_size: int = 8, reference: Any = "dr_grpo") -> float:
    return learning_rate_scale(build_estimator(spec), build_estimator(reference), group_size, size)


# G = 8, p = k/8. `dr_grpo` is largest for a lone success (q) or a lone failure (p): 7/8.
@pytest.mark.parametrize(
    ("spec", "largest"),
    [
        ("dr_grpo", 7 / 8),
        # √(q/p) for a lone success.
        ("grpo", R7),
        # q/p for a lone success.
        ("maxrl", 7.0),
        # One token with an entropy of 1 nat: q + .4, as q/2 is more.
        ({"name": "entropy_shaped", "base": "dr_grpo"}, 7 / 8 + 0.4),
        # p/δ for a lone failure.
        ({"name": "asym_grpo", "delta": 0.5}, 7 / 4),
        # GRPO's lone success beside a failed reference.
        ("aapo", R7 + 0.28),
        # Batch mean 1/2, entropy 1 nat: α = 1.5, δ = 1, and q^1.5 for a lone success.
        ("fade", (7 / 8) ** 1.5),
        # Two of nine groups have collapsed, fewer than τ = 1/2: GRPO.
        ("avspo", R7),
        # ... and more than τ = 0.1, but an augmented group has at most 1.
        ({"name": "avspo", "fixed_tau": 0.1}, R7),
        # Lengths are equal, so the shaping is the same for all.
        ("t2t", R7),
        ("passk_loo", 1.0),
    ],
    ids=str,
)
def test_largest_advantages(spec: Any, largest: float) -> None:
    assert advantage_size(build_estimator(spec), 8, "max_advantage") == pytest.approx(largest)
    assert scale(spec, "max_advantage") == pytest.approx(7 / 8 / largest)


# G = 8: Σ_k k(8-k) = 84, so dr_grpo has the mean of 2pq = 2 · 84/64 / 9 = 7/24.
@pytest.mark.parametrize(
    ("spec", "size", "expected"),
    [
        ("grpo", "max_advantage", 0.330719),
        ("maxrl", "max_advantage", 0.125),
        ("dr_grpo", "mass", 1.0),
        # Mean of p is 1/2.
        ("reinforce", "mass", 7 / 12),
        # pq + pq/δ, three halves of dr_grpo at δ = 1/2.
        ({"name": "asym_grpo", "delta": 0.5}, "mass", 2 / 3),
        # A lone success alone: 1/8 in one group of nine.
        ("passk_loo", "mass", 21.0),
    ],
    ids=str,
)
def test_scales(spec: Any, size: Any, expected: float) -> None:
    assert scale(spec, size) == pytest.approx(expected, rel=1e-5)


def test_the_order_within_a_group_is_averaged_over() -> None:
    """Blocks of 2 in groups of 4: a success counts if its partner fails, k(4-k)/12 on average.

    Over k that is (3 + 4 + 3)/12 / 5 = 1/6, and `dr_grpo` has 2 (3 + 4 + 3)/16 / 5 = 1/4. In
    the order 1100 both would count for nothing.
    """
    blocks = {"name": "passk_loo", "k": 2}
    assert scale(blocks, "mass", 4) == pytest.approx(3 / 2)
    assert scale(blocks, "max_advantage", 4) == pytest.approx(3 / 4)


@dataclass(kw_only=True)
class CollapsedShare(Estimator):
    """Gives every rollout the share of groups that have collapsed."""

    name: ClassVar[str] = "collapsed_share"
    exchangeable: ClassVar[bool] = False

    def _advantages(self, groups: Groups, info: dict[str, float]) -> Tensor:
        return torch.full_like(groups.rewards, groups.group_mean(groups.std() == 0))


def test_each_number_of_successes_counts_once_in_the_batch() -> None:
    """Of 0, 1 and 2 successes two have collapsed, though of 00, 01, 10 and 11 it is half."""
    assert advantage_size(CollapsedShare(), 2, "max_advantage") == pytest.approx(2 / 3)


@pytest.mark.parametrize("size", ["max_advantage", "mass"])
@pytest.mark.parametrize("name", estimator_names())
def test_every_estimator_that_reads_rewards_can_be_matched(name: str, size: Any) -> None:
    estimator = build_estimator(name)
    if estimator.verifier_free:
        with pytest.raises(BatchError, match=f"'{name}' does not weigh rewards"):
            scale(name, size)
        return
    factor = scale(name, size)
    assert math.isfinite(factor)
    assert factor > 0
    assert factor * scale("dr_grpo", size, reference=name) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("spec", "group_size", "message"),
    [
        ("grpo", 1, "'grpo' gives advantages of 0 alone to groups of 1"),
        ("rloo", 1, "'rloo' needs at least 2 rollouts"),
        ({"name": "passk_loo", "k": 2}, 18, "expected 1 to 16 .* orders within a group .* got 18"),
        ({"name": "fade", "mode": "entropy_only", "h_star": 1.5}, 8, "got 1 and 1.5"),
    ],
    ids=str,
)
def test_what_cannot_be_matched_is_refused(spec: Any, group_size: int, message: str) -> None:
    with pytest.raises(BatchError, match=message):
        advantage_size(build_estimator(spec), group_size, "max_advantage")
