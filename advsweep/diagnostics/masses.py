"""Gradient masses: how hard an estimator pushes successes up and failures down.

FADE (arXiv:2607.01490), Eq. 3: m_S = (1/G) Σ_successes Aᵢ and m_F = -(1/G) Σ_failures Aᵢ,
so that m_S - m_F is the mean advantage. All masses here are per rollout; the sum over a
group, which some of the paper's forms are, is G times as much. Of an estimator with an advantage
per token, Aᵢ is the mean over the tokens of the rollout. For a solve rate p there are

- group masses, of a group in which exactly a share p succeeded;
- expected masses, the mean of those over k ~ Binomial(G, p) successes, homogeneous groups
  too: what a training step does on average to prompts of this solve rate;
- population masses, of a group so large that its share of successes is p. Most closed forms
  are these. A weight that is a share of its group (`softmax`, say) falls as 1/G and vanishes
  here.

Estimators that read statistics of the batch (FADE's mean reward, AVSPO's collapse rate) see
those of infinitely many such groups, or of groups of another solve rate, `batch_rate`, among
which these are too few to count. Stateful ones continue from their present memory, on a copy.
Inputs other than the rewards are one number for all rollouts, such as `token_entropy=0.3`;
`ref_rewards=0.4` means references of 0 and 1 that succeed with chance 0.4, where each weight
depends on its own reference alone.

With the masses comes the entropy change of a step that FADE predicts from them.
"""

from __future__ import annotations

import copy
import functools
import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from advsweep.diagnostics.group_statistics import StackedRollouts
from advsweep.errors import BatchError
from advsweep.estimators.batch import GroupBatch, spread_input

if TYPE_CHECKING:
    from collections.abc import Callable

    from jaxtyping import Bool, Float
    from torch import Tensor

    from advsweep.diagnostics.group_statistics import FlagPerRollout, PerRollout, PerRun
    from advsweep.estimators import Estimator

    # Groups, and their frequencies, which sum to 1.
    _Sample = tuple[Float[Tensor, "groups rollouts"], Float[Tensor, " groups"]]

# Groups of a population: large, and every solve rate in whole percent is a share of it.
_POPULATION = 10_000


class Masses(NamedTuple):
    """m_S and m_F."""

    success: float
    failure: float

    @property
    def total(self) -> float:
        """m_S + m_F."""
        return self.success + self.failure

    @property
    def ratio(self) -> float:
        """m_S / m_F; NaN where m_F is 0."""
        return self.success / self.failure if self.failure else math.nan


def masses(
    advantages: Float[Tensor, "prompts rollouts"],
    successes: Bool[Tensor, "prompts rollouts"],
    mask: Bool[Tensor, "prompts rollouts"] | None = None,
) -> Masses:
    """Return the masses of a batch, averaged over its scorable rollouts."""
    runs = StackedRollouts(advantages, mask)
    success, failure = masses_per_run(runs, runs.numbers(advantages), runs.flags(successes))
    return Masses(success=success.item(), failure=failure.item())


def masses_per_run(
    runs: StackedRollouts, advantages: PerRollout, successes: FlagPerRollout
) -> tuple[PerRun, PerRun]:
    """Return m_S and m_F of each run, from advantages that are 0 where masked."""
    upward = np.where(successes, advantages, 0.0)
    return runs.rollout_mean(upward), runs.rollout_mean(upward - advantages)


def expected_masses(
    estimator: Estimator,
    solve_rate: float,
    group_size: int,
    *,
    batch_rate: float | None = None,
    **inputs: float,
) -> Masses:
    """Return the exact mean of the masses over k ~ Binomial(G, p) successes.

    Homogeneous groups count. The estimator gets all kinds of groups as one batch, in which each
    kind counts as often as it occurs: the G+1 numbers of successes, or all 2^G arrangements of
    successes and failures if their order matters.

    Args:
        estimator: not changed.
        solve_rate: p, the chance of a success, in [0, 1].
        group_size: G, up to 1024, or 16 if the order within a group matters.
        batch_rate: the solve rate of the rest of the batch; by default p.
        inputs: other inputs that the estimator needs, as described above.

    Raises:
        BatchError: p or G is out of range, or the estimator refuses these groups.
    """
    drawn = functools.partial(_drawn, kinds_of_group(estimator, group_size))
    return _mean_masses(estimator, drawn, solve_rate, batch_rate, inputs)


