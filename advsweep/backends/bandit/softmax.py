"""A softmax over behaviours: sampling, entropies and gradients in closed form.

Every function takes tables with any leading axes, several runs for one, and computes each row
by itself: a run has the same numbers alone as among others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from jaxtyping import Float, Int


def log_policy(
    logits: Float[Tensor, "*runs prompts behaviours"], temperature: float
) -> Float[Tensor, "*runs prompts behaviours"]:
    """log π = log softmax(z/T)."""
    return torch.log_softmax(logits / temperature, dim=-1)


def entropies(
    log_policy: Float[Tensor, "*runs prompts behaviours"],
) -> Float[Tensor, "*runs prompts"]:
    """H = -Σ π log π of each prompt, in nats."""
    return -(log_policy.exp() * log_policy).sum(dim=-1)


def certainties(
    log_policy: Float[Tensor, "*runs prompts behaviours"],
) -> Float[Tensor, "*runs prompts"]:
    """KL(uniform ‖ π) of each prompt, in nats."""
    count = torch.tensor(log_policy.shape[-1], dtype=log_policy.dtype)
    return -log_policy.mean(dim=-1) - count.log()


def sample(
    log_policy: Float[Tensor, "*runs prompts behaviours"],
    uniform: Float[Tensor, "*runs prompts rollouts"],
) -> Int[Tensor, "*runs prompts rollouts"]:
    """Behaviours by the inverse of the distribution function.

    Args:
        uniform: numbers in [0, 1), one per rollout.
    """
    cumulated = log_policy.exp().cumsum(dim=-1)
    # The last sum is 1 but for rounding.
    thresholds = uniform * cumulated[..., -1:]
    found = torch.searchsorted(cumulated, thresholds, right=True)
    return found.clamp(max=log_policy.shape[-1] - 1)


def score_gradient(
    log_policy: Float[Tensor, "*runs prompts behaviours"],
    actions: Int[Tensor, "*runs prompts rollouts"],
    weights: Float[Tensor, "*runs prompts rollouts"],
    temperature: float,
) -> Float[Tensor, "*runs prompts behaviours"]:
    """∂/∂z of Σᵢ wᵢ log π(aᵢ), which is (Σᵢ wᵢ 1{aᵢ = v} - π_v Σᵢ wᵢ)/T.

    Where the weights of a prompt add up to 0, behaviours that were not sampled stay as they
    are.
    """
    gradient = -log_policy.exp() * weights.sum(dim=-1, keepdim=True)
    return gradient.scatter_add_(-1, actions, weights) / temperature


def entropy_gradient(
    log_policy: Float[Tensor, "*runs prompts behaviours"], temperature: float
) -> Float[Tensor, "*runs prompts behaviours"]:
    """∂H/∂z of each prompt, which is -π_v (log π_v + H)/T."""
    centred = log_policy + entropies(log_policy)[..., None]
    return -log_policy.exp() * centred / temperature
