"""Statistics of the rewards of each group, from which the formulas are built."""

from __future__ import annotations

import functools
import math
from enum import Enum
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from advsweep.errors import BatchError

if TYPE_CHECKING:
    from advsweep.estimators.batch import FlagPerGroup, GroupBatch, PerGroup, PerRollout


class Std(Enum):
    """Which standard deviation of a group: divided by G, or by G-1."""

    POPULATION = "population"
    SAMPLE = "sample"


class On(Enum):
    """Whether a group has collapsed if its verdicts are equal, or if its rewards are.

    They differ where rewards are shaped: a group of wrong answers has different rewards if these
    depend on the length.
    """

    VERDICT = "verdict"
    REWARD = "reward"


class Groups:
    """The rewards of a batch and their statistics; each row is a group.

    Masked rollouts enter no statistic: `rewards` and `centred` are 0 there. Statistics of a
    group are columns, so that they broadcast over its rollouts. A group without a scorable
    rollout counts as homogeneous with mean 0.

    Attributes:
        batch: the unchanged inputs.
        rewards: the rewards, 0 where masked.
        mask: the rollouts that count; None if all do.
        count: number of rollouts that count in each group; an int if there is no mask.
        low, high: smallest and largest reward of each group.
        mean: mean reward p of each group; for a homogeneous group exactly its common reward.
    """

    low: PerGroup
    high: PerGroup
    mean: PerGroup

    def __init__(self, batch: GroupBatch) -> None:
        rewards, mask = batch.rewards, batch.mask
        self.batch = batch
        self.mask = mask
        self.count: Tensor | int
        if mask is None:
            self.rewards = rewards
            self.count = rewards.shape[1]
            self.low, self.high = torch.aminmax(rewards, dim=1, keepdim=True)
            mean = rewards.mean(dim=1, keepdim=True)
        else:
            self.rewards = torch.where(mask, rewards, 0.0)
            self.count = mask.sum(dim=1, keepdim=True, dtype=rewards.dtype)
            empty = self.count == 0
            low = torch.where(mask, rewards, math.inf).amin(dim=1, keepdim=True)
            high = torch.where(mask, rewards, -math.inf).amax(dim=1, keepdim=True)
            self.low, self.high = low.masked_fill(empty, 0.0), high.masked_fill(empty, 0.0)
            mean = self.rewards.sum(dim=1, keepdim=True) / at_least(self.count, 1)
        # The rounded mean of equal rewards may differ from them: the mean of three times 0.1 is
        # not 0.1. Clamping makes homogeneous groups deviate by exactly 0.
        self.mean = torch.clamp(mean, self.low, self.high)

    @functools.cached_property
    def homogeneous(self) -> FlagPerGroup:
        """Flag the groups whose rewards are all equal.

        Rewards are compared, because the rounded standard deviation of three rewards of 0.1 is
        not zero.
        """
        return self.low == self.high

    @functools.cached_property
    def centred(self) -> PerRollout:
        """dᵢ = rᵢ - p; exactly 0 on homogeneous groups."""
        centred = self.rewards - self.mean
        return centred if self.mask is None else torch.where(self.mask, centred, 0.0)

    @functools.cached_property
    def mean_range(self) -> tuple[float, float]:
        """Return the smallest and largest mean of the groups with a scorable rollout.

        They are not finite if any reward is not.
        """
        counted = self.mean if isinstance(self.count, int) else self.mean[self.count > 0]
        low, high = torch.aminmax(counted)
        return low.item(), high.item()

    @property
    def reward_range(self) -> tuple[float, float]:
        """Return the smallest and largest reward among the rollouts that count."""
        weights = self._weights
        counted = self.rewards if weights is None else self.rewards[weights > 0]
        low, high = torch.aminmax(counted)
        return low.item(), high.item()

    def given(self, name: str) -> Tensor:
        """Return another input in the rewards' dtype, 0 where masked.

        It is a number per rollout, or per token.
        """
        values: Tensor = getattr(self.batch, name).to(self.rewards)
        if self.mask is None:
            return values
        return torch.where(self.mask[..., None] if values.ndim == 3 else self.mask, values, 0.0)

    def finite(self, name: str) -> Tensor:
        """Return `given(name)` after checking that it is finite.

        Raises:
            BatchError: a rollout that counts has NaN or infinity.
        """
        values = self.given(name)
        # One sum is cheaper than isfinite() on every number, and carries NaN and infinity on.
        if not math.isfinite(values.sum().item()):
            raise BatchError(
                f"{name}: expected finite numbers, got NaN, infinity or a sum that overflows"
            )
        return values

    def std(self, kind: Std = Std.POPULATION) -> PerGroup:
        """Return σ of each group; exactly 0 for homogeneous groups and single rollouts."""
        norm: Tensor = torch.linalg.vector_norm(self.centred, dim=1, keepdim=True)
        freedom = at_least(self.count - 1 if kind is Std.SAMPLE else self.count, 1)
        return norm / (freedom.sqrt() if isinstance(freedom, Tensor) else math.sqrt(freedom))

    def rollout_mean(self, values: PerRollout) -> float:
        """Return the mean over all rollouts (not over group means); NaN if none counts."""
        weights = self._weights
        if weights is None:
            return values.double().sum().item() / values.numel()
        counted = torch.where(weights > 0, values.double() * weights, 0.0)
        return (counted.sum() / weights.sum()).item()

    def group_mean(self, values: PerGroup) -> float:
        """Return the mean over groups with a scorable rollout; of flags, their share."""
        weights = self._weights
        if weights is None:
            return values.double().sum().item() / values.numel()
        per_group = weights.amax(dim=1, keepdim=True)
        return ((values.double() * per_group).sum() / per_group.sum()).item()

    @functools.cached_property
    def _weights(self) -> PerRollout | None:
        """Return how often each rollout counts in batch statistics; None means once each."""
        frequencies = self.batch.frequencies
        if frequencies is None:
            return None if self.mask is None else self.mask.double()
        weights = frequencies.double()[:, None].expand(self.rewards.shape)
        return weights if self.mask is None else weights * self.mask


def at_least(count: Tensor | int, least: int) -> Tensor | int:
    """Return max(count, least), for use as a divisor."""
    return count.clamp(min=least) if isinstance(count, Tensor) else max(count, least)


def standardise(values: Tensor, sigma: Tensor, eps: float = 0.0) -> Tensor:
    """Return values / (σ + ε), with 0/0 = 0.

    Without ε, σ is raised to the smallest number whose square does not underflow.
    """
    smallest = math.sqrt(torch.finfo(sigma.dtype).tiny)
    return values / (sigma + eps if eps > 0 else sigma.clamp(min=smallest))
