"""Exact quantities of a table, without sampling: pass@k, entropy, and their expected change.

`quantities` measures a step that was made. `closed_form_weights`, `expected_step` and
`expected_changes` predict the mean step.
"""

from __future__ import annotations

import copy
import math
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

# The most behaviours whose single probabilities are metrics.
_FEW = 8


def quantities(
    before: Policy,
    after: Policy,
    correct: Bool[Tensor, "runs prompts behaviours"],
    ks: Sequence[int],
) -> list[dict[str, float]]:
    """Return metrics of a step of each run: means over all prompts, drawn or not.

    Args:
        before, after: the policies before and after the step.
        ks: the k of pass@k.

    Returns:
        `exact/pass@K` and `exact/entropy` (nats) after the step; `exact/correct_modes`, the
        exponential of the entropy among correct behaviours, which is their number if all
        are equally likely; `exact/pass@1_change` and `exact/entropy_change`, their changes in
        the step; `exact/entropy_predicted`, the latter to first order in the logits:
        -Cov(log π, Δlog π); `exact/probability_I` of each behaviour, if there are at most
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
    """Return the probability of a wrong behaviour."""
    return (1 - (policy.probabilities * correct).sum(dim=-1).double()).clamp(min=0)


def _modes(
    policy: Policy, correct: Bool[Tensor, "runs prompts behaviours"]
) -> Float[Tensor, "runs prompts"]:
    """Return the effective number of correct behaviours."""
    among = torch.log_softmax(policy.log.masked_fill(~correct, -torch.inf), dim=-1)
    return (-(among.exp() * among.masked_fill(~correct, 0.0)).sum(dim=-1)).exp()


class OutcomeWeights(NamedTuple):
    """Advantages by the number of successes among a group's other rollouts, 0 to G-1.

    Attributes:
        success: advantage of a success beside k other successes.
        failure: advantage of a failure beside k successes.
    """

    success: Float[Tensor, " others"]
    failure: Float[Tensor, " others"]


def success_weights(estimator: Estimator, group_size: int) -> OutcomeWeights:
    """Return an estimator's mean advantages of successes and failures, over orders of a group.

    Args:
        estimator: reads the rewards of each group alone; not changed.
        group_size: G, up to 1024, or 16 if the order within a group matters.

    Raises:
        BatchError: G is out of range, or the estimator refuses such groups.
    """
    rewards = kinds_of_group(estimator, group_size)
    advantages = copy.deepcopy(estimator)(GroupBatch(rewards=rewards))
    sums = torch.stack((advantages * rewards, advantages * (1 - rewards), rewards, 1 - rewards))
    by_count = sums.new_zeros(4, group_size + 1)
    by_count.index_add_(1, rewards.sum(dim=1).long(), sums.sum(dim=2))
    of_successes, of_failures, successes, failures = by_count
    return OutcomeWeights(
        success=(of_successes / successes)[1:], failure=(of_failures / failures)[:-1]
    )


def closed_form_weights(run: Run, options: BanditBackend) -> OutcomeWeights | None:
    """Return the weights for `expected_step` of a run; None if its mean step is another.

    The closed form needs the verifier's verdicts as rewards, an estimator that computes each
    group by itself, groups small enough to enumerate, and one step of plain gradient descent on
    all rollouts, from the policy that sampled them.
    """
    estimator, optimizer = run.estimator, run.optimizer
    is_plain = (
        options.minibatches == options.inner_epochs == 1
        and run.rollout.keeps_all
        and run.objective.skips_exactly
        and run.objective.averages
        and isinstance(optimizer, Sgd)
        and optimizer.momentum == optimizer.max_grad_norm == 0
    )
    if run.control.changes_verdicts:
        return None
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
    return OutcomeWeights(weights.success * scale, weights.failure * scale)


def _slope(objective: Objective) -> float:
    """Return how fast the loss of a rollout with advantage 1 falls in log π, when sampled."""
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
    weights: OutcomeWeights,
    temperature: Temperature = 1.0,
) -> Float[Tensor, "*runs prompts behaviours"]:
    """Return the mean of (1/G) Σᵢ Aᵢ ∂log π(aᵢ)/∂z over all possible groups of a prompt.

    A step of plain gradient descent on B groups of P equally frequent prompts moves the logits
    of a table by η/P of this on average.

    Args:
        log_policy: log π at the sampling temperature.
        weights: see `success_weights`.
        temperature: sampling temperature.

    Returns:
        The rise of each logit, in double precision.
    """
    gradient = solve_rate_gradient(log_policy, correct, temperature)
    solved = solve_rates(log_policy.double().exp(), correct)
    chances = _binomial(solved, len(weights.success))
    gap = (chances * (weights.success - weights.failure)).sum(dim=-1)
    return gap[..., None] * gradient


def solve_rate_gradient(
    log_policy: Float[Tensor, "*runs prompts behaviours"],
    correct: Bool[Tensor, "*#runs prompts behaviours"],
    temperature: Temperature = 1.0,
) -> Float[Tensor, "*runs prompts behaviours"]:
    """Return ∂p/∂z of each prompt, π_v (1{v correct} - p)/T, in double precision."""
    policy = log_policy.double().exp()
    return policy * (correct.double() - solve_rates(policy, correct)[..., None]) / temperature


def expected_changes(
    log_policy: Float[Tensor, "*runs prompts behaviours"],
    correct: Bool[Tensor, "*#runs prompts behaviours"],
    moves: Float[Tensor, "*runs prompts behaviours"],
    temperature: Temperature = 1.0,
) -> dict[str, Float[Tensor, "*runs"]]:
    """Return what a move of the logits does to pass@1 and the entropy, to first order.

    Args:
        log_policy: log π at the sampling temperature, before the step.
        moves: Δz, such as η/P times `expected_step`.
        temperature: sampling temperature.

    Returns:
        Means over prompts: `exact/pass@1_expected`, and `exact/entropy_expected` in nats.
    """
    log_policy, moves = log_policy.double(), moves.double()
    slopes = {
        "exact/pass@1_expected": solve_rate_gradient(log_policy, correct, temperature),
        "exact/entropy_expected": entropy_gradient(Policy(log_policy)) / temperature,
    }
    return {name: (slope * moves).sum(dim=-1).mean(dim=-1) for name, slope in slopes.items()}


def signal_ratio(
    before: Float[Tensor, "runs prompts behaviours"],
    after: Float[Tensor, "runs prompts behaviours"],
    expected: Float[Tensor, "runs prompts behaviours"],
) -> list[dict[str, float]]:
    """Return which share of a step is signal, ⟨Δz, E Δz⟩ / ‖Δz‖², as `update/signal_ratio`.

    Its numerator is ‖E Δz‖² on average, and its denominator E‖Δz‖²: the share of the squared
    length of steps that their mean explains. Empty for a run whose step changes nothing.

    Args:
        before, after: log π before and after the step, at the sampling temperature T.
        expected: the mean step from the same policy, E Δz / T.
    """
    made = after.double() - before.double()
    # Steps of a table keep the sum of each prompt's logits; log π differs by a constant.
    made = made - made.mean(dim=-1, keepdim=True)
    along = (made * expected).flatten(1).sum(dim=1)
    length = made.square().flatten(1).sum(dim=1)
    shares = (along / length).tolist()
    return [{} if math.isnan(share) else {"update/signal_ratio": share} for share in shares]


def solve_rates(
    policy: Float[Tensor, "*runs prompts behaviours"],
    correct: Bool[Tensor, "*#runs prompts behaviours"],
) -> Float[Tensor, "*runs prompts"]:
    """Return the probability of a correct behaviour of each prompt."""
    # Rounding may give a sum above 1.
    return (policy * correct).sum(dim=-1).clamp(max=1)


def _binomial(
    rates: Float[Tensor, "*runs prompts"], kinds: int
) -> Float[Tensor, "*runs prompts kinds"]:
    """Return the probabilities of 0 to n successes in n = kinds - 1 rollouts."""
    successes = torch.arange(kinds, dtype=rates.dtype)
    failures = successes.flip(0)
    log_orders = torch.lgamma(successes.new_tensor(kinds)) - (
        torch.lgamma(successes + 1) + torch.lgamma(failures + 1)
    )
    rates = rates[..., None]
    return (log_orders + torch.xlogy(successes, rates) + torch.xlogy(failures, 1 - rates)).exp()
