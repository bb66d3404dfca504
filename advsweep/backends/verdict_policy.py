"""Policies of one token, "solved" or not, given by the log-odds of "solved"."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch.nn.functional import logsigmoid

if TYPE_CHECKING:
    from jaxtyping import Bool, Float
    from torch import Tensor


def log_probs(
    log_odds: Float[Tensor, " prompts"], solved: Bool[Tensor, "prompts rollouts"]
) -> Float[Tensor, "prompts rollouts"]:
    """Return log π of each rollout's single token."""
    return logsigmoid(torch.where(solved, log_odds[:, None], -log_odds[:, None]))


def entropies(log_odds: Float[Tensor, " levels"]) -> Float[Tensor, " levels"]:
    """Return the exact entropies, in nats."""
    rates = torch.sigmoid(log_odds)
    return -rates * logsigmoid(log_odds) - (1 - rates) * logsigmoid(-log_odds)


def certainties(log_odds: Float[Tensor, " groups"]) -> Float[Tensor, " groups"]:
    """Return KL(uniform ‖ π), in nats."""
    return -(logsigmoid(log_odds) + logsigmoid(-log_odds)) / 2 - math.log(2)


def divergences(
    old: Float[Tensor, " levels"], new: Float[Tensor, " levels"]
) -> Float[Tensor, " levels"]:
    """Return KL(old ‖ new), in nats."""
    of_solved = torch.sigmoid(old) * (logsigmoid(old) - logsigmoid(new))
    of_failed = torch.sigmoid(-old) * (logsigmoid(-old) - logsigmoid(-new))
    return (of_solved + of_failed).clamp(min=0)
