"""Statistics of the advantages that an estimator gives recorded rollouts."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from advsweep.diagnostics import difficulty
from advsweep.diagnostics.stacked_runs import ratio

if TYPE_CHECKING:
    from jaxtyping import Float, Int

    from advsweep.diagnostics.stacked_runs import PerRollout


class Statistics(NamedTuple):
    """Numbers of one estimator over all steps, or arrays of them by step or by solve rate.

    Attributes:
        zero_groups: share of groups in which every advantage is 0.
        mass_success, mass_failure: m_S and m_F per rollout.
        sign_ratio: ρ = m_S p / (m_F q).
        effective_prompts: Kish's sample size of the groups' weights, mean |A|, in prompts.
        weight_variance: Var(w(p̂)) / E[w]², how much weights depend on the draw of rewards.
        cosine: of the angle between the advantages and GRPO's.
        largest: the largest |A|.
    """

    zero_groups: Float[np.ndarray, " parts"]
    mass_success: Float[np.ndarray, " parts"]
    mass_failure: Float[np.ndarray, " parts"]
    sign_ratio: Float[np.ndarray, " parts"]
    effective_prompts: Float[np.ndarray, " parts"]
    weight_variance: Float[np.ndarray, " parts"]
    cosine: Float[np.ndarray, " parts"]
    largest: Float[np.ndarray, " parts"]


class GroupSums(NamedTuple):
    """Sums over the rollouts of each group that counts.

    Attributes:
        scored, solved: numbers of scorable rollouts and of successes.
        sizes, upward, total: sums of |A|, of A over successes, and of A.
        products: sums of A², of A times GRPO's, and of GRPO's squared.
        largest: the largest |A|.
    """

    scored: Int[np.ndarray, " groups"]
    solved: Int[np.ndarray, " groups"]
    sizes: Float[np.ndarray, " groups"]
    upward: Float[np.ndarray, " groups"]
    total: Float[np.ndarray, " groups"]
    products: tuple[np.ndarray, ...]
    largest: Float[np.ndarray, " groups"]

    def statistics(self, parts: Int[np.ndarray, " groups"], count: int) -> Statistics:
        """Return the statistics of each part of the groups, without those of refused steps."""
        known = ~np.isnan(self.sizes)
        if not known.all():
            products = [numbers[known] for numbers in self.products]
            others = (numbers[known] for numbers in self if isinstance(numbers, np.ndarray))
            scored, solved, sizes, upward, total, largest = others
            kept = GroupSums(scored, solved, sizes, upward, total, (*products,), largest)
            return kept.statistics(parts[known], count)

        def add(numbers: np.ndarray) -> np.ndarray:
            return np.bincount(parts, numbers, count)

        groups, rollouts = add(np.ones(len(parts))), add(self.scored)
        success = ratio(add(self.upward), rollouts)
        failure = ratio(add(self.upward - self.total), rollouts)
        weights = self.sizes / self.scored
        largest = np.full(count, -np.inf)
        np.maximum.at(largest, parts, self.largest)
        return Statistics(
            zero_groups=ratio(add(self.sizes == 0), groups),
            mass_success=success,
            mass_failure=failure,
            sign_ratio=difficulty.sign_ratio(success, failure, ratio(add(self.solved), rollouts)),
            effective_prompts=ratio(add(weights) ** 2, add(weights**2)),
            weight_variance=difficulty.weight_variance_of_parts(
                weights, self.solved, self.scored, parts, count
            ),
            cosine=cosine_of(*map(add, self.products)),
            largest=np.where(np.isneginf(largest), np.nan, largest),
        )


def pairs(own: np.ndarray, grpo: np.ndarray) -> tuple[tuple[np.ndarray, np.ndarray], ...]:
    return (own, own), (own, grpo), (grpo, grpo)


def step_sums(values: PerRollout) -> Float[np.ndarray, " steps"]:
    total: Float[np.ndarray, " steps"] = values.sum(axis=(1, 2))
    return total


def cosine_of(own: np.ndarray, both: np.ndarray, grpo: np.ndarray) -> np.ndarray:
    """Return the cosine from sums of squares and products; NaN where either is 0."""
    cosine: np.ndarray
    cosine = np.clip(ratio(both, np.sqrt(own) * np.sqrt(grpo)), -1.0, 1.0)
    return cosine


def weight_variance(
    weights: Float[np.ndarray, "steps groups"],
    solved: Int[np.ndarray, "steps groups"],
    scored: Int[np.ndarray, "steps groups"],
) -> Float[np.ndarray, " steps"]:
    """Return the variance of each step's weights, whatever steps lie beside it."""
    found = np.full(len(weights), np.nan)
    sizes = scored.max(axis=1)
    for size in np.unique(sizes[sizes > 1]):
        of = sizes == size
        found[of] = difficulty.weight_variance(weights[of], solved[of], scored[of])
    return found


def known_mean(values: Float[np.ndarray, " steps"]) -> Float[np.ndarray, " 1"]:
    known = values[~np.isnan(values)]
    return np.array([known.mean() if len(known) else math.nan])
