"""The base class of rollout policies, and the source from which they draw groups."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import torch

from advsweep.components import Component, option
from advsweep.estimators.batch import CollapseBy

if TYPE_CHECKING:
    from jaxtyping import Float, Int
    from torch import Tensor


class RolloutSource(Protocol):
    """Draws groups for one step; each backend implements one.

    The source keeps all generated rollouts in the order of drawing. All of them count as cost
    of the step (`cost/rollouts`), whether the step trains on them or not.

    Only policies that say so by their class attributes call `draw_references`, `draw_again`,
    `draw_greedy` and `draw_values`.

    Attributes:
        step: the training step, counted from 1.
        group_size: rollouts of a group that the step trains on.
    """

    step: int
    group_size: int

    @property
    def lengths(self) -> Float[Tensor, "drawn rollouts"]:
        """Lengths of the rollouts of all groups drawn so far, in tokens."""

    @property
    def verdicts(self) -> Float[Tensor, "drawn rollouts"]:
        """Verdicts of all groups drawn so far, from which their rewards are computed.

        They are 1 for a success, 0 for a failure and NaN where the verifier could not judge.
        """

    def draw(self, prompts: int) -> Float[Tensor, "prompts rollouts"]:
        """Generates and scores a group for each of `prompts` new prompts.

        Returns:
            Their rewards; NaN where the verifier could not judge.
        """

    def draw_references(self, groups: Int[Tensor, " groups"]) -> Float[Tensor, "groups rollouts"]:
        """Generates and scores a group of the reference model for prompts already drawn.

        Args:
            groups: numbers of the groups with these prompts, from 0 in the order of drawing.

        Returns:
            Their rewards; NaN where the verifier could not judge.
        """

    def draw_again(self, groups: Int[Tensor, " groups"]) -> Float[Tensor, "groups rollouts"]:
        """Generates and scores a further group for prompts already drawn.

        The new groups follow those drawn so far, in this order.

        Args:
            groups: numbers of groups with these prompts, from 0 in the order of drawing.

        Returns:
            Their rewards; NaN where the verifier could not judge.
        """

    def draw_greedy(self, groups: Int[Tensor, " groups"]) -> Float[Tensor, " groups"]:
        """Generates and scores one greedy rollout for each of some prompts already drawn.

        Args:
            groups: numbers of groups with these prompts, from 0 in the order of drawing.

        Returns:
            Their rewards; NaN where the verifier could not judge.
        """

    def draw_values(self, episodes: int, rollouts: int) -> None:
        """Measures what is still to come before each turn, for the batch's `turn_values`.

        Args:
            episodes: the first so many episodes of every group drawn so far are measured.
            rollouts: continuations that are generated and scored from each state.
        """


@dataclass(frozen=True)
class Collected:
    """The groups that a step trains on.

    Attributes:
        groups: their numbers, from 0 in the order of drawing; empty if the step has nothing to
            train on.
        ref_rewards: rewards of reference rollouts for the same prompts, if the policy provides
            them.
        greedy_rewards: reward of a greedy rollout of each prompt, if the policy provides them.
        solve_rates: share of correct ones among the rollouts that are trained on, if these are
            some of a group's.
        attempts: which attempt at its prompt each group drawn is, from 1, if there may be several.
        last_attempt: the attempt after which no prompt comes again.
        rollouts: numbers of the rollouts of each group that are trained on, from 0 in the order of
            drawing; None for all.
    """

    groups: Int[Tensor, " groups"]
    ref_rewards: Float[Tensor, "groups rollouts"] | None = None
    greedy_rewards: Float[Tensor, " groups"] | None = None
    solve_rates: Float[Tensor, " groups"] | None = None
    attempts: Int[Tensor, " drawn"] | None = None
    last_attempt: int = 1
    rollouts: Int[Tensor, "groups trained"] | None = None

    @property
    def inputs(self) -> dict[str, Any]:
        """The fields of `GroupBatch` that the policy provides."""
        inputs = {
            "ref_rewards": self.ref_rewards,
            "greedy_rewards": self.greedy_rewards,
            "solve_rates": self.solve_rates,
        }
        return {name: values for name, values in inputs.items() if values is not None}

    def rows(self, drawn: int) -> Int[Tensor, " rows"]:
        """Return the numbers of the rollouts trained on among all drawn, group after group.

        Args:
            drawn: rollouts drawn per prompt.
        """
        inside = torch.arange(drawn) if self.rollouts is None else self.rollouts
        return (self.groups[:, None] * drawn + inside).flatten()


@dataclass(kw_only=True)
class RolloutPolicy(Component):
    """Decides how many groups a step draws and which of them go to the estimator.

    A subclass implements `collect`; it keeps no state between steps, so that a resumed run draws
    the same groups. A group whose rewards are NaN in part counts by the others.

    Attributes:
        provides: fields of `GroupBatch` that the policy adds to those of the backend.
        draws_references: whether it draws with a reference model, which the backend then has to
            keep.
        draws_greedy: whether it draws greedy rollouts, which the backend then has to support.
        draws_again: whether it draws further groups for the same prompts, and trains on more
            groups than a step asks for; the backend then has to support that.
        draws_values: whether it measures the values of turns, which the backend and the task then
            have to support.
        selects: whether it trains on some of a group's rollouts, which the backend then has to
            support.
        keeps_all: whether a step draws once and trains on every group, so that runs may draw
            together.
    """

    on: CollapseBy = option(
        CollapseBy.VERDICT,
        absent="verdict",
        help="whether groups of equal verdicts or of equal rewards count as collapsed, for the "
        "policy and in collapse/*; they differ where rewards are shaped",
    )

    mask_truncated: bool = option(
        False,
        absent=False,
        help="leave rollouts that the token limit cut off out of the loss; their groups' "
        "statistics and the mean over rollouts count them, as with TRL's "
        "mask_truncated_completions",
    )

    provides: ClassVar[frozenset[str]] = frozenset()
    draws_references: ClassVar[bool] = False
    draws_greedy: ClassVar[bool] = False
    draws_again: ClassVar[bool] = False
    draws_values: ClassVar[bool] = False
    selects: ClassVar[bool] = False
    keeps_all: ClassVar[bool] = False

    @abstractmethod
    def collect(self, source: RolloutSource, prompts: int) -> Collected:
        """Draw from the source as often as needed.

        Args:
            source: a new source for this step.
            prompts: the target number of groups (`prompts_per_step`).

        Raises:
            TrainingError: the source does not yield the required groups; the message names the
                step.
        """

    def drawn_size(self, group_size: int) -> int:
        """Return the rollouts drawn per prompt, of which `group_size` are trained on.

        Raises:
            ConfigError: the policy draws fewer.
        """
        return group_size

    def judged(self, rewards: Tensor, verdicts: Tensor) -> Tensor:
        """Return the numbers whose spread tells whether a group has collapsed, as `on` says."""
        return verdicts if self.on is CollapseBy.VERDICT else rewards

    def renews_reference(self, step: int) -> bool:
        """Return whether the weights after `step` steps become the reference model."""
        return False
