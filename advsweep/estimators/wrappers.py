"""Estimators that reshape the advantages of another one, and the experiments made of them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch

from advsweep.components import option
from advsweep.errors import BatchError, ConfigError
from advsweep.estimators import ESTIMATORS
from advsweep.estimators.base import Estimator
from advsweep.estimators.batch import CollapseBy, Groups

if TYPE_CHECKING:
    from advsweep.estimators.batch import FlagPerRollout, PerGroup, PerRollout, PerToken


@dataclass(kw_only=True)
class Wrapper(Estimator):
    """Base class of estimators that reshape the advantages of another estimator, `base`.

    A wrapper has the requirements of its base on batches, and the memory of its base. The base
    gives one advantage per rollout.
    """

    base: str | dict[str, Any] | Estimator = option(
        "grpo", help="the estimator whose advantages are reshaped: a name or a mapping"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        inner = self.base
        if not isinstance(inner, Estimator):
            inner = ESTIMATORS.build(self._base_spec(inner), where="base")
        if inner.per_token:
            remedy = "expected a base with one per rollout"
            if isinstance(inner, Wrapper) and not self.per_token:
                remedy = f"expected '{inner.name}' outermost, with '{self.name}' as its base"
            raise ConfigError(
                f"base: estimator '{self.name}' reshapes one advantage per rollout, and "
                f"'{inner.name}' gives one per token; {remedy}"
            )
        self.base = self._inner = inner
        self._narrow(
            needs=self.needs | inner.needs,
            uses=self.uses | inner.uses,
            minimum_group=max(self.minimum_group, inner.minimum_group),
            group_multiple=math.lcm(self.group_multiple, inner.group_multiple),
            exchangeable=self.exchangeable and inner.exchangeable,
            binary_only=self.binary_only or inner.binary_only,
            rates=self.rates or inner.rates,
            verifier_free=inner.verifier_free,
            stateful=inner.stateful,
            per_group=self.per_group and inner.per_group,
        )

    def _base_spec(self, spec: str | dict[str, Any]) -> str | dict[str, Any]:
        """Return the specification of the base, given the user's."""
        return spec

    def _check_rewards(self, groups: Groups) -> None:
        # The base first, so that the message names it.
        self._inner._check_rewards(groups)
        super()._check_rewards(groups)

    def _keep(self, groups: Groups) -> FlagPerRollout:
        return self._inner._keep(groups)

    def state_dict(self) -> dict[str, Any]:
        return {"base": self._inner.state_dict()} if self.stateful else {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._check_state(state, expected=("base",) if self.stateful else ())
        if self.stateful:
            self._inner.load_state_dict(state["base"])

    def reset(self) -> None:
        self._inner.reset()


class GRPON(Wrapper):
    """Negative advantages alone: Aᵢ = min(Âᵢ, 0), Âᵢ being the base's.

    Group masses are 0 and √(pq) on base `grpo`. The zeroed rollouts stay in the update:
    they count in its average and keep their KL and entropy terms.
    """

    name: ClassVar[str] = "grpo_n"
    per_group: ClassVar[bool] = True

    def _advantages(self, groups: Groups, info: dict[str, float]) -> PerRollout:
        return self._inner._advantages(groups, info).clamp(max=0)


@dataclass(kw_only=True)
class FilterDrop(Wrapper):
    """The base's advantages, with collapsed groups out of the update and its averages.

    A group has collapsed if the σ of its verdicts is below ε_acr; none of its rollouts is
    kept. Verdicts are the rewards, unless the batch has solve rates. Nothing is drawn instead, so
    the share of rollouts that are used is 1 - ACR.
    """

    name: ClassVar[str] = "filter_drop"
    revision: ClassVar[int] = 2  # in 1, groups were judged by their rewards alone
    uses: ClassVar[frozenset[str]] = frozenset({"solve_rates"})
    per_group: ClassVar[bool] = True

    eps_acr: float = option(1e-6, gt=0, help="groups with a smaller σ are dropped")
    on: CollapseBy = option(
        CollapseBy.VERDICT,
        absent="verdict",
        help="σ of the verdicts, or of the rewards; shaped ones differ",
    )

    def _advantages(self, groups: Groups, info: dict[str, float]) -> PerRollout:
        return self._inner._advantages(groups, info)

    def _keep(self, groups: Groups) -> FlagPerRollout:
        rates = groups.batch.solve_rates
        spread = groups.std()
        if self.on is CollapseBy.VERDICT and rates is not None:
            p = rates.to(groups.rewards)[:, None]
            spread = (p * (1 - p)).sqrt()
        return super()._keep(groups) & (spread >= self.eps_acr)


@dataclass(kw_only=True)
class PositiveDominant(Wrapper):
    """Positive advantages scaled up: Aᵢ = β Âᵢ where Âᵢ > 0, Âᵢ elsewhere.

    Group masses are β√(pq) and √(pq) on base `grpo`, so a mixed group's advantages sum to
    more than 0. Homogeneous groups get what the base gives them.
    """

    name: ClassVar[str] = "positive_dominant"
    per_group: ClassVar[bool] = True

    beta: float = option(10.0, gt=1, lt=math.inf, help="β: multiplies positive advantages")

    @property
    def _factor(self) -> float:
        return self.beta

    def _advantages(self, groups: Groups, info: dict[str, float]) -> PerRollout:
        advantages = self._inner._advantages(groups, info)
        return torch.add(advantages, advantages.relu(), alpha=self._factor - 1)


@dataclass(kw_only=True)
class NegativeDominant(PositiveDominant):
    """Positive advantages scaled down: Aᵢ = Âᵢ/β where Âᵢ > 0, Âᵢ elsewhere.

    Group masses are √(pq)/β and √(pq) on base `grpo`, so a mixed group's advantages sum to
    less than 0. Homogeneous groups get what the base gives them.
    """

    name: ClassVar[str] = "negative_dominant"

    beta: float = option(10.0, gt=1, help="β: divides positive advantages")

    @property
    def _factor(self) -> float:
        return 1 / self.beta


@dataclass(kw_only=True)
class HardFocused(Wrapper):
    """Advantages scaled up on hard prompts: Aᵢ = γ Âᵢ/√p, and Âᵢ where p is 0 or 1.

    Group masses are γ√q on both sides on base `grpo`; with γ = 1/2 the magnitudes of a
    group sum to G√(1-p). It is the sample level of `a_grae` at ω = 1 then.
    """

    name: ClassVar[str] = "hard_focused"
    per_group: ClassVar[bool] = True
    rates: ClassVar[bool] = True

    gamma: float = option(0.5, gt=0, lt=math.inf, help="γ: scales all advantages of mixed groups")

    def _advantages(self, groups: Groups, info: dict[str, float]) -> PerRollout:
        weight = self.gamma * self._rate(groups.mean).rsqrt()
        weight = weight.masked_fill((groups.mean == 0) | (groups.mean == 1), 1.0)
        return self._inner._advantages(groups, info) * weight

    def _rate(self, p: PerGroup) -> PerGroup:
        return p


class EasyFocused(HardFocused):
    """Advantages scaled up on easy prompts: Aᵢ = γ Âᵢ/√(1-p), and Âᵢ where p is 0 or 1.

    Group masses are γ√p on both sides on base `grpo`; with γ = 1/2 the magnitudes of a
    group sum to G√p. It is the sample level of `a_grae` at ω = 0 then.
    """

    name: ClassVar[str] = "easy_focused"

    def _rate(self, p: PerGroup) -> PerGroup:
        return 1 - p


_RELEASED_EPS = 1e-6


# Which of the two steps are taken: both, or one alone.
Parts = Literal["full", "sample", "group"]


@dataclass(kw_only=True)
class AGRAE(Wrapper):
    """Difficulty-aware weights, and successes held back while few are found.

    ω is the mean reward of the whole batch, p a prompt's solve rate, Âᵢ the base's advantage.
    Sample level: Âᵢ becomes Âᵢ (ω/(2√p) + (1-ω)/(2√(1-p))), unless p is 0 or 1.
    Group level: Âᵢ becomes Âᵢ min(1, ω/α) where it is positive.

    Group masses on a mixed group, base `grpo`: m_F = (ω√q + (1-ω)√p)/2 and
    m_S = m_F min(1, ω/α). With ω = 0 no success is reinforced.
    """

    name: ClassVar[str] = "a_grae"
    uses: ClassVar[frozenset[str]] = frozenset({"solve_rates"})

    alpha: float = option(1.0, gt=0, le=1, help="α: mean reward from which successes count in full")
    parts: Parts = option("full", help="both steps, or the sample or group level alone")
    released: bool = option(False, help="the formula of the authors' code")

    def _base_spec(self, spec: str | dict[str, Any]) -> str | dict[str, Any]:
        node = {"name": spec} if isinstance(spec, str) else spec
        name = str(node.get("name"))
        if not self.released or name not in ESTIMATORS:
            return node
        presets = getattr(ESTIMATORS.get(name), "conventions", ())
        return {"preset": "released", **node} if "released" in presets else node

    def _check_rewards(self, groups: Groups) -> None:
        super()._check_rewards(groups)
        has_rates = groups.batch.solve_rates is not None and not self.released
        low, high = groups.mean_range
        if has_rates:
            low, high = torch.stack(torch.aminmax(self._solve_rates(groups))).tolist()
        if not (low >= 0 and high <= 1):
            what = "solve_rates" if has_rates else "a prompt's mean reward as its solve rate"
            raise BatchError(
                f"estimator '{self.name}' needs {what} in [0, 1], got {low:g} to {high:g}; "
                "rescale the rewards, or pass solve_rates"
            )

    def _solve_rates(self, groups: Groups) -> PerGroup:
        solve_rates = groups.batch.solve_rates
        if solve_rates is None or self.released:
            return groups.mean
        return solve_rates.to(groups.rewards)[:, None]

    def _advantages(self, groups: Groups, info: dict[str, float]) -> PerRollout:
        omega = groups.rollout_mean(groups.rewards)
        if self.released:
            omega = groups.group_mean(groups.mean)
        if not 0 <= omega <= 1:
            raise BatchError(
                f"estimator '{self.name}' needs a mean reward in [0, 1] over the batch, got "
                f"{omega:g}; rescale the rewards"
            )
        info["omega"] = omega
        advantages = self._inner._advantages(groups, info)
        if self.parts != "group":
            advantages = advantages * self._difficulty_weight(self._solve_rates(groups), omega)
        share = min(1.0, omega / self.alpha)
        if self.parts != "sample" and share < 1:
            advantages = torch.sub(advantages, advantages.relu(), alpha=1 - share)
        return advantages

    def _difficulty_weight(self, p: PerGroup, omega: float) -> PerGroup:
        if self.released:
            root = p.sqrt()
            hard = (root + _RELEASED_EPS).reciprocal()
            easy = (1 - root + _RELEASED_EPS).reciprocal()
            skipped = (p == 0) | (p == 1)
            return (torch.lerp(easy, hard, omega) / 2).masked_fill(skipped, 1.0)
        weight = torch.lerp((1 - p).rsqrt(), p.rsqrt(), omega) / 2
        # Nothing but p = 0 and p = 1 makes a weight infinite or undefined.
        return weight.nan_to_num(nan=1.0, posinf=1.0, neginf=1.0)


@dataclass(kw_only=True)
class EntropyShaped(Wrapper):
    """Advantages raised at uncertain tokens: Aᵢₜ = Âᵢ + min(α Hᵢₜ, |Âᵢ|/κ).

    Hᵢₜ is the exact entropy of the next-token distribution at token t, without gradient, and
    Âᵢ the base's advantage of the rollout. The bonus is never negative: right answers gain most
    at uncertain tokens, and wrong answers lose least there. Since κ > 1, no sign changes, and an
    advantage of 0 stays 0, so collapsed groups stay collapsed. α = 0 is the base.
    """

    name: ClassVar[str] = "entropy_shaped"
    needs: ClassVar[frozenset[str]] = frozenset({"lengths", "token_entropies"})
    per_token: ClassVar[bool] = True
    per_group: ClassVar[bool] = True

    alpha: float = option(0.4, ge=0, lt=math.inf, help="α: bonus per nat of entropy")
    kappa: float = option(2.0, gt=1, help="κ: the bonus is at most |Âᵢ|/κ")

    def _advantages(self, groups: Groups, info: dict[str, float]) -> PerToken:
        # Checked before the base, whose memory advances. Rounding can put the entropy of a certain
        # token below 0.
        entropies = groups.finite("token_entropies").detach().clamp(min=0)
        base = self._inner._advantages(groups, info)[..., None]
        return base + torch.minimum(self.alpha * entropies, base.abs() / self.kappa)
