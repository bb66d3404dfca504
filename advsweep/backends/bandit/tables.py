"""Tables `[runs, prompts, behaviours]`: the tasks of several runs, and their parameters."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from advsweep.backends.randomness import Stream, numpy_generator

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int

    from advsweep.backends.models import Table
    from advsweep.tasks.bandit import BanditTask


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

    def __init__(self, tasks: Sequence[BanditTask]) -> None:
        known: dict[str, BanditTask] = {}
        same = [known.setdefault(str(task.identity()), task) for task in tasks]
        different = same if len(known) > 1 else same[:1]
        arms = [task.arms for task in different]
        runs = len(tasks)
        self.logits: Float[Tensor, "runs prompts behaviours"] = _stacked(
            [a.logits.astype(np.float32) for a in arms], runs
        )
        self.rewards: Float[Tensor, "runs prompts behaviours"] = _stacked(
            [a.rewards.astype(np.float32) for a in arms], runs
        )
        self.correct: Bool[Tensor, "runs prompts behaviours"] = _stacked(
            [a.correct for a in arms], runs
        )
        self.is_binary = all(task.is_binary for task in different)
        self.levels: Int[np.ndarray, "runs prompts"] = _broadcast([a.levels for a in arms], runs)
        self.trained: Int[np.ndarray, "runs trained"] = _broadcast(
            [task.train_rows for task in different], runs
        )

    def __getitem__(self, runs: Sequence[int]) -> Tables:
        """Return the tables of some runs."""
        part = object.__new__(Tables)
        tables = {name: value for name, value in vars(self).items() if name != "is_binary"}
        vars(part).update({name: value[runs] for name, value in tables.items()})
        part.is_binary = self.is_binary
        return part

    def rewards_of(
        self,
        rows: Int[Tensor, "runs groups"] | None,
        actions: Int[Tensor, "runs groups rollouts"],
    ) -> Float[Tensor, "runs groups rollouts"]:
        """Return the rewards of sampled behaviours.

        Args:
            rows: the prompt of each group; None for all prompts in order.
        """
        return _at(self.rewards, rows, actions)

    def correct_of(
        self,
        rows: Int[Tensor, "runs groups"] | None,
        actions: Int[Tensor, "runs groups rollouts"],
    ) -> Float[Tensor, "runs groups rollouts"]:
        """Return 1 for each correct behaviour, 0 for the others."""
        return _at(self.correct, rows, actions).float()


def _broadcast(rows: Sequence[np.ndarray], runs: int) -> np.ndarray:
    return np.broadcast_to(np.stack(rows), (runs, len(rows[0])))


def _stacked(tables: Sequence[np.ndarray], runs: int) -> Tensor:
    table = torch.from_numpy(np.stack(tables))
    return table.expand(runs, -1, -1)


def _at(
    table: Tensor,
    rows: Int[Tensor, "runs groups"] | None,
    actions: Int[Tensor, "runs groups rollouts"],
) -> Tensor:
    if rows is None:
        return table.gather(-1, actions)
    runs = torch.arange(len(rows))[:, None, None]
    return table[runs, rows[:, :, None], actions]


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
