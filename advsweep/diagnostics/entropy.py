"""The entropy change of a step, as FADE predicts it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from advsweep.diagnostics.stacked_runs import Runs

if TYPE_CHECKING:
    import numpy as np
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
    runs = Runs.of(advantages, mask)
    terms = terms_of(runs, runs.numbers(advantages), runs.numbers(token_entropy))
    return EntropyTerms(**{name: term.item() for name, term in terms.items()})


def terms_of(
    runs: Runs,
    advantages: Float[np.ndarray, "runs groups rollouts"],
    token_entropy: Float[np.ndarray, "runs groups rollouts"],
) -> dict[str, Float[np.ndarray, " runs"]]:
    """The same of each run, of numbers that are 0 where masked."""
    drift = runs.rollout_mean(advantages) * runs.rollout_mean(token_entropy)
    return {"drift": drift, "covariance": drift - runs.rollout_mean(advantages * token_entropy)}
