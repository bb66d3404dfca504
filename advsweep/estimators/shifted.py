"""Rewards less a baseline other than their mean: shifted means and quantiles."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, ClassVar

import torch

from advsweep.components import option
from advsweep.estimators.base import Estimator, Provenance
from advsweep.estimators.group_stats import Groups, Std, standardise
from advsweep.estimators.reshaped import Scale

if TYPE_CHECKING:
    from advsweep.estimators.batch import PerGroup, PerRollout


class Baseline(Enum):
    """What δ is added to: the mean of the group, nothing, or its smallest reward."""

    MEAN = "mean"
    NONE = "none"
    MIN = "min"


class Convention(Enum):
    """Which quantile τ asks for: the paper's, which is that of 1-τ, or the usual one."""

    PRINTED = "printed"
    STANDARD = "standard"


class Median(Enum):
    """The median of an even number: the lower of the two in the middle, or between them."""

    LOWER = "lower"
    MIDPOINT = "midpoint"


@dataclass(kw_only=True)
class AsymRE(Estimator):
    """Successes held back and failures pushed down by δ: Aᵢ = rᵢ - (b + δ).

    Group masses with the group's mean as b are p (q-δ) and q (p+δ). Homogeneous groups get
    -δ there, all-correct ones too. With δ = 0, b the mean is `dr_grpo`, none `reinforce` and
    the minimum `min_baseline`.

    Departures: none by default; δ has the sign that FADE prints and the size that it quotes.
    The method's authors advise a baseline below the mean, which is δ < 0 here; its size in
    their language-model runs is not in the text we have.
    """

    name: ClassVar[str] = "asym_re"
    family: ClassVar[str] = "shifted baselines"
    formula: ClassVar[str] = "Aᵢ = rᵢ - (b + δ),  b = p, 0 or min r"
    paper: ClassVar[str] = "FADE (arXiv:2607.01490)"
    equation: ClassVar[str] = "sec. 8.5, after Arnal et al. 2026 (arXiv:2506.20520)"
    provenance: ClassVar[tuple[Provenance, ...]] = (Provenance.PAPER,)
    per_group: ClassVar[bool] = True

    delta: float = option(
        0.01, gt=-math.inf, lt=math.inf, help="δ: above 0 it biases towards failures"
    )
    baseline: Baseline = option(
        Baseline.MEAN, help="b: the group's mean, none (0), or the group's smallest reward"
    )

    def _advantages(self, groups: Groups, info: dict[str, float]) -> PerRollout:
        if self.baseline is Baseline.MEAN:
            return groups.centred - self.delta
        if self.baseline is Baseline.MIN:
            return groups.rewards - groups.low - self.delta
        return groups.rewards - self.delta


@dataclass(kw_only=True)
class Quantile(Estimator):
    """The reward less a quantile of its group, one of its rewards: Aᵢ = rᵢ - Q_τ.

    On a binary group the printed Q_τ is 0 if p ≤ τ and 1 otherwise, so the group masses are
    p and 0 up to τ, 0 and q above: it learns from successes on hard prompts and from
    failures on easy ones. Homogeneous groups get 0.

    The method's own paper is QAE (arXiv:2509.22611): the standard quantile at 0.4, divided by
    σ + ε. That is `convention=standard`, `tau=0.4`, `scale=std`. It is FADE's print with τ = 0.6.

    Released code: QAE's, which interpolates between rewards as well.

    Departures: FADE gives no value of τ; 1/2 is ours. FADE prints inf{x : CDF(x) ≥ 1-τ} for
    binary rewards, taken here for graded rewards as well. `convention=standard` has τ for 1-τ;
    both agree at τ = 1/2.
    """

    name: ClassVar[str] = "quantile"
    family: ClassVar[str] = "shifted baselines"
    formula: ClassVar[str] = "Aᵢ = rᵢ - Q_τ,  Q_τ = 0 if p ≤ τ else 1 on binary rewards"
    paper: ClassVar[str] = "FADE (arXiv:2607.01490)"
    equation: ClassVar[str] = "sec. 8.6, after Dabney et al. 2018 (arXiv:1710.10044)"
    provenance: ClassVar[tuple[Provenance, ...]] = (Provenance.PAPER, Provenance.OURS)
    released_options: ClassVar[tuple[str, ...]] = (
        "convention=standard tau=0.4 scale=std interpolate=true",
    )
    per_group: ClassVar[bool] = True

    tau: float = option(0.5, gt=0, lt=1, help="τ: the solve rate up to which successes count")
    convention: Convention = option(
        Convention.PRINTED, help="the quantile of 1-τ, as printed, or of τ (standard)"
    )
    interpolate: bool = option(
        False, absent=False, help="between the two nearest rewards, as QAE's code does"
    )
    scale: Scale = option(
        Scale.MEAN, absent="mean", help="std: divided by the group's σ, as in QAE's paper"
    )
    std: Std = option(Std.POPULATION, absent="population", help="σ of scale=std: over G or G-1")
    eps: float = option(0.0, ge=0, absent=0.0, help="ε of scale=std, added to σ")

    def _advantages(self, groups: Groups, info: dict[str, float]) -> PerRollout:
        level = self.tau if self.convention is Convention.STANDARD else 1 - self.tau
        if self.interpolate:
            baseline = _interpolated_quantile(groups, level)
        else:
            baseline = _order_statistic(groups, lambda count: _rank(level, count))
        advantages = groups.rewards - baseline
        if self.scale is Scale.STD:
            return standardise(advantages, groups.std(self.std), self.eps)
        return advantages


