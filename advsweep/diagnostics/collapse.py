"""The advantage collapse rate: the share of groups without a signal, and its parts."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from advsweep.diagnostics.stacked_runs import GroupSpread, StackedRollouts, ratio
from advsweep.errors import BatchError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jaxtyping import Bool, Float, Int
    from torch import Tensor

    from advsweep.diagnostics.stacked_runs import FlagPerGroup, PerGroup, PerRun

TOLERANCE = 1e-6
"""Groups with a smaller standard deviation are collapsed (AVSPO, its authors' draft)."""


class Collapse(NamedTuple):
    """Shares of groups, NaN if no group has a scorable rollout.

    Attributes:
        acr: advantage collapse rate, the share of groups with σ below the tolerance.
        all_wrong: share of collapsed groups whose largest reward is at most 0.
        all_correct: share of the other collapsed groups; `all_wrong + all_correct = acr`.
    """

    acr: float
    all_wrong: float
    all_correct: float


def collapse(
    rewards: Float[Tensor, "prompts rollouts"],
    mask: Bool[Tensor, "prompts rollouts"] | None = None,
    *,
    tolerance: float = TOLERANCE,
) -> Collapse:
    """Return the advantage collapse rate (AVSPO, Eq. 6) and its two parts.

    σ is the population standard deviation over the scorable rollouts of a group. Groups without
    scorable rollouts do not count.

    Raises:
        BatchError: there is no group.
    """
    if rewards.shape[0] == 0:
        raise BatchError("the collapse rate of no groups is undefined; pass at least one")
    runs = StackedRollouts.of(rewards, mask)
    spread = runs.spread(runs.numbers(rewards))
    shares = collapse_shares(runs, spread, collapsed_groups(spread, tolerance))
    return Collapse(**{name: share.item() for name, share in shares.items()})


def collapsed_groups(rewards: GroupSpread, tolerance: float = TOLERANCE) -> FlagPerGroup:
    """Flag the groups with equal rewards or with σ below the tolerance."""
    collapsed: FlagPerGroup
    collapsed = (rewards.low == rewards.high) | (rewards.std < tolerance)
    return collapsed


def collapse_shares(
    runs: StackedRollouts, rewards: GroupSpread, collapsed: FlagPerGroup
) -> dict[str, PerRun]:
    """Return each run's shares of collapsed groups, split by whether a reward is above 0."""
    wrong = collapsed & (rewards.high <= 0)
    return {
        "acr": runs.group_mean(collapsed),
        "all_wrong": runs.group_mean(wrong),
        "all_correct": runs.group_mean(collapsed & ~wrong),
    }


def collapse_by_level(
    runs: StackedRollouts,
    collapsed: FlagPerGroup,
    levels: Sequence[int] | Int[np.ndarray, "*runs groups"],
) -> dict[int, PerRun]:
    """Return the collapse rate of each difficulty level; NaN where a run has no such group.

    Args:
        levels: level of each group's problem, one run after another.
    """
    known, inverse = np.unique(np.ravel(levels), return_inverse=True)
    shape = (len(collapsed), len(known))
    cells = inverse + np.repeat(len(known) * np.arange(shape[0]), collapsed.shape[1])
    counted = runs.scored > 0
    groups = np.bincount(cells, counted.ravel(), minlength=shape[0] * shape[1])
    those = np.bincount(cells, (collapsed & counted).ravel(), minlength=shape[0] * shape[1])
    rates = ratio(those, groups).reshape(shape)
    return dict(zip(known.tolist(), rates.T, strict=True))


def collapse_after(
    advantages: Float[Tensor, "prompts rollouts"],
    mask: Bool[Tensor, "prompts rollouts"] | None = None,
) -> float:
    """Share of groups left without a gradient: every advantage of theirs is 0."""
    runs = StackedRollouts.of(advantages, mask)
    share: float = zero_groups(runs, runs.group_sum(np.abs(runs.numbers(advantages)))).item()
    return share


def zero_groups(runs: StackedRollouts, sizes: PerGroup) -> PerRun:
    """The same, from Σ|A| of each group."""
    return runs.group_mean(sizes == 0)
