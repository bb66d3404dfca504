"""Estimators with a memory of each prompt: DCPO and HA-DW."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Literal

import torch

from advsweep.components import option
from advsweep.errors import BatchError
from advsweep.estimators.base import StatefulEstimator
from advsweep.estimators.batch import Groups, Std, standardise
from advsweep.estimators.reshaped import Scale

if TYPE_CHECKING:
    from advsweep.estimators.batch import PerGroup, PerRollout

# A smaller spread over a prompt's visits is rounding error of equal rewards.
_NO_SPREAD = 1e-12


@dataclass(frozen=True)
class _VisitMemory:
    """By prompt its number of visits, mean and variance."""

    visits: Mapping[str, list[float]] = field(default_factory=dict)


@dataclass(kw_only=True)
class DCPO(StatefulEstimator[_VisitMemory]):
    """Smooth advantage standardisation over all visits of a prompt.

    At a prompt's i-th visit, m and s the mean and sample σ of its rewards now, μᵢ and vᵢ the
    mean and variance over all its visits,

        μᵢ = ((i-1) μᵢ₋₁ + m)/i
        vᵢ = ((i-1) vᵢ₋₁ + s² + ((i-1)/i) (m - μᵢ₋₁)²)/i
        a = (r - m)/s,  b = (r - μᵢ)/√vᵢ, each 0 where its σ is 0
        x = (1 - 1/i) a + b/i,  y = a/i + (1 - 1/i) b

    and A is the smaller of x and y in size, y where they are equal. The first visit is `grpo`
    with the sample σ. A later group of equal rewards is not 0: it says how far the reward is
    from the prompt's own past. The table of visits grows with the number of different prompts
    and is part of every checkpoint. Logged: `visits`, the mean i of a step. The objective of the
    method is `adaptive_clipped`, and `method=dcpo` has both.
    """

    name: ClassVar[str] = "dcpo"
    needs: ClassVar[frozenset[str]] = frozenset({"prompt_ids"})

    def _fresh_memory(self) -> _VisitMemory:
        return _VisitMemory()

    def _advantages(self, groups: Groups, info: dict[str, float]) -> PerRollout:
        sigma = groups.std(Std.SAMPLE)
        visits = self._visit(groups, sigma)
        info["visits"] = math.fsum(number for number, *_ in visits) / len(visits)

        table = groups.rewards.new_tensor(visits, dtype=torch.float64)
        number, mean, variance = table.unsqueeze(-1).unbind(dim=1)
        spread = variance.sqrt()
        now = standardise(groups.centred, sigma).double()
        past = (groups.rewards.double() - mean) / spread
        past = torch.where(spread < _NO_SPREAD, 0.0, past)
        share = 1 / number
        x = (1 - share) * now + share * past
        y = share * now + (1 - share) * past
        return torch.where(x.abs() < y.abs(), x, y).to(groups.rewards)

    def _visit(self, groups: Groups, sigma: PerGroup) -> list[list[float]]:
        """Record the groups as visits; return each prompt's history after its visit."""
        prompts = groups.batch.prompt_ids
        assert prompts is not None
        means = groups.mean[:, 0].double().tolist()
        variances = sigma[:, 0].double().square().tolist()
        present = [True] * len(prompts) if groups.mask is None else groups.mask.any(dim=1).tolist()
        histories = dict(self._memory.visits)
        visits = []
        for prompt, mean, variance, counts in zip(prompts, means, variances, present, strict=True):
            before, old_mean, old_variance = histories.get(prompt, (0, 0.0, 0.0))
            number = before + 1
            moved = before / number * (mean - old_mean) ** 2
            after = [
                number,
                (before * old_mean + mean) / number,
                (before * old_variance + variance + moved) / number,
            ]
            visits.append(after)
            if counts:
                histories[prompt] = after
        self._memory = _VisitMemory(visits=histories)
        return visits


# Its exponential is far from overflow in float32.
_LARGEST_GAP = 50


# Whose constants and rule: the paper's, or the released code's.
Preset = Literal["paper", "released"]

# How C follows the mean rewards of the steps.
Rule = Literal["ema", "paper", "window"]

# Whether C moves after the advantages of a step, or before them.
Moves = Literal["after", "before"]


_CONVENTIONS = {
    "paper": {"rule": "ema", "lam": 1.3, "std": Std.POPULATION, "eps": 0.0},
    "released": {"rule": "window", "lam": 1.5, "std": Std.SAMPLE, "eps": 1e-6},
}


