"""Rollouts of one step, generated and scored by TRL; what a rollout policy draws from."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from advsweep.backends.randomness import Stream, numpy_generator, torch_seed
from advsweep.backends.training_loop import reads_answers
from advsweep.backends.trl import batch_layout as rollout_rows
from advsweep.backends.trl.batch_layout import share_of
from advsweep.backends.trl.token_statistics import Signals
from advsweep.estimators import GroupBatch

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int

    from advsweep.backends.base import Run
    from advsweep.backends.trl.batch_layout import Rows
    from advsweep.backends.trl.trainer import EstimatorTrainer
    from advsweep.tasks.base import Problem


class StepSource:
    """Draws groups; every process makes an equal share of each draw and knows all rewards.

    Attributes:
        step: the training step, counted from 1.
        references: rollouts of the reference model sampled so far.
        seconds: what drawing took, in all.
    """

    def __init__(self, trainer: EstimatorTrainer, run: Run, step: int) -> None:
        self._trainer = trainer
        self._run = run
        self.step = step
        self.references = 0
        self.seconds = 0.0
        self._rng = numpy_generator(run.seed, Stream.PROMPTS, step)
        self._problems: list[Problem] = []
        self._parts: list[Rows] = []
        self._shares: list[int] = []
        self._places: list[tuple[int, int]] = []
        self._scored: list[Float[Tensor, "prompts rollouts functions"]] = []
        self._signals: list[Float[Tensor, "rows 4"]] = []
        self._process = trainer.accelerator.process_index
        self._processes = trainer.accelerator.num_processes
        torch.manual_seed(torch_seed(run.seed, Stream.ROLLOUTS, step, self._process))

    def draw(self, prompts: int) -> Float[Tensor, "prompts rollouts"]:
        started = time.perf_counter()
        problems = list(self._run.task.draw(prompts, self._rng))
        repeated = [problem for problem in problems for _ in range(self._run.group_size)]
        # TRL sees whole groups, whatever becomes of those that fill the draw up.
        share = share_of(repeated, self._process, self._processes, unit=self._run.group_size)
        part, scored, signals = self._trainer.roll_out(share)
        self._problems += problems
        first = sum(self._shares)
        for row in range(len(repeated)):
            self._places.append((row // len(share), first + row % len(share)))
        self._shares.append(len(share))
        self._parts.append(part)
        self._signals.append(signals[: len(repeated)])
        groups = scored[: len(repeated)].view(len(problems), self._run.group_size, -1)
        self._scored.append(groups)
        self.seconds += time.perf_counter() - started
        return groups[..., 0]

    def draw_references(self, groups: Int[Tensor, " groups"]) -> Float[Tensor, "groups rollouts"]:
        started = time.perf_counter()
        problems = [self._problems[group] for group in groups.tolist()]
        repeated = [problem for problem in problems for _ in range(self._run.group_size)]
        seed = torch_seed(self._run.seed, Stream.REFERENCE, self.step, self._process)
        share = share_of(repeated, self._process, self._processes)
        rewards = self._trainer.refer(share, seed)[: len(repeated)]
        self.references += len(repeated)
        self.seconds += time.perf_counter() - started
        return rewards.view(len(problems), self._run.group_size)

    def rows(self, groups: Int[Tensor, " groups"]) -> Rows:
        """This process's share of the rollouts of some groups.

        The whole has as many rows as a step asks for: where groups are missing, other
        rollouts stand in their place, which are not to be trained on.
        """
        size, whole = self._run.group_size, self._run.prompts_per_step * self._run.group_size
        wanted = (groups[:, None] * size + torch.arange(size)).flatten()
        wanted = torch.cat((wanted, torch.zeros(whole - len(wanted), dtype=wanted.dtype)))
        if len(self._parts) == 1 and torch.equal(wanted, torch.arange(len(self._places))):
            return self._parts[0]
        pad_id = self._trainer.pad_id
        local = rollout_rows.concatenate(self._parts, pad_id)
        gathered = rollout_rows.gather(local, self._trainer.accelerator, pad_id)
        places = torch.tensor(self._places)[wanted]
        index = places[:, 0] * sum(self._shares) + places[:, 1]
        own = share_of(index.tolist(), self._process, self._processes)
        return rollout_rows.pick(gathered, torch.tensor(own))

    @property
    def levels(self) -> list[int]:
        """Of the groups drawn."""
        return [problem.level for problem in self._problems]

    @property
    def outcomes(self) -> Float[Tensor, "groups rollouts"]:
        """The verdicts, which the rewards are made of."""
        return torch.cat(self._scored)[..., int(self._run.task.is_shaped)]

    def batch(self) -> GroupBatch:
        """All that an estimator is told of the groups drawn."""
        scored = torch.cat(self._scored)
        signals = Signals.unstacked(torch.cat(self._signals))
        return group_batch(
            self._run,
            self._problems,
            scored[..., 0],
            self.outcomes,
            signals,
            self.step,
            answered=scored[..., -1] == 1 if reads_answers(self._run.estimator) else None,
        )


def group_batch(
    run: Run,
    problems: Sequence[Problem],
    rewards: Float[Tensor, "groups rollouts"],
    outcomes: Float[Tensor, "groups rollouts"],
    signals: Signals,
    step: int,
    *,
    answered: Bool[Tensor, "groups rollouts"] | None = None,
) -> GroupBatch:
    """All that an estimator is told of some groups.

    Args:
        problems: of the groups.
        outcomes: the verdicts, which the rewards are made of.
        signals: of the rollouts, group by group.
        answered: true where a rollout has an answer, where the estimator reads it.
    """
    scored = ~rewards.isnan()

    def token_mean(sums: Float[Tensor, " rows"]) -> Float[Tensor, "groups rollouts"]:
        return (sums / signals.lengths).view(rewards.shape)

    return GroupBatch(
        rewards=rewards,
        mask=None if scored.all() else scored,
        lengths=signals.lengths.view(rewards.shape),
        token_entropy=token_mean(signals.surprisal),
        token_entropy_exact=token_mean(signals.entropy),
        self_certainty=token_mean(signals.certainty),
        solve_rates=((outcomes == 1) & scored).sum(dim=1) / scored.sum(dim=1).clamp(min=1),
        answered=answered,
        prompt_ids=tuple(problem.id for problem in problems),
        step=step,
        total_steps=run.steps,
    )
