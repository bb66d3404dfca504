"""What a change of a policy does to its answers, told by rollouts from before the change.

By importance sampling a rollout y of the policy π stands for w = π'(y)/π(y) rollouts of the changed
policy π'. With p the probability of a right answer to a prompt, R and W the means of w over its
right and its wrong rollouts,

    p' = p R / (p R + (1-p) W),   log p'/(1-p') - log p/(1-p) = log R - log W.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import expit, logsumexp

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int


@dataclass(frozen=True, kw_only=True)
class AnswerChanges:
    """Changes from π to π', a number per prompt; NaN where the prompt's rollouts do not tell.

    Attributes:
        log_odds: of log p/(1-p); NaN where all rollouts are right, or all wrong.
        pass_at_1, pass_at_k: of p, and of 1 - (1-p)ᵏ; 0 where all rollouts are alike.
        kl: KL(π ‖ π') of an answer, in nats: the mean of w - 1 - log w.
        sample_share: (Σw)²/Σw² as a share of the number of rollouts.
    """

    log_odds: Float[np.ndarray, " prompts"]
    pass_at_1: Float[np.ndarray, " prompts"]
    pass_at_k: Float[np.ndarray, " prompts"]
    kl: Float[np.ndarray, " prompts"]
    sample_share: Float[np.ndarray, " prompts"]


def answer_changes(
    before: Float[np.ndarray, " rollouts"],
    after: Float[np.ndarray, " rollouts"],
    right: Bool[np.ndarray, " rollouts"],
    prompts: Sequence[Int[np.ndarray, " own"]],
    k: int,
) -> AnswerChanges:
    """Estimate the changes.

    Args:
        before, after: log π and log π' of each rollout, in nats.
        right: whether each is right.
        prompts: the rollouts of each prompt, at least one.
        k: of pass@k.
    """
    changes = [_of_prompt(before[rows], after[rows], right[rows], k) for rows in prompts]
    names = ("log_odds", "pass_at_1", "pass_at_k", "kl", "sample_share")
    return AnswerChanges(**dict(zip(names, np.array(changes).T, strict=True)))


def _of_prompt(
    before: Float[np.ndarray, " own"],
    after: Float[np.ndarray, " own"],
    right: Bool[np.ndarray, " own"],
    k: int,
) -> tuple[float, ...]:
    change = after - before
    p = float(right.mean())
    changed = p
    log_odds = math.nan
    if 0 < p < 1:
        of_right, of_wrong = (
            logsumexp(change[answers]) - math.log(answers.sum()) for answers in (right, ~right)
        )
        log_odds = float(of_right - of_wrong)
        changed = float(expit(math.log(p / (1 - p)) + log_odds))
    passed, passed_before = (1 - (1 - rate) ** k for rate in (changed, p))
    weights = np.exp(change - change.max())
    with np.errstate(over="ignore"):
        kl = float((np.expm1(change) - change).mean())
    share = float(weights.sum() ** 2 / (weights**2).sum() / len(weights))
    return log_odds, changed - p, passed - passed_before, kl, share
