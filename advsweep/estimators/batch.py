"""What an estimator is given and what it returns, and the statistics of its groups."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING, Any

import torch

from advsweep.errors import BatchError

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int
    from torch import Tensor

    # Shapes that nearly every formula has: one number or flag per rollout, and one number per
    # group, as a column that broadcasts over the group's rollouts.
    PerRollout = Float[Tensor, "prompts rollouts"]
    PerGroup = Float[Tensor, "prompts 1"]
    # One number per token, 0 past the end of a rollout.
    PerToken = Float[Tensor, "prompts rollouts tokens"]
    # One number per turn of an episode.
    PerTurn = Float[Tensor, "prompts rollouts turns"]
    FlagPerRollout = Bool[Tensor, "prompts rollouts"]
    FlagPerGroup = Bool[Tensor, "prompts 1"]

# The fields of a batch that are not tensors [prompts, rollouts]: one value per prompt, one per
# token, one per turn, one per part of the reward, or one number for the whole batch.
PER_PROMPT = frozenset({"solve_rates", "frequencies", "prompt_ids", "greedy_rewards"})
PER_TOKEN = frozenset({"token_entropies", "token_grad_norms", "token_kl", "turn_of_token"})
PER_TURN = frozenset({"turn_rewards", "turn_states", "turn_values"})
PER_PART = frozenset({"reward_parts"})
COUNTERS = frozenset({"step", "total_steps"})

# Whole numbers, which are no amounts.
_NUMBERS = frozenset({"turn_of_token", "turn_states"})

# Default of each input other than the rewards: one number for all rollouts. Rollouts have one turn.
NEUTRAL_INPUTS: Mapping[str, float] = {
    "lengths": 1.0,
    "ref_rewards": 0.0,
    "token_entropy": 0.3,
    "token_entropy_exact": 0.3,
    "token_entropies": 0.3,
    "token_grad_norms": 0.5,
    "token_kl": 0.0,
    "turn_of_token": 0.0,
    "turn_rewards": 0.0,
    "turn_states": 0.0,
    "turn_values": 0.5,
    "self_certainty": 1.0,
    "reward_parts": 0.0,
    "greedy_rewards": 0.0,
    "solve_rates": 0.5,
    "answered": 1.0,
    "prompt_ids": 0.0,
    "step": 1,
    "total_steps": 100,
}


@dataclass(frozen=True, kw_only=True)
class GroupBatch:
    """The rollouts of one step: B prompts with G rollouts each.

    A rollout may be an episode of several turns: the policy's tokens, then those of an environment,
    in turn. Its token axis has the tokens of both, and inputs per token are 0 at the
    environment's.

    Attributes:
        rewards: the verifier's rewards, float32 or float64. Masked entries may hold anything,
            NaN included.
        mask: false for rollouts that are missing or could not be scored. They enter no
            statistic and get advantage 0.
        lengths: generated tokens per rollout, without those of an environment.
        ref_rewards: rewards of reference rollouts for the same prompts, paired by index.
        token_entropy: mean of -log π over the sampled tokens of each rollout, in nats.
        token_entropy_exact: mean exact entropy of the next-token distributions, in nats.
        token_entropies: exact entropy of each next-token distribution, in nats; 0 past the end of
            a rollout. The token axis is at least as long as the longest rollout.
        token_grad_norms: squared norm of the gradient of log π of each sampled token with respect
            to the logits, 1 - 2π + Σπ² with the sum over the vocabulary; its token axis is like
            that of `token_entropies`.
        token_kl: log π - log π_ref of each sampled token, π_ref the reference model; its token
            axis is like that of `token_entropies`.
        turn_of_token: the turn, from 0, to which each token belongs; -1 for tokens of the
            environment and past the end. Without it each rollout is one turn.
        turn_rewards: what the environment gave for each turn, past the last turn anything. What
            they do not contain of the rollout's reward is its outcome, given after the last turn.
            Without them the whole reward is outcome.
        turn_states: names of what stands before each turn; rollouts of a group that come to equal
            states can be compared there.
        turn_values: mean reward still to come from what stands before each turn, measured by
            further rollouts from there; NaN where it was not measured.
        self_certainty: mean KL divergence of the next-token distributions π from the uniform
            one, KL(uniform ‖ π), in nats.
        reward_parts: the parts of the reward without their weights; NaN where a part does not
            apply to a rollout.
        part_weights: the weight of each part in the reward.
        greedy_rewards: reward of a greedy rollout of each prompt.
        solve_rates: share of correct rollouts of each prompt, for rewards that are not binary.
        answered: true where an answer could be read in the rollout, right or wrong.
        truncated: true where the token limit ended the rollout, and no end mark.
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
    token_grad_norms: PerToken | None = None
    token_kl: PerToken | None = None
    turn_of_token: Int[Tensor, "prompts rollouts tokens"] | None = None
    turn_rewards: PerTurn | None = None
    turn_states: Int[Tensor, "prompts rollouts turns"] | None = None
    turn_values: PerTurn | None = None
    self_certainty: PerRollout | None = None
    reward_parts: Float[Tensor, "prompts rollouts parts"] | None = None
    part_weights: tuple[float, ...] | None = None
    greedy_rewards: Float[Tensor, " prompts"] | None = None
    solve_rates: Float[Tensor, " prompts"] | None = None
    answered: FlagPerRollout | None = None
    truncated: FlagPerRollout | None = None
    prompt_ids: tuple[str, ...] | None = None
    frequencies: Float[Tensor, " prompts"] | None = None
    step: int | None = None
    total_steps: int | None = None

    def select(
        self,
        groups: Int[Tensor, " groups"] | slice,
        rollouts: Int[Tensor, "groups some"] | None = None,
    ) -> GroupBatch:
        """Return some of the groups, in the given order.

        Args:
            rollouts: numbers of the rollouts of each of these groups to return; None for all.
        """
        chosen: dict[str, Any] = {
            name: value[groups]
            for name, value in vars(self).items()
            if isinstance(value, torch.Tensor)
        }
        if rollouts is not None:
            rows = torch.arange(len(rollouts))[:, None]
            chosen = {n: v if v.ndim == 1 else v[rows, rollouts] for n, v in chosen.items()}
        if self.prompt_ids is not None:
            whole = range(len(self.prompt_ids))
            numbers = whole[groups] if isinstance(groups, slice) else groups.tolist()
            chosen["prompt_ids"] = tuple(self.prompt_ids[number] for number in numbers)
        return replace(self, **chosen)


