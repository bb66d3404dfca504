"""The rollout policies: plain, filter-drop, dynamic sampling and reference rollouts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import torch

from advsweep.components import option
from advsweep.errors import TrainingError
from advsweep.estimators.batch import GroupBatch, Groups
from advsweep.rollouts.base import Collected, RolloutPolicy, RolloutSource

if TYPE_CHECKING:
    from jaxtyping import Bool, Float
    from torch import Tensor


@dataclass(kw_only=True)
class FilterDrop(RolloutPolicy):
    """Draws the step's number of groups and drops the collapsed ones.

    A group has collapsed if the population σ of its verdicts is below ε_acr; with `on=reward` that
    of its rewards. Rollouts that could not be scored do not count. Dropped groups are not
    replaced: the cost is 1, the used share of rollouts is 1 - ACR, and a step whose groups have
    all collapsed trains on nothing. With `grpo` and one minibatch it equals the estimator
    `filter_drop`.

    Source: AVSPO (Advantage Collapse in GRPO), by name, as a baseline.

    Departures: the estimator does not see the dropped groups, so statistics of the batch are
    those of the mixed groups.
    """

    name: ClassVar[str] = "filter_drop"
    revision: ClassVar[int] = 2  # in 1, groups were judged by their rewards alone

    eps_acr: float = option(1e-6, gt=0, help="groups with a smaller σ are dropped")

    def collect(self, source: RolloutSource, prompts: int) -> Collected:
        judged = self.judged(source.draw(prompts), source.verdicts)
        return Collected(_mixed(judged, self.eps_acr).nonzero()[:, 0])


@dataclass(kw_only=True)
class DynamicSampling(RolloutPolicy):
    """Draws until the step's number of mixed groups is reached, and discards the rest.

    A group is mixed if the population σ of its verdicts is at least ε_acr; with `on=reward` that of
    its rewards. Rollouts that could not be scored do not count. The step trains on the first mixed
    groups. Collapsed and surplus groups are discarded, but their cost
    counts: generated / (B G) = 1 / utilisation.

    Source: DAPO (Yu et al. 2025, arXiv:2503.14476) sec. 3.2, as in AVSPO's baseline.

    Departures: no paper says what to do if the problems yield no mixed groups; `max_draws` then
    ends the run, as in DAPO's released code. Statistics of the batch are those of the mixed
    groups.
    """

    name: ClassVar[str] = "dynamic_sampling"
    revision: ClassVar[int] = 2  # in 1, groups were judged by their rewards alone

    max_draws: int = option(10, ge=1, help="draws per step; if they do not suffice, the run fails")
    draw_prompts: int | None = option(
        None, ge=1, help="prompts of one draw; null: as many as the step asks for"
    )
    eps_acr: float = option(1e-6, gt=0, help="groups with a smaller σ are discarded")

    def collect(self, source: RolloutSource, prompts: int) -> Collected:
        size = self.draw_prompts or prompts
        rewards = []
        for _ in range(self.max_draws):
            rewards.append(source.draw(size))
            mixed = _mixed(self.judged(torch.cat(rewards), source.verdicts), self.eps_acr)
            if mixed.sum() >= prompts:
                return Collected(mixed.nonzero()[:prompts, 0])
        raise TrainingError(
            f"step {source.step}: expected {prompts} groups with different {self.on.value}s, got "
            f"{int(mixed.sum())} of {len(mixed)} drawn; raise rollout.max_draws (now "
            f"{self.max_draws}), take problems of other difficulty, or train on what there is "
            f"with rollout=filter_drop"
        )


def _mixed(judged: Float[Tensor, "groups rollouts"], eps_acr: float) -> Bool[Tensor, " groups"]:
    groups = Groups(GroupBatch(rewards=judged, mask=~judged.isnan()))
    return groups.std()[:, 0] >= eps_acr


@dataclass(kw_only=True)
class Plain(RolloutPolicy):
    """Draws the step's number of groups and keeps all of them."""

    name: ClassVar[str] = "plain"
    keeps_all: ClassVar[bool] = True

    def collect(self, source: RolloutSource, prompts: int) -> Collected:
        return Collected(torch.arange(len(source.draw(prompts))))


@dataclass(kw_only=True)
class Reference(RolloutPolicy):
    """Plain rollouts, and for each group a group of the reference model with the same prompt.

    The reference is the base model, or the policy at the last multiple of `update_every` steps.
    Its rollouts are generated anew in every step and are not trained on; they count in
    `cost/rollouts`, which is 2. A reference rollout that the verifier could not judge gets the
    reward of the rollout with which it is paired, so that the margin is 0.

    Source: AAPO (arXiv:2505.14264), Alg. 1; for `update_every`, the ablation of Table 3.

    Departures: none.
    """

    name: ClassVar[str] = "reference"
    provides: ClassVar[frozenset[str]] = frozenset({"ref_rewards"})
    draws_references: ClassVar[bool] = True
    keeps_all: ClassVar[bool] = True

    update_every: int = option(
        0, ge=0, help="steps after which the policy becomes the reference; 0: never"
    )

    def collect(self, source: RolloutSource, prompts: int) -> Collected:
        rewards = source.draw(prompts)
        groups = torch.arange(len(rewards))
        references = source.draw_references(groups)
        return Collected(groups, torch.where(references.isnan(), rewards, references))

    def renews_reference(self, step: int) -> bool:
        return self.update_every > 0 and step % self.update_every == 0


