"""What bandit tasks share: a table of behaviours, named by their numbers."""

from __future__ import annotations

import functools
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from advsweep.tasks.base import Problem, Split, Task

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int


@dataclass(frozen=True, eq=False)
class Arms:
    """P prompts with N behaviours each.

    Attributes:
        rewards: what each behaviour is rewarded with.
        logits: those of the base policy at temperature 1.
        levels: difficulty level of each prompt.
    """

    rewards: Float[np.ndarray, "prompts behaviours"]
    logits: Float[np.ndarray, "prompts behaviours"]
    levels: Int[np.ndarray, " prompts"]

    @functools.cached_property
    def correct(self) -> Bool[np.ndarray, "prompts behaviours"]:
        """The behaviours with their prompt's greatest reward."""
        best: Bool[np.ndarray, "prompts behaviours"] = self.rewards == self.rewards.max(
            axis=1, keepdims=True
        )
        return best


class BanditTask(Task):
    """Prompts whose completions are numbers of behaviours, `0` to `N-1`.

    Correct are the behaviours with the greatest reward. A table cannot carry over what it
    learns to prompts that it was never asked: the held-out problem of a number has the
    behaviours of the training problem of that number, so that evaluations tell of what was
    trained. Where not all prompts are trained, all are held out.
    """

    @property
    @abstractmethod
    def shape(self) -> tuple[int, int, int]:
        """Prompts that are trained, prompts, and behaviours of each; known without a table."""

    @abstractmethod
    def _make_arms(self) -> Arms:
        """The table; the same each time."""

    @functools.cached_property
    def arms(self) -> Arms:
        return self._make_arms()

    @functools.cached_property
    def train_rows(self) -> Int[np.ndarray, " trained"]:
        """The rows of the table that are trained, in order; all by default."""
        return np.arange(len(self.arms.levels))

    def problems(self, split: Split) -> Sequence[Problem]:
        return self._problems[split]

    def draw(self, count: int, rng: np.random.Generator) -> list[Problem]:
        """As few of the same prompt as can be: all of them once before any comes again."""
        problems = self._problems[Split.TRAIN]
        rounds = -(-count // len(problems))
        rows = np.concatenate([rng.permutation(len(problems)) for _ in range(rounds)])[:count]
        return [problems[row] for row in rows.tolist()]

    def score(
        self, problems: Sequence[Problem], completions: Sequence[str]
    ) -> Float[np.ndarray, " completions"]:
        correct = self.arms.correct
        return np.array(
            [
                behaviour is not None and correct[problem.gold["row"], behaviour]
                for problem, behaviour in zip(problems, map(self._read, completions), strict=True)
            ],
            dtype=np.float64,
        )

    def answers(self, problems: Sequence[Problem], completions: Sequence[str]) -> list[str | None]:
        return [None if self._read(text) is None else text for text in completions]

    def _read(self, completion: str) -> int | None:
        """The behaviour that a completion names; None if there is none of that name."""
        return self._numbers.get(completion)

    @functools.cached_property
    def _numbers(self) -> dict[str, int]:
        return {str(number): number for number in range(self.arms.rewards.shape[1])}

    @functools.cached_property
    def _problems(self) -> dict[Split, list[Problem]]:
        levels, best = self.arms.levels.tolist(), self.arms.correct.argmax(axis=1).tolist()
        rows = {Split.TRAIN: self.train_rows.tolist(), Split.HELD_OUT: range(len(levels))}
        return {
            split: [
                Problem(
                    id=f"{split.value}/{row}",
                    prompt=f"{row}:",
                    level=levels[row],
                    gold={"row": row, "solution": str(best[row])},
                )
                for row in rows[split]
            ]
            for split in Split
        }
