"""Estimators that give each turn of an episode an advantage of its own."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import torch

from advsweep.components import option
from advsweep.errors import BatchError
from advsweep.estimators.base import Estimator
from advsweep.estimators.baselines import FNorm
from advsweep.estimators.batch import CountBy, Groups, Std, at_least, standardise
from advsweep.estimators.turn_groups import TurnGroups
from advsweep.estimators.turns import Turns

if TYPE_CHECKING:
    from jaxtyping import Bool, Float
    from torch import Tensor

    from advsweep.estimators.batch import FlagPerRollout, PerGroup, PerRollout, PerToken, PerTurn


class TurnEstimator(Estimator):
    """Base class of estimators with one advantage per turn, which each token of the turn gets.

    Without `turn_of_token` each rollout is one turn, and without `turn_rewards` its whole reward
    is given after the last turn.
    """

    needs: ClassVar[frozenset[str]] = frozenset({"lengths"})
    uses: ClassVar[frozenset[str]] = frozenset({"turn_of_token", "turn_rewards"})
    per_token: ClassVar[bool] = True

    def _advantages(self, groups: Groups, info: dict[str, float]) -> PerToken:
        turns = Turns(groups)
        return turns.spread(self._turn_advantages(turns, groups, info))

    @abstractmethod
    def _turn_advantages(self, turns: Turns, groups: Groups, info: dict[str, float]) -> PerTurn:
        """Return the advantage of each turn; past the last turn anything.

        Args:
            turns: the turns of the batch, with their rewards.
            groups: the checked rewards of whole rollouts with their statistics.
            info: receives the numbers to log.
        """


# How often a rollout counts in the mean and σ of its group: once, or once for each of its turns.
EpisodeCount = Literal["turns", "episodes"]

# What the only rollout of a group gets: 0, or its reward over 1 + ε.
Singleton = Literal["zero", "reward"]


@dataclass(kw_only=True)
class GiGPO(TurnEstimator):
    """The episode's advantage and one among equal states: Aᵢₜ = A_E,ᵢ + ω A_S,ᵢₜ.

        A_E,ᵢ = (Rᵢ - m)/(s + ε)      Rᵢ the reward of the episode, m and s of its group
        A_S,ᵢₜ = (Gᵢₜ - mₓ)/(sₓ + ε)  Gᵢₜ = rᵢₜ + γ Gᵢ₍ₜ₊₁₎, mₓ and sₓ of the state x before turn t

    The turns of a prompt that have the same state before them are a group, whichever rollouts they
    are of and wherever in the episode. A state that came up once has no A_S: its turn gets A_E
    alone. Logged: `company`, the share of turns whose state another rollout came to as well. With
    `f_norm=1` nothing is divided by.

    In m and s an episode counts once for each of its turns, as in the authors' code, so that long
    episodes weigh more and the A_E of a group need not sum to 0; with `count=episodes` it counts
    once. Of single turns that have equal states A_E and A_S are the same: with ω = 1 the advantage
    is twice that of `grpo`.
    """

    name: ClassVar[str] = "gigpo"
    needs: ClassVar[frozenset[str]] = TurnEstimator.needs | {"turn_states"}

    omega: float = option(1.0, ge=0, lt=math.inf, help="ω: weight of the advantage among states")
    gamma: float = option(0.95, ge=0, le=1, help="γ: discount of a reward per turn")
    f_norm: FNorm = option("sigma", help="what advantages are divided by: σ + ε, or 1")
    std: Std = option(Std.SAMPLE, help="standard deviation over n or n-1")
    eps: float = option(1e-6, ge=0, help="ε, added to σ")
    count: EpisodeCount = option(
        "turns", help="an episode counts once for each of its turns in m and s, or once"
    )
    singleton: Singleton = option("zero", help="A_E of the only rollout of a group")

    def _turn_advantages(self, turns: Turns, groups: Groups, info: dict[str, float]) -> PerTurn:
        by_state = TurnGroups.by_state(turns)
        info["company"] = by_state.company()
        returns = by_state.statistics(turns.returns(self.gamma))
        among_states = by_state.scatter(self._normalise(returns.centred, returns.std(self.std)))
        of_episode = self._episode_advantages(turns, groups)
        return of_episode[..., None] + self.omega * among_states

    def _episode_advantages(self, turns: Turns, groups: Groups) -> PerRollout:
        counts = (turns.counts > 0) if self.count == "episodes" else turns.counts
        weights = counts.to(groups.rewards)
        total = weights.sum(dim=1, keepdim=True)
        # Around the mean of the rollouts, so that equal rewards deviate by exactly 0.
        shift = (weights * groups.centred).sum(dim=1, keepdim=True) / at_least(total, 1)
        centred = groups.centred - shift
        freedom = total - 1 if self.std is Std.SAMPLE else total
        squares = (weights * centred.square()).sum(dim=1, keepdim=True)
        sigma = (squares / at_least(freedom, 1)).sqrt()
        advantages = self._normalise(centred, sigma)
        if self.singleton == "reward":
            alone = groups.rewards if self.f_norm == "1" else groups.rewards / (1 + self.eps)
            advantages = alone.where(total == 1, advantages)
        return advantages

    def _normalise(self, centred: Tensor, sigma: PerGroup) -> Tensor:
        return centred if self.f_norm == "1" else standardise(centred, sigma, self.eps)


# What an episode of a single turn gets.
OneTurn = Literal["whole", "parts"]


@dataclass(kw_only=True)
class TurnGRPO(TurnEstimator):
    """Turn rewards and outcome standardised apart (MT-GRPO): Aᵢₜ = Âᵢ + λ Âᵢₜ.

        Âᵢ = (oᵢ - mean)/(σ + ε)      oᵢ: the outcome, Rᵢ - Σₜ rᵢₜ, within the prompt's group
        Âᵢₜ = (rᵢₜ - mean)/(σ + ε)    rᵢₜ: the turn's reward, among the episodes that have a turn t

    rᵢₜ is what the environment gave for the turn, without the outcome. An episode of one turn gets
    its whole reward standardised within the group of whole rewards, as in the authors' code; with
    `one_turn=parts` it gets the sum, as the others do. Without a reward for any turn it is
    `grpo(preset=trl)`.
    """

    name: ClassVar[str] = "turn_grpo"
    per_group: ClassVar[bool] = True
    needs: ClassVar[frozenset[str]] = TurnEstimator.needs | {"turn_rewards"}
    uses: ClassVar[frozenset[str]] = TurnEstimator.uses - {"turn_rewards"}

    lam: float = option(1.0, ge=0, lt=math.inf, help="λ: weight of the advantages of turn rewards")
    std: Std = option(Std.SAMPLE, help="standard deviation over n or n-1")
    eps: float = option(1e-4, ge=0, help="ε, added to σ")
    one_turn: OneTurn = option(
        "whole", help="an episode of one turn: its whole reward standardised, or the sum"
    )

    def _turn_advantages(self, turns: Turns, groups: Groups, info: dict[str, float]) -> PerTurn:
        of_outcome = self._standardise(groups.with_rewards(turns.outcomes))
        by_index = TurnGroups.by_index(turns)
        of_turns = by_index.scatter(self._standardise(by_index.statistics(turns.given)))
        advantages = of_outcome[..., None] + self.lam * of_turns
        if self.one_turn == "parts":
            return advantages
        whole = self._standardise(groups)[..., None]
        return whole.where(turns.counts[..., None] == 1, advantages)

    def _standardise(self, groups: Groups) -> Float[Tensor, "rows columns"]:
        return standardise(groups.centred, groups.std(self.std), self.eps)


# Of which rewards σ is: the group's, or all of the batch.
BatchScope = Literal["group", "batch"]


@dataclass(kw_only=True)
class MultiStepGRPO(TurnEstimator):
    """The standardised reward of the last turn for every turn: Aᵢₜ = (oᵢ - mean)/(σ + ε).

    oᵢ is what the last turn is rewarded with, the outcome included; rewards of earlier turns are
    not read. Where there are none, oᵢ is the reward of the rollout, and the advantage that of
    `grpo(preset=verl)` at each turn. With `step_norm` it is divided by the number of turns of the
    episode, so that a long episode weighs as much as a short one.

    Groups with σ at or below `threshold` are left out of the update, and so are groups of a single
    rollout.
    """

    name: ClassVar[str] = "multi_step_grpo"
    per_group: ClassVar[bool] = True

    std: Std = option(Std.SAMPLE, help="standard deviation over n or n-1")
    eps: float = option(1e-6, ge=0, help="ε, added to σ")
    scope: BatchScope = option("group", help="σ of the group, or of the batch")
    step_norm: bool = option(False, help="divide by the number of turns of the episode")
    threshold: float | None = option(
        None, ge=0, help="groups with a σ up to this are left out of the update; null: none"
    )
    singleton: Singleton = option("zero", help="what the only rollout of a group gets")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.scope == "batch":
            self._narrow(per_group=False)

    def _turn_advantages(self, turns: Turns, groups: Groups, info: dict[str, float]) -> PerTurn:
        last = self._last(turns, groups)
        sigma = last.std(self.std)
        alone = torch.ones_like(sigma)
        if self.scope == "batch":
            moments = last.moments(last.rewards, CountBy.ROLLOUTS)
            sigma = torch.full_like(sigma, math.sqrt(moments.variance(self.std)))
            alone = sigma
        advantages = standardise(last.centred, sigma, self.eps)
        if self.singleton == "reward":
            is_alone = self._count(last) == 1
            advantages = standardise(last.rewards, alone, self.eps).where(is_alone, advantages)
        if self.step_norm:
            advantages = advantages / turns.counts.clamp(min=1)
        return advantages[..., None].expand(turns.present.shape)

    def _last(self, turns: Turns, groups: Groups) -> Groups:
        """Return the statistics of the rewards of last turns."""
        last = (turns.counts - 1).clamp(min=0)
        return groups.with_rewards(turns.rewards.gather(-1, last[..., None])[..., 0])

    def _count(self, groups: Groups) -> PerGroup:
        counts = torch.ones_like(groups.rewards) if groups.mask is None else groups.mask
        return counts.sum(dim=1, keepdim=True)

    def _keep(self, groups: Groups) -> FlagPerRollout:
        kept = super()._keep(groups)
        if self.threshold is None:
            return kept
        last = self._last(Turns(groups), groups)
        return kept & (last.std(self.std) > self.threshold)


@dataclass(kw_only=True)
class TurnReturn(TurnEstimator):
    """The return from a turn on, less the mean return of the others: Aᵢₜ = Gᵢₜ - mean Gⱼₜ.

    Gᵢₜ = rᵢₜ + γ Gᵢ₍ₜ₊₁₎, and the mean is over the other rollouts of the prompt that have a turn t.
    The only rollout with a turn t gets 0 there. It is `by_turn` over `rloo`; with a reward at the
    end alone and γ = 1 the turns of an episode differ only by which other episodes are as long.
    """

    name: ClassVar[str] = "turn_return"
    minimum_group: ClassVar[int] = 2
    per_group: ClassVar[bool] = True

    gamma: float = option(1.0, ge=0, le=1, help="γ: discount of a reward per turn")

    def _turn_advantages(self, turns: Turns, groups: Groups, info: dict[str, float]) -> PerTurn:
        by_index = TurnGroups.by_index(turns)
        returns = by_index.statistics(turns.returns(self.gamma))
        others = at_least(returns.count - 1, 1)
        return by_index.scatter(returns.centred * (returns.count / others))


@dataclass(kw_only=True)
class Vine(TurnEstimator):
    """What a turn changed of the reward to come: Aᵢₜ = rᵢₜ + γ V(xₜ₊₁) - V(xₜ).

    V(xₜ) is the mean return of further rollouts from the state before turn t, which the rollout
    policy `vine` draws; after the last turn it is 0. The expected advantage is the policy's own,
    without bias, at the cost of these rollouts. Nothing is compared within the group: equal rewards
    may get an advantage other than 0, and a single rollout does.

    Where the last turns of an episode have no measured value, their V is the return of the episode
    itself, as in the authors' code, and their advantage 0. An episode without a measured value at
    its first turn, or with a gap, is left out of the update.
    """

    name: ClassVar[str] = "vine"
    needs: ClassVar[frozenset[str]] = TurnEstimator.needs | {"turn_values"}
    per_group: ClassVar[bool] = True

    gamma: float = option(1.0, ge=0, le=1, help="γ: discount of a reward per turn")

    def _turn_advantages(self, turns: Turns, groups: Groups, info: dict[str, float]) -> PerTurn:
        values = self._values(turns)
        advantages = turns.changes(values, self.gamma)
        return advantages.where(_measured(values)[..., None], 0.0)

    def _values(self, turns: Turns) -> PerTurn:
        """Return V before each turn; NaN where it is unknown."""
        values = turns.input("turn_values")
        assert values is not None
        if values.isinf().any():
            raise BatchError(
                "turn_values: expected finite numbers, or NaN where a value was not measured, got "
                "infinity"
            )
        columns = []
        following = torch.zeros_like(values[..., 0])
        is_tail = torch.ones_like(following, dtype=torch.bool)
        turn_columns = zip(values.unbind(dim=-1), turns.rewards.unbind(dim=-1), strict=True)
        for number, (value, reward) in reversed(list(enumerate(turn_columns))):
            is_tail &= value.isnan() | ~turns.present[..., number]
            # The first turn has to be measured: without it nothing is known of the episode.
            if number > 0:
                value = torch.where(is_tail, reward + self.gamma * following, value)
            columns.append(value)
            following = value
        return torch.stack(columns[::-1], dim=-1)

    def _keep(self, groups: Groups) -> FlagPerRollout:
        return super()._keep(groups) & _measured(self._values(Turns(groups)))


def _measured(values: PerTurn) -> Bool[Tensor, "prompts rollouts"]:
    """Flag the episodes of which the value before every turn is known."""
    return ~values.isnan().any(dim=-1)
