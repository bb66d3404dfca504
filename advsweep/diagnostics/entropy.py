"""The entropy change of a step, as FADE predicts it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

from advsweep.estimators import GroupBatch
from advsweep.estimators.groups import Groups

if TYPE_CHECKING:
    from jaxtyping import Bool, Float
    from torch import Tensor


class EntropyTerms(NamedTuple):
    """ΔH ≈ η (drift - covariance), per unit of the learning rate η.

    Attributes:
        drift: (m_S - m_F) H = E[A] H.
        covariance: Cov(A, log π).
    """

    drift: float
    covariance: float


def entropy_terms(
    advantages: Float[Tensor, "groups rollouts"],
    token_entropy: Float[Tensor, "groups rollouts"],
    mask: Bool[Tensor, "groups rollouts"] | None = None,
) -> EntropyTerms:
    """The two terms of FADE (arXiv:2607.01490), Eq. 7, over a step's scorable rollouts.

    A rollout's log π is the mean over its tokens, H = -E[log π] over rollouts, so that
    drift - covariance = -E[A log π] exactly.

    A prediction that is to be tested, not an identity: a positive drift raises H here, where
    the paper's prose says that it speeds up collapse; and since a constant added to A leaves
    the expected gradient alone, an exact step has no drift. With Adam, η is no
    plain rate either: compare signs and shapes, not sizes.

    Args:
        token_entropy: mean of -log π over the tokens of each rollout, in nats.
    """
    return terms_of(Groups(GroupBatch(rewards=advantages.double(), mask=mask)), token_entropy)


def terms_of(advantages: Groups, token_entropy: Float[Tensor, "groups rollouts"]) -> EntropyTerms:
    """The same, of groups of advantages in the place of rewards."""
    surprisal = token_entropy.double()
    if advantages.mask is not None:
        surprisal = torch.where(advantages.mask, surprisal, 0.0)
    mean = advantages.rollout_mean(advantages.rewards)
    entropy = advantages.rollout_mean(surprisal)
    product = advantages.rollout_mean(advantages.rewards * surprisal)
    return EntropyTerms(drift=mean * entropy, covariance=mean * entropy - product)