def group_masses(
    estimator: Estimator,
    successes: int,
    group_size: int,
    *,
    batch_rate: float | None = None,
    **inputs: float,
) -> Masses:
    """Return the masses of a group with exactly k successes; the mean over their orders.

    Args:
        estimator: not changed.
        successes: k, so that p = k/G.
        group_size: G, up to 1024, or 16 if the order within a group matters.
        batch_rate: the solve rate of the rest of the batch; by default all its groups have k
            successes.
        inputs: other inputs that the estimator needs, as described above.

    Raises:
        BatchError: k or G is out of range, or the estimator refuses these groups.
    """
    kinds = kinds_of_group(estimator, group_size)
    if not 0 <= successes <= group_size:
        raise BatchError(f"successes: expected 0 to {group_size}, got {successes}")
    rewards = kinds[kinds.sum(dim=1) == successes]
    groups = (rewards, rewards.new_full((len(rewards),), 1 / len(rewards)))
    return _mean_masses(estimator, functools.partial(_drawn, kinds), groups, batch_rate, inputs)


def population_masses(
    estimator: Estimator, solve_rate: float, *, batch_rate: float | None = None, **inputs: float
) -> Masses:
    """Return the masses in the limit of a large group of which a share p succeeded.

    They are computed from a group of 10,000; for a p between two shares of such a group they
    are interpolated linearly.

    Args:
        estimator: not changed.
        solve_rate: p, in [0, 1].
        batch_rate: the share of successes in the rest of the batch; by default p.
        inputs: other inputs that the estimator needs, as described above.

    Raises:
        BatchError: p is outside [0, 1], the order within a group matters (then there is no such
            limit), or the estimator refuses these groups.
    """
    if not estimator.exchangeable:
        raise BatchError(
            f"estimator '{estimator.name}' weighs rollouts by their order within the group, "
            "which a population does not have; compute its expected or group masses"
        )
    return _mean_masses(estimator, _population, solve_rate, batch_rate, inputs)


def _drawn(kinds: Float[Tensor, "kinds rollouts"], rate: float) -> _Sample:
    """Return kinds of groups with their chances at a solve rate."""
    return kinds, chances(kinds, rate)


def _population(share: float) -> _Sample:
    """Return groups of which a share succeeded, between two whole numbers if there are such."""
    # Remove floating-point noise: 0.07 of 10,000 is a little more than 700.
    exact = round(share * _POPULATION, 6)
    lower = min(math.floor(exact), _POPULATION - 1)
    successes = torch.tensor([[lower], [lower + 1]])
    rewards = (torch.arange(_POPULATION) < successes).double()
    return rewards, rewards.new_tensor([lower + 1 - exact, exact - lower])


def _mean_masses(
    estimator: Estimator,
    sample: Callable[[float], _Sample],
    groups: float | _Sample,
    batch_rate: float | None,
    inputs: dict[str, float],
) -> Masses:
    """Return the mean of the masses over some groups.

    Args:
        sample: makes the groups of a solve rate.
        groups: the groups, or their solve rate.
        batch_rate: that of the groups from which statistics of the batch are computed; None for
            the groups themselves.
    """
    for name, rate in (("solve_rate", groups), ("batch_rate", batch_rate)):
        if isinstance(rate, (int, float)) and not 0 <= rate <= 1:
            raise BatchError(f"{name}: expected a number in [0, 1], got {rate:g}")
    references = inputs.get("ref_rewards", 0.0)
    if 0 < references < 1:
        # A weight that depends on one reference is linear in that reference's success rate.
        failing = {**inputs, "ref_rewards": 0.0}
        solving = {**inputs, "ref_rewards": 1.0}
        wrong = _mean_masses(estimator, sample, groups, batch_rate, failing)
        right = _mean_masses(estimator, sample, groups, batch_rate, solving)
        return Masses(
            success=wrong.success + references * (right.success - wrong.success),
            failure=wrong.failure + references * (right.failure - wrong.failure),
        )
    chosen, weights = sample(groups) if isinstance(groups, (int, float)) else groups
    rewards = chosen
    frequencies = weights
    if batch_rate is not None:
        # The groups themselves are too few to count in statistics of the batch.
        rest, others = sample(batch_rate)
        rewards = torch.cat((rewards, rest))
        frequencies = torch.cat((torch.zeros_like(frequencies), others))
    tokens = math.ceil(inputs.get("lengths", 1))
    spread: dict[str, Any] = {
        name: spread_input(name, value, rewards, tokens) for name, value in inputs.items()
    }
    batch = GroupBatch(rewards=rewards, frequencies=frequencies, **spread)
    advantages = copy.deepcopy(estimator).compute(batch).rollout_means(batch.lengths)
    advantages = advantages[: len(chosen)]
    per_group = weights[:, None] / rewards.shape[1]
    return Masses(
        success=(advantages * chosen * per_group).sum().item(),
        failure=0.0 - (advantages * (1 - chosen) * per_group).sum().item(),
    )


