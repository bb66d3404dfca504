"""REINFORCE and the estimators that only subtract or divide by a group statistic."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch

from advsweep.components import option
from advsweep.errors import BatchError
from advsweep.estimators.base import Estimator, StatefulEstimator
from advsweep.estimators.batch import CountBy, Groups, Moments, Std, at_least, standardise

if TYPE_CHECKING:
    from advsweep.estimators.batch import PerRollout, PerToken


# What a homogeneous group gets: exactly 0, or whatever the formula rounds to.
ZeroVariance = Literal["exact", "formula"]

# Whose conventions: the papers', a framework's, or those of released code. That is A-GRAE's code,
# except where an estimator's own authors released theirs.
Preset = Literal["paper", "trl", "verl", "released"]

# GPG's divisor of the centred reward: 1, or the group's σ.
FNorm = Literal["1", "sigma"]

# GPG's factor: 1, or that of verl, which makes up for rewards of 0.
GPGAlpha = Literal["1", "nonzero"]

# Of which rewards σ is: the group's, the batch's, or those of all steps so far.
Scope = Literal["group", "batch", "running"]


class _Baseline(Estimator):
    per_group: ClassVar[bool] = True


class Reinforce(_Baseline):
    """The reward itself, without a baseline (Williams, 1992): Aᵢ = rᵢ.

    Not centred: a group of successes gets 1, not 0.
    """

    name: ClassVar[str] = "reinforce"

    def _advantages(self, groups: Groups, info: dict[str, float]) -> PerRollout:
        return groups.rewards.clone()


class DrGRPO(_Baseline):
    """The reward less its group's mean: Aᵢ = rᵢ - p.

    Homogeneous groups get 0.
    """

    name: ClassVar[str] = "dr_grpo"

    def _advantages(self, groups: Groups, info: dict[str, float]) -> PerRollout:
        return groups.centred.clone()


class MinBaseline(_Baseline):
    """The reward less the smallest one of its group: Aᵢ = rᵢ - min r.

    A mixed binary group gets its rewards, of masses p and 0; homogeneous groups get 0.
    """

    name: ClassVar[str] = "min_baseline"

    def _advantages(self, groups: Groups, info: dict[str, float]) -> PerRollout:
        return groups.rewards - groups.low


class ReLU(_Baseline):
    """The positive part of the centred reward: Aᵢ = max(0, rᵢ - p).

    Group masses are pq and 0. Homogeneous groups get 0.
    """

    name: ClassVar[str] = "relu"

    def _advantages(self, groups: Groups, info: dict[str, float]) -> PerRollout:
        return groups.centred.clamp(min=0)


@dataclass(kw_only=True)
class GPG(_Baseline):
    """The centred reward over a constant or σ: Aᵢ = α (rᵢ - p) / F.

    With α = F = 1 it is `dr_grpo`, with F = σ `grpo`; what sets GPG apart is its loss.
    Homogeneous groups get 0. verl's code has `alpha=nonzero`: α is the number of rollouts of the
    batch over that of rewards other than 0.
    """

    name: ClassVar[str] = "gpg"

    f_norm: FNorm = option("1", help="F: 1, or the group's σ")
    alpha: GPGAlpha = option("1", absent="1", help="α: 1, or over the share of rewards not 0")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.alpha == "nonzero":
            self._narrow(per_group=False)

    def _advantages(self, groups: Groups, info: dict[str, float]) -> PerRollout:
        advantages = groups.centred.clone()
        if self.f_norm == "sigma":
            advantages = standardise(advantages, groups.std())
        if self.alpha == "nonzero":
            share = groups.rollout_mean((groups.rewards != 0).to(advantages))
            return advantages / (share or 1.0)
        return advantages


class RLOO(_Baseline):
    """The reward less the mean of the group's other rewards: Aᵢ = G/(G-1) · (rᵢ - p).

    Its expected masses are pq without the factor 1-1/G of `dr_grpo`. Homogeneous groups
    get 0, and so does the only scorable rollout of a group.
    """

    name: ClassVar[str] = "rloo"
    minimum_group: ClassVar[int] = 2

    def _advantages(self, groups: Groups, info: dict[str, float]) -> PerRollout:
        return groups.centred * (groups.count / at_least(groups.count - 1, 1))


class OPO(_Baseline):
    """The reward less the group's mean over tokens: Aᵢ = rᵢ - b, b = Σ Lⱼ rⱼ / Σ Lⱼ.

    Lⱼ is the length of a rollout. b is the baseline of least variance if the squared norm of a
    rollout's gradient is proportional to its length. With equal lengths it is `dr_grpo`.
    Homogeneous groups get 0.
    """

    name: ClassVar[str] = "opo"
    needs: ClassVar[frozenset[str]] = frozenset({"lengths"})

    def _advantages(self, groups: Groups, info: dict[str, float]) -> PerRollout:
        lengths = groups.finite("lengths")
        weights = standardise(lengths, lengths.sum(dim=1, keepdim=True))
        # Around the mean, so that equal rewards deviate by exactly 0.
        return groups.centred - (weights * groups.centred).sum(dim=1, keepdim=True)


class ReMax(_Baseline):
    """The reward less that of a greedy rollout of the same prompt: Aᵢ = rᵢ - r_greedy.

    Homogeneous groups get 0 where the greedy rollout has the same reward. The rollout policy
    `greedy` draws it.
    """

    name: ClassVar[str] = "remax"
    needs: ClassVar[frozenset[str]] = frozenset({"greedy_rewards"})

    def _advantages(self, groups: Groups, info: dict[str, float]) -> PerRollout:
        greedy = groups.batch.greedy_rewards
        assert greedy is not None
        counted = greedy if groups.mask is None else greedy[groups.mask.any(dim=1)]
        if not counted.isfinite().all():
            raise BatchError(f"greedy_rewards: expected finite numbers, got {greedy.tolist()}")
        return groups.rewards - greedy.to(groups.rewards)[:, None]


@dataclass(kw_only=True)
class OptimalTokenBaseline(_Baseline):
    """The reward less a baseline for each token, of least variance: Aᵢₜ = rᵢ - bₜ.

        Wᵢₜ = Σ_{u ≤ t} (1 - 2πᵢᵤ + Σ π²)     squared norms of the logits' gradients so far
        bₜ = Σ Wⱼₜ rⱼ / (Σ Wⱼₜ + ε)           over the rollouts of the group that have a token t

    πᵢᵤ is the probability of the sampled token, Σ π² a sum over the vocabulary. Where one
    rollout alone has a token t, bₜ is 0: it gets its reward. Homogeneous groups get 0 at other
    tokens, ε aside.
    """

    name: ClassVar[str] = "optimal_token_baseline"
    needs: ClassVar[frozenset[str]] = frozenset({"lengths", "token_grad_norms"})
    per_token: ClassVar[bool] = True
    revision: ClassVar[int] = 2  # in 1, norms that rounding made negative were weights

    eps: float = option(1e-8, ge=0, help="ε, added to the weights' sum")
    zero_tail: bool = option(True, help="bₜ = 0 where one rollout alone has a token t")

    def _advantages(self, groups: Groups, info: dict[str, float]) -> PerToken:
        # A sure token's squared norm is 0, which single precision may compute as -1e-7. Weights of
        # both signs can add up to 0, and the baseline would be as large as its rounding allows.
        norms = groups.finite("token_grad_norms").clamp(min=0)
        present = groups.within(norms.shape[2])
        weights = torch.where(present, norms, 0.0).cumsum(dim=2) * present
        total = weights.sum(dim=1, keepdim=True)
        # Around the mean, so that equal rewards deviate by exactly 0 if ε is.
        shift = (weights * groups.centred[..., None]).sum(dim=1, keepdim=True)
        baseline = groups.mean[..., None] * standardise(total, total, self.eps)
        baseline += standardise(shift, total, self.eps)
        if self.zero_tail:
            baseline = torch.where(present.sum(dim=1, keepdim=True) == 1, 0.0, baseline)
        return groups.rewards[..., None] - baseline


@dataclass(kw_only=True)
class GRPO(StatefulEstimator[Moments]):
    """The reward standardised within its group: Aᵢ = (rᵢ - p) / (σ + ε).

    On a binary group successes get √(q/p), failures -√(p/q). Homogeneous groups get 0.

    With `scope=batch` σ is that of all rewards of the batch around their common mean, as in Lite
    PPO (arXiv:2508.08221) and TRL's `scale_rewards=batch`. With `scope=running` it is that of all
    rewards so far, this step's included, as ROLL has it.
    """

    name: ClassVar[str] = "grpo"
    stateful: ClassVar[bool] = False
    per_group: ClassVar[bool] = True
    conventions: ClassVar[dict[str, Mapping[str, Any]]] = {
        "paper": {"std": Std.POPULATION, "eps": 0.0, "zero_variance": "exact"},
        "trl": {"std": Std.SAMPLE, "eps": 1e-4, "zero_variance": "formula"},
        "verl": {"std": Std.SAMPLE, "eps": 1e-6, "zero_variance": "formula"},
        "released": {"std": Std.SAMPLE, "eps": 1e-6, "zero_variance": "formula"},
    }

    preset: Preset = option(
        "paper", identity=False, help="sets std, eps and zero_variance where they are not given"
    )
    std: Std | None = option(None, help="standard deviation over G or G-1; null: the preset's")
    eps: float | None = option(None, ge=0, help="ε, added to σ; null: the preset's (0 for paper)")
    zero_variance: ZeroVariance | None = option(
        None, help="homogeneous groups: exactly 0, or the bare formula; null: the preset's"
    )
    tolerance: float = option(0.0, ge=0, help="max - min of a homogeneous group (exact)")
    scope: Scope = option(
        "group", absent="group", help="σ of the group, of the batch, or of all rewards so far"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self._fill(self.conventions[self.preset])
        if self.scope != "group":
            self._narrow(per_group=False, stateful=self.scope == "running")

    def _fresh_memory(self) -> Moments:
        return Moments()

    def _advantages(self, groups: Groups, info: dict[str, float]) -> PerRollout:
        assert self.std is not None
        assert self.eps is not None
        if self.scope == "group" and self.zero_variance == "formula":
            return _standardise_as_frameworks(groups, self.std, self.eps)
        sigma = groups.std(self.std)
        if self.scope != "group":
            moments = self._memory.joined(groups.moments(groups.rewards, CountBy.ROLLOUTS))
            if self.stateful:
                self._memory = moments
            sigma = torch.full_like(sigma, math.sqrt(moments.variance(self.std)))
        advantages = standardise(groups.centred, sigma, self.eps)
        if self.tolerance > 0:
            advantages = torch.where(groups.high - groups.low <= self.tolerance, 0.0, advantages)
        return advantages


def _standardise_as_frameworks(groups: Groups, std: Std, eps: float) -> PerRollout:
    # TRL 1.16's operations one by one (GRPOTrainer._generate_and_score_completions and its
    # nanstd): another order of the same sums rounds differently, and torch.std does.
    rewards = groups.rewards
    mask = groups.mask
    if mask is not None:
        rewards = torch.where(mask, rewards, math.nan)
    mean = torch.nanmean(rewards, dim=1, keepdim=True)
    centred = rewards - mean
    variance = torch.nanmean(centred**2, dim=1, keepdim=True)
    if std is Std.SAMPLE:
        count = (~torch.isnan(rewards)).sum(dim=1, keepdim=True, dtype=rewards.dtype)
        variance = variance * (count / (count - 1).clamp(min=1))
    return standardise(centred, torch.sqrt(variance), eps)
