"""Retries: failed prompts are tried again within the step, with a new group of rollouts."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, ClassVar

import torch

from advsweep.components import option
from advsweep.rollouts.base import Collected, RepeatingSource, RolloutPolicy, RolloutSource

if TYPE_CHECKING:
    from jaxtyping import Bool, Float
    from torch import Tensor


class RetryIf(Enum):
    """The event in a prompt's group that starts its next turn, of chance q, q^G or 1 - p^G."""

    FIRST = "first"
    ALL = "all"
    ANY = "any"


@dataclass(kw_only=True)
class Retry(RolloutPolicy):
    """Draws the step's number of groups, and new groups for the prompts that failed.

    A turn is a group of G new rollouts of the same prompt; nothing of the turn before enters the
    prompt. A step trains on the groups of all turns, and each group has statistics of its own.
    A prompt of solve rate p, q = 1 - p, reaches turn t with chance ρₜ = cᵗ⁻¹. By `retry_if`, c is

        first   q        the first rollout of the group failed
        all     q^G      every rollout failed
        any     1 - p^G  some rollout failed

    so that turn t adds the masses ρₜ m_S and ρₜ m_F, where m_S and m_F are those of one group. With
    `first`, `dr_grpo` and large groups the second turn adds p q², which is the mass of
    `power_alpha` with α = 2, and turn t adds that of α = t. A rollout that could not be scored is
    left out; a group of such rollouts alone counts as failed.

    Source: FADE (arXiv:2607.01490), Eq. 15-16 and sec. 9.2.

    Departures: the paper fires the second turn "for prompts that failed, with probability q",
    which one rollout decides and not a group; `first` has that chance, and `all` and `any` are
    ours. The loss is a mean over the rollouts of all turns, where the paper adds up turns.
    """

    name: ClassVar[str] = "retry"
    draws_again: ClassVar[bool] = True

    turns: int = option(2, ge=1, help="turns of a prompt at most, the first included")
    retry_if: RetryIf = option(
        RetryIf.FIRST, help="the next turn comes if the first, all or any rollouts failed"
    )
    success: float = option(1.0, help="rewards from this on are no failures")

    def collect(self, source: RolloutSource, prompts: int) -> Collected:
        rewards = source.draw(prompts)
        # The groups of the last turn, and the prompt and the turn of every group.
        last = torch.arange(len(rewards))
        owners, turns = [last], [torch.ones_like(last)]
        current = last
        for turn in range(2, self.turns + 1):
            failed = self._failed(rewards)
            current, last = current[failed], last[failed]
            if not len(current):
                break
            assert isinstance(source, RepeatingSource)
            rewards = source.draw_again(current)
            current = sum(map(len, owners)) + torch.arange(len(current))
            owners.append(last)
            turns.append(torch.full_like(last, turn))
        # The turns of a prompt stand together, so that minibatches are of all turns alike.
        order = torch.cat(owners).argsort(stable=True)
        return Collected(order, turns=torch.cat(turns), last_turn=self.turns)

    def reach(self, solve_rate: float, group_size: int) -> list[float]:
        """Return the chance ρₜ of each turn t that a prompt reaches it (FADE, Eq. 16).

        Args:
            solve_rate: p, in [0, 1].
            group_size: G.
        """
        q = 1 - solve_rate
        again = {
            RetryIf.FIRST: q,
            RetryIf.ALL: q**group_size,
            RetryIf.ANY: 1 - solve_rate**group_size,
        }[self.retry_if]
        return [again**turn for turn in range(self.turns)]

    def _failed(self, rewards: Float[Tensor, "groups rollouts"]) -> Bool[Tensor, " groups"]:
        scored = ~rewards.isnan()
        wrong = scored & (rewards < self.success)
        if self.retry_if is RetryIf.ANY:
            failed = wrong.any(dim=1)
        elif self.retry_if is RetryIf.ALL:
            failed = (wrong == scored).all(dim=1)
        else:
            first = scored.long().argmax(dim=1, keepdim=True)
            failed = wrong.gather(1, first)[:, 0]
        return failed | ~scored.any(dim=1)
