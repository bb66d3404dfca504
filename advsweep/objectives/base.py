"""The contract of an objective: advantages and log-probabilities in, a loss out."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

from torch import Tensor

from advsweep.components import Component

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Num


@dataclass(frozen=True, kw_only=True)
class LossInputs:
    """The rollouts of one minibatch, one row each, padded to the longest completion.

    Minibatches of several runs, which have nothing to do with each other, may lie side by side
    along leading axes, `*runs`. Each run's numbers are then the same to the bit, whichever
    others stand beside it.

    Rollouts whose advantage is 0 may be left out where the objective `skips_exactly`; they
    count in `rollouts` and `tokens` all the same, so that nothing changes by it.

    Attributes:
        log_probs: log π of the sampled tokens under the weights being trained.
        old_log_probs: the same under the weights that sampled them, no gradient.
        completion_mask: true for generated tokens, the end mark included. What stands in
            the other places is never read, and a rollout without any adds nothing.
        advantages: one number per rollout; each of its tokens gets it.
        rollouts: the minibatch's rollouts, those left out included. Where a minibatch is
            computed in several parts, each of them is given an equal share of the number, so
            that the mean of their losses is the minibatch's. Of several runs, one number
            that they share or one each, above 0.
        tokens: their generated tokens, likewise.
        parts: in how many parts the minibatch is computed; `parts` times `rollouts` are its own.
        reference_log_probs: log π of the sampled tokens under the base model, no gradient.
        entropies: exact entropy of each next-token distribution, in nats, with gradient.
    """

    log_probs: Float[Tensor, "*runs rollouts tokens"]
    old_log_probs: Float[Tensor, "*runs rollouts tokens"]
    completion_mask: Bool[Tensor, "*runs rollouts tokens"]
    advantages: Float[Tensor, "*runs rollouts"]
    rollouts: float | Num[Tensor, "*runs"]
    tokens: float | Num[Tensor, "*runs"]
    parts: int = 1
    reference_log_probs: Float[Tensor, "*runs rollouts tokens"] | None = None
    entropies: Float[Tensor, "*runs rollouts tokens"] | None = None


@dataclass(frozen=True, kw_only=True)
class LossOutput:
    """What an objective returns.

    Attributes:
        loss: to be minimised: a scalar, or one for each run.
        metrics: the same without gradient under their metric names: `loss/policy`, and
            `loss/kl` and `loss/clip_fraction` where there is a penalty or a clip. Each is
            a mean over the minibatch.
    """

    loss: Float[Tensor, "*runs"]
    metrics: Mapping[str, Float[Tensor, "*runs"]] = field(default_factory=dict)


class Objective(Component):
    """A loss over rollouts and their advantages."""

    @property
    def skips_exactly(self) -> bool:
        """True where a rollout with advantage 0 adds nothing to loss and gradient."""
        return False

    @property
    def averages(self) -> bool:
        """True where the loss is a mean over rollouts or tokens, not a sum."""
        return True

    @property
    def needs_reference(self) -> bool:
        """True where `LossInputs.reference_log_probs` must be given."""
        return False

    @property
    def needs_entropy(self) -> bool:
        """True where `LossInputs.entropies` must be given, with gradient."""
        return False

    def for_completions(self, max_tokens: int) -> Self:
        """This objective for completions of at most `max_tokens` tokens.

        A run's objective is made so before anything else reads it: a constant that depends on
        the length, and that nobody gave, is then part of the run's config and identity.
        """
        return self

    @abstractmethod
    def loss(self, inputs: LossInputs) -> LossOutput:
        """The loss of one minibatch, or of each run's."""
