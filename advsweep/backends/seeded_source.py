"""The source of groups of trainers that sample by generators of their own, one for each purpose."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from advsweep.backends.randomness import Stream, numpy_generator, torch_generator
from advsweep.backends.training_loop import (
    Answers,
    LanguageSource,
    Scores,
    TokenStatistics,
    score,
)

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int
    from torch import Tensor

    from advsweep.backends.base import Run
    from advsweep.tasks.base import Problem


class SampledTokens(Protocol):
    """What is known of sampled tokens; numbers are 0 past the ends of rollouts."""

    @property
    def log_probs(self) -> Float[Tensor, "rows tokens"]:
        """log π of each token at the sampling temperature."""

    @property
    def entropies(self) -> Float[Tensor, "rows tokens"]:
        """Exact entropy of each token's distribution, in nats."""

    @property
    def certainties(self) -> Float[Tensor, "rows tokens"]:
        """KL(uniform ‖ π) of each token's distribution, in nats."""

    @property
    def squares(self) -> Float[Tensor, "rows tokens"]:
        """Σπ² of each token's distribution."""

    @property
    def mask(self) -> Bool[Tensor, "rows tokens"]:
        """True for generated tokens."""

    @property
    def generated(self) -> Int[Tensor, " rows"]:
        """Generated tokens."""

    @property
    def turns(self) -> Int[Tensor, "rows tokens"] | None:
        """The turn of each token, as in `TokenStatistics`."""


class SeededSource(LanguageSource):
    """Draws the groups of one step and scores them; all randomness follows from seed and step.

    A subclass implements `_draw`, which samples groups, scores them and adds them.

    Args:
        base_rate: the base's solve rate, for a control that needs it.

    Attributes:
        reward_seconds: time spent in the verifier.
    """

    def __init__(self, run: Run, step: int, base_rate: float) -> None:
        super().__init__(run, step)
        self._base_rate = base_rate
        self._read = run.estimator.needs | run.estimator.uses
        # A stream for each purpose: a policy that draws more references, or a control that takes
        # more random numbers, leaves the rollouts as they are.
        self._generator = torch_generator(run.rollout_seed, Stream.ROLLOUTS, step)
        self._reference_generator = torch_generator(run.rollout_seed, Stream.REFERENCE, step)
        self._control_rng = numpy_generator(run.seed, Stream.CONTROL, step)
        self.reward_seconds = 0.0

    @abstractmethod
    def _draw(self, problems: list[Problem]) -> Float[Tensor, "prompts rollouts"]:
        """Sample a group for each problem, and return the rewards."""

    @abstractmethod
    def _anchor_log_probs(
        self, problems: Sequence[Problem], rollouts: SampledTokens
    ) -> Float[Tensor, "rows tokens"]:
        """Return log π of the sampled tokens under the reference of a KL penalty.

        Numbers past the ends of rollouts may be anything.
        """

    def draw(self, prompts: int) -> Float[Tensor, "prompts rollouts"]:
        return self._draw(list(self._run.task.draw(prompts, self._rng)))

    def draw_again(self, groups: Int[Tensor, " groups"]) -> Float[Tensor, "groups rollouts"]:
        return self._draw(self._problems_of(groups))

    def _problems_of(self, groups: Int[Tensor, " groups"]) -> list[Problem]:
        return [self._problems[group] for group in groups.tolist()]

    def _score(self, problems: Sequence[Problem], answers: Answers) -> Scores:
        """Score answers, each to a problem, and count the time."""
        started = time.perf_counter()
        scores = score(
            self._run, problems, answers, rng=self._control_rng, base_rate=self._base_rate
        )
        self.reward_seconds += time.perf_counter() - started
        return scores

    def _statistics_of(
        self, problems: Sequence[Problem], rollouts: SampledTokens
    ) -> TokenStatistics:
        """Return the statistics of the groups of problems, with what the estimator reads."""
        tokens = {}
        if "token_entropies" in self._read:
            tokens["token_entropies"] = rollouts.entropies
        if "token_grad_norms" in self._read:
            tokens["token_grad_norms"] = 1 - 2 * rollouts.log_probs.exp() + rollouts.squares
        if "token_kl" in self._read:
            of_anchor = self._anchor_log_probs(problems, rollouts)
            tokens["token_kl"] = rollouts.log_probs - of_anchor
        mask = rollouts.mask
        return TokenStatistics(
            lengths=rollouts.generated.float(),
            surprisal=(-rollouts.log_probs).sum(dim=1),
            entropy=rollouts.entropies.sum(dim=1),
            certainty=rollouts.certainties.sum(dim=1),
            tokens={name: values.where(mask, 0.0) for name, values in tokens.items()},
            turns=rollouts.turns,
        )
