"""What a table tells without any sampling: pass@k, entropy and its change."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from advsweep.backends.bandit.softmax import Policy, entropy_gradient
from advsweep.config.settings import Sgd
from advsweep.diagnostics.masses import kinds_of_group
from advsweep.errors import BatchError
from advsweep.estimators.batch import GroupBatch
from advsweep.objectives.base import LossInputs

if TYPE_CHECKING:
    from jaxtyping import Bool, Float

    from advsweep.backends.bandit.backend import BanditBackend
    from advsweep.backends.base import Run
    from advsweep.estimators import Estimator
    from advsweep.objectives.base import Objective

    Temperature = Float[Tensor, "*#runs 1 1"] | float

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


class Weights(NamedTuple):
    """Advantages by the number of successes among a group's other rollouts, 0 to G-1.

    Attributes:
        success: of a success beside k others.
        failure: of a failure beside k successes.
    """

    success: Float[Tensor, " others"]
    failure: Float[Tensor, " others"]


def success_weights(estimator: Estimator, group_size: int) -> Weights:
    """What an estimator gives successes and failures, as their mean over the group's orders.

    Args:
        estimator: one that weighs each group by itself, and by its rewards alone; it is left
            as it is.
        group_size: G, up to 1024, or 16 where the order within a group matters.

    Raises:
        BatchError: G is out of range, or the estimator refuses such groups.
    """
    rewards = kinds_of_group(estimator, group_size)
    advantages = copy.deepcopy(estimator)(GroupBatch(rewards=rewards))
    sums = torch.stack((advantages * rewards, advantages * (1 - rewards), rewards, 1 - rewards))
    by_count = sums.new_zeros(4, group_size + 1)
    by_count.index_add_(1, rewards.sum(dim=1).long(), sums.sum(dim=2))
    of_successes, of_failures, successes, failures = by_count
    return Weights(success=(of_successes / successes)[1:], failure=(of_failures / failures)[:-1])


def weights_of(run: Run, backend: BanditBackend) -> Weights | None:
    """The weights with which a run's mean step is the one that is in closed form here.

    None where it is not: where rewards are others than 0 and 1, groups are not weighed each by
    itself, or a step is none of plain gradient descent on all rollouts, once, from the policy
    that sampled them; and for groups too large to enumerate.
    """
    estimator, optimizer = run.estimator, run.optimizer
    is_plain = (
        backend.minibatches == backend.inner_epochs == 1
        and run.rollout.keeps_all
        and run.objective.skips_exactly
        and run.objective.averages
        and isinstance(optimizer, Sgd)
        and optimizer.momentum == optimizer.max_grad_norm == 0
    )
    if not (is_plain and run.task.is_binary and estimator.per_group and not estimator.needs):
        return None
    try:
        weights = success_weights(estimator, run.group_size)
        kinds = GroupBatch(rewards=kinds_of_group(estimator, run.group_size))
    except BatchError:
        return None
    if not copy.deepcopy(estimator).compute(kinds).keep.all():
        return None
    scale = _slope(run.objective)
    return Weights(weights.success * scale, weights.failure * scale)


def _slope(objective: Objective) -> float:
    """How much the loss of one rollout of advantage 1 falls with log π, where it was sampled."""
    log_probs = torch.zeros(1, 1, requires_grad=True)
    inputs = LossInputs(
        log_probs=log_probs,
        old_log_probs=torch.zeros(1, 1),
        completion_mask=torch.ones(1, 1, dtype=torch.bool),
        advantages=torch.ones(1),
        rollouts=1,
        tokens=1,
    )
    (slope,) = torch.autograd.grad(objective.loss(inputs).loss, log_probs)
    return -slope.item()


def expected_step(
    log_policy: Float[Tensor, "*runs prompts behaviours"],
    correct: Bool[Tensor, "*#runs prompts behaviours"],
    weights: Weights,
    temperature: Temperature = 1.0,
) -> Float[Tensor, "*runs prompts behaviours"]:
    """The mean of (1/G) Σᵢ Aᵢ ∂log π(aᵢ)/∂z over all groups that a prompt may have.

    A step of plain gradient descent on B groups, of P prompts that come as often as each
    other, moves the logits of a table by η/P of this on average.

    Args:
        log_policy: log π at the sampling temperature.
        weights: see `success_weights`.
        temperature: that of sampling.

    Returns:
        Double precision, by how much each logit is to rise.
    """
    gradient = solve_rate_gradient(log_policy, correct, temperature)
    solved = _solve_rates(log_policy.double().exp(), correct)
    chances = _binomial(solved, len(weights.success))
    gap = (chances * (weights.success - weights.failure)).sum(dim=-1)
    return gap[..., None] * gradient


def solve_rate_gradient(
    log_policy: Float[Tensor, "*runs prompts behaviours"],
    correct: Bool[Tensor, "*#runs prompts behaviours"],
    temperature: Temperature = 1.0,
) -> Float[Tensor, "*runs prompts behaviours"]:
    """∂p/∂z of each prompt, in double precision, which is π_v (1{v correct} - p)/T."""
    policy = log_policy.double().exp()
    return policy * (correct.double() - _solve_rates(policy, correct)[..., None]) / temperature


def expected_changes(
    log_policy: Float[Tensor, "*runs prompts behaviours"],
    correct: Bool[Tensor, "*#runs prompts behaviours"],
    moves: Float[Tensor, "*runs prompts behaviours"],
    temperature: Temperature = 1.0,
) -> dict[str, Float[Tensor, "*runs"]]:
    """What logits that move do to pass@1 and to the entropy, to first order.

    Args:
        log_policy: log π at the sampling temperature, before the step.
        moves: Δz, such as η/P times `expected_step`.
        temperature: that of sampling.

    Returns:
        Means over prompts: `exact/pass@1_expected`, and `exact/entropy_expected` in nats.
    """
    log_policy, moves = log_policy.double(), moves.double()
    slopes = {
        "exact/pass@1_expected": solve_rate_gradient(log_policy, correct, temperature),
        "exact/entropy_expected": entropy_gradient(Policy(log_policy)) / temperature,
    }
    return {name: (slope * moves).sum(dim=-1).mean(dim=-1) for name, slope in slopes.items()}


def _solve_rates(
    policy: Float[Tensor, "*runs prompts behaviours"],
    correct: Bool[Tensor, "*#runs prompts behaviours"],
) -> Float[Tensor, "*runs prompts"]:
    # Rounding may add up to more than 1.
    return (policy * correct).sum(dim=-1).clamp(max=1)


def _binomial(
    rates: Float[Tensor, "*runs prompts"], kinds: int
) -> Float[Tensor, "*runs prompts kinds"]:
    """The chances of 0 to n successes in n = kinds - 1 rollouts."""
    successes = torch.arange(kinds, dtype=rates.dtype)
    failures = successes.flip(0)
    log_orders = torch.lgamma(successes.new_tensor(kinds)) - (
        torch.lgamma(successes + 1) + torch.lgamma(failures + 1)
    )
    rates = rates[..., None]
    return (log_orders + torch.xlogy(successes, rates) + torch.xlogy(failures, 1 - rates)).exp()
