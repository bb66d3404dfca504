"""The groups of a run of our own, rebuilt from its metrics.

Runs keep no rewards per prompt, but `solved/K`, the share of groups with K successes. With the
number of groups that is every group of a step but for its prompt and the order of its rollouts.
"""

from __future__ import annotations

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


def solved_groups(store: Store, run_id: int, notes: RolloutNotes) -> list[RolloutStep]:
    """Returns the groups of each step: as many rewards of 1 as successes, then 0.

    Args:
        notes: receives the steps that are left out.

    Raises:
        ReportError: the run has groups of another size than 2 to 16, or no metrics of them.
    """
    (run,) = store.runs.select(ids=[run_id])
    size: Any = run.config.get("group_size")
    prompts: Any = run.config.get("prompts_per_step")
    rollout: Any = run.config.get("rollout") or {}
    selects = "drawn" in rollout
    if selects and isinstance(size, int):
        # Of a group, `solved/K` counts all rollouts that were drawn.
        size = rollout["drawn"] or 2 * size
    if not is_whole(size, 2, _LARGEST_GROUP + 1) or not is_whole(prompts, 1, _MOST_GROUPS + 1):
        raise ReportError(
            f"run {run_id}: expected groups of 2 to {_LARGEST_GROUP} rollouts, as solved/K has no "
            "single numbers of larger ones"
        )

    def recorded(name: str) -> pd.Series[float]:
        steps, values = store.metrics.series([run_id], name).get(run_id, ((), ()))
        # A recorded NaN is no share, while one that was not recorded is 0.
        return pd.Series(np.nan_to_num(values, nan=np.inf), index=list(steps), dtype=float)

    shares = pd.DataFrame({k: recorded(f"solved/{k}") for k in range(size + 1)}).fillna(0.0)
    drawn = recorded(ROLLOUT_COST).reindex(shares.index).fillna(1.0) * prompts
    # These draw more rollouts of the same prompts, which are in no `solved/K`, and no more prompts.
    if selects or rollout.get("name") in ("reference", "greedy", "retry"):
        drawn = pd.Series(float(prompts), index=shares.index)
    groups = drawn.where(drawn.between(1, _MOST_GROUPS)).round()
    exact = shares.mul(groups, axis=0)
    counts = exact.round()
    whole = ((exact - counts).abs() < 1e-3) & (exact >= 0)
    fits = whole.all(axis=1) & (counts.sum(axis=1) == groups)
    if not fits.all():
        left_out = "steps whose groups cannot be counted, such as unscorable ones"
        notes.left_out[left_out] += int((~fits).sum())
    steps = []
    for step, own in counts[fits].astype(int).iterrows():
        rows = [[1.0] * k + [0.0] * (size - k) for k in range(size + 1) for _ in range(own[k])]
        steps.append(RolloutStep(int(step), [RolloutGroup("", row) for row in rows]))
    if not steps:
        raise ReportError(f"run {run_id}: expected metrics solved/K, got none that can be counted")
    notes.remark(
        "groups are rebuilt from solved/K: verdicts without prompts, in no order within a group"
    )
    return steps
