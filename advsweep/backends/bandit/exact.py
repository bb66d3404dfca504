"""What a table tells without any sampling: pass@k, entropy and its change."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from advsweep.backends.bandit.softmax import entropies, entropy_gradient

if TYPE_CHECKING:
    from jaxtyping import Bool, Float

# Probabilities of single behaviours are a metric each, where there are no more than these.
_FEW = 8


def quantities(
    before: Float[Tensor, "prompts behaviours"],
    after: Float[Tensor, "prompts behaviours"],
    correct: Bool[Tensor, "prompts behaviours"],
    ks: Sequence[int],
) -> dict[str, float]:
    """Metrics of a step as means over all prompts, those it has not drawn too.

    Args:
        before, after: log π of every behaviour before and after the step.
        ks: the k of pass@k.

    Returns:
        `exact/pass@K` and `exact/entropy` (nats) after the step; `exact/correct_modes`, the
        exponential of the entropy among correct behaviours, which is their number where all
        are as likely; `exact/entropy_change`, what the step did to the entropy, and
        `exact/entropy_predicted`, that to first order in the logits: -Cov(log π, Δlog π);
        `exact/probability_I` of each behaviour, where there are at most eight.
    """
    before, after = before.double(), after.double()
    policy, entropy = after.exp(), entropies(after)
    solved = (policy * correct).sum(dim=1)
    first_order = (entropy_gradient(before, 1.0) * (after - before)).sum(dim=1)
    metrics = {
        **{f"exact/pass@{k}": 1 - (1 - solved).clamp(min=0) ** k for k in ks},
        "exact/entropy": entropy,
        "exact/correct_modes": _modes(after, correct),
        "exact/entropy_change": entropy - entropies(before),
        "exact/entropy_predicted": first_order,
    }
    if policy.shape[1] <= _FEW:
        metrics |= {f"exact/probability_{i}": column for i, column in enumerate(policy.T)}
    return {name: values.mean().item() for name, values in metrics.items()}


def _modes(
    log_policy: Float[Tensor, "prompts behaviours"], correct: Bool[Tensor, "prompts behaviours"]
) -> Float[Tensor, " prompts"]:
    """The effective number of correct behaviours."""
    among = torch.log_softmax(log_policy.masked_fill(~correct, -torch.inf), dim=1)
    return (-(among.exp() * among.masked_fill(~correct, 0.0)).sum(dim=1)).exp()
