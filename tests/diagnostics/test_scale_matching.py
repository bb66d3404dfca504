"""Scale matching: sizes by hand, what they depend on, and what cannot be matched."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from advsweep.diagnostics.probes import advantage_size, learning_rate_scale
from advsweep.errors import BatchError
from advsweep.estimators import Estimator, build_estimator, estimator_names
from advsweep.estimators.batch import Groups

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
        ("rloo", 1.0),
        # q/p for a lone success.
        ("maxrl", 7.0),
        # q² for a lone success; failures have at most pq = 1/4.
        ({"name": "power_alpha", "alpha": 2}, 49 / 64),
        ({"name": "power_alpha", "alpha": 3}, 343 / 512),
        # One token with an entropy of 1 nat: q + .4, as q/2 is more.
        ({"name": "entropy_shaped", "base": "dr_grpo"}, 7 / 8 + 0.4),
        # p/δ for a lone failure.
        ({"name": "asym_grpo", "delta": 0.5}, 7 / 4),
        ({"name": "asym_grpo", "delta": 2}, 7 / 8),
        # Failures weigh p^1 as in dr_grpo, successes q².
        ({"name": "asym_power_alpha", "alpha_s": 2, "alpha_f": 1}, 7 / 8),
        ({"name": "positive_dominant", "beta": 10}, 10 * R7),
        # GRPO's lone success beside a failed reference.
        ("aapo", R7 + 0.28),
        # Batch mean 1/2, entropy 1 nat: α = 1.5, δ = 1, and q^1.5 for a lone success.
        ("fade", (7 / 8) ** 1.5),
        # Two of nine groups have collapsed, fewer than τ = 1/2: GRPO.
        ("avspo", R7),
        # ... and more than τ = 0.1, but an augmented group has at most 1.
        ({"name": "avspo", "fixed_tau": 0.1}, R7),
        # ω = 1/2: a lone failure has √7 (√8/4 + √(8/7)/4); successes are halved.
        ("a_grae", R7 * (math.sqrt(8) + math.sqrt(8 / 7)) / 4),
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
        ({"name": "power_alpha", "alpha": 2}, "max_advantage", 8 / 7),
        ("dr_grpo", "mass", 1.0),
        # Mean of p is 1/2.
        ("reinforce", "mass", 7 / 12),
        # 2q where k > 0: 2 · 28/8 / 9 = 7/9.
        ("maxrl", "mass", 3 / 8),
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
