"""The values of turns: what is still to come, by the mean over rollouts from what stands before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from jaxtyping import Float, Int
    from torch import Tensor

    from advsweep.backends.training_loop import Scores
    from advsweep.tasks.base import Problem


@dataclass(frozen=True)
class TurnStarts:
    """The beginnings of episodes before their turns, each once.

    Attributes:
        problems: whose episode each beginning is of.
        texts: what was written before the turn, after the prompt.
        turns: turns that were made before it.
        tokens: tokens that the policy generated before it.
        numbers: the beginning before each turn of each episode; -1 past the last turn.
    """

    problems: list[Problem]
    texts: list[str]
    turns: list[int]
    tokens: list[int]
    numbers: Int[Tensor, "episodes turns"]

    @classmethod
    def of(
        cls,
        problems: Sequence[Problem],
        texts: Sequence[str],
        turn_of_token: Int[Tensor, "episodes tokens"],
        max_turns: int,
    ) -> TurnStarts:
        """Find the beginnings of episodes, which several of one prompt may share."""
        numbers = torch.full((len(texts), max_turns), -1)
        starts = cls([], [], [], [], numbers)
        known: dict[str, int] = {}
        for episode, (problem, text) in enumerate(zip(problems, texts, strict=True)):
            tokens = 0
            made = -1
            for place, turn in enumerate(turn_of_token[episode].tolist()):
                if turn > made:
                    written = problem.prompt + text[:place]
                    if written not in known:
                        known[written] = len(known)
                        starts._add(problem, text[:place], turn, tokens)
                    numbers[episode, turn] = known[written]
                    made = turn
                tokens += turn >= 0
        return starts

    def _add(self, problem: Problem, text: str, turns: int, tokens: int) -> None:
        self.problems.append(problem)
        self.texts.append(text)
        self.turns.append(turns)
        self.tokens.append(tokens)

    @property
    def prompts(self) -> list[str]:
        """The texts that are continued, prompt and beginning."""
        return [
            problem.prompt + text for problem, text in zip(self.problems, self.texts, strict=True)
        ]

    def values(self, scores: Scores, rollouts: int) -> Float[Tensor, "episodes turns"]:
        """Return the mean reward still to come before each turn; NaN past the last.

        Args:
            scores: of whole episodes, `rollouts` from each beginning. Those that could not be
                scored are left out.
        """
        to_come = scores.rewards
        if scores.turn_rewards is not None:
            before = torch.arange(scores.turn_rewards.shape[1])
            made = torch.tensor(self.turns).repeat_interleave(rollouts)
            given = scores.turn_rewards.where(before < made[:, None], 0.0)
            to_come = to_come - given.sum(dim=1)
        means = to_come.view(-1, rollouts).nanmean(dim=1)
        # The last place is that of turns without a beginning.
        return torch.cat((means, means.new_tensor([torch.nan])))[self.numbers]
