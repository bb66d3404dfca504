"""What runs have spent: steps, rollouts, tokens and seconds, along their training."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from advsweep.report.data.windows import Curve
from advsweep.store import RunRecord, Store

_SECONDS = ("time/rollout", "time/reward", "time/estimator", "time/update")


def spent(store: Store, runs: Sequence[RunRecord], cost: str) -> dict[int, Curve]:
    """Returns each run's cost after each of its steps, from 0 at step 0.

    Args:
        cost: `steps`; `rollouts`: generated answers, including discarded and reference answers;
            `tokens` of these, without those of reference answers; or `seconds` of sampling,
            scoring, estimating and updating, without evaluations and checkpoints. Runs that did
            not record it are left out, and so are imported runs whose sizes are not known.
    """
    if cost == "steps":
        return {run.id: _summed(np.arange(1, run.steps + 1), np.ones(run.steps)) for run in runs}
    ids = [run.id for run in runs]
    if cost == "rollouts":
        # The metric is relative to the rollouts of one step without resampling.
        size = {run.id: own for run in runs if (own := _rollouts_per_step(run)) is not None}
        relative = store.metrics.series(list(size), "cost/rollouts")
        return {i: _summed(steps, values * size[i]) for i, (steps, values) in relative.items()}
    if cost == "tokens":
        return {i: _summed(*curve) for i, curve in store.metrics.series(ids, "cost/tokens").items()}
    parts = [store.metrics.series(ids, name) for name in _SECONDS]
    found: dict[int, Curve] = {}
    for run_id in set.intersection(*(set(part) for part in parts)):
        steps = parts[0][run_id][0]
        if all(np.array_equal(part[run_id][0], steps) for part in parts):
            found[run_id] = _summed(steps, np.sum([part[run_id][1] for part in parts], axis=0))
    return found


def _rollouts_per_step(run: RunRecord) -> int | None:
    """Returns the target number of rollouts of a step; None if the config does not say it."""
    sizes = [run.config.get(key) for key in ("prompts_per_step", "group_size")]
    known = [size for size in sizes if isinstance(size, int) and size > 0]
    return known[0] * known[1] if len(known) == len(sizes) else None


def _summed(steps: np.ndarray, values: np.ndarray) -> Curve:
    return np.concatenate([[0], steps]), np.concatenate([[0.0], np.cumsum(values)])
