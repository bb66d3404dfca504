"""The tasks of several runs as one table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int

    from advsweep.tasks.bandit import BanditTask


class Tables:
    """Behaviours of the prompts of several runs; where tasks are the same, so is the memory.

    Attributes:
        logits: those of the base policies at temperature 1.
        rewards: what each behaviour is rewarded with.
        correct: the behaviours with their prompt's greatest reward.
        levels: difficulty level of each prompt.
        trained: the prompts that are trained.
        is_binary: whether rewards say no more than which behaviours are correct.
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

    def __getitem__(self, runs: slice | Sequence[int]) -> Tables:
        """Those of some of the runs."""
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
        """What sampled behaviours are rewarded with.

        Args:
            rows: the prompt of each group; None for all prompts in order.
        """
        return _at(self.rewards, rows, actions)

    def correct_of(
        self,
        rows: Int[Tensor, "runs groups"] | None,
        actions: Int[Tensor, "runs groups rollouts"],
    ) -> Float[Tensor, "runs groups rollouts"]:
        """1 for each correct behaviour, 0 for the others."""
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
