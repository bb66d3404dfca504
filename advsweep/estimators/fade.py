"""FADE: difficulty and sign weights scheduled by solve rate and entropy."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple

import torch

from advsweep.components import option
from advsweep.errors import BatchError
from advsweep.estimators.base import StatefulEstimator
from advsweep.estimators.batch import Groups

if TYPE_CHECKING:
    from torch import Tensor

    from advsweep.estimators.batch import PerRollout


# The full schedule, or one of its ablations.
Mode = Literal["full", "alpha_only", "delta_only", "entropy_only", "log_schedule"]

# What β multiplies in the moving averages: the old value (as printed), or the new.
Ema = Literal["printed", "slow"]

# Whose mean reward centres and weighs a rollout: its group's, or the batch's.
Scope = Literal["group", "batch"]


class _LogDecay(NamedTuple):
    """x(t) = start - (start - floor) log(1 + t/τ) / log(1 + T/τ) (FADE, Eq. 17-18)."""

    start: float
    floor: float
    tau: float

    def at(self, step: int, total_steps: int) -> float:
        share = math.log1p(step / self.tau) / math.log1p(total_steps / self.tau)
        return self.start - (self.start - self.floor) * share


_LOG_DELTA = _LogDecay(start=1.0, floor=0.802, tau=12264)
_LOG_ALPHA = _LogDecay(start=2.0, floor=1.917, tau=8500)
_USING_ENTROPY = ("full", "delta_only", "entropy_only")


@dataclass(frozen=True)
class _Memory:
    """Ĥ and H₀ are None until an entropy is seen, unless H₀ is given."""

    p_hat: float
    h_hat: float | None
    h0: float | None


@dataclass(kw_only=True)
class FADE(StatefulEstimator[_Memory]):
    """Focal Advantage with Dynamic Entropy: hard prompts first, failures as entropy falls.

    Aᵢ = (1-p)^(α-1) dᵢ, divided by δ where dᵢ < 0, with dᵢ = rᵢ - p. Moving averages of
    the batch's mean reward (p̂, from 0.5) and of its token entropy (Ĥ, from H₀) move first,
    then set α = clip(3(1-p̂)/(2p̂), 1, α_max) and δ = clip(1 + Ĥ - H*, δ_min, 1).
    The entropy is the mean over rollouts of the mean of -log π over a rollout's tokens.

    Group masses are p qᵅ and p qᵅ/δ. Homogeneous groups get 0 (`scope=group`). Logged:
    `alpha`, `delta`, `p_hat` and, where entropy is read, `h_hat`.
    """

    name: ClassVar[str] = "fade"
    needs: ClassVar[frozenset[str]] = frozenset({"token_entropy"})
    rates: ClassVar[bool] = True

    h_star: float | None = option(None, ge=0, help="H*, target entropy in nats; null: H₀/2")
    h0: float | None = option(
        None,
        ge=0,
        lt=math.inf,
        help="H₀, entropy of the initial policy in nats; null: the first one seen",
    )
    alpha_max: float = option(3.0, ge=1, help="largest α")
    delta_min: float = option(0.3, gt=0, le=1, help="smallest δ")
    beta: float = option(0.02, ge=0, le=1, help="β of the moving averages, see ema")
    ema: Ema = option("printed", help="β weighs the old value (printed) or the new (slow)")
    scope: Scope = option("group", help="p is the group's or the batch's mean reward")
    mode: Mode = option("full", help="ablations: α or δ held at 1, or other schedules")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.mode == "log_schedule":
            self._narrow(needs=frozenset({"step", "total_steps"}))
        elif self.mode not in _USING_ENTROPY:
            self._narrow(needs=frozenset())

    def _fresh_memory(self) -> _Memory:
        return _Memory(p_hat=0.5, h_hat=self.h0, h0=self.h0)

    def _advantages(self, groups: Groups, info: dict[str, float]) -> PerRollout:
        mean_reward = groups.rollout_mean(groups.rewards)
        memory = self._moved(groups, mean_reward)
        alpha, delta = self._schedule(groups, memory)
        self._memory = memory
        info |= {"alpha": alpha, "delta": delta, "p_hat": memory.p_hat}
        if memory.h_hat is not None:
            info["h_hat"] = memory.h_hat

        mean: Tensor | float = groups.mean
        centred = groups.centred
        if self.scope == "batch":
            # Kept between the extremes, so that equal rewards deviate by exactly 0.
            low = groups.low.amin().item()
            high = groups.high.amax().item()
            mean = min(max(mean_reward, low), high)
            centred = groups.rewards - mean
        advantages = centred * (1 - mean) ** (alpha - 1)
        return torch.where(centred < 0, advantages / delta, advantages)

    def _moved(self, groups: Groups, mean_reward: float) -> _Memory:
        """The memory after this step's mean reward and entropy."""
        memory = self._memory
        p_hat = self._average(memory.p_hat, mean_reward)
        if self.mode not in _USING_ENTROPY:
            return replace(memory, p_hat=p_hat)
        assert groups.batch.token_entropy is not None
        entropy = groups.rollout_mean(groups.batch.token_entropy)
        if not math.isfinite(entropy):
            raise BatchError(f"token_entropy: expected finite numbers, got a mean of {entropy}")
        h0 = entropy if memory.h0 is None else memory.h0
        h_hat = self._average(h0 if memory.h_hat is None else memory.h_hat, entropy)
        return _Memory(p_hat=p_hat, h_hat=h_hat, h0=h0)

    def _average(self, old: float, new: float) -> float:
        kept = self.beta if self.ema == "printed" else 1 - self.beta
        return kept * old + (1 - kept) * new

    def _schedule(self, groups: Groups, memory: _Memory) -> tuple[float, float]:
        """α and δ of this step."""
        if self.mode == "log_schedule":
            step = groups.batch.step
            total_steps = groups.batch.total_steps
            assert step is not None
            assert total_steps is not None
            return _LOG_ALPHA.at(step, total_steps), _LOG_DELTA.at(step, total_steps)
        p = memory.p_hat
        alpha = self.alpha_max if p == 0 else min(max(3 * (1 - p) / (2 * p), 1.0), self.alpha_max)
        if self.mode == "alpha_only":
            return alpha, 1.0
        h_hat = memory.h_hat
        h0 = memory.h0
        assert h_hat is not None
        assert h0 is not None
        h_star = h0 / 2 if self.h_star is None else self.h_star
        delta = min(max(1 + h_hat - h_star, self.delta_min), 1.0)
        if self.mode == "delta_only":
            alpha = 1.0
        elif self.mode == "entropy_only":
            if h0 <= h_star:
                raise BatchError(
                    f"estimator '{self.name}' with mode=entropy_only needs an initial entropy h0 "
                    f"above its target h_star, got {h0:g} and {h_star:g}; lower h_star"
                )
            share = min(max((h_hat - h_star) / (h0 - h_star), 0.0), 1.0)
            alpha = 1 + (self.alpha_max - 1) * share
        return alpha, delta
