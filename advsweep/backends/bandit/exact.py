"""What a table tells without any sampling: pass@k, entropy and its change."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from advsweep.backends.bandit.softmax import Policy, entropy_gradient

if TYPE_CHECKING:
    from jaxtyping import Bool, Float

# Probabilities of single behaviours are a metric each, where there are no more than these.
_FEW = 8


def quantities(
    before: Policy,
    after: Policy,
    correct: Bool[Tensor, "runs prompts behaviours"],
    ks: Sequence[int],
) -> list[dict[str, float]]:
    """Metrics of a step of each run as means over all prompts, those it has not drawn too.

    Args:
        before, after: the policies before and after the step.
        ks: the k of pass@k.

    Returns:
        `exact/pass@K` and `exact/entropy` (nats) after the step; `exact/correct_modes`, the
        exponential of the entropy among correct behaviours, which is their number where all
        are as likely; `exact/pass@1_change` and `exact/entropy_change`, what the step did to
        them; `exact/entropy_predicted`, the latter to first order in the logits:
        -Cov(log π, Δlog π); `exact/probability_I` of each behaviour, where there are at most
        eight.
    """
    policy = after.probabilities
    failing, failed = _failing(after, correct), _failing(before, correct)
    first_order = (entropy_gradient(before) * (after.log - before.log)).sum(dim=-1)
    metrics = {
        **{f"exact/pass@{k}": 1 - failing**k for k in ks},
        "exact/pass@1_change": failed - failing,
        "exact/entropy": after.entropies,
        "exact/correct_modes": _modes(after, correct),
        "exact/entropy_change": after.entropies - before.entropies,
        "exact/entropy_predicted": first_order,
    }
    if policy.shape[-1] <= _FEW:
        metrics |= {f"exact/probability_{i}": policy[..., i] for i in range(policy.shape[-1])}
    means = torch.stack([values.double().mean(dim=-1) for values in metrics.values()])
    return [dict(zip(metrics, own, strict=True)) for own in means.T.tolist()]


def _failing(
    policy: Policy, correct: Bool[Tensor, "runs prompts behaviours"]
) -> Float[Tensor, "runs prompts"]:
    """The chance of a wrong behaviour."""
    return (1 - (policy.probabilities * correct).sum(dim=-1).double()).clamp(min=0)


def _modes(
    policy: Policy, correct: Bool[Tensor, "runs prompts behaviours"]
) -> Float[Tensor, "runs prompts"]:
    """The effective number of correct behaviours."""
    among = torch.log_softmax(policy.log.masked_fill(~correct, -torch.inf), dim=-1)
    return (-(among.exp() * among.masked_fill(~correct, 0.0)).sum(dim=-1)).exp()
