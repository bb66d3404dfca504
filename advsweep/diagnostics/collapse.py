"""How many groups carry no signal, and of which kind they are."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from torch import Tensor

from advsweep.errors import BatchError
from advsweep.estimators import GroupBatch
from advsweep.estimators.groups import Groups

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from jaxtyping import Bool, Float

TOLERANCE = 1e-6
"""Groups with a smaller standard deviation are collapsed; the paper's own value is lost."""


class Collapse(NamedTuple):
    """Shares of groups, NaN if no group has a scorable rollout.

    Attributes:
        acr: advantage collapse rate, the share of groups with σ below the tolerance.
        all_wrong: the collapsed ones whose largest reward is 0 or less.
        all_correct: the other collapsed ones; `all_wrong + all_correct = acr`.
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
    """The advantage collapse rate (AVSPO, Eq. 6) and its two parts.

    σ is the population standard deviation over the scorable rollouts of a group; groups
    without any are left out.

    Raises:
        BatchError: there is no group.
    """
    if rewards.shape[0] == 0:
        raise BatchError("the collapse rate of no groups is undefined; pass at least one")
    groups = Groups(GroupBatch(rewards=rewards, mask=mask))
    return split(groups, collapsed_groups(groups, tolerance))


def collapsed_groups(groups: Groups, tolerance: float = TOLERANCE) -> Bool[Tensor, "prompts 1"]:
    """The groups of equal rewards, or of a σ below the tolerance."""
    return groups.homogeneous | (groups.std() < tolerance)


def split(groups: Groups, collapsed: Bool[Tensor, "prompts 1"]) -> Collapse:
    """The shares of collapsed groups, by whether any reward is above 0."""
    wrong = collapsed & (groups.high <= 0)
    return Collapse(
        acr=groups.group_mean(collapsed),
        all_wrong=groups.group_mean(wrong),
        all_correct=groups.group_mean(collapsed & ~wrong),
    )


def collapse_by_level(
    collapsed: Bool[Tensor, "prompts 1"],
    counted: Bool[np.ndarray, " prompts"],
    levels: Sequence[int],
) -> dict[int, float]:
    """The collapse rate of each difficulty level that was drawn.

    Args:
        counted: groups with a scorable rollout.
        levels: of each group's problem.
    """
    # A loop: numpy's functions take longer over as few groups as a step has.
    sums: dict[int, list[int]] = {}
    flags = collapsed.numpy(force=True)[:, 0].tolist()
    for level, flag, counts in zip(levels, flags, counted.tolist(), strict=True):
        if counts:
            known = sums.setdefault(level, [0, 0])
            known[0] += flag
            known[1] += 1
    return {level: collapsed / groups for level, (collapsed, groups) in sorted(sums.items())}


def collapse_after(
    advantages: Float[Tensor, "prompts rollouts"],
    mask: Bool[Tensor, "prompts rollouts"] | None = None,
) -> float:
    """Share of groups left without a gradient: every advantage of theirs is 0."""
    return zero_groups(Groups(GroupBatch(rewards=advantages, mask=mask)))


def zero_groups(advantages: Groups) -> float:
    """The same, of groups of advantages in the place of rewards."""
    return advantages.group_mean((advantages.low == 0) & (advantages.high == 0))
