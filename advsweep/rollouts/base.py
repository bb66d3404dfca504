"""The contract of a rollout policy: which groups a step draws and which it trains on."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol

from torch import Tensor

from advsweep.components import Component

if TYPE_CHECKING:
    from jaxtyping import Float, Int


class RolloutSource(Protocol):
    """Draws groups for one step; what a backend hands to a rollout policy.

    The source keeps all that it generated, in the order of drawing, and charges it to the
    step (`cost/rollouts`), whether it is trained on or not.
    """

    @property
    def step(self) -> int:
        """The training step, counted from 1."""
        ...

    def draw(self, prompts: int) -> Float[Tensor, "prompts rollouts"]:
        """Generates and scores a group for each of `prompts` new prompts.

        Returns:
            Their rewards; NaN where the verifier could not judge.
        """
        ...

    def draw_references(self, groups: Int[Tensor, " groups"]) -> Float[Tensor, "groups rollouts"]:
        """Generates and scores a group of the reference model for prompts already drawn.

        Args:
            groups: whose prompts, counted from 0 in the order of drawing.

        Returns:
            Their rewards; NaN where the verifier could not judge.
        """
        ...


@dataclass(frozen=True)
class Collected:
    """What a step trains on.

    Attributes:
        groups: the groups, counted from 0 in the order of drawing; none if the step has
            nothing to train on.
        ref_rewards: rewards of reference rollouts for the same prompts, where the policy
            provides them.
    """

    groups: Int[Tensor, " groups"]
    ref_rewards: Float[Tensor, "groups rollouts"] | None = None


class RolloutPolicy(Component):
    """Decides how many groups a step draws and which of them go to the estimator."""

    provides: ClassVar[frozenset[str]] = frozenset()
    """Fields of `GroupBatch` that this policy adds to those of the backend."""
    draws_references: ClassVar[bool] = False
    """True if it draws with a reference model, which the backend must keep then."""
    keeps_all: ClassVar[bool] = False
    """True if a step draws once and trains on every group: several runs may draw at once then."""

    @abstractmethod
    def collect(self, source: RolloutSource, prompts: int) -> Collected:
        """Draws from the source as often as it takes.

        Args:
            source: where groups come from, fresh for this step.
            prompts: how many groups the step asks for (`prompts_per_step`).

        Raises:
            TrainingError: groups such as it needs do not come; the message names the step.
        """

    def renews_reference(self, step: int) -> bool:
        """True if the weights after `step` steps become the reference model."""
        return False
