"""Rollouts of one step of a bandit: behaviours drawn from the present policy."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from advsweep.backends.bandit import softmax
from advsweep.backends.randomness import Stream, numpy_generator
from advsweep.estimators import GroupBatch

if TYPE_CHECKING:
    import numpy as np
    from jaxtyping import Float, Int

    from advsweep.backends.run import Run
    from advsweep.tasks.bandit import BanditTask


class Source:
    """What a rollout policy draws from.

    Args:
        policy: log π of every behaviour at the sampling temperature.
        reference: that of the reference model.

    Attributes:
        step: the training step, counted from 1.
        rows: the prompt of each group that was drawn.
        actions: their sampled behaviours.
        references: rollouts of the reference drawn so far.
    """

    def __init__(
        self,
        run: Run,
        task: BanditTask,
        policy: Float[Tensor, "prompts behaviours"],
        reference: Float[Tensor, "prompts behaviours"],
        step: int,
    ) -> None:
        self._run = run
        self._task = task
        self._policy = policy
        self._reference = reference
        self._rewards = torch.from_numpy(task.arms.rewards).float()
        self._correct = torch.from_numpy(task.arms.correct)
        self._prompts = numpy_generator(run.seed, Stream.PROMPTS, step)
        self._rollouts = numpy_generator(run.seed, Stream.ROLLOUTS, step)
        self._references = numpy_generator(run.seed, Stream.REFERENCE, step)
        self.step = step
        self.rows = torch.empty(0, dtype=torch.int64)
        self.actions = torch.empty(0, run.group_size, dtype=torch.int64)
        self.references = 0

    def draw(self, prompts: int) -> Float[Tensor, "prompts rollouts"]:
        problems = self._task.draw(prompts, self._prompts)
        rows = torch.tensor([problem.gold["row"] for problem in problems])
        actions = self._sample(self._policy, rows, self._rollouts)
        self.rows = torch.cat((self.rows, rows))
        self.actions = torch.cat((self.actions, actions))
        return self._rewards[rows].gather(1, actions)

    def draw_references(self, groups: Int[Tensor, " groups"]) -> Float[Tensor, "groups rollouts"]:
        rows = self.rows[groups]
        actions = self._sample(self._reference, rows, self._references)
        self.references += actions.numel()
        return self._rewards[rows].gather(1, actions)

    @property
    def levels(self) -> list[int]:
        """Of the groups drawn."""
        levels: list[int] = self._task.arms.levels[self.rows.numpy()].tolist()
        return levels

    @property
    def outcomes(self) -> Float[Tensor, "groups rollouts"]:
        """1 for each correct behaviour that was drawn, 0 for the others."""
        return self._correct[self.rows].gather(1, self.actions).float()

    def batch(self) -> GroupBatch:
        """All that an estimator is told of the groups drawn; a rollout is one token."""
        policy, actions = self._policy[self.rows], self.actions
        return GroupBatch(
            rewards=self._rewards[self.rows].gather(1, actions),
            lengths=torch.ones(actions.shape),
            token_entropy=-policy.gather(1, actions),
            token_entropy_exact=softmax.entropies(policy)[:, None].expand(actions.shape),
            self_certainty=softmax.certainties(policy)[:, None].expand(actions.shape),
            solve_rates=self.outcomes.mean(dim=1),
            step=self.step,
            total_steps=self._run.steps,
        )

    def _sample(
        self,
        policy: Float[Tensor, "prompts behaviours"],
        rows: Int[Tensor, " groups"],
        rng: np.random.Generator,
    ) -> Int[Tensor, "groups rollouts"]:
        uniform = torch.from_numpy(rng.random((len(rows), self._run.group_size))).float()
        return softmax.sample(policy[rows], uniform)
