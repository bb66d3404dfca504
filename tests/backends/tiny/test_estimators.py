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


@pytest.mark.parametrize("name", estimator_names())
def test_twenty_steps(name: str, small_run: MakeRun, train: Any, tmp_path: Path) -> None:
    """Losses are finite, and gradients are not zero where a group is mixed."""
    needs = ESTIMATORS.get(name).needs
    giving = [policy for policy in ROLLOUTS if ROLLOUTS.get(policy).provides & needs]
    run = small_run(
        "tiny",
        estimator={"name": name},
        rollout={"name": giving[0] if giving else "plain"},
        # A rate at which the small model goes on solving some of a prompt's rollouts and not all.
        optimizer={"lr": 1e-4},
        prompts_per_step=16,
        group_size=8,
        steps=20,
        backend={"checkpoint_every": 0},
        evaluation={"every": 0},
    )
    points = train(run, tmp_path).points
    assert sorted(points) == list(range(1, 21))
    for values in points.values():
        assert all(map(math.isfinite, values.values()))
        assert (values["optim/grad_norm"] > 0) == (values["advantage/zero_fraction"] < 1)
    assert all(values["advantage/zero_fraction"] < 1 for values in points.values())