class Greedy(RolloutPolicy):
    """Plain rollouts, and for each group a greedy rollout of the same prompt.

    A greedy rollout takes the likeliest token each time. It is not trained on, and counts in
    `cost/rollouts`, which is 1 + 1/G. One that the verifier could not judge gets the mean reward
    of its group.

    Source: ReMax (Li et al. 2023, arXiv:2310.10505), Alg. 1.

    Departures: none.
    """

    name: ClassVar[str] = "greedy"
    provides: ClassVar[frozenset[str]] = frozenset({"greedy_rewards"})
    draws_greedy: ClassVar[bool] = True
    keeps_all: ClassVar[bool] = True

    def collect(self, source: RolloutSource, prompts: int) -> Collected:
        rewards = source.draw(prompts)
        groups = torch.arange(len(rewards))
        greedy = source.draw_greedy(groups)
        judged = torch.where(greedy.isnan(), rewards.nanmean(dim=1), greedy)
        return Collected(groups, greedy_rewards=judged.nan_to_num())


# The event in a prompt's group that starts its next attempt, of chance q, q^G or 1 - p^G.
RetryIf = Literal["first", "all", "any"]


@dataclass(kw_only=True)
class Retry(RolloutPolicy):
    """Draws the step's number of groups, and new groups for the prompts that failed.

    An attempt is a group of G new rollouts of the same prompt; nothing of the attempt before enters
    the prompt. FADE calls an attempt a turn, and so do the option `turns` and the metrics
    (`mass/success/turn_2`); the turns of an episode are another thing. A step trains on the groups
    of all attempts, and each group has statistics of its own. A prompt of solve rate p, q = 1 - p,
    reaches attempt t with chance ρₜ = cᵗ⁻¹. By `retry_if`, c is

        first   q        the first rollout of the group failed
        all     q^G      every rollout failed
        any     1 - p^G  some rollout failed

    so that attempt t adds the masses ρₜ m_S and ρₜ m_F, where m_S and m_F are those of one group.
    With `first`, `dr_grpo` and large groups the second attempt adds p q², which is the mass of
    `power_alpha` with α = 2, and attempt t adds that of α = t. A rollout that could not be scored
    is left out; a group of such rollouts alone counts as failed.

    Source: FADE (arXiv:2607.01490), Eq. 15-16 and sec. 9.2.

    Departures: the paper fires the second turn "for prompts that failed, with probability q",
    which one rollout decides and not a group; `first` has that chance, and `all` and `any` are
    ours. The loss is a mean over the rollouts of all attempts, where the paper adds them up.
    """

    name: ClassVar[str] = "retry"
    revision: ClassVar[int] = 2  # in 1, groups were judged by their rewards alone
    draws_again: ClassVar[bool] = True

    turns: int = option(2, ge=1, help="attempts at a prompt at most, the first included")
    retry_if: RetryIf = option(
        "first", help="the next attempt comes if the first, all or any rollouts failed"
    )
    success: float = option(1.0, help="with on=reward: rewards from this on are no failures")

    def collect(self, source: RolloutSource, prompts: int) -> Collected:
        judged = self.judged(source.draw(prompts), source.verdicts)
        # The groups of the last attempt, and the prompt and the attempt of every group.
        last = torch.arange(len(judged))
        owners = [last]
        attempts = [torch.ones_like(last)]
        current = last
        for attempt in range(2, self.turns + 1):
            failed = self._failed(judged)
            current = current[failed]
            last = last[failed]
            if not len(current):
                break
            rewards = source.draw_again(current)
            current = sum(map(len, owners)) + torch.arange(len(current))
            judged = self.judged(rewards, source.verdicts[current])
            owners.append(last)
            attempts.append(torch.full_like(last, attempt))
        # The attempts at a prompt stand together, so that minibatches are of all attempts alike.
        order = torch.cat(owners).argsort(stable=True)
        return Collected(order, attempts=torch.cat(attempts), last_attempt=self.turns)

    def _failed(self, rewards: Float[Tensor, "groups rollouts"]) -> Bool[Tensor, " groups"]:
        scored = ~rewards.isnan()
        wrong = scored & (rewards < self.success)
        if self.retry_if == "any":
            failed = wrong.any(dim=1)
        elif self.retry_if == "all":
            failed = (wrong == scored).all(dim=1)
        else:
            first = scored.long().argmax(dim=1, keepdim=True)
            failed = wrong.gather(1, first)[:, 0]
        return failed | ~scored.any(dim=1)
