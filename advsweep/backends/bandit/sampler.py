"""Answers of a bandit to held-out problems."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from advsweep.backends.bandit.softmax import Policy
from advsweep.backends.randomness import Stream, numpy_generator
from advsweep.tasks.base import Completions

if TYPE_CHECKING:
    from jaxtyping import Float

    from advsweep.tasks.base import Problem


class BanditSampler:
    """Answers problems with the numbers of behaviours."""

    def __init__(self, logits: Float[Tensor, "prompts behaviours"]) -> None:
        self._logits = logits

    def sample(
        self, problems: Sequence[Problem], n: int, *, temperature: float, seed: int
    ) -> Completions:
        rows = torch.tensor([problem.gold["row"] for problem in problems])
        policy = Policy.of(self._logits[rows], temperature)
        rng = numpy_generator(seed, Stream.EVALUATION)
        uniform = torch.from_numpy(rng.random((len(problems), n))).float()
        actions = policy.sample(uniform).tolist()
        return Completions(
            texts=[[str(action) for action in group] for group in actions],
            token_entropy=policy.entropies.double().numpy(),
        )