# Largest groups that are enumerated: by number of successes, and in every arrangement.
_LARGEST_GROUP = 1024
_LARGEST_ARRANGED = 16


def kinds_of_group(estimator: Estimator, size: int) -> Float[Tensor, "kinds rollouts"]:
    """Return one group per number of successes, or per arrangement if the order matters.

    Args:
        size: G, up to 1024, or 16 where the order within a group matters.

    Raises:
        BatchError: G is out of range.
    """
    largest = _LARGEST_GROUP if estimator.exchangeable else _LARGEST_ARRANGED
    if not 1 <= size <= largest:
        why = "" if estimator.exchangeable else ", as all orders within a group are enumerated"
        raise BatchError(
            f"group_size: expected 1 to {largest} for estimator '{estimator.name}'{why}; got {size}"
        )
    return groups_by_count(size) if estimator.exchangeable else _by_arrangement(size)


@functools.lru_cache(maxsize=4)
def groups_by_count(size: int) -> Float[Tensor, "kinds rollouts"]:
    """Return one group for each number of successes; shared, so do not change it in place."""
    return torch.ones(size + 1, size, dtype=torch.float64).tril(-1)


@functools.lru_cache(maxsize=4)
def _by_arrangement(size: int) -> Float[Tensor, "kinds rollouts"]:
    return (torch.arange(2**size)[:, None] >> torch.arange(size) & 1).double()


def chances(kinds: Float[Tensor, "kinds rollouts"], solve_rate: float) -> Float[Tensor, " kinds"]:
    """Return the probability of each kind if every rollout succeeds with chance p."""
    size = kinds.shape[1]
    successes = kinds.sum(dim=1)
    failures = size - successes
    log_chance = torch.xlogy(successes, successes.new_tensor(solve_rate))
    log_chance += torch.xlogy(failures, failures.new_tensor(1 - solve_rate))
    if len(kinds) == size + 1:
        log_chance += torch.lgamma(successes.new_tensor(size + 1.0))
        log_chance -= torch.lgamma(successes + 1) + torch.lgamma(failures + 1)
    return log_chance.exp()


def entropy_terms_per_run(
    runs: StackedRollouts, advantages: PerRollout, token_entropy: PerRollout
) -> dict[str, PerRun]:
    """Return the two terms of FADE (arXiv:2607.01490), Eq. 7, over the rollouts of each run.

    ΔH ≈ η (drift - covariance): drift is (m_S - m_F) H = E[A] H, covariance Cov(A, log π), per
    unit of the learning rate η. A rollout's log π is the mean over its tokens, H = -E[log π] over
    rollouts, so that drift - covariance = -E[A log π] exactly.

    This is a prediction to test and not an identity. A positive drift raises H here, while the
    paper's prose says that it speeds up collapse. An exact step has no drift, because a constant
    added to A does not change the expected gradient. With Adam, η is not a plain rate: compare
    signs and shapes, not sizes.

    Args:
        advantages, token_entropy: 0 where masked; the latter is the mean of -log π over the
            tokens of each rollout, in nats.
    """
    drift = runs.rollout_mean(advantages) * runs.rollout_mean(token_entropy)
    return {"drift": drift, "covariance": drift - runs.rollout_mean(advantages * token_entropy)}
