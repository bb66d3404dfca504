"""What training has cost up to a step: rollouts, tokens and seconds, summed over the steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from advsweep.store import RunRecord, Store

Curve = tuple[np.ndarray, np.ndarray]
"""Steps and the values at them."""

_SECONDS = ("time/rollout", "time/reward", "time/estimator", "time/update")
_ROLLOUTS = "cost/rollouts"
_TOKENS = "cost/tokens"


def spent(store: Store, runs: Sequence[RunRecord], cost: str) -> dict[int, Curve]:
    """What each run had spent after each of its steps, from nothing at step 0.

    Args:
        cost: `steps`; `rollouts`: answers that were generated, discarded and reference ones
            included; `tokens` of them, those of reference answers aside; or `seconds` of
            sampling, scoring, estimating and updating, without evaluations and checkpoints. Runs
            that did not record it are left out.
    """
    if cost == "steps":
        return {run.id: _summed(np.arange(1, run.steps + 1), np.ones(run.steps)) for run in runs}
    ids = [run.id for run in runs]
    if cost == "rollouts":
        # Recorded per rollout that a step asks for.
        asked = {r.id: r.config["prompts_per_step"] * r.config["group_size"] for r in runs}
        relative = store.series(ids, _ROLLOUTS)
        return {i: _summed(steps, values * asked[i]) for i, (steps, values) in relative.items()}
    if cost == "tokens":
        return {i: _summed(*curve) for i, curve in store.series(ids, _TOKENS).items()}
    parts = [store.series(ids, name) for name in _SECONDS]
    found: dict[int, Curve] = {}
    for run_id in set.intersection(*(set(part) for part in parts)):
        steps = parts[0][run_id][0]
        if all(np.array_equal(part[run_id][0], steps) for part in parts):
            found[run_id] = _summed(steps, np.sum([part[run_id][1] for part in parts], axis=0))
    return found


def totals(
    store: Store,
    runs: Sequence[RunRecord],
    cost: str,
    moments: Mapping[int, float] | None,
) -> dict[int, float]:
    """What each run spent in all, or up to its moment."""
    curves = spent(store, runs, cost)
    if moments is None:
        return {run_id: float(values[-1]) for run_id, (_, values) in curves.items()}
    return {
        run_id: float(np.interp(moments[run_id], steps, values))
        for run_id, (steps, values) in curves.items()
        if run_id in moments
    }


def _summed(steps: np.ndarray, values: np.ndarray) -> Curve:
    return np.concatenate([[0], steps]), np.concatenate([[0.0], np.cumsum(values)])
