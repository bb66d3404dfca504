"""HA-DW: weights by how a prompt's solve rate compares with the recent past."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from advsweep.components import option
from advsweep.errors import BatchError
from advsweep.estimators.base import Provenance, StatefulEstimator
from advsweep.estimators.group_stats import Groups, Std, standardise
from advsweep.estimators.reshaped import Scale

if TYPE_CHECKING:
    from advsweep.estimators.batch import PerRollout

# Its exponential is far from overflow in float32.
_LARGEST_GAP = 50


class Preset(Enum):
    """Whose constants and rule: the paper's, or the released code's."""

    PAPER = "paper"
    RELEASED = "released"


class Rule(Enum):
    """How C follows the mean rewards of the steps."""

    EMA = "ema"
    PAPER = "paper"
    WINDOW = "window"


class Moves(Enum):
    """Whether C moves after the advantages of a step, or before them."""

    AFTER = "after"
    BEFORE = "before"


class Conventions(NamedTuple):
    """What a preset sets."""

    rule: Rule
    lam: float
    std: Std
    eps: float


_CONVENTIONS = {
    Preset.PAPER: Conventions(Rule.EMA, 1.3, Std.POPULATION, 0.0),
    Preset.RELEASED: Conventions(Rule.WINDOW, 1.5, Std.SAMPLE, 1e-6),
}


@dataclass(frozen=True)
class _Memory:
    """C of the next step, None until a mean reward is seen unless it is given.

    `recent` holds the last values of C for `rule=paper`, the last steps' mean rewards for
    `rule=window`, and nothing for `rule=ema`.
    """

    c: float | None
    recent: list[float] = field(default_factory=list)


@dataclass(kw_only=True)
class HADW(StatefulEstimator[_Memory]):
    """Hardness-aware weights: Aᵢ = Âᵢ λ exp(-sgn(Âᵢ) (p - C)), Âᵢ of `grpo`.

    C is a running mean reward. On prompts that are easier than of late, successes count less
    and failures more. Group masses are λ e^-(p-C) √(pq) and λ e^(p-C) √(pq); with `scale=mean`
    they have pq for √(pq). Homogeneous groups get 0. Logged: `c`, the C of this step.

    Let y be a step's mean reward. How C moves:

        rule=ema       C += rate (y - C) after each step
        rule=paper     C += η σ (y - C) after each step, σ that of the last `window` values of C
        rule=window    C is the mean of the last `window` values of y, this step's included

    The paper's λ is 1.3. Its fixed C is `rate=0` with `c0`.

    Released code: `rule=window` with a window of 10, λ = 1.5, sample σ and ε = 1e-6.

    Departures: the paper prints no η, no window and no first C. Here C starts as the first
    step's y. As printed, C never leaves a single starting value, of which σ is 0. So
    `rule=paper` moves by `rate` until there are `window` values. The default is `ema`, which has
    no open parameter but `rate`. FADE prints the failures' mass without the factor that its
    formula gives it; the method's own paper modulates both.
    """

    name: ClassVar[str] = "ha_dw"
    family: ClassVar[str] = "scheduled"
    formula: ClassVar[str] = "Aᵢ = Âᵢ λ exp(-sgn(Âᵢ) (p - C)),  Âᵢ = (rᵢ - p)/σ, C a running mean"
    paper: ClassVar[str] = "HA-DW (arXiv:2601.08521)"
    equation: ClassVar[str] = "Eq. 7-16; FADE (arXiv:2607.01490), sec. 8.10"
    provenance: ClassVar[tuple[Provenance, ...]] = (Provenance.PAPER, Provenance.OURS)
    released_options: ClassVar[tuple[str, ...]] = ("preset=released",)
    revision: ClassVar[int] = 2

    preset: Preset = option(
        Preset.PAPER,
        identity=False,
        help="sets rule, lam, std and eps where they are not given",
    )
    rule: Rule | None = option(None, help="how C moves; null: the preset's (ema for paper)")
    lam: float | None = option(
        None, gt=0, lt=math.inf, help="λ: scales all advantages; null: the preset's (1.3, 1.5)"
    )
    scale: Scale = option(Scale.STD, help="mean: Âᵢ = rᵢ - p, not divided by the group's σ")
    std: Std | None = option(None, help="σ over G or G-1; null: the preset's")
    eps: float | None = option(None, ge=0, help="ε, added to σ; null: the preset's (0, 1e-6)")
    c0: float | None = option(
        None,
        gt=-math.inf,
        lt=math.inf,
        help="C of the first step; null: its mean reward (not printed)",
    )
    rate: float = option(
        0.1, ge=0, le=1, help="how far C moves towards a step's mean reward (not printed)"
    )
    eta: float = option(1.0, ge=0, lt=math.inf, help="η of rule=paper (not printed)")
    window: int = option(10, ge=1, help="values that rule=paper and rule=window look back on")
    moves: Moves = option(
        Moves.AFTER, help="before: C moves before a step's advantages (rules ema and paper)"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        preset = _CONVENTIONS[self.preset]
        self.rule = self.rule or preset.rule
        self.lam = preset.lam if self.lam is None else self.lam
        self.std = self.std or preset.std
        self.eps = preset.eps if self.eps is None else self.eps

    def _fresh_memory(self) -> _Memory:
        return _Memory(c=self.c0)

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
        if self.scale is Scale.STD:
            base = standardise(base, groups.std(self.std), self.eps)
        weight = (groups.mean - c).exp_()
        success, failure = base.clamp(min=0) / weight, base.clamp(max=0) * weight
        return success.add_(failure).mul_(self.lam)

    def _follow(self, mean_reward: float) -> tuple[float, _Memory]:
        """C of a step with this mean reward, and the memory after it."""
        memory = self._memory
        if self.rule is Rule.WINDOW:
            recent = [*memory.recent, mean_reward][-self.window :]
            c = math.fsum(recent) / len(recent)
            return c, _Memory(c=c, recent=recent)
        c = mean_reward if memory.c is None else memory.c
        recent = memory.recent
        if self.moves is Moves.BEFORE:
            c = self._moved(c, recent, mean_reward)
        if self.rule is Rule.PAPER:
            recent = [*recent, c][-self.window :]
        following = c if self.moves is Moves.BEFORE else self._moved(c, recent, mean_reward)
        return c, _Memory(c=following, recent=recent)

    def _moved(self, c: float, recent: list[float], mean_reward: float) -> float:
        rate = self.rate
        if self.rule is Rule.PAPER and len(recent) == self.window:
            rate = min(1.0, self.eta * statistics.pstdev(recent))
        return c + rate * (mean_reward - c)
