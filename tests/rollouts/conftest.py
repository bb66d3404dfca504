"""What the tests of rollout policies share: a source with a script."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor


@dataclass
class Script:
    """Hands out the groups of a list, over and over, and remembers what it was asked for.

    Attributes:
        rewards: one row per group.
        references: rewards of reference rollouts, in the order of the groups.
        greedy: rewards of greedy rollouts, in the order of the groups; by default each first one.
        asked: the size of every draw.
        referred: the groups that references were drawn for.
        again: rewards of the groups drawn again, over and over; by default those of their prompt.
        repeated: the groups whose prompts were drawn again.
        group_size: rollouts of a group that are trained on.
        counts: tokens, one row per group; by default 1.
        judged: verdicts, one row per group of `rewards`; by default the rewards.
        measured: the episodes and the rollouts that values were measured with.
    """

    rewards: Sequence[Sequence[float]]
    references: Sequence[Sequence[float]] = ()
    greedy: Sequence[float] = ()
    step: int = 7
    group_size: int = 2
    counts: Sequence[Sequence[float]] = ()
    asked: list[int] = field(default_factory=list)
    referred: list[list[int]] = field(default_factory=list)
    again: Sequence[Sequence[float]] = ()
    repeated: list[list[int]] = field(default_factory=list)
    judged: Sequence[Sequence[float]] = ()
    measured: list[tuple[int, int]] = field(default_factory=list)
    _drawn: list[Sequence[float]] = field(default_factory=list)

    @property
    def lengths(self) -> Tensor:
        return torch.tensor(self.counts or [[1] * len(row) for row in self._drawn]).float()

    @property
    def verdicts(self) -> Tensor:
        if not self.judged:
            return torch.tensor(self._drawn)
        return torch.tensor([self.judged[i % len(self.judged)] for i in range(len(self._drawn))])

    def draw(self, prompts: int) -> Tensor:
        first = sum(self.asked)
        self.asked.append(prompts)
        rows = [self.rewards[(first + i) % len(self.rewards)] for i in range(prompts)]
        self._drawn += rows
        return torch.tensor(rows)

    def draw_again(self, groups: Tensor) -> Tensor:
        first = sum(map(len, self.repeated))
        self.repeated.append(groups.tolist())
        rows = [self._drawn[group] for group in groups.tolist()]
        if self.again:
            rows = [self.again[(first + i) % len(self.again)] for i in range(len(groups))]
        self._drawn += rows
        return torch.tensor(rows)

    def draw_references(self, groups: Tensor) -> Tensor:
        self.referred.append(groups.tolist())
        return torch.tensor([self.references[group] for group in groups.tolist()])

    def draw_greedy(self, groups: Tensor) -> Tensor:
        greedy = self.greedy or [row[0] for row in self._drawn]
        return torch.tensor([greedy[group] for group in groups.tolist()])

    def draw_values(self, episodes: int, rollouts: int) -> None:
        self.measured.append((episodes, rollouts))


@pytest.fixture
def script() -> Callable[..., Script]:
    return Script