@dataclass(kw_only=True)
class MCGRPO(Estimator):
    """The reward less the median of its group: Aᵢ = rᵢ - med r.

    It is `quantile` at τ = 1/2: an even split has the baseline 0, or 1/2 with
    `median=midpoint`. Homogeneous groups get 0.

    Departures: FADE leaves the median of an even number open, the lower one is ours; none
    otherwise. MC-GRPO's own
    paper (arXiv:2601.22582) is another weight: it draws G + 1 rollouts, takes the median of
    that odd group, divides by the median absolute deviation + 1e-3 and leaves the median
    rollout out of the loss; its GSM8K trainer also multiplies by (G+1)/(number of non-zero
    advantages). On rewards of 0 and 1 that deviation is 0 in every mixed odd group, so |A| is
    1000 for each rollout that differs from the median.
    """

    name: ClassVar[str] = "mc_grpo"
    family: ClassVar[str] = "shifted baselines"
    formula: ClassVar[str] = "Aᵢ = rᵢ - med r"
    paper: ClassVar[str] = "FADE (arXiv:2607.01490)"
    equation: ClassVar[str] = "sec. 8.6, after Kim 2026 (arXiv:2601.22582)"
    provenance: ClassVar[tuple[Provenance, ...]] = (Provenance.PAPER, Provenance.OURS)
    per_group: ClassVar[bool] = True

    median: Median = option(
        Median.LOWER, help="of an even number: the lower of the middle two, or their midpoint"
    )

    def _advantages(self, groups: Groups, info: dict[str, float]) -> PerRollout:
        median = _order_statistic(groups, lambda count: _rank(0.5, count))
        if self.median is Median.MIDPOINT:
            upper = _order_statistic(groups, lambda count: count // 2 + 1)
            median = median + (upper - median) / 2
        return groups.rewards - median


def _rank(level: float, count: int) -> int:
    """Return the rank (from 1) of the smallest of `count` rewards with CDF(x) ≥ level."""
    # Remove floating-point noise: (1 - 0.7) * 10 is 3.0000000000000004, whose ceiling is 4.
    return max(1, math.ceil(round(level * count, 9)))


def _interpolated_quantile(groups: Groups, level: float) -> PerGroup:
    """Return the quantile, linearly interpolated between the two nearest ranks."""

    def place(count: int) -> float:
        # As for ranks, 0.1 * 7 is 0.7000000000000001.
        return round(level * (count - 1), 9)

    lower = _order_statistic(groups, lambda count: math.floor(place(count)) + 1)
    upper = _order_statistic(groups, lambda count: math.ceil(place(count)) + 1)
    size = groups.rewards.shape[1]
    if groups.mask is None:
        return torch.lerp(lower, upper, place(size) % 1)
    shares = lower.new_tensor([place(max(count, 1)) % 1 for count in range(size + 1)])
    return torch.lerp(lower, upper, shares[groups.mask.sum(dim=1, keepdim=True)])


def _order_statistic(groups: Groups, rank: Callable[[int], int]) -> PerGroup:
    """Return the reward of a rank (1: the smallest), which depends on the number that count."""
    size = groups.rewards.shape[1]
    if groups.mask is None:
        return groups.rewards.kthvalue(rank(size), dim=1, keepdim=True).values
    ascending = torch.where(groups.mask, groups.rewards, math.inf).sort(dim=1).values
    counts = groups.mask.sum(dim=1, keepdim=True)
    places = counts.new_tensor([rank(max(count, 1)) - 1 for count in range(size + 1)])
    return ascending.gather(1, places[counts])
