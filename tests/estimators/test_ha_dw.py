"""ha_dw."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from advsweep.errors import BatchError
from advsweep.estimators import GroupBatch, build_estimator


def batch_of(*successes: int, size: int = 8, **inputs: Any) -> GroupBatch:
    """A batch of binary groups with these numbers of successes."""
    rewards = (torch.arange(size) < torch.tensor(successes)[:, None]).double()
    return GroupBatch(rewards=rewards, **inputs)


MEAN = {"scale": "mean", "lam": 1}


@pytest.mark.parametrize(
    ("options", "successes", "success", "failure"),
    [
        # p = 1/4, C = 0.4: 1.3 √3 e^0.15 and -1.3/√3 e^-0.15.
        ({}, 2, 2.6160627199, -0.6460089764),
        # 0.75 e^0.15 and -0.25 e^-0.15.
        (MEAN, 2, 0.8713756820, -0.2151769941),
        # 1.5 e^±0.15 and e^∓0.35 on (r - p)/(√(3/14) + 1e-6); C is fixed here.
        ({"preset": "released", "rule": "ema"}, 2, 2.8235738235, -0.6972516453),
        ({"preset": "released", "rule": "ema"}, 6, 0.5708613646, -3.4487208559),
    ],
)
def test_worked_values(
    options: dict[str, Any], successes: int, success: float, failure: float
) -> None:
    values = build_estimator("ha_dw", c0=0.4, **options)(batch_of(successes))[0]
    assert values[[0, 7]].tolist() == pytest.approx([success, failure], abs=1e-9)


def test_the_released_code_counts_the_batch_in_its_window_first() -> None:
    # The first step's mean reward is C itself.
    estimator = build_estimator("ha_dw", preset="released")
    advantages = estimator.compute(batch_of(2))
    assert advantages.info == {"c": 0.25}
    expected = [2.4302725119, -0.8100908373]
    assert advantages.values[0, [0, 7]].tolist() == pytest.approx(expected, abs=1e-9)

    # Mean rewards 0.2, 0.3, 0.4 and now 0.7: C = 0.4, as fixed above.
    estimator.reset()
    for tenths in (2, 3, 4):
        estimator(batch_of(tenths, size=10))
    rest = batch_of(2, 6, 8, 8, 4)
    assert rest.rewards.mean().item() == pytest.approx(0.7)
    advantages = estimator.compute(rest)
    assert advantages.info == pytest.approx({"c": 0.4})
    found = advantages.values[[0, 0, 1, 1], [0, 7, 0, 7]].tolist()
    released = [2.8235738235, -0.6972516453, 0.5708613646, -3.4487208559]
    assert found == pytest.approx(released, abs=1e-8)


def test_the_window_forgets() -> None:
    estimator = build_estimator("ha_dw", rule="window", window=2)
    seen = [estimator.compute(batch_of(successes)).info["c"] for successes in (0, 8, 4, 2)]
    assert seen == [0, 0.5, 0.75, 0.375]
    assert estimator.state_dict() == {"c": 0.375, "recent": [0.5, 0.25]}


def test_the_papers_rule_moves_by_the_spread_of_the_last_values() -> None:
    estimator = build_estimator("ha_dw", rule="paper", window=2, rate=0.5, eta=2)
    # C = 0.5 at first; with one value known it moves by the rate, nowhere and to 0.75.
    assert estimator.compute(batch_of(4)).info == {"c": 0.5}
    # Two values, 0.5 and 0.5: σ = 0, and it stays.
    assert estimator.compute(batch_of(8)).info == {"c": 0.5}
    assert estimator.compute(batch_of(8)).info == {"c": 0.5}
    moving = build_estimator("ha_dw", rule="paper", window=2, rate=0.5, eta=2, c0=0.25)
    # By the rate from 0.25 half the way to 0.75: 0.5. Then σ(0.25, 0.5) = 0.125, twice that
    # is 0.25 of the way to 1: 0.625. Then σ(0.5, 0.625) = 0.0625: 0.125 of the way to 0.
    assert moving.compute(batch_of(6)).info == {"c": 0.25}
    assert moving.compute(batch_of(8)).info == {"c": 0.5}
    assert moving.compute(batch_of(0)).info == {"c": 0.625}
    assert moving.state_dict() == {"c": 0.625 * 0.875, "recent": [0.5, 0.625]}
    far = build_estimator("ha_dw", rule="paper", window=2, rate=1, eta=100, c0=0)
    for successes in (8, 4, 4):
        far(batch_of(successes))
    assert far.state_dict()["c"] == 0.5, "never further than the mean reward itself"


def test_means_whose_exponential_would_overflow_are_refused_and_forgotten() -> None:
    estimator = build_estimator("ha_dw")
    estimator(batch_of(4))
    with pytest.raises(BatchError, match=r"needs it within 50, got mean rewards p of .*rescale"):
        estimator(GroupBatch(rewards=torch.tensor([[200.0, 0.0]])))
    assert estimator.state_dict() == {"c": 0.5, "recent": []}


def test_a_masked_group_has_no_mean_to_refuse() -> None:
    rewards = torch.tensor([[128, 129, 129, 128.5], [0, 0, 0, 0], [128, 128, 129, 128]])
    mask = torch.tensor([True, False, True])[:, None].expand(3, 4)
    found = build_estimator("ha_dw")(GroupBatch(rewards=rewards.double(), mask=mask))
    # A shift of all rewards moves p and C alike.
    shifted = (rewards.double() - 128).where(mask, 0.0)
    expected = build_estimator("ha_dw")(GroupBatch(rewards=shifted, mask=mask))
    assert (expected[1] == 0).all()
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("moves", "expected"),
    [
        # 0.8 · 0.5 + 0.2 · 0.25 = 0.45, and 0.8 · 0.45 + 0.2 = 0.56
        ("after", [0.5, 0.5, 0.45]),
        ("before", [0.5, 0.45, 0.56]),
    ],
)
def test_the_baseline_moves_after_or_before_its_use(moves: str, expected: list[float]) -> None:
    estimator = build_estimator("ha_dw", moves=moves, rate=0.2)
    found = [estimator.compute(batch_of(successes)).info["c"] for successes in (4, 2, 8)]
    assert found == pytest.approx(expected)
