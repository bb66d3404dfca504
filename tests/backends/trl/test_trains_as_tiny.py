"""The tiny backend and this one train alike: one experiment on both, over five seeds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from advsweep.backends.base import Run
from advsweep.statistics import student_t_interval

pytestmark = [
    pytest.mark.slow,
    # Ten trainings, up to two minutes of CPU time.
    pytest.mark.timeout(1800),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]

SEEDS = range(5)
STEPS, LAST = 24, 8
MARGIN = 0.03
METRICS = ("reward/mean", "collapse/acr", "entropy/token")

# The backends draw different rollouts. With 4096 a step two sets of them end a training less
# than 0.015 apart (standard deviation, on one backend), so that five seeds can tell.
EXPERIMENT = {
    "group_size": 8,
    "prompts_per_step": 512,
    "steps": STEPS,
    "optimizer": {"lr": 1e-3},
    "evaluation": {"every": 0},
}


def test_whole_trainings_end_alike(
    small_run: Callable[..., Run], train: Any, tmp_path: Path
) -> None:
    """Over the last third of the steps; a learning rate a quarter larger or smaller would fail."""
    settings = {"minibatches": 1, "checkpoint_every": 0, "skip_zero_advantages": True}
    backends = {"tiny": settings, "trl": {**settings, "device_batch": None}}

    def curves(backend: str, seed: int) -> dict[str, list[float]]:
        run = small_run(backend, backend=backends[backend], seed=seed, **EXPERIMENT)
        points = train(run, tmp_path / f"{backend}-{seed}").points
        return {name: [points[step][name] for step in sorted(points)] for name in METRICS}

    tiny, trl = ([curves(backend, seed) for seed in SEEDS] for backend in backends)
    # Ends that are alike say something where they are far from the beginning.
    rise = fmean(fmean(c["reward/mean"][-LAST:]) - fmean(c["reward/mean"][:LAST]) for c in tiny)
    assert rise > 3 * MARGIN
    for name in METRICS:
        # Seeds share the problems of each step, so that the differences are paired.
        differences = [
            fmean(theirs[name][-LAST:]) - fmean(ours[name][-LAST:])
            for ours, theirs in zip(tiny, trl, strict=True)
        ]
        interval = student_t_interval(differences, 0.9)
        assert -MARGIN <= interval.low <= interval.high <= MARGIN, (name, interval)
