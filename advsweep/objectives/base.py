"""The base class of objectives: advantages and log-probabilities in, a loss out."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar, Self

from advsweep.components import Component

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Num
    from torch import Tensor

    # A number or a flag of each token, and a number of each run. A rollout whose tokens share a
    # number may have it once.
    PerToken = Float[Tensor, "*runs rollouts tokens"]
    PerTokenOrRollout = Float[Tensor, "*runs rollouts #tokens"]
    FlagPerToken = Bool[Tensor, "*runs rollouts tokens"]
    PerRun = Float[Tensor, "*runs"]
    # Receives the parts of a loss by metric name.
    Metrics = dict[str, Tensor]


@dataclass(frozen=True, kw_only=True)
class Choice:
    """What a loss takes from its whole minibatch, without gradient.

    Attributes:
        tokens: flags of tokens, by name.
        numbers: statistics of the minibatch, by name.
    """

    tokens: Mapping[str, FlagPerToken] = field(default_factory=dict)
    numbers: Mapping[str, PerRun] = field(default_factory=dict)

    def of_rows(self, rows: slice, width: int) -> Choice:
        """Return the choice for some rollouts, cut to a number of tokens."""
        tokens = {name: flags[..., rows, :width] for name, flags in self.tokens.items()}
        return replace(self, tokens=tokens)


@dataclass(frozen=True, kw_only=True)
class LossInputs:
    """The rollouts of one minibatch, one row each, padded to the longest completion.

    Leading axes `*runs` may stack the minibatches of several independent runs. Each run's
    numbers then have the same bits as without the others.

    If the objective `skips_exactly`, rollouts whose advantages are all 0 may be left out. They
    still count in `rollouts` and `tokens`, so the loss does not change.

    Attributes:
        log_probs: log π of the sampled tokens under the weights being trained.
        old_log_probs: the same under the weights that sampled them, without gradient; if the
            objective `recomputes_old`, under the weights at the start of the step.
        completion_mask: true for generated tokens, the end mark included. Other places are never
            read, and a rollout without generated tokens adds nothing.
        advantages: one number per rollout, which all its tokens get, or one per token. Numbers
            outside `completion_mask` are never read.
        rollouts: number of rollouts of the minibatch, including those left out. If a minibatch
            is computed in several parts, each part gets an equal share of the number, so that
            the mean of their losses is the loss of the minibatch. For several runs: one common
            number or one per run, above 0.
        tokens: number of their generated tokens, in the same form.
        parts: number of parts in which the minibatch is computed; the whole minibatch has
            `parts` times `rollouts` rollouts.
        reference_log_probs: log π of the sampled tokens under the base model, without gradient.
        sampler_log_probs: the same as the sampler computed them, with older weights or other
            kernels; NaN where it did not. None if the weights in training have sampled.
        weights: factors of the token losses, from a correction that the trainer makes itself;
            None for 1.
        entropies: exact entropy of each next-token distribution, in nats, with gradient.
        choice: what `Objective.choose` has taken from the whole minibatch, for these rollouts; None
            if no rollouts but these are known.
    """

    log_probs: Float[Tensor, "*runs rollouts tokens"]
    old_log_probs: Float[Tensor, "*runs rollouts tokens"]
    completion_mask: Bool[Tensor, "*runs rollouts tokens"]
    advantages: Float[Tensor, "*runs rollouts"] | Float[Tensor, "*runs rollouts tokens"]
    rollouts: float | Num[Tensor, "*runs"]
    tokens: float | Num[Tensor, "*runs"]
    parts: int = 1
    reference_log_probs: Float[Tensor, "*runs rollouts tokens"] | None = None
    sampler_log_probs: Float[Tensor, "*runs rollouts tokens"] | None = None
    weights: Float[Tensor, "*runs rollouts #tokens"] | None = None
    entropies: Float[Tensor, "*runs rollouts tokens"] | None = None
    choice: Choice | None = None

    @property
    def has_token_advantages(self) -> bool:
        """Whether there is one advantage per token rather than per rollout."""
        return self.advantages.ndim == self.log_probs.ndim

    @property
    def token_advantages(self) -> Float[Tensor, "*runs rollouts #tokens"]:
        """The advantages with a token axis, of length 1 if they are per rollout."""
        if self.has_token_advantages:
            return self.advantages.where(self.completion_mask, 0.0)
        return self.advantages[..., None]


@dataclass(frozen=True, kw_only=True)
class LossOutput:
    """The result of an objective.

    Attributes:
        loss: the number to minimise: a scalar, or one per run.
        metrics: parts of the loss without gradient, by metric name: `loss/policy`, and
            `loss/kl` and `loss/clip_fraction` for objectives with a penalty or a clip. Each is
            a mean over the minibatch.
    """

    loss: Float[Tensor, "*runs"]
    metrics: Mapping[str, Float[Tensor, "*runs"]] = field(default_factory=dict)


class Objective(Component):
    """A loss over rollouts and their advantages.

    A subclass implements `loss`, for advantages per rollout and per token and for any leading
    axes of runs; `tokenwise.Tokenwise` does all this for a loss per token, with aggregation,
    KL penalty and entropy bonus, and leaves `_token_losses` to write.

    Attributes:
        formula: the loss of a token in plain text; several lines where it has several parts.
        when_to_use: for which training it is meant, in prose.
        source: the papers, and the code, that it follows.
        departures: where it differs from the source.
        treats_few_apart: whether the loss treats a few tokens of a minibatch otherwise, and one
            that is alone in it as these.
    """

    formula: ClassVar[str] = ""
    when_to_use: ClassVar[str] = ""
    source: ClassVar[str] = ""
    departures: ClassVar[str] = "none"
    treats_few_apart: ClassVar[bool] = False

    @property
    def skips_exactly(self) -> bool:
        """Whether rollouts with advantage 0 add nothing to loss and gradient."""
        return False

    @property
    def moves_alone(self) -> bool:
        """Whether the loss has a gradient where every advantage is 0, from the base model on."""
        return not self.skips_exactly

    @property
    def averages(self) -> bool:
        """Whether the loss is a mean over rollouts or tokens rather than a sum."""
        return True

    @property
    def needs_reference(self) -> bool:
        """Whether `LossInputs.reference_log_probs` is required."""
        return False

    @property
    def needs_sampler(self) -> bool:
        """Whether `LossInputs.sampler_log_probs` is required, equal to the old ones if need be."""
        return False

    @property
    def recomputes_old(self) -> bool:
        """Whether `LossInputs.old_log_probs` are of the weights at the start of the step."""
        return False

    def renews_reference(self, step: int) -> bool:
        """Return whether the policy after `step` steps becomes the penalty's reference."""
        return False

    @property
    def needs_entropy(self) -> bool:
        """Whether `LossInputs.entropies` is required, with gradient."""
        return False

    @property
    def chooses(self) -> bool:
        """Whether the loss of a rollout depends on the others of its minibatch, by `choose`."""
        return False

    def choose(self, inputs: LossInputs) -> Choice:
        """Return what the loss of each rollout takes from its whole minibatch.

        A trainer that computes a minibatch in several parts calls it before the first of them, with
        the inputs of all parts, and gives each its share as `LossInputs.choice`. So results do not
        depend on the number of parts. Without a choice, `loss` makes it from what it is given.

        Args:
            inputs: the whole minibatch, with the weights that its loss is computed with; its
                `parts` say in how many parts.
        """
        return Choice()

    def for_completions(self, max_tokens: int) -> Self:
        """Return this objective for completions of at most `max_tokens` tokens.

        Runs call it before anything else reads their objective. So a constant that depends on
        the length, and that the user left out, becomes part of the run's config and identity.
        """
        return self

    @abstractmethod
    def loss(self, inputs: LossInputs) -> LossOutput:
        """Compute the loss of one minibatch, or of each run's minibatch.

        The gradient flows through `inputs.log_probs` (and `entropies`) alone. Numbers outside
        `completion_mask` may be anything, NaN included, and must not reach loss or gradient.
        """
