"""What an estimator is given and what it returns, and the statistics of its groups."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from advsweep.errors import BatchError

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int

if TYPE_CHECKING:
    # Shapes that nearly every formula has: one number or flag per rollout, and one number per
    # group, as a column that broadcasts over the group's rollouts.
    PerRollout = Float[Tensor, "prompts rollouts"]
    PerGroup = Float[Tensor, "prompts 1"]
    # One number per token, 0 past the end of a rollout.
    PerToken = Float[Tensor, "prompts rollouts tokens"]
    FlagPerRollout = Bool[Tensor, "prompts rollouts"]
    FlagPerGroup = Bool[Tensor, "prompts 1"]

# The fields of a batch that are not tensors [prompts, rollouts]: one value per prompt, one per
# token, or one number for the whole batch.
PER_PROMPT = frozenset({"solve_rates", "frequencies", "prompt_ids"})
PER_TOKEN = frozenset({"token_entropies"})
COUNTERS = frozenset({"step", "total_steps"})


@dataclass(frozen=True, kw_only=True)
class GroupBatch:
    """The rollouts of one step: B prompts with G rollouts each.

    Attributes:
        rewards: the verifier's rewards, float32 or float64. Masked entries may hold anything,
            NaN included.
        mask: false for rollouts that are missing or could not be scored. They enter no
            statistic and get advantage 0.
        lengths: generated tokens per rollout.
        ref_rewards: rewards of reference rollouts for the same prompts, paired by index.
        token_entropy: mean of -log π over the sampled tokens of each rollout, in nats.
        token_entropy_exact: mean exact entropy of the next-token distributions, in nats.
        token_entropies: exact entropy of each next-token distribution, in nats; 0 past the end of
            a rollout. The token axis is at least as long as the longest rollout.
        self_certainty: mean KL divergence of the next-token distributions π from the uniform
            one, KL(uniform ‖ π), in nats.
        solve_rates: share of correct rollouts of each prompt, for rewards that are not binary.
        answered: true where an answer could be read in the rollout, right or wrong.
        prompt_ids: names of the groups' prompts, the same in every step and epoch.
        frequencies: how often each group counts in statistics of the batch (default: once).
            With them a few enumerated groups represent a large batch.
        step: the training step, counted from 1.
        total_steps: the length of the training.
    """

    rewards: PerRollout
    mask: FlagPerRollout | None = None
    lengths: PerRollout | None = None
    ref_rewards: PerRollout | None = None
    token_entropy: PerRollout | None = None
    token_entropy_exact: PerRollout | None = None
    token_entropies: PerToken | None = None
    self_certainty: PerRollout | None = None
    solve_rates: Float[Tensor, " prompts"] | None = None
    answered: FlagPerRollout | None = None
    prompt_ids: tuple[str, ...] | None = None
    frequencies: Float[Tensor, " prompts"] | None = None
    step: int | None = None
    total_steps: int | None = None

    def select(self, groups: Int[Tensor, " groups"] | slice) -> GroupBatch:
        """Return some of the groups, in the given order."""
        chosen: dict[str, Any] = {
            name: value[groups] for name, value in vars(self).items() if isinstance(value, Tensor)
        }
        if self.prompt_ids is not None:
            whole = range(len(self.prompt_ids))
            places = whole[groups] if isinstance(groups, slice) else groups.tolist()
            chosen["prompt_ids"] = tuple(self.prompt_ids[place] for place in places)
        return replace(self, **chosen)


def spread_input(
    name: str, value: float, rewards: PerRollout, tokens: int = 1
) -> Tensor | tuple[str, ...] | float:
    """Return an input of a batch that has the same value for every rollout.

    `prompt_ids` ignore the value: each group gets its own prompt. `answered` is true for 1.

    Args:
        tokens: length of the token axis of inputs that have one.
    """
    if name in COUNTERS:
        return value
    if name == "prompt_ids":
        return tuple(map(str, range(len(rewards))))
    if name in PER_TOKEN:
        return rewards.new_tensor(value).expand(*rewards.shape, tokens)
    spread = torch.full_like(rewards[:, 0] if name in PER_PROMPT else rewards, value)
    return spread == 1 if name == "answered" else spread


@dataclass(frozen=True, kw_only=True)
class Advantages:
    """The result of an estimator.

    Attributes:
        values: the advantages, in the rewards' dtype and on their device: one per rollout, or
            one per token, which is 0 past the end of a rollout.
        keep: the rollouts that take part in the update and in the loss's denominators.
        info: numbers to log as `estimator/NAME` (alpha, delta, tau, ...).
    """

    values: PerRollout | PerToken
    keep: FlagPerRollout
    info: Mapping[str, float] = field(default_factory=dict)

    @property
    def per_token(self) -> bool:
        """Whether there is one advantage per token rather than per rollout."""
        return self.values.ndim == 3

    @property
    def nonzero(self) -> FlagPerRollout:
        """Flag the rollouts of which any token has an advantage other than 0."""
        return nonzero_rows(self.values.flatten(0, 1)).view(self.keep.shape)

    def rollout_means(self, lengths: PerRollout | None) -> PerRollout:
        """Return the mean advantage over each rollout's tokens.

        Args:
            lengths: generated tokens per rollout; not read if advantages are per rollout.
        """
        return _token_means(self.values, lengths) if self.per_token else self.values

    def sizes(self, lengths: PerRollout | None) -> PerRollout:
        """Return the mean of |A| over each rollout's tokens; 0 where all are 0."""
        sizes = self.values.abs()
        return _token_means(sizes, lengths) if self.per_token else sizes


def _token_means(values: PerToken, lengths: PerRollout | None) -> PerRollout:
    if lengths is None:
        raise BatchError("lengths: expected the tokens of each rollout, got none")
    return values.sum(dim=-1) / lengths.to(values).clamp(min=1)


def nonzero_rows(
    advantages: Float[Tensor, " rows"] | Float[Tensor, "rows tokens"],
) -> Bool[Tensor, " rows"]:
    """Flag the rollouts of which any token has an advantage other than 0."""
    nonzero = advantages != 0
    return nonzero.any(dim=1) if nonzero.ndim > 1 else nonzero


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
