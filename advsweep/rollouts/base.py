"""The contract of a rollout policy: which groups a step draws and which it trains on."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, ClassVar, Protocol

from torch import Tensor

from advsweep.components import Component

if TYPE_CHECKING:
    from jaxtyping import Float, Int


class RolloutSource(Protocol):
    """Draws groups with the current weights; what a backend hands to a rollout policy.

    The source keeps all that it generated, in the order of drawing, and charges it to the
    step (`cost/rollouts`), whether it is trained on or not.
    """

    def draw(self, prompts: int) -> Float[Tensor, "prompts rollouts"]:
        """Generates and scores a group for each of `prompts` new prompts.

        Returns:
            Their rewards; NaN where the verifier could not judge.
        """
        ...


class RolloutPolicy(Component):
    """Decides how many groups a step draws and which of them go to the estimator."""

    provides: ClassVar[frozenset[str]] = frozenset()
    """Fields of `GroupBatch` that this policy adds to those of the backend."""

    @abstractmethod
    def collect(self, source: RolloutSource, prompts: int) -> Int[Tensor, " groups"]:
        """Draws from the source as often as it takes.

        Args:
            source: where groups come from, fresh for this step.
            prompts: how many groups the step asks for (`prompts_per_step`).

        Returns:
            The groups to train on, counted from 0 in the order of drawing.
        """