def share_correct(correct: FlagPerRollout, scored: FlagPerRollout) -> Float[Tensor, " prompts"]:
    """Return the share of correct ones among the scored rollouts of each group; 0 without any."""
    return (correct & scored).sum(dim=1) / scored.sum(dim=1).clamp(min=1)


def spread_input(
    name: str, value: float, rewards: PerRollout, tokens: int = 1
) -> Tensor | tuple[str, ...] | float:
    """Return an input of a batch that has the same value for every rollout.

    `prompt_ids` ignore the value: each group gets its own prompt. `answered` is true for 1.
    `reward_parts` are the rewards and a second part with that value.

    Args:
        tokens: length of the token axis of inputs that have one.
    """
    if name in COUNTERS:
        return value
    if name == "prompt_ids":
        return tuple(map(str, range(len(rewards))))
    if name in PER_TOKEN | PER_TURN:
        places = tokens if name in PER_TOKEN else 1
        dtype = torch.int64 if name in _NUMBERS else rewards.dtype
        return rewards.new_tensor(value, dtype=dtype).expand(*rewards.shape, places)
    if name in PER_PART:
        return torch.stack((rewards, torch.full_like(rewards, value)), dim=-1)
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
        counted: the rollouts in denominators that count rollouts, if they are more than those
            kept.
    """

    values: PerRollout | PerToken
    keep: FlagPerRollout
    info: Mapping[str, float] = field(default_factory=dict)
    counted: FlagPerRollout | None = None

    @property
    def in_denominators(self) -> FlagPerRollout:
        """Flag the rollouts in denominators that count rollouts."""
        return self.keep if self.counted is None else self.counted

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


class CollapseBy(Enum):
    """Whether a group has collapsed if its verdicts are equal, or if its rewards are.

    They differ where rewards are shaped: a group of wrong answers has different rewards if these
    depend on the length.
    """

    VERDICT = "verdict"
    REWARD = "reward"


class CountBy(Enum):
    """What a statistic of the batch counts: each rollout once, or each of its tokens."""

    ROLLOUTS = "rollouts"
    TOKENS = "tokens"


# Groups with frequencies stand for this many each.
_LARGE_BATCH = 1e12


@dataclass(frozen=True)
class Moments:
    """Number, mean and sum of squared deviations of the values of a batch, or of many batches."""

    count: float = 0.0
    mean: float = 0.0
    squares: float = 0.0

    @classmethod
    def of(cls, values: Tensor, weights: Tensor) -> Moments:
        """Return the moments of values that count as often as their weights say."""
        counted = weights > 0
        values = values[counted].double()
        weights = weights[counted].double()
        if not len(values):
            return cls()
        count = weights.sum()
        # Equal values have exactly their value as the mean, see `Groups.mean`.
        mean = torch.clamp((values * weights).sum() / count, *torch.aminmax(values))
        squares = ((values - mean).square() * weights).sum()
        return cls(*torch.stack((count, mean, squares)).tolist())

    def joined(self, other: Moments) -> Moments:
        """Return the moments of both sets of values."""
        count = self.count + other.count
        if not count:
            return self
        gap = other.mean - self.mean
        share = other.count / count
        squares = self.squares + other.squares + gap**2 * self.count * share
        return Moments(count, self.mean + gap * share, squares)

    def variance(self, kind: Std) -> float:
        """Return σ²; 0 for a single value."""
        freedom = self.count - 1 if kind is Std.SAMPLE else self.count
        return self.squares / freedom if freedom > 0 else 0.0


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
        rewards = batch.rewards
        mask = batch.mask
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
            self.low = low.masked_fill(empty, 0.0)
            self.high = high.masked_fill(empty, 0.0)
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
        return norm / (freedom.sqrt() if isinstance(freedom, torch.Tensor) else math.sqrt(freedom))

    def with_rewards(self, rewards: PerRollout, mask: FlagPerRollout | None = None) -> Groups:
        """Return the same groups with other rewards, and with another mask if one is given."""
        return Groups(
            replace(self.batch, rewards=rewards, mask=self.mask if mask is None else mask)
        )

    def within(self, tokens: int) -> Bool[Tensor, "prompts rollouts tokens"]:
        """Flag the places of a token axis that the policy generated, of rollouts that count.

        The only place that knows which tokens have an advantage.
        """
        turn_of_token = self.batch.turn_of_token
        if turn_of_token is not None:
            generated = turn_of_token >= 0
            return generated if self.mask is None else generated & self.mask[..., None]
        lengths = self.given("lengths")
        return torch.arange(tokens, device=lengths.device) < lengths[..., None]

    def moments(self, values: PerRollout | PerToken, over: CountBy) -> Moments:
        """Return the moments of values over all rollouts or all tokens of the batch.

        Values per rollout count once per token if it is over tokens. With `frequencies` the batch
        stands for a large one, whose sample and population variances are equal.
        """
        weights = self._weights
        if weights is None:
            weights = torch.ones_like(self.rewards, dtype=torch.float64)
        if self.batch.frequencies is not None:
            weights = weights * _LARGE_BATCH
        if values.ndim == 3:
            weights = weights[..., None] * self.within(values.shape[2])
        elif over is CountBy.TOKENS:
            weights = weights * self.given("lengths")
        return Moments.of(values, weights)

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
    return count.clamp(min=least) if isinstance(count, torch.Tensor) else max(count, least)


def standardise(values: Tensor, sigma: Tensor, eps: float = 0.0) -> Tensor:
    """Return values / (σ + ε); 0 where σ is 0, as there is no spread to measure by.

    The only place where an estimator divides by a standard deviation of a group. Values need not
    be centred: with σ = 0 and ε = 1e-6, 1/ε would make a million of a reward of 1.

    Without ε, σ is raised to the smallest number whose square does not underflow.
    """
    smallest = math.sqrt(torch.finfo(sigma.dtype).tiny)
    divisor = sigma + eps if eps > 0 else sigma.clamp(min=smallest)
    # NaN stays NaN, so that callers find it.
    return torch.where(sigma == 0, 0.0, values / divisor)
