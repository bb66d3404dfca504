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

    from advsweep.backends.bandit.stack import BanditStack
    from advsweep.backends.bandit.tables import Actions, Owners, PerRollout
    from advsweep.tasks.base import Problem


# Steps whose numbers are drawn at once: making a generator takes as long as 1,000 numbers.
_STEPS = 32


class RandomDraws:
    """The random numbers of one run, drawn for many steps at once.

    They depend on the seed and the step alone, so a resumed run needs no generator state.

    Args:
        seed: of the order of prompts.
        rollout_seed: of everything else.
        group_size: rollouts drawn per prompt.
        population: number of prompts in training.
    """

    def __init__(self, seed: int, rollout_seed: int, group_size: int, population: int) -> None:
        self._seed = seed
        self._rollout_seed = rollout_seed
        self._group_size = group_size
        self._population = population
        self._known: dict[tuple[Stream, int, int], tuple[int, np.ndarray]] = {}

    def of_step(self, stream: Stream, step: int, draw: int, groups: int) -> np.ndarray:
        """Return the numbers of a step's draw: of `Stream.PROMPTS` its prompts `[groups]`.

        These count from 0, and no prompt repeats before all have come. Of other streams the
        numbers are in [0, 1), one for each rollout, float32 `[groups, rollouts]`.

        Args:
            draw: number of the draw in the step, from 0.
        """
        block, place = divmod(step, _STEPS)
        key = stream, draw, groups
        known = self._known.get(key)
        if known is None or known[0] != block:
            known = self._known[key] = block, self._draw_block(stream, block, draw, groups)
        numbers: np.ndarray = known[1][place]
        return numbers

    def _draw_block(self, stream: Stream, block: int, draw: int, groups: int) -> np.ndarray:
        seed = self._seed if stream is Stream.PROMPTS else self._rollout_seed
        rng = np.random.default_rng((seed, stream, block, draw))
        if stream is not Stream.PROMPTS:
            return rng.random((_STEPS, groups, self._group_size), dtype=np.float32)
        rounds = -(-groups // self._population)
        prompts = np.tile(np.arange(self._population), (_STEPS, rounds, 1))
        return rng.permuted(prompts, axis=2).reshape(_STEPS, -1)[:, :groups]


class Source:
    """Draws groups of several runs, run after run; rollout policies draw from it.

    Args:
        stack: the runs, with their tables and random numbers.
        policy: the policy at the sampling temperature.
        reference: returns the policy of the reference model.

    Attributes:
        step: the training step, counted from 1.
        group_size: rollouts of a group that the step trains on.
        rows: the prompt of each group drawn; None if they are all prompts in order.
        actions: the sampled behaviours.
        references: number of rollouts so far that are not trained on, per run.
    """

    def __init__(
        self, stack: BanditStack, policy: Policy, reference: Callable[[], Policy], step: int
    ) -> None:
        runs, first = stack.runs, stack.runs[0]
        self._stack = stack
        self._policy = policy
        self._reference = reference
        self._draws = self._reference_draws = 0
        self.step = step
        self.rows: Owners | None = None
        self.group_size = first.group_size
        self.actions = torch.empty(len(runs), 0, first.drawn_size, dtype=torch.int64)
        self.references = 0
        self._rewards = torch.empty(len(runs), 0, first.drawn_size)
        self._control_rngs = [
            numpy_generator(run.seed, Stream.CONTROL, step)
            if run.control.changes_verdicts
            else None
            for run in runs
        ]

    def draw(self, prompts: int) -> Float[Tensor, "groups rollouts"]:
        if self._stack.whole:
            return self._draw(None, prompts)
        places = self._random_numbers(Stream.PROMPTS, self._draws, prompts)
        rows = np.take_along_axis(self._stack.tables.trained, places, 1)
        return self._draw(torch.from_numpy(rows), prompts)

    def draw_again(self, groups: Int[Tensor, " groups"]) -> Float[Tensor, "groups rollouts"]:
        assert self.rows is not None
        return self._draw(self.rows[:, groups], len(groups))

    def _draw(self, rows: Owners | None, prompts: int) -> Float[Tensor, "groups rollouts"]:
        actions = self._sample(self._policy, Stream.ROLLOUTS, rows, prompts, self._draws)
        self._draws += 1
        rewards = self._judge(rows, actions)
        self.rows = rows if self.rows is None or rows is None else torch.cat((self.rows, rows), 1)
        self.actions = torch.cat((self.actions, actions), dim=1)
        self._rewards = torch.cat((self._rewards, rewards), dim=1)
        return self._flat(rewards)

    def draw_references(self, groups: Int[Tensor, " groups"]) -> Float[Tensor, "groups rollouts"]:
        rows, runs = self.rows, len(self._stack.runs)
        if rows is not None or len(groups) < self.actions[..., 0].numel():
            rows = self._all_rows().reshape(-1)[groups].view(runs, -1)
        actions = self._sample(
            self._reference(), Stream.REFERENCE, rows, len(groups) // runs, self._reference_draws
        )
        self._reference_draws += 1
        self.references += actions[0].numel()
        return self._flat(self._judge(rows, actions))

    def draw_greedy(self, groups: Int[Tensor, " groups"]) -> Float[Tensor, " groups"]:
        runs = len(self._stack.runs)
        rows = self._all_rows().reshape(-1)[groups].view(runs, -1)
        actions = self._policy.of_prompts(rows).log.argmax(dim=-1, keepdim=True)
        self.references += rows.shape[1]
        return self._judge(rows, actions).flatten()

    def _all_rows(self) -> Owners:
        """Return the prompt of each group drawn."""
        if self.rows is not None:
            return self.rows
        return torch.arange(self.actions.shape[1]).expand(len(self._stack.runs), -1)

    def _judge(self, rows: Owners | None, actions: Actions) -> PerRollout:
        """Return the rewards of sampled behaviours, as the controls of the runs change them."""
        rewards = at_actions(self._stack.tables.rewards, rows, actions)
        for index, (run, rng) in enumerate(zip(self._stack.runs, self._control_rngs, strict=True)):
            if rng is None:
                continue
            own = rewards[index]
            rates: np.ndarray | float = math.nan
            if run.control.base_samples:
                known = self._stack.base_rates[index]
                known = known if rows is None else known[rows[index]]
                rates = known[:, None].expand(own.shape).flatten().numpy()
            verdicts = run.control.verdicts(own.flatten().double().numpy(), rng, rates)
            own.copy_(torch.from_numpy(verdicts).view(own.shape))
        return rewards

    @property
    def levels(self) -> Int[np.ndarray, "runs groups"]:
        """Difficulty level of each group drawn."""
        levels = self._stack.tables.levels
        if self.rows is None:
            return levels
        drawn: Int[np.ndarray, "runs groups"] = np.take_along_axis(levels, self.rows.numpy(), 1)
        return drawn

    @property
    def lengths(self) -> Float[Tensor, "groups rollouts"]:
        """1 for each behaviour drawn."""
        return torch.ones_like(self._flat(self._rewards))

    @property
    def outcomes(self) -> Float[Tensor, "groups rollouts"]:
        """1 for each correct behaviour drawn, 0 for the others."""
        if self._stack.tables.is_binary:
            return self._flat(self._rewards)
        return self._flat(at_actions(self._stack.tables.correct, self.rows, self.actions).float())

    def batch(self, read: frozenset[str], *, brief: bool = False) -> GroupBatch:
        """Return the groups drawn, as an estimator sees them; a rollout is one token.

        Args:
            read: optional fields that some estimator reads.
            brief: leave out fields that only metrics read and that cost a pass over all
                behaviours.
        """
        rows, policy = self._all_rows(), self._policy
        if self.rows is not None:
            policy = policy.of_prompts(rows)
        actions, outcomes = self.actions, self.outcomes
        log_probs = self._flat(policy.log_probs(actions))
        tokens: dict[str, Any] = {}
        if "token_kl" in read:
            anchor = Policy.of(self._stack.anchor(), self._stack.temperature).of_prompts(rows)
            tokens["token_kl"] = (log_probs - self._flat(anchor.log_probs(actions)))[..., None]
        if "token_grad_norms" in read:
            squares = policy.probabilities.square().sum(dim=-1).reshape(-1, 1)
            tokens["token_grad_norms"] = (1 - 2 * log_probs.exp() + squares)[..., None]

        def of_prompts(name: str, make: Callable[[], Tensor]) -> Tensor | None:
            if brief and name not in read:
                return None
            return make().reshape(-1, 1).expand(outcomes.shape)

        entropies = of_prompts("token_entropy_exact", lambda: policy.entropies)
        if entropies is None and "token_entropies" in read:
            entropies = of_prompts("token_entropies", lambda: policy.entropies)
        return GroupBatch(
            rewards=self._flat(self._rewards),
            lengths=torch.ones(outcomes.shape),
            token_entropy=-log_probs,
            token_entropy_exact=entropies,
            token_entropies=None if entropies is None else entropies[..., None],
            **tokens,
            self_certainty=of_prompts("self_certainty", policy.certainties),
            solve_rates=outcomes.mean(dim=1),
            # Every behaviour is an answer.
            answered=torch.ones_like(outcomes, dtype=torch.bool) if "answered" in read else None,
            truncated=torch.zeros_like(outcomes, dtype=torch.bool),
            prompt_ids=(tuple(map(str, rows.flatten().tolist())) if "prompt_ids" in read else None),
            step=self.step,
            total_steps=self._stack.runs[0].total_steps,
        )

    def _sample(
        self, policy: Policy, stream: Stream, rows: Owners | None, groups: int, draw: int
    ) -> Actions:
        numbers = self._random_numbers(stream, draw, groups)
        chosen = policy if rows is None else policy.of_prompts(rows)
        return chosen.sample(torch.from_numpy(numbers))

    def _random_numbers(self, stream: Stream, draw: int, groups: int) -> np.ndarray:
        draws = self._stack.random_draws
        return np.stack([own.of_step(stream, self.step, draw, groups) for own in draws])

    def _flat(self, values: PerRollout) -> Tensor:
        return values.reshape(-1, values.shape[-1])


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
