"""Groups of one step, generated and scored by TRL; rollout policies draw from them."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from advsweep.backends.randomness import Stream, numpy_generator, torch_seed
from advsweep.backends.training_loop import group_batch, reads_answers
from advsweep.backends.trl.options import share_of
from advsweep.backends.trl.sampling import TokenStatistics, concatenate_statistics

if TYPE_CHECKING:
    from jaxtyping import Float, Int

    from advsweep.backends.base import Run
    from advsweep.estimators import GroupBatch
    from advsweep.tasks.base import Problem

Rows = dict[str, Tensor]
"""Tensors `[rows]` or `[rows, tokens]`; prompts are padded on the left, the rest on the right."""


def split_rows(outputs: Mapping[str, Any]) -> tuple[Rows, Rows]:
    """Separate the tensors that have rows from those that are one number for all rows."""
    tensors = {name: value for name, value in outputs.items() if value is not None}
    rows = {name: value for name, value in tensors.items() if value.ndim > 0}
    return rows, {name: value for name, value in tensors.items() if value.ndim == 0}


def pick_rows(rows: Rows, index: Int[Tensor, " some"]) -> Rows:
    """Select rows, in the order of the index."""
    return {name: value[index.to(value.device)] for name, value in rows.items()}


def concatenate_rows(parts: Sequence[Rows], pad_id: int) -> Rows:
    """Concatenate batches, padded to the longest."""
    return {
        name: torch.cat(_padded(name, [part[name] for part in parts], pad_id)) for name in parts[0]
    }


def gather_rows(rows: Rows, accelerator: Any, pad_id: int) -> Rows:
    """Gather the rows of all processes, process by process; each has the same number."""
    gathered = {}
    for name, value in rows.items():
        if value.ndim > 1:
            value = accelerator.pad_across_processes(
                value, dim=1, pad_index=_filler(name, pad_id), pad_first=_is_prompt(name)
            )
        gathered[name] = accelerator.gather(value.contiguous())
    return gathered


def own_share(values: Tensor, rollouts: int, accelerator: Any) -> Tensor:
    """Return this process's part of the values of a step's rollouts.

    Args:
        values: one row per rollout, from the first on.
        rollouts: the number of a step's rollouts; missing ones get 0.
    """
    whole = torch.zeros(rollouts, *values.shape[1:], dtype=values.dtype)
    whole[: len(values)] = values
    parts = whole.view(accelerator.num_processes, -1, *values.shape[1:])
    return parts[accelerator.process_index].to(accelerator.device)


def fit_tokens(values: Tensor, tokens: int) -> Tensor:
    """Cut or pad the token axis, if there is one, to the width of a process's completions.

    Numbers past the end of a rollout are 0, so nothing is lost.
    """
    return values if values.ndim == 1 else F.pad(values, (0, tokens - values.shape[1]))


def _padded(name: str, values: Sequence[Tensor], pad_id: int) -> list[Tensor]:
    if values[0].ndim == 1:
        return list(values)
    width = max(value.shape[1] for value in values)
    missing = [width - value.shape[1] for value in values]
    sides = [(m, 0) if _is_prompt(name) else (0, m) for m in missing]
    return [
        F.pad(value, side, value=_filler(name, pad_id))
        for value, side in zip(values, sides, strict=True)
    ]


def _is_prompt(name: str) -> bool:
    return name.startswith("prompt_")


def _filler(name: str, pad_id: int) -> int:
    return pad_id if name.endswith("_ids") else 0


class RolloutMaker(Protocol):
    """The part of a trainer that a source needs; `EstimatorTrainer` has it."""

    accelerator: Any

    @property
    def pad_id(self) -> int:
        """The token that fills rows."""
        ...

    def roll_out(
        self, problems: Sequence[Problem]
    ) -> tuple[Rows, Float[Tensor, "rows functions"], Float[Tensor, "rows columns"]]:
        """Generate and score one rollout for each of this process's problems."""
        ...

    def refer(self, problems: Sequence[Problem], seed: int) -> Float[Tensor, " rows"]:
        """Return rewards of one rollout of the reference model per problem, of all processes."""
        ...


