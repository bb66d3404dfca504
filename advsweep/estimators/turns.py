"""The turns of episodes: what a batch says of them, and returns from each turn on."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import torch

from advsweep.errors import BatchError

if TYPE_CHECKING:
    from jaxtyping import Bool, Int
    from torch import Tensor

    from advsweep.estimators.batch import GroupBatch, Groups, PerRollout, PerToken, PerTurn

    FlagPerTurn = Bool[Tensor, "prompts rollouts turns"]


class Turns:
    """The turns of the rollouts of a batch; without `turn_of_token` each rollout is one turn.

    The turn axis is as long as the episode with the most turns. Rollouts that do not count have no
    turn.

    Attributes:
        of_token: the turn of each token; -1 for tokens of the environment, past the end, and of
            rollouts that do not count.
        present: whether an episode has a turn.
    """

    def __init__(self, groups: Groups) -> None:
        self._groups = groups
        turn_of_token = groups.batch.turn_of_token
        if turn_of_token is None:
            turn_of_token = torch.zeros_like(groups.within(_longest(groups)), dtype=torch.int64)
        inside = groups.within(turn_of_token.shape[-1])
        self.of_token: Int[Tensor, "prompts rollouts tokens"] = turn_of_token.where(inside, -1)
        self._numbers = torch.arange(max(int(self.counts.max()), 1), device=self.counts.device)
        self.present: FlagPerTurn = self._numbers < self.counts[..., None]

    @functools.cached_property
    def counts(self) -> Int[Tensor, "prompts rollouts"]:
        """Turns of each rollout; 0 for rollouts that do not count."""
        return self.of_token.amax(dim=-1) + 1

    @functools.cached_property
    def token_counts(self) -> PerTurn:
        """Generated tokens of each turn."""
        counts = self._groups.rewards.new_zeros(self.present.shape)
        inside = (self.of_token >= 0).to(counts.dtype)
        return counts.scatter_add(-1, self.of_token.clamp(min=0), inside)

    @functools.cached_property
    def outcomes(self) -> PerRollout:
        """What the reward of each rollout has beside the rewards of its turns.

        It is 0 where rewards differ by rounding alone, as a standard deviation would make much of
        that.
        """
        outcomes = self._groups.rewards
        sizes = outcomes.abs()
        # One by one, so that the bits of an episode do not depend on how many turns others have.
        for given in self.given.unbind(dim=-1):
            outcomes = outcomes - given
            sizes = sizes + given.abs()
        rounding = 4 * torch.finfo(sizes.dtype).eps
        return outcomes.where(outcomes.abs() > rounding * sizes, 0.0)

    @functools.cached_property
    def rewards(self) -> PerTurn:
        """The reward of each turn; that of the last turn contains the outcome."""
        last = self._numbers == self.counts[..., None] - 1
        return self.given + self.outcomes[..., None].where(last, 0.0)

    @functools.cached_property
    def given(self) -> PerTurn:
        """What the environment gave for each turn; 0 past the last turn.

        Raises:
            BatchError: it is not finite.
        """
        given = self.input("turn_rewards")
        if given is None:
            return self._groups.rewards.new_zeros(self.present.shape)
        if not given.isfinite().all():
            raise BatchError(
                "turn_rewards: expected finite numbers for the turns of an episode, got NaN or "
                "infinity"
            )
        return given

    @functools.cached_property
    def states(self) -> Int[Tensor, "prompts rollouts turns"]:
        """What stands before each turn; 0 past the last turn.

        Raises:
            BatchError: they are no whole numbers.
        """
        states = self.input("turn_states")
        assert states is not None
        if states.is_floating_point():
            raise BatchError(f"turn_states: expected whole numbers, got {states.dtype}")
        return states

    def returns(self, gamma: float = 1.0) -> PerTurn:
        """Return Gₜ = rₜ + γ Gₜ₊₁ from each turn on; 0 past the last turn."""
        columns = []
        following = torch.zeros_like(self._groups.rewards)
        for rewards in reversed(self.rewards.unbind(dim=-1)):
            following = rewards + gamma * following
            columns.append(following)
        return torch.stack(columns[::-1], dim=-1)

    def changes(self, values: PerTurn, gamma: float = 1.0) -> PerTurn:
        """Return rₜ + γ Vₜ₊₁ - Vₜ, which each turn changes of the reward to come.

        Args:
            values: V before each turn. After the last turn V is 0.
        """
        following = torch.nn.functional.pad(values[..., 1:], (0, 1))
        return self.rewards + gamma * following - values

    def input(self, name: str) -> Tensor | None:
        """Return an input of the batch that has a number per turn, on the turn axis.

        Past the last turn of an episode it is 0. None if the batch lacks it.

        Raises:
            BatchError: it has fewer turns than an episode.
        """
        values: Tensor | None = getattr(self._groups.batch, name)
        if values is None:
            return None
        number = self.present.shape[-1]
        if values.shape[-1] < number:
            raise BatchError(
                f"{name}: expected at least {number} turns, which the longest episode has, got "
                f"{values.shape[-1]}"
            )
        if values.is_floating_point():
            values = values.to(self._groups.rewards)
        return values[..., :number].where(self.present, 0)

    def spread(self, values: PerTurn) -> PerToken:
        """Give each token the number of its turn; 0 for all other places."""
        spread = values.gather(-1, self.of_token.clamp(min=0))
        return spread.where(self.of_token >= 0, 0.0)

    def means(self, values: PerRollout | PerToken) -> PerTurn:
        """Return the mean of a number over the tokens of each turn; 0 past the last turn.

        One number per rollout is that of each of its turns.
        """
        if values.ndim == 2:
            return values[..., None].where(self.present, 0.0)
        inside = values.where(self.of_token >= 0, 0.0)
        sums = values.new_zeros(self.present.shape)
        sums = sums.scatter_add(-1, self.of_token.clamp(min=0), inside)
        return sums / self.token_counts.to(values).clamp(min=1)


def _longest(groups: Groups) -> int:
    """Return the length of a token axis that has room for every rollout that counts."""
    if groups.batch.lengths is None:
        raise BatchError("lengths: expected the tokens of each rollout, got none")
    return max(int(groups.finite("lengths").max().ceil()), 1)


def check_turns(batch: GroupBatch) -> None:
    """Refuse turns that are not those of episodes.

    Raises:
        BatchError: turns are not numbered from 0 in order, an episode that counts has none, or
            their tokens are not as many as the rollout's.
    """
    turns = batch.turn_of_token
    assert turns is not None
    if turns.dtype not in (torch.int32, torch.int64):
        raise BatchError(f"turn_of_token: expected whole numbers, got {turns.dtype}")
    counted = torch.ones_like(batch.rewards, dtype=torch.bool) if batch.mask is None else batch.mask
    turns = turns[counted]
    generated = turns >= 0
    _refuse(
        ~generated.any(dim=-1), counted, "expected a turn of the policy in every episode, got none"
    )
    # The largest turn so far, before each token: the next is this turn or the one after it.
    reached = turns.cummax(dim=-1).values
    before = torch.nn.functional.pad(reached[..., :-1], (1, 0), value=-1)
    is_next = (turns == before) | (turns == before + 1)
    _refuse(
        (generated & ~is_next).any(dim=-1),
        counted,
        "expected turns numbered from 0 in order, got another order",
    )
    if batch.lengths is None or batch.lengths.shape != batch.rewards.shape:
        return
    _refuse(
        generated.sum(dim=-1) != batch.lengths[counted],
        counted,
        "expected turns that add up to the rollout's generated tokens (lengths), got others",
    )


def _refuse(
    wrong: Bool[Tensor, " counted"], counted: Bool[Tensor, "prompts rollouts"], what: str
) -> None:
    """Raise an error that names the first rollout that is wrong."""
    if wrong.any():
        prompt, rollout = counted.nonzero()[wrong.nonzero()[0, 0]].tolist()
        raise BatchError(f"turn_of_token: {what} in rollout {rollout} of prompt {prompt}")


def number_turns(generated: Bool[Tensor, "rows tokens"]) -> Int[Tensor, "rows tokens"]:
    """Return the turn of each token: a new one begins at each run of generated tokens.

    Trainers of agents mark the tokens of the policy with 1, those of tools and environments and
    padding with 0; the latter get -1.
    """
    before = torch.nn.functional.pad(generated[:, :-1], (1, 0), value=False)
    begins = generated & ~before
    return (begins.cumsum(dim=-1) - 1).where(generated, -1)
