"""Rollouts of one step of bandits: behaviours drawn from the present policies."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from advsweep.backends.bandit.softmax import Policy
from advsweep.backends.randomness import Stream, numpy_generator
from advsweep.estimators import GroupBatch
from advsweep.tasks.base import Completions

if TYPE_CHECKING:
    from jaxtyping import Float, Int

    from advsweep.backends.bandit.random_draws import Noise
    from advsweep.backends.bandit.softmax import Policy
    from advsweep.backends.bandit.tables import Tables
    from advsweep.tasks.base import Problem


class Source:
    """What a rollout policy draws from: groups of several runs, one run's after another's.

    Args:
        policy: at the sampling temperature.
        reference: gives that of the reference model.
        whole: each draw is of every prompt, in order.

    Attributes:
        step: the training step, counted from 1.
        rows: the prompt of each group that was drawn; None where they are all prompts in order.
        actions: the sampled behaviours.
        references: rollouts of the reference drawn so far, of each run.
    """

    def __init__(
        self,
        tables: Tables,
        noises: Sequence[Noise],
        policy: Policy,
        reference: Callable[[], Policy],
        *,
        group_size: int,
        whole: bool,
        step: int,
        total_steps: int,
    ) -> None:
        self._tables = tables
        self._noises = noises
        self._policy = policy
        self._reference = reference
        self._whole = whole
        self._total_steps = total_steps
        self._draws = self._reference_draws = 0
        self.step = step
        self.rows: Int[Tensor, "runs groups"] | None = None
        self.actions = torch.empty(len(noises), 0, group_size, dtype=torch.int64)
        self.references = 0
        self._rewards = torch.empty(len(noises), 0, group_size)

    def draw(self, prompts: int) -> Float[Tensor, "groups rollouts"]:
        rows = None if self._whole else self._draw_rows(prompts)
        actions = self._sample(self._policy, Stream.ROLLOUTS, rows, prompts, self._draws)
        self._draws += 1
        rewards = self._tables.rewards_of(rows, actions)
        if self._draws == 1:
            self.rows, self.actions, self._rewards = rows, actions, rewards
        else:
            assert rows is not None
            assert self.rows is not None
            self.rows = torch.cat((self.rows, rows), dim=1)
            self.actions = torch.cat((self.actions, actions), dim=1)
            self._rewards = torch.cat((self._rewards, rewards), dim=1)
        return self._flat(rewards)

    def draw_references(self, groups: Int[Tensor, " groups"]) -> Float[Tensor, "groups rollouts"]:
        rows, runs = self.rows, len(self._noises)
        if rows is None and len(groups) < self.actions[..., 0].numel():
            rows = torch.arange(self.actions.shape[1]).expand(runs, -1)
        if rows is not None:
            rows = rows.reshape(-1)[groups].view(runs, -1)
        actions = self._sample(
            self._reference(), Stream.REFERENCE, rows, len(groups) // runs, self._reference_draws
        )
        self._reference_draws += 1
        self.references += actions[0].numel()
        return self._flat(self._tables.rewards_of(rows, actions))

    @property
    def levels(self) -> Int[np.ndarray, "runs groups"]:
        """Of the groups drawn."""
        levels = self._tables.levels
        if self.rows is None:
            return levels
        drawn: Int[np.ndarray, "runs groups"] = np.take_along_axis(levels, self.rows.numpy(), 1)
        return drawn

    @functools.cached_property
    def outcomes(self) -> Float[Tensor, "groups rollouts"]:
        """1 for each correct behaviour that was drawn, 0 for the others; to be asked for last."""
        if self._tables.is_binary:
            return self._flat(self._rewards)
        return self._flat(self._tables.correct_of(self.rows, self.actions))

    def batch(self, read: frozenset[str], *, brief: bool = False) -> GroupBatch:
        """The groups drawn as an estimator sees them; a rollout is one token.

        Args:
            read: optional fields that some estimator reads.
            brief: leave out what only the step's metrics read and takes a look at every
                behaviour.
        """
        policy = self._policy if self.rows is None else self._policy.of_prompts(self.rows)
        actions, outcomes = self.actions, self.outcomes

        def of_prompts(name: str, make: Callable[[], Tensor]) -> Tensor | None:
            if brief and name not in read:
                return None
            return make().reshape(-1, 1).expand(outcomes.shape)

        return GroupBatch(
            rewards=self._flat(self._rewards),
            lengths=torch.ones(outcomes.shape),
            token_entropy=-self._flat(policy.log_probs(actions)),
            token_entropy_exact=of_prompts("token_entropy_exact", lambda: policy.entropies),
            self_certainty=of_prompts("self_certainty", policy.certainties),
            solve_rates=outcomes.mean(dim=1),
            # Every behaviour is an answer.
            answered=torch.ones_like(outcomes, dtype=torch.bool) if "answered" in read else None,
            prompt_ids=self._prompt_ids() if "prompt_ids" in read else None,
            step=self.step,
            total_steps=self._total_steps,
        )

    def _prompt_ids(self) -> tuple[str, ...]:
        """The row of each group's prompt, run by run."""
        if self.rows is not None:
            return tuple(map(str, self.rows.flatten().tolist()))
        runs, groups, _ = self.actions.shape
        return tuple(map(str, range(groups))) * runs

    def _draw_rows(self, prompts: int) -> Int[Tensor, "runs groups"]:
        places = [noise.places(self.step, self._draws, prompts) for noise in self._noises]
        return torch.from_numpy(np.take_along_axis(self._tables.trained, np.stack(places), 1))

    def _sample(
        self,
        policy: Policy,
        stream: Stream,
        rows: Int[Tensor, "runs groups"] | None,
        groups: int,
        draw: int,
    ) -> Int[Tensor, "runs groups rollouts"]:
        numbers = [noise.uniform(stream, self.step, draw, groups) for noise in self._noises]
        chosen = policy if rows is None else policy.of_prompts(rows)
        return chosen.sample(torch.from_numpy(np.stack(numbers)))

    def _flat(self, values: Float[Tensor, "runs groups rollouts"]) -> Tensor:
        return values.reshape(-1, values.shape[-1])


class BanditSampler:
    """Answers problems with the numbers of behaviours."""

    def __init__(self, logits: Float[Tensor, "prompts behaviours"]) -> None:
        self._logits = logits

    def sample(
        self, problems: Sequence[Problem], n: int, *, temperature: float, seed: int
    ) -> Completions:
        rows = torch.tensor([problem.reference["row"] for problem in problems])
        policy = Policy.of(self._logits[rows], temperature)
        rng = numpy_generator(seed, Stream.EVALUATION)
        uniform = torch.from_numpy(rng.random((len(problems), n))).float()
        actions = policy.sample(uniform).tolist()
        return Completions(
            texts=[[str(action) for action in group] for group in actions],
            token_entropy=policy.entropies.double().numpy(),
        )