@dataclass(frozen=True)
class _RateMemory:
    """C of the next step, None until a mean reward is seen unless it is given.

    `recent` holds the last values of C for `rule=paper`, the last steps' mean rewards for
    `rule=window`, and nothing for `rule=ema`.
    """

    c: float | None
    recent: list[float] = field(default_factory=list)


@dataclass(kw_only=True)
class HADW(StatefulEstimator[_RateMemory]):
    """Hardness-aware weights: Aᵢ = Âᵢ λ exp(-sgn(Âᵢ) (p - C)), Âᵢ of `grpo`.

    C is a running mean reward. On prompts that are easier than of late, successes count less
    and failures more. Group masses are λ e^-(p-C) √(pq) and λ e^(p-C) √(pq); with `scale=mean`
    they have pq for √(pq). Homogeneous groups get 0. Logged: `c`, the C of this step.

    Let y be a step's mean reward. How C moves:

        rule=ema       C += rate (y - C) after each step
        rule=paper     C += η σ (y - C) after each step, σ that of the last `window` values of C
        rule=window    C is the mean of the last `window` values of y, this step's included

    The paper's λ is 1.3. Its fixed C is `rate=0` with `c0`.
    """

    name: ClassVar[str] = "ha_dw"
    revision: ClassVar[int] = 2

    preset: Preset = option(
        "paper", identity=False, help="sets rule, lam, std and eps where they are not given"
    )
    rule: Rule | None = option(None, help="how C moves; null: the preset's (ema for paper)")
    lam: float | None = option(None, gt=0, lt=math.inf, help="λ; null: the preset's (1.3, 1.5)")
    scale: Scale = option("std", help="mean: Âᵢ = rᵢ - p, not divided by the group's σ")
    std: Std | None = option(None, help="σ over G or G-1; null: the preset's")
    eps: float | None = option(None, ge=0, help="ε, added to σ; null: the preset's (0, 1e-6)")
    c0: float | None = option(
        None,
        gt=-math.inf,
        lt=math.inf,
        help="C of the first step; null: its mean reward (not printed)",
    )
    rate: float = option(0.1, ge=0, le=1, help="share by which C moves (not printed)")
    eta: float = option(1.0, ge=0, lt=math.inf, help="η of rule=paper (not printed)")
    window: int = option(10, ge=1, help="values that rule=paper and rule=window look back on")
    moves: Moves = option("after", help="when C moves (rules ema and paper)")

    def __post_init__(self) -> None:
        super().__post_init__()
        self._fill(_CONVENTIONS[self.preset])

    def _fresh_memory(self) -> _RateMemory:
        return _RateMemory(c=self.c0)

    def _advantages(self, groups: Groups, info: dict[str, float]) -> PerRollout:
        assert self.lam is not None
        assert self.std is not None
        assert self.eps is not None
        c, memory = self._follow(groups.rollout_mean(groups.rewards))
        info["c"] = c
        low, high = groups.mean_range
        if max(high - c, c - low) > _LARGEST_GAP:
            raise BatchError(
                f"estimator '{self.name}' weighs by the exponential of p - C and needs it within "
                f"{_LARGEST_GAP}, got mean rewards p of {low:g} to {high:g} at C = {c:g}; "
                "rescale the rewards"
            )
        self._memory = memory

        base = groups.centred
        if self.scale == "std":
            base = standardise(base, groups.std(self.std), self.eps)
        weight = (groups.mean - c).exp_()
        success = base.clamp(min=0) / weight
        failure = base.clamp(max=0) * weight
        return success.add_(failure).mul_(self.lam)

    def _follow(self, mean_reward: float) -> tuple[float, _RateMemory]:
        """C of a step with this mean reward, and the memory after it."""
        memory = self._memory
        if self.rule == "window":
            recent = [*memory.recent, mean_reward][-self.window :]
            c = math.fsum(recent) / len(recent)
            return c, _RateMemory(c=c, recent=recent)
        c = mean_reward if memory.c is None else memory.c
        recent = memory.recent
        if self.moves == "before":
            c = self._moved(c, recent, mean_reward)
        if self.rule == "paper":
            recent = [*recent, c][-self.window :]
        following = c if self.moves == "before" else self._moved(c, recent, mean_reward)
        return c, _RateMemory(c=following, recent=recent)

    def _moved(self, c: float, recent: list[float], mean_reward: float) -> float:
        rate = self.rate
        if self.rule == "paper" and len(recent) == self.window:
            rate = min(1.0, self.eta * statistics.pstdev(recent))
        return c + rate * (mean_reward - c)
