"""The groups of a run of our own, rebuilt from its metrics.

Runs keep no rewards per prompt, but `solved/K`, the share of groups with K successes. With the
number of groups that is every group of a step but for its prompt and the order of its rollouts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from advsweep.errors import ReportError
from advsweep.logs.rollout_records import RolloutGroup, RolloutNotes, RolloutStep
from advsweep.names import ROLLOUT_COST
from advsweep.store.run_folders import is_whole

if TYPE_CHECKING:
    from advsweep.store import Store

# Above, numbers of successes are merged (`diagnostics.difficulty.BINS`).
_LARGEST_GROUP = 16
_MOST_GROUPS = 100_000

# The option of a rollout policy that draws more rollouts than it trains on.
_DRAWN = "drawn"


def solved_groups(store: Store, run_id: int, notes: RolloutNotes) -> list[RolloutStep]:
    """Return the groups of each step: as many rewards of 1 as successes, then 0.

    Args:
        notes: receives the steps that are left out.

    Raises:
        ReportError: the run has groups of another size than 2 to 16, or no metrics of them.
    """
    (run,) = store.runs.select(ids=[run_id])
    rollout: Any = run.config.get("rollout") or {}
    size = _group_size(run.config, rollout)
    prompts: Any = run.config.get("prompts_per_step")
    if not is_whole(size, 2, _LARGEST_GROUP + 1) or not is_whole(prompts, 1, _MOST_GROUPS + 1):
        raise ReportError(
            f"run {run_id}: expected groups of 2 to {_LARGEST_GROUP} rollouts, as solved/K has no "
            "single numbers of larger ones"
        )
    recorded = {k: _recorded(store, run_id, f"solved/{k}") for k in range(size + 1)}
    shares = pd.DataFrame(recorded).fillna(0.0)
    drawn = _recorded(store, run_id, ROLLOUT_COST).reindex(shares.index).fillna(1.0) * prompts
    # These draw more rollouts of the same prompts, which are in no `solved/K`, and no more prompts.
    if _DRAWN in rollout or rollout.get("name") in ("reference", "greedy", "retry"):
        drawn = pd.Series(float(prompts), index=shares.index)
    counts = _count_groups(shares, drawn)
    left_out = len(shares) - len(counts)
    if left_out:
        notes.left_out["steps whose groups cannot be counted, such as unscorable ones"] += left_out
    if counts.empty:
        raise ReportError(f"run {run_id}: expected metrics solved/K, got none that can be counted")
    steps = []
    for step, of_step in counts.iterrows():
        groups = []
        for successes, count in of_step.items():
            rewards = [1.0] * int(successes) + [0.0] * (size - int(successes))
            groups += [RolloutGroup("", list(rewards)) for _ in range(count)]
        steps.append(RolloutStep(int(step), groups))
    notes.remark(
        "groups are rebuilt from solved/K: verdicts without prompts, in no order within a group"
    )
    return steps


def _group_size(config: Mapping[str, Any], rollout: Mapping[str, Any]) -> Any:
    """Return how many rollouts of a group `solved/K` counts: all that were drawn."""
    size = config.get("group_size")
    if _DRAWN in rollout and isinstance(size, int):
        return rollout[_DRAWN] or 2 * size
    return size


def _recorded(store: Store, run_id: int, name: str) -> pd.Series[float]:
    """Return the values of a metric by step; a recorded NaN, which is no share, as infinity."""
    steps, values = store.metrics.series([run_id], name).get(run_id, ((), ()))
    return pd.Series(np.nan_to_num(values, nan=np.inf), index=list(steps), dtype=float)


def _count_groups(shares: pd.DataFrame, drawn: pd.Series[float]) -> pd.DataFrame:
    """Return how many groups of each step have how many successes, where that can be told.

    Args:
        shares: the share of the groups with each number of successes, by step.
        drawn: the number of groups, by step.
    """
    groups = drawn.where(drawn.between(1, _MOST_GROUPS)).round()
    exact = shares.mul(groups, axis=0)
    counts = exact.round()
    is_whole_number = ((exact - counts).abs() < 1e-3) & (exact >= 0)
    fits = is_whole_number.all(axis=1) & (counts.sum(axis=1) == groups)
    return counts[fits].astype(int)
