"""The groups of a run of our own, rebuilt from its metrics.

Runs keep no rewards per prompt, but `solved/K`, the share of groups with K successes. With the
number of groups that is every group of a step but for its prompt and the order of its rollouts.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from advsweep.errors import ReportError
from advsweep.logs.rollouts import RolloutGroup, RolloutNotes, RolloutStep

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
    if not _is_whole(size, 2, _LARGEST_GROUP) or not _is_whole(prompts, 1, _MOST_GROUPS):
        raise ReportError(
            f"run {run_id}: expected groups of 2 to {_LARGEST_GROUP} rollouts, as solved/K has no "
            "single numbers of larger ones"
        )
    shares: dict[int, dict[int, float]] = {}
    for successes in range(size + 1):
        series = store.metrics.series([run_id], f"solved/{successes}").get(run_id)
        if series is not None:
            for step, share in zip(*(part.tolist() for part in series), strict=True):
                shares.setdefault(step, {})[successes] = share
    drawn = store.metrics.series([run_id], "cost/rollouts").get(run_id)
    per_target = {} if drawn is None else dict(zip(*(part.tolist() for part in drawn), strict=True))
    steps = []
    for step, found in sorted(shares.items()):
        counts = _counts(found, size, per_target.get(step, 1.0) * prompts)
        if counts is None:
            notes.left_out["steps whose groups cannot be counted, such as unscorable ones"] += 1
            continue
        rows = [
            [1.0] * successes + [0.0] * (size - successes)
            for successes, count in enumerate(counts)
            for _ in range(count)
        ]
        steps.append(RolloutStep(step, [RolloutGroup("", row) for row in rows]))
    if not steps:
        raise ReportError(f"run {run_id}: expected metrics solved/K, got none that can be counted")
    notes.remark(
        "groups are rebuilt from solved/K: verdicts without prompts, in no order within a group"
    )
    return steps


def _is_whole(value: Any, low: int, high: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


def _counts(shares: dict[int, float], size: int, groups: float) -> list[int] | None:
    """Returns how many groups have each number of successes; None if they do not add up."""
    if not math.isfinite(groups) or not 1 <= groups <= _MOST_GROUPS:
        return None
    exact = [shares.get(successes, 0.0) * round(groups) for successes in range(size + 1)]
    if not all(map(math.isfinite, exact)) or min(exact) < 0:
        return None
    counts = [round(count) for count in exact]
    close = all(abs(a - b) < 1e-3 for a, b in zip(exact, counts, strict=True))
    return counts if close and sum(counts) == round(groups) else None
