"""Tables `[runs, prompts, behaviours]`: the tasks of several runs, and their parameters."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from advsweep.backends.randomness import Stream, numpy_generator

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int

    from advsweep.backends.models import Table
    from advsweep.tasks.bandit import BanditTask


@dataclass(frozen=True)
class Tables:
    """The behaviours of the prompts of several runs; runs with equal tasks share memory.

    Attributes:
        logits: logits of the base policies at temperature 1.
        rewards: reward of each behaviour.
        correct: whether a behaviour has the greatest reward of its prompt.
        levels: difficulty level of each prompt.
        trained: the prompts in training.
        is_binary: whether each reward is 1 for correct and 0 for other behaviours.
    """

    logits: Float[Tensor, "runs prompts behaviours"]
    rewards: Float[Tensor, "runs prompts behaviours"]
    correct: Bool[Tensor, "runs prompts behaviours"]
    levels: Int[np.ndarray, "runs prompts"]
    trained: Int[np.ndarray, "runs trained"]
    is_binary: bool

    @classmethod
    def of(cls, tasks: Sequence[BanditTask]) -> Tables:
        known: dict[str, BanditTask] = {}
        same = [known.setdefault(str(task.identity()), task) for task in tasks]
        different = same if len(known) > 1 else same[:1]
        arms = [task.arms for task in different]

        def stacked(tables: Sequence[np.ndarray]) -> np.ndarray:
            # One table for all runs costs its memory once, and its way into the cache.
            return np.broadcast_to(np.stack(tables), (len(tasks), *tables[0].shape))

        logits, rewards, correct = (
            torch.from_numpy(np.stack(tables)).expand(len(tasks), -1, -1)
            for tables in (
                [a.logits.astype(np.float32) for a in arms],
                [a.rewards.astype(np.float32) for a in arms],
                [a.correct for a in arms],
            )
        )
        return cls(
            logits=logits,
            rewards=rewards,
            correct=correct,
            levels=stacked([a.levels for a in arms]),
            trained=stacked([task.train_rows for task in different]),
            is_binary=all(task.is_binary for task in different),
        )

    def __getitem__(self, runs: Sequence[int]) -> Tables:
        """Return the tables of some runs."""
        return Tables(
            **{
                name: value if name == "is_binary" else value[runs]
                for name, value in vars(self).items()
            }
        )


def at_actions(
    table: Tensor,
    rows: Int[Tensor, "runs groups"] | None,
    actions: Int[Tensor, "runs groups rollouts"],
) -> Tensor:
    """Return the entries of sampled behaviours.

    Args:
        rows: the prompt of each group; None for all prompts in order.
    """
    if rows is None:
        return table.gather(-1, actions)
    return table[torch.arange(len(rows))[:, None, None], rows[:, :, None], actions]


class Logits:
    """Maps trained parameters to logits: the logits themselves, or a map that prompts share.

    Attributes:
        base: logits of the base policies, at temperature 1.
        is_shared: whether prompts share a map; its product is added to `base`.
    """

    def __init__(self, table: Table, base: Float[Tensor, "runs prompts behaviours"]) -> None:
        self.base = base
        self.is_shared = table.rank > 0
        self._rank = table.rank
        prompts = base.shape[1]
        self._features = _features(table, prompts) if self.is_shared else torch.empty(0)

    def origin(self) -> Float[Tensor, "runs rows behaviours"]:
        """Return the parameters before training; weight decay pulls towards them."""
        if not self.is_shared:
            return self.base.clone()
        runs, _, behaviours = self.base.shape
        return torch.zeros(runs, self._rank, behaviours)

    def of(
        self, parameters: Float[Tensor, "runs rows behaviours"]
    ) -> Float[Tensor, "runs prompts behaviours"]:
        """Return the logits that belong to parameters."""
        if not self.is_shared:
            return parameters
        return self.base + self.change(parameters)

    def change(
        self, parameters: Float[Tensor, "runs rows behaviours"]
    ) -> Float[Tensor, "runs prompts behaviours"]:
        """Return the change of the logits that belongs to a change of the parameters."""
        if not self.is_shared:
            return parameters
        # One product per run: a batched product rounds otherwise, and a run's numbers must
        # not depend on the runs beside it.
        return torch.stack([self._features @ own for own in parameters])

    def pull_back(
        self, gradient: Float[Tensor, "runs prompts behaviours"]
    ) -> Float[Tensor, "runs rows behaviours"]:
        """Return the gradient of the parameters, given that of the logits."""
        if not self.is_shared:
            return gradient
        return torch.stack([self._features.T @ own for own in gradient])


def _features(table: Table, prompts: int) -> Float[Tensor, "prompts rank"]:
    """Make unit vectors: one part in common, one part in a random direction."""
    rng = numpy_generator(table.seed, Stream.WEIGHTS)
    own = rng.standard_normal((prompts, table.rank - 1))
    own /= np.linalg.norm(own, axis=1, keepdims=True)
    shared = np.full((prompts, 1), math.sqrt(table.overlap))
    features = np.concatenate([shared, math.sqrt(1 - table.overlap) * own], axis=1)
    return torch.from_numpy(features).float()