class StepSource:
    """Draws groups; every process makes an equal share of each draw and knows all rewards.

    Attributes:
        step: the training step, counted from 1.
        references: number of rollouts of the reference model so far.
        seconds: time that all draws took.
    """

    def __init__(self, trainer: RolloutMaker, run: Run, step: int) -> None:
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
        self._statistics: list[Float[Tensor, "rows columns"]] = []
        self._process = trainer.accelerator.process_index
        self._processes = trainer.accelerator.num_processes
        torch.manual_seed(torch_seed(run.rollout_seed, Stream.ROLLOUTS, step, self._process))

    def draw(self, prompts: int) -> Float[Tensor, "prompts rollouts"]:
        started = time.perf_counter()
        problems = list(self._run.task.draw(prompts, self._rng))
        repeated = [problem for problem in problems for _ in range(self._run.group_size)]
        # TRL wants whole groups in each process, those that only pad the draw too.
        share = share_of(repeated, self._process, self._processes, unit=self._run.group_size)
        part, scored, statistics = self._trainer.roll_out(share)
        self._problems += problems
        first = sum(self._shares)
        for row in range(len(repeated)):
            self._places.append((row // len(share), first + row % len(share)))
        self._shares.append(len(share))
        self._parts.append(part)
        self._statistics.append(statistics[: len(repeated)])
        groups = scored[: len(repeated)].view(len(problems), self._run.group_size, -1)
        self._scored.append(groups)
        self.seconds += time.perf_counter() - started
        return groups[..., 0]

    def draw_references(self, groups: Int[Tensor, " groups"]) -> Float[Tensor, "groups rollouts"]:
        started = time.perf_counter()
        problems = [self._problems[group] for group in groups.tolist()]
        repeated = [problem for problem in problems for _ in range(self._run.group_size)]
        seed = torch_seed(self._run.rollout_seed, Stream.REFERENCE, self.step, self._process)
        share = share_of(repeated, self._process, self._processes)
        rewards = self._trainer.refer(share, seed)[: len(repeated)]
        self.references += len(repeated)
        self.seconds += time.perf_counter() - started
        return rewards.view(len(problems), self._run.group_size)

    def rows(self, groups: Int[Tensor, " groups"]) -> Rows:
        """Return this process's share of the rollouts of some groups.

        All shares together have as many rows as a full step. Other rollouts replace missing
        groups; the caller masks them out.
        """
        size, whole = self._run.group_size, self._run.prompts_per_step * self._run.group_size
        wanted = (groups[:, None] * size + torch.arange(size)).flatten()
        wanted = torch.cat((wanted, torch.zeros(whole - len(wanted), dtype=wanted.dtype)))
        if len(self._parts) == 1 and torch.equal(wanted, torch.arange(len(self._places))):
            return self._parts[0]
        pad_id = self._trainer.pad_id
        local = concatenate_rows(self._parts, pad_id)
        gathered = gather_rows(local, self._trainer.accelerator, pad_id)
        places = torch.tensor(self._places)[wanted]
        index = places[:, 0] * sum(self._shares) + places[:, 1]
        own = share_of(index.tolist(), self._process, self._processes)
        return pick_rows(gathered, torch.tensor(own))

    @property
    def levels(self) -> list[int]:
        """Difficulty level of each group drawn."""
        return [problem.level for problem in self._problems]

    @property
    def outcomes(self) -> Float[Tensor, "groups rollouts"]:
        """Verdicts from which the rewards are computed."""
        return torch.cat(self._scored)[..., int(self._run.task.is_shaped)]

    def batch(self) -> GroupBatch:
        """Return the groups drawn, as the estimator sees them."""
        scored = torch.cat(self._scored)
        statistics = TokenStatistics.unstacked(concatenate_statistics(self._statistics))
        return group_batch(
            self._run,
            self._problems,
            scored[..., 0],
            self.outcomes,
            self.step,
            **statistics.of_training(),
            answered=scored[..., -1] == 1 if reads_answers(self._run.estimator) else None,
        )
