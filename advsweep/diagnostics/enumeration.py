"""Every kind of group that binary rewards can make, and how often each occurs."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from advsweep.errors import BatchError

if TYPE_CHECKING:
    from jaxtyping import Float

    from advsweep.estimators import Estimator

# Largest groups that are enumerated: by number of successes, and in every arrangement.
_LARGEST_GROUP = 1024
_LARGEST_ARRANGED = 16


def kinds_of_group(estimator: Estimator, size: int) -> Float[Tensor, "kinds rollouts"]:
    """One group per number of successes, or one per arrangement where their order matters.

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
    """One group for each number of successes, from none to all; not to be changed."""
    return torch.ones(size + 1, size, dtype=torch.float64).tril(-1)


@functools.lru_cache(maxsize=4)
def _by_arrangement(size: int) -> Float[Tensor, "kinds rollouts"]:
    return (torch.arange(2**size)[:, None] >> torch.arange(size) & 1).double()


def chances(kinds: Float[Tensor, "kinds rollouts"], solve_rate: float) -> Float[Tensor, " kinds"]:
    """How likely each kind is when every rollout succeeds with chance p; they sum to 1."""
    size = kinds.shape[1]
    successes = kinds.sum(dim=1)
    failures = size - successes
    log_chance = torch.xlogy(successes, successes.new_tensor(solve_rate))
    log_chance += torch.xlogy(failures, failures.new_tensor(1 - solve_rate))
    if len(kinds) == size + 1:
        log_chance += torch.lgamma(successes.new_tensor(size + 1.0))
        log_chance -= torch.lgamma(successes + 1) + torch.lgamma(failures + 1)
    return log_chance.exp()
