"""Statistics of groups of rollouts, of several runs at once, and the advantage collapse rate."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jaxtyping import Bool, Float, Int, Num
    from torch import Tensor

    # Arrays whose first axis is the run.
    PerRollout = Float[np.ndarray, "*runs groups rollouts"]
    PerGroup = Float[np.ndarray, "*runs groups"]
    PerRun = Float[np.ndarray, "*runs"]
    FlagPerRollout = Bool[np.ndarray, "*runs groups rollouts"]
    FlagPerGroup = Bool[np.ndarray, "*runs groups"]
    CountPerGroup = Int[np.ndarray, "*runs groups"]

# Groups with a smaller standard deviation are collapsed (AVSPO, its authors' draft).
TOLERANCE = 1e-6


class GroupSpread(NamedTuple):
    """The spread of numbers within each group.

    Attributes:
        low, high: smallest and largest number; meaningless for a group whose rollouts are all
            masked.
        std: population σ; exactly 0 if all numbers are equal.
    """

    low: PerGroup
    high: PerGroup
    std: PerGroup


class StackedRollouts:
    """The shape and mask of the rollouts of R runs, whose groups follow one run after another.

    A statistic of a run depends on its own rollouts alone and has the same bits whatever the
    other runs are, because numpy sums each row of an array separately.

    Args:
        values: one number per rollout, for its shape.

    Attributes:
        shape: number of runs, of groups per run and of rollouts per group.
        mask: the rollouts that count; None if all do.
        scored: number of rollouts that count in each group.
        total: number of rollouts that count in each run.
    """

    def __init__(
        self,
        values: Float[Tensor, "runs*groups rollouts"],
        mask: Bool[Tensor, "runs*groups rollouts"] | None = None,
        runs: int = 1,
    ) -> None:
        groups = len(values) // runs
        rollouts = values.shape[1]
        self.shape = (runs, groups, rollouts)
        self._starts = np.arange(0, runs * groups * rollouts, rollouts)
        self.scored: CountPerGroup = np.full((runs, groups), rollouts)
        self.total: Int[np.ndarray, " runs"] | int = groups * rollouts
        self.mask: FlagPerRollout | None = None
        if mask is not None:
            self.mask = mask.numpy(force=True).reshape(self.shape)
            self.scored = self.group_count(self.mask)
            self.total = self.scored.sum(axis=1)

    def numbers(self, values: Float[Tensor, "runs*groups rollouts"]) -> PerRollout:
        """Return one number per rollout, in double precision and 0 where masked."""
        numbers = values.double().numpy(force=True).reshape(self.shape)
        return numbers if self.mask is None else np.where(self.mask, numbers, 0.0)

    def flags(self, flags: Bool[Tensor, "runs*groups rollouts"]) -> FlagPerRollout:
        """Return a flag per rollout, false where masked."""
        whole: FlagPerRollout
        whole = flags.numpy(force=True).reshape(self.shape)
        return whole if self.mask is None else whole & self.mask

    def group_sum(self, values: PerRollout) -> PerGroup:
        """Sum over each group's rollouts."""
        # For short rows reduceat takes half the time of a sum over an axis.
        return np.add.reduceat(values.reshape(-1), self._starts).reshape(self.shape[:2])

    def group_count(self, flags: FlagPerRollout) -> CountPerGroup:
        """Count the flagged rollouts of each group."""
        counts: CountPerGroup = self.group_sum(flags.astype(np.int64))
        return counts

    def rollout_mean(self, values: Num[np.ndarray, "runs groups rollouts"]) -> PerRun:
        """Return the mean over each run's rollouts (not group means); NaN if none counts.

        Args:
            values: 0 where masked.
        """
        return ratio(values.reshape(len(values), -1).sum(axis=1), self.total)

    def group_mean(self, values: Num[np.ndarray, "runs groups"]) -> PerRun:
        """Return the mean over each run's groups with a scorable rollout; of flags, a share."""
        if self.mask is None:
            return ratio(values.sum(axis=1), self.shape[1])
        counted = self.scored > 0
        return ratio(np.where(counted, values, 0).sum(axis=1), counted.sum(axis=1))

    def spread(self, values: PerRollout) -> GroupSpread:
        """Return the spread within each group of numbers that are 0 where masked."""
        runs, groups, rollouts = self.shape
        # Transposed, because numpy's min and max take ten times as long along short rows.
        low = high = np.ascontiguousarray(values.reshape(-1, rollouts).T)
        if self.mask is not None:
            mask = self.mask.reshape(-1, rollouts).T
            low = np.where(mask, low, np.inf)
            high = np.where(mask, high, -np.inf)
        low = low.min(axis=0).reshape(runs, groups)
        high = high.max(axis=0).reshape(runs, groups)
        mean = self.group_sum(values) / np.maximum(self.scored, 1)
        centred = values - mean[..., None]
        if self.mask is not None:
            centred = np.where(self.mask, centred, 0.0)
        variance = self.group_sum(centred * centred) / np.maximum(self.scored, 1)
        # The rounded mean of equal numbers may differ from them, so σ is set to 0 explicitly.
        return GroupSpread(low, high, np.where(low == high, 0.0, np.sqrt(variance)))


def ratio(
    above: Num[np.ndarray, "*runs"], below: Num[np.ndarray, "*runs"] | int
) -> Float[np.ndarray, "*runs"]:
    """Return above / below; NaN where below is 0."""
    if isinstance(below, int):
        return np.asarray(above / below)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(below != 0, above / below, np.nan)


def collapsed_groups(rewards: GroupSpread, tolerance: float = TOLERANCE) -> FlagPerGroup:
    """Flag the groups with equal rewards or with σ below the tolerance."""
    collapsed: FlagPerGroup
    collapsed = (rewards.low == rewards.high) | (rewards.std < tolerance)
    return collapsed


def collapse_shares(
    runs: StackedRollouts, rewards: GroupSpread, collapsed: FlagPerGroup
) -> dict[str, PerRun]:
    """Return each run's shares of collapsed groups, split by whether a reward is above 0."""
    # By the largest reward: shaped rewards of a group without a success may differ from 0.
    wrong = collapsed & (rewards.high <= 0)
    return {
        "acr": runs.group_mean(collapsed),
        "all_wrong": runs.group_mean(wrong),
        "all_correct": runs.group_mean(collapsed & ~wrong),
    }


def collapse_by_level(
    runs: StackedRollouts, collapsed: FlagPerGroup, levels: Sequence[int] | CountPerGroup
) -> dict[int, PerRun]:
    """Return the collapse rate of each difficulty level; NaN where a run has no such group.

    Args:
        levels: level of each group's problem, one run after another.
    """
    of_group = np.reshape(levels, collapsed.shape)
    counted = runs.scored > 0
    rates = {}
    for level in np.unique(of_group).tolist():
        of_level = counted & (of_group == level)
        rates[level] = ratio((collapsed & of_level).sum(axis=1), of_level.sum(axis=1))
    return rates
