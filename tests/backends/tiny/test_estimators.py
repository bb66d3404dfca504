"""Every estimator trains on the tiny backend."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from advsweep.backends.base import Run
from advsweep.estimators import ESTIMATORS, estimator_names
from advsweep.rollouts import ROLLOUTS

MakeRun = Callable[..., Run]


@pytest.mark.slow
@pytest.mark.parametrize("name", estimator_names())
def test_trains_with_finite_losses(
    name: str, small_run: MakeRun, train: Any, tmp_path: Path
) -> None:
    """Losses are finite, and gradients are not zero if a group is mixed."""
    needs = ESTIMATORS.get(name).needs
    giving = [policy for policy in ROLLOUTS if ROLLOUTS.get(policy).provides & needs]
    # A part that depends on the length gives groups of equal verdicts different rewards.
    parts = {"task": {"reward": {"accuracy": 1, "overlong": 0.5}}}
    changes = parts if "reward_parts" in needs else {}
    run = small_run(
        "tiny",
        estimator={"name": name},
        rollout={"name": giving[0] if giving else "plain"},
        # At this rate the small model still solves some but not all rollouts of a prompt.
        optimizer={"lr": 1e-4},
        prompts_per_step=16,
        group_size=8,
        steps=8,
        backend={"checkpoint_every": 0},
        evaluation={"every": 0},
        **changes,
    )
    points = train(run, tmp_path).points
    assert sorted(points) == list(range(1, 9))
    for values in points.values():
        assert all(map(math.isfinite, values.values()))
        assert (values["optim/grad_norm"] > 0) == (values["advantage/zero_fraction"] < 1)
    assert all(values["advantage/zero_fraction"] < 1 for values in points.values())
