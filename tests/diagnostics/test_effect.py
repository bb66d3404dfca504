"""Whether anything is left to train on: found by running estimators and rollout policies."""

from __future__ import annotations

import pytest
import torch

from advsweep.diagnostics.probes import groups_kept, has_advantages, representative_groups
from advsweep.estimators import build_estimator
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
