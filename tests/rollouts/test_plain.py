"""Plain rollouts draw once and keep every group."""

from __future__ import annotations

import torch
from torch import Tensor

from advsweep.rollouts.registry import ROLLOUTS


class Source:
    """Hands out groups of growing rewards and remembers what it was asked for."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def draw(self, prompts: int) -> Tensor:
        self.asked.append(prompts)
        return torch.arange(prompts * 2, dtype=torch.float32).view(prompts, 2)


def test_plain_draws_once_and_keeps_all_in_order() -> None:
    source = Source()
    policy = ROLLOUTS.build("plain", where="rollout")
    assert policy.collect(source, 5).tolist() == [0, 1, 2, 3, 4]
    assert source.asked == [5]


def test_plain_adds_nothing_to_the_batch() -> None:
    assert ROLLOUTS.build("plain").provides == frozenset()
