"""A softmax over behaviours: sampling, entropies and gradients in closed form.

Every function takes tables with any leading axes, several runs for one, and computes each row
by itself: a run has the same numbers alone as among others.
"""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    from jaxtyping import Float, Int


_BELOW_1 = 1 - 2.0**-23
"""The largest float32 whose product with any other is below that."""


class Policy:
    """What behaviours are drawn from.

    Attributes:
        log: log π of every behaviour.
    """

    def __init__(self, log: Float[Tensor, "*runs prompts behaviours"]) -> None:
        self.log = log

    @classmethod
    def of(
        cls,
        logits: Float[Tensor, "*runs prompts behaviours"],
        temperature: Float[Tensor, "*#runs 1 1"] | float = 1.0,
    ) -> Policy:
        """softmax(z/T)."""
        return Policy(torch.log_softmax(logits / temperature, dim=-1))

    def __getitem__(self, runs: slice) -> Policy:
        """That of some of the runs, with what is known of them."""
        part = Policy(self.log[runs])
        for name in ("probabilities", "entropies"):
            if name in vars(self):
                vars(part)[name] = vars(self)[name][runs]
        return part

    def of_prompts(self, rows: Int[Tensor, "runs groups"]) -> Policy:
        """Of the prompts of groups, each run's by itself."""
        return Policy(self.log[torch.arange(len(rows))[:, None], rows])

    @functools.cached_property
    def probabilities(self) -> Float[Tensor, "*runs prompts behaviours"]:
        """π of every behaviour."""
        return self.log.exp() if self.log.requires_grad else exp(self.log)

    @functools.cached_property
    def entropies(self) -> Float[Tensor, "*runs prompts"]:
        """H = -Σ π log π of each prompt, in nats."""
        return -(self.probabilities * self.log).sum(dim=-1)

    def certainties(self) -> Float[Tensor, "*runs prompts"]:
        """KL(uniform ‖ π) of each prompt, in nats."""
        return -self.log.mean(dim=-1) - math.log(self.log.shape[-1])

    def log_probs(
        self, actions: Int[Tensor, "*runs prompts rollouts"]
    ) -> Float[Tensor, "*runs prompts rollouts"]:
        """log π of sampled behaviours."""
        return self.log.gather(-1, actions)

    def sample(
        self, uniform: Float[Tensor, "*runs prompts rollouts"]
    ) -> Int[Tensor, "*runs prompts rollouts"]:
        """Behaviours by the inverse of the distribution function.

        Args:
            uniform: numbers in [0, 1), one per rollout.
        """
        return draw(self.probabilities.cumsum(dim=-1), uniform)


def exp(values: Tensor, out: Tensor | None = None) -> Tensor:
    """e to the values; numpy's takes half the time of torch's."""
    return torch.from_numpy(np.exp(values.numpy(), out=None if out is None else out.numpy()))


def draw(
    cumulated: Float[Tensor, "*runs prompts behaviours"],
    uniform: Float[Tensor, "*runs prompts rollouts"],
) -> Int[Tensor, "*runs prompts rollouts"]:
    """The first behaviour of each row whose cumulated mass is above that share of the whole.

    A share that comes to the whole by rounding counts as a little less, so that behaviours
    without a mass are never found.

    By halving, without a branch: on random numbers a processor guesses half of
    `searchsorted`'s branches wrong, which makes that three times slower.
    """
    thresholds = uniform.clamp(max=_BELOW_1) * cumulated[..., -1:]
    behaviours = cumulated.shape[-1]
    sums = cumulated.reshape(-1).numpy()
    wanted = thresholds.reshape(-1, thresholds.shape[-1]).numpy()
    starts = np.arange(0, sums.size, behaviours)[:, None]
    below = np.repeat(starts, wanted.shape[1], axis=1)
    last = starts + (behaviours - 1)
    stride = 1 << (behaviours - 1).bit_length()
    is_whole = stride == behaviours
    while stride := stride // 2:
        probe = below + (stride - 1)
        if not is_whole:
            np.minimum(probe, last, out=probe)
        below += stride * (sums[probe] <= wanted)
    found = np.minimum(below, last) - starts
    return torch.from_numpy(found).view(thresholds.shape)


def score_gradient(
    policy: Policy,
    actions: Int[Tensor, "*runs prompts rollouts"],
    weights: Float[Tensor, "*runs prompts rollouts"],
) -> Float[Tensor, "*runs prompts behaviours"]:
    """∂/∂z of Σᵢ wᵢ log π(aᵢ) at temperature 1: Σᵢ wᵢ 1{aᵢ = v} - π_v Σᵢ wᵢ.

    Where the weights of a prompt add up to 0, behaviours that were not sampled stay as they
    are.
    """
    drift = total(weights)[..., None]
    pull = torch.zeros_like(policy.log).scatter_add_(-1, actions, weights)
    return pull - policy.probabilities * drift if drift.any() else pull


def total(weights: Float[Tensor, "*runs prompts rollouts"]) -> Float[Tensor, "*runs prompts"]:
    """Σᵢ wᵢ of each prompt, where a sum that is no more than rounding counts as 0."""
    drift = weights.sum(dim=-1)
    rounding = weights.shape[-1] * torch.finfo(weights.dtype).eps * weights.abs().sum(dim=-1)
    return drift.masked_fill_(drift.abs() <= rounding, 0.0)


def entropy_gradient(policy: Policy) -> Float[Tensor, "*runs prompts behaviours"]:
    """∂H/∂z of each prompt at temperature 1: -π_v (log π_v + H)."""
    return -policy.probabilities * (policy.log + policy.entropies[..., None])
