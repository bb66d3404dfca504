"""Rollouts of bandits: behaviours drawn from the current policies, and answers to problems."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from advsweep.backends.bandit.tables import Policy, at_actions
from advsweep.backends.randomness import Stream, numpy_generator
from advsweep.estimators import GroupBatch
from advsweep.tasks.base import Completions

if TYPE_CHECKING:
    from jaxtyping import Float, Int

    from advsweep.backends.bandit.bandits import Bandits
    from advsweep.backends.bandit.tables import Actions, Owners, PerRollout
    from advsweep.tasks.base import Problem


class Source:
    """Draws groups of several runs, run after run; rollout policies draw from it.

    Args:
        bandits: the runs, with their tables and random numbers.
        policy: the policy at the sampling temperature.

    Attributes:
        step: the training step, counted from 1.
        group_size: rollouts of a group that the step trains on.
        rows: the prompt of each group drawn; None if they are all prompts in order.
        actions: the sampled behaviours.
        references: number of rollouts so far that are not trained on, per run.
    """

    def __init__(self, bandits: Bandits, policy: Policy, step: int) -> None:
        runs = bandits.runs
        first = bandits.runs[0]
        self._bandits = bandits
        self._policy = policy
        self._draws = self._reference_draws = 0
        self.step = step
        self.rows: Owners | None = None
        self.group_size = first.group_size
        self.actions = torch.empty(len(runs), 0, first.drawn_size, dtype=torch.int64)
        self.references = self.further_tokens = self.further_turns = 0
        self._rewards = torch.empty(len(runs), 0, first.drawn_size)
        self._control_rngs = [
            numpy_generator(run.seed, Stream.CONTROL, step)
            if run.control.changes_verdicts
            else None
            for run in runs
        ]

    def draw(self, prompts: int) -> Float[Tensor, "groups rollouts"]:
        if self._bandits.whole:
            return self._draw(None, prompts)
        numbers = self._random_numbers(Stream.PROMPTS, self._draws, prompts)
        rows = np.take_along_axis(self._bandits.tables.trained, numbers, 1)
        return self._draw(torch.from_numpy(rows), prompts)

    def draw_again(self, groups: Int[Tensor, " groups"]) -> Float[Tensor, "groups rollouts"]:
        assert self.rows is not None
        return self._draw(self.rows[:, groups], len(groups))

    def _draw(self, rows: Owners | None, prompts: int) -> Float[Tensor, "groups rollouts"]:
        actions = _sample(
            self._policy, rows, self._random_numbers(Stream.ROLLOUTS, self._draws, prompts)
        )
        self._draws += 1
        rewards = self._judge(rows, actions)
        if self.rows is None or rows is None:
            self.rows = rows
        else:
            self.rows = torch.cat((self.rows, rows), 1)
        self.actions = torch.cat((self.actions, actions), dim=1)
        self._rewards = torch.cat((self._rewards, rewards), dim=1)
        return self._flat(rewards)

    def draw_references(self, groups: Int[Tensor, " groups"]) -> Float[Tensor, "groups rollouts"]:
        rows = self.rows
        runs = len(self._bandits.runs)
        if rows is not None or len(groups) < self.actions[..., 0].numel():
            rows = self._all_rows().reshape(-1)[groups].view(runs, -1)
        numbers = self._random_numbers(Stream.REFERENCE, self._reference_draws, len(groups) // runs)
        actions = _sample(self._bandits.reference_policy(), rows, numbers)
        self._reference_draws += 1
        self.references += actions[0].numel()
        return self._flat(self._judge(rows, actions))

    def draw_greedy(self, groups: Int[Tensor, " groups"]) -> Float[Tensor, " groups"]:
        runs = len(self._bandits.runs)
        rows = self._all_rows().reshape(-1)[groups].view(runs, -1)
        actions = self._policy.of_prompts(rows).log.argmax(dim=-1, keepdim=True)
        self.references += rows.shape[1]
        return self._judge(rows, actions).flatten()

    def draw_values(self, episodes: int, rollouts: int) -> None:
        raise AssertionError("a behaviour is one turn, which is why `build` refuses the policy")

    def _all_rows(self) -> Owners:
        """Return the prompt of each group drawn."""
        if self.rows is not None:
            return self.rows
        return torch.arange(self.actions.shape[1]).expand(len(self._bandits.runs), -1)

    def _judge(self, rows: Owners | None, actions: Actions) -> PerRollout:
        """Return the rewards of sampled behaviours, as the controls of the runs change them."""
        bandits = self._bandits
        rewards = at_actions(bandits.tables.rewards, rows, actions)
        for index, rng in enumerate(self._control_rngs):
            if rng is None:
                continue
            control = bandits.runs[index].control
            of_run = rewards[index]
            rates: np.ndarray | float = math.nan
            if control.base_samples:
                of_prompts = bandits.base_rates[index]
                if rows is not None:
                    of_prompts = of_prompts[rows[index]]
                rates = of_prompts[:, None].expand(of_run.shape).flatten().numpy()
            verdicts = control.verdicts(of_run.flatten().double().numpy(), rng, rates)
            of_run.copy_(torch.from_numpy(verdicts).view(of_run.shape))
        return rewards

    @property
    def levels(self) -> Int[np.ndarray, "runs groups"]:
        """Difficulty level of each group drawn."""
        levels = self._bandits.tables.levels
        if self.rows is None:
            return levels
        drawn: Int[np.ndarray, "runs groups"] = np.take_along_axis(levels, self.rows.numpy(), 1)
        return drawn

    @property
    def lengths(self) -> Float[Tensor, "groups rollouts"]:
        """1 for each behaviour drawn."""
        return torch.ones_like(self._flat(self._rewards))

    @property
    def verdicts(self) -> Float[Tensor, "groups rollouts"]:
        """1 for each correct behaviour drawn, 0 for the others."""
        if self._bandits.tables.is_binary:
            return self._flat(self._rewards)
        return self._flat(at_actions(self._bandits.tables.correct, self.rows, self.actions).float())

    def batch(self, read: frozenset[str], *, brief: bool = False) -> GroupBatch:
        """Return the groups drawn, as an estimator sees them; a rollout is one token.

        Args:
            read: optional fields that some estimator reads.
            brief: leave out fields that only metrics read and that cost a pass over all
                behaviours.
        """
        rows = self._all_rows()
        policy = self._policy
        if self.rows is not None:
            policy = policy.of_prompts(rows)
        verdicts = self.verdicts
        log_probs = self._flat(policy.log_probs(self.actions))

        def of_prompts(name: str, make: Callable[[], Tensor]) -> Tensor | None:
            if brief and name not in read:
                return None
            return make().reshape(-1, 1).expand(verdicts.shape)

        optional: dict[str, Any] = {}
        entropies = of_prompts("token_entropy_exact", lambda: policy.entropies)
        if entropies is None and "token_entropies" in read:
            entropies = of_prompts("token_entropies", lambda: policy.entropies)
        if entropies is not None:
            optional["token_entropy_exact"] = entropies
            optional["token_entropies"] = entropies[..., None]
        if "token_kl" in read:
            anchor = Policy.of(self._bandits.anchor(), self._bandits.temperature).of_prompts(rows)
            of_anchor = self._flat(anchor.log_probs(self.actions))
            optional["token_kl"] = (log_probs - of_anchor)[..., None]
        if "token_grad_norms" in read:
            squares = policy.probabilities.square().sum(dim=-1).reshape(-1, 1)
            optional["token_grad_norms"] = (1 - 2 * log_probs.exp() + squares)[..., None]
        if "answered" in read:
            # Every behaviour is an answer.
            optional["answered"] = torch.ones_like(verdicts, dtype=torch.bool)
        if "prompt_ids" in read:
            optional["prompt_ids"] = tuple(map(str, rows.flatten().tolist()))
        return GroupBatch(
            rewards=self._flat(self._rewards),
            lengths=torch.ones(verdicts.shape),
            token_entropy=-log_probs,
            self_certainty=of_prompts("self_certainty", policy.certainties),
            solve_rates=verdicts.mean(dim=1),
            truncated=torch.zeros_like(verdicts, dtype=torch.bool),
            step=self.step,
            total_steps=self._bandits.runs[0].total_steps,
            **optional,
        )

    def _random_numbers(self, stream: Stream, draw: int, groups: int) -> np.ndarray:
        draws = self._bandits.random_draws
        return np.stack([of_run.of_step(stream, self.step, draw, groups) for of_run in draws])

    def _flat(self, values: PerRollout) -> Tensor:
        return values.reshape(-1, values.shape[-1])


def _sample(policy: Policy, rows: Owners | None, numbers: np.ndarray) -> Actions:
    """Return a behaviour for each random number.

    Args:
        rows: the prompt of each group; None if they are all prompts in order.
    """
    if rows is not None:
        policy = policy.of_prompts(rows)
    return policy.sample(torch.from_numpy(numbers))


@dataclass(frozen=True)
class BanditSampler:
    """Answers problems with the numbers of behaviours.

    Attributes:
        base: the logits before the training.
    """

    logits: Float[Tensor, "prompts behaviours"]
    base: Float[Tensor, "prompts behaviours"]

    def sample(
        self, problems: Sequence[Problem], n: int, *, temperature: float, seed: int
    ) -> Completions:
        rows = torch.tensor([problem.reference["row"] for problem in problems])
        policy = Policy.of(self.logits[rows], temperature)
        rng = numpy_generator(seed, Stream.EVALUATION)
        uniform = torch.from_numpy(rng.random((len(problems), n))).float()
        actions = policy.sample(uniform).tolist()
        log_p, log_base = (
            (logits[rows].double() / temperature).log_softmax(dim=1)
            for logits in (self.logits, self.base)
        )
        return Completions(
            texts=[[str(action) for action in group] for group in actions],
            token_entropy=policy.entropies.double().numpy(),
            kl_base=(log_p.exp() * (log_p - log_base)).sum(dim=1).clamp(min=0).numpy(),
        )
