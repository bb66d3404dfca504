"""What an estimator is given and what it returns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from advsweep.errors import BatchError

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int

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
