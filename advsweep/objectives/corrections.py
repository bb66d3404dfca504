"""Corrections of the sampler's mismatch: weights of token losses, and tokens that are left out.

The sampler's probabilities are not the trainer's where its weights are older, or where its kernels
round otherwise, as vLLM's do.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch

from advsweep.components import Plain, option, to_plain
from advsweep.errors import ConfigError, nearest
from advsweep.objectives.base import LossInputs, Objective

if TYPE_CHECKING:
    from jaxtyping import Bool
    from torch import Tensor

    from advsweep.objectives.base import FlagPerToken, Metrics, PerToken, PerTokenOrRollout

Mode = Literal["decoupled", "bypass"]
Weight = Literal["token", "sequence"]
Outside = Literal["truncate", "mask"]

# Log-ratios count as at most this, and at least minus this, as in verl.
_LARGEST = 20.0

_STATISTICS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "k1": lambda d: -d,
    "k2": lambda d: d.square() / 2,
    "k3": lambda d: d.expm1() - d,
}
_TOTALS: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = {
    "token": lambda values, _: values,
    "seq_sum": lambda values, _: values.sum(dim=-1, keepdim=True),
    "seq_mean": lambda values, lengths: values.sum(dim=-1, keepdim=True) / lengths,
    "seq_max": lambda values, _: values.amax(dim=-1, keepdim=True),
}
STATISTICS = [f"{t}_{k}" for t in _TOTALS for k in _STATISTICS if (t, k) != ("seq_max", "k1")]

_BYPASS = {"mode": "bypass"}
_TOKEN_TIS = {"weight": "token", "high": 2.0}
_SEQUENCE_TIS = {"weight": "sequence", "high": 2.0}
_ICEPOP = {"weight": "token", "low": 0.5, "high": 5.0, "outside": "mask"}
_GEO_RS = {"reject": {"seq_mean_k1": [0.999, 1.001]}}
_K3_RS = {"reject": {"seq_mean_k3": [0.01]}}
_MASK = {"high": 3.0, "outside": "mask"}

# Options of `Corrected` without `correction_`, by the frameworks' names.
PRESETS: Mapping[str, Mapping[str, Any]] = {
    # verl 0.9.1, trainer/config/algorithm.py, RolloutCorrectionConfig.
    "disabled": {},
    "decoupled_token_is": _TOKEN_TIS,
    "decoupled_seq_is": _SEQUENCE_TIS,
    "decoupled_token_icepop": _ICEPOP,
    "decoupled_seq_is_rs": {**_SEQUENCE_TIS, "reject": {"seq_sum_k1": [0.5, 2.0]}},
    "decoupled_geo_rs": _GEO_RS,
    "decoupled_geo_rs_seq_tis": _GEO_RS | _SEQUENCE_TIS,
    "decoupled_geo_rs_token_tis": _GEO_RS | _TOKEN_TIS,
    "decoupled_k3_rs": _K3_RS,
    "decoupled_k3_rs_seq_tis": _K3_RS | _SEQUENCE_TIS,
    "decoupled_k3_rs_token_tis": _K3_RS | _TOKEN_TIS,
    "bypass_ppo_clip": _BYPASS,
    "bypass_ppo_clip_geo_rs": _BYPASS | _GEO_RS,
    "bypass_ppo_clip_k3_rs": _BYPASS | _K3_RS,
    "bypass_pg_is": _BYPASS | _SEQUENCE_TIS,
    "bypass_pg_token_icepop": _BYPASS | _ICEPOP,
    "bypass_pg_geo_rs": _BYPASS | _GEO_RS,
    "bypass_pg_geo_rs_seq_tis": _BYPASS | _GEO_RS | _SEQUENCE_TIS,
    "bypass_pg_geo_rs_token_tis": _BYPASS | _GEO_RS | _TOKEN_TIS,
    # TRL 1.16, GRPOConfig.vllm_importance_sampling_mode.
    "token_truncate": {"weight": "token", "high": 3.0},
    "token_mask": {"weight": "token", **_MASK},
    "sequence_truncate": {"weight": "sequence", "high": 3.0},
    "sequence_mask": {"weight": "sequence", **_MASK},
}


@dataclass(frozen=True, kw_only=True)
class _Resolved:
    """The values of a correction: those of its preset, and the user's."""

    mode: Mode = "decoupled"
    weight: Weight | None = None
    low: float = 0.0
    high: float = math.inf
    outside: Outside = "truncate"
    reject: Mapping[str, list[float]] = field(default_factory=dict)


@dataclass(kw_only=True)
class Corrected(Objective):
    """Base of the objectives that can correct the mismatch between sampler and trainer.

    With d = log π_trainer - log π_sampler of a token, without gradient, a token loss is
    multiplied by an importance weight:

        token, truncate       clip(exp(d), low, high)                   TIS
        token, mask           exp(d) inside [low, high], 0 outside      IcePop, MIS
        sequence              the same of exp(Σₜ d), for all tokens of a rollout

    `correction_reject` leaves tokens out of the loss, its KL penalty and its entropy bonus,
    unless statistics are in their ranges: k1 = -d, k2 = d²/2 and k3 = exp(d) - 1 - d of a
    token (`token_k3`), or their sum, mean or largest over a rollout (`seq_sum_k1`,
    `seq_mean_k3`, `seq_max_k2`), which leave out all its tokens. k1 has a range [low, high]
    of ratios with log low <= k1 <= log high (exp of the mean k1 is a geometric mean); one number
    is [1/number, number]. k2 and k3 have a largest value.

    The trainer is `decoupled` the policy at the start of the step, to which the clip's ratio
    refers as well, or `bypass` the policy in training, and the clip's ratio refers to the
    sampler. Rejected tokens still count in the minibatch's numbers of rollouts and tokens, and
    not in the length of their rollout.

    Source: Yao et al. 2025 (fengyao.notion.site/off-policy-rl) for TIS; Liu et al. 2025
    (richardli.xyz/rl-collapse) for sequences and rejection; Ling Team 2025 (arXiv:2510.18855)
    for IcePop; verl 0.9.1, trainer/ppo/rollout_corr_helper.py; TRL 1.16, GRPOTrainer.

    Departures: d and Σ d count as at most ±20 for TRL's names too. With `bypass`, verl's rejected
    tokens keep their KL penalty and entropy bonus.
    """

    has_ratio: ClassVar[bool] = True
    """Whether the token losses contain the ratio to `LossInputs.old_log_probs`."""

    correction: str = option(
        "none",
        identity=False,  # the values that it stands for are
        help="correction of the sampler's mismatch: none, or a name of verl's or TRL's, such as "
        "decoupled_token_is (docs/corrections.md)",
    )
    correction_mode: Mode | None = option(
        None,
        absent=None,
        help="correct from the sampler to the policy at the start of the step (decoupled) or in "
        "training (bypass); null, here and below: the correction's",
    )
    correction_weight: Weight | None = option(
        None, absent=None, help="importance weights of tokens or of whole rollouts"
    )
    correction_low: float | None = option(None, ge=0, le=1, absent=None, help="smallest weight")
    correction_high: float | None = option(None, ge=1, absent=None, help="largest weight")
    correction_outside: Outside | None = option(
        None, absent=None, help="weights beyond: truncate them to the bound, or mask them (0)"
    )
    correction_reject: dict[str, Any] | None = option(
        None,
        absent=None,
        help="statistics and the bounds beyond which they leave tokens out: {seq_mean_k3: 0.01}",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        names = ["none", *PRESETS]
        if self.correction not in names:
            hint = nearest(self.correction, names)
            raise ConfigError(f"correction: no correction has the name '{self.correction}'; {hint}")
        options = {f.name: getattr(self, f"correction_{f.name}") for f in fields(_Resolved)}
        changed = {name: value for name, value in options.items() if value is not None}
        if self.correction == "none" and changed:
            name, value = changed.popitem()
            raise ConfigError(
                f"correction_{name}: expected null with correction=none, got {value}; "
                f"correction=disabled is one without weights that rejects nothing"
            )
        values = {**PRESETS.get(self.correction, {}), **changed}
        for name in ("low", "high", "outside"):
            if name in changed and "weight" not in values:
                raise ConfigError(
                    f"correction_{name}: expected null without weights, got {changed[name]}; set "
                    f"correction_weight=token or sequence"
                )
        reject = values.get("reject", {})
        values["reject"] = {name: _bounds(name, bounds) for name, bounds in reject.items()}
        self._resolved = resolved = _Resolved(**values)
        if resolved.mode == "bypass" and resolved.weight and self.has_ratio:
            raise ConfigError(
                f"correction: expected one without weights with correction_mode=bypass, as the "
                f"ratio of '{self.name}' is that to the sampler already, got {self.correction}; "
                f"objective=cross_entropy has no ratio"
            )

    def identity(self) -> Plain:
        """Return what can change a result: the values of the correction, whatever its name."""
        if self.correction == "none":
            return super().identity()
        values = {f"correction_{name}": to_plain(v) for name, v in vars(self._resolved).items()}
        return super().identity() | values

    @property
    def needs_sampler(self) -> bool:
        return self.correction != "none"

    @property
    def recomputes_old(self) -> bool:
        return self.needs_sampler and self._resolved.mode == "decoupled"

    def _correct(
        self, inputs: LossInputs, metrics: Metrics
    ) -> tuple[LossInputs, PerTokenOrRollout | None]:
        """Return the inputs without the rejected tokens, and the weights of the token losses."""
        if inputs.sampler_log_probs is None:
            return inputs, inputs.weights
        mask = inputs.completion_mask
        trainer = inputs.old_log_probs if self.recomputes_old else inputs.log_probs.detach()
        # vLLM may not give the log-probability of a token: it counts as the trainer's, as in TRL.
        sampler = torch.where(inputs.sampler_log_probs.isnan(), trainer, inputs.sampler_log_probs)
        log_ratio = (trainer - sampler).where(mask, 0.0)
        bounded = log_ratio.clamp(-_LARGEST, _LARGEST)
        kept = self._kept(bounded, mask)
        changed = torch.zeros_like(mask)
        chosen = self._resolved
        weights = inputs.weights
        if chosen.weight:
            if chosen.weight == "sequence":
                log_ratio = log_ratio.sum(dim=-1, keepdim=True)
            raw = log_ratio.clamp(-_LARGEST, _LARGEST).exp()
            weights = raw.clamp(chosen.low, chosen.high)
            changed = weights != raw
            if chosen.outside == "mask":
                weights = raw.masked_fill(changed, 0.0)
        self._measure(bounded, kept, changed, inputs, metrics)
        if self.needs_sampler and chosen.mode == "bypass":
            inputs = replace(inputs, old_log_probs=sampler)
        return replace(inputs, completion_mask=kept, sampler_log_probs=sampler), weights

    def _kept(self, log_ratio: PerToken, mask: FlagPerToken) -> FlagPerToken:
        """Return the tokens that are not rejected; log-ratios outside the mask are 0."""
        kept = mask
        lengths = mask.sum(dim=-1, keepdim=True).clamp(min=1)
        for name, bounds in self._resolved.reject.items():
            over, kind = name.rsplit("_", 1)
            value = _TOTALS[over](_STATISTICS[kind](log_ratio), lengths)
            if kind == "k1":
                bounds = [math.log(bound) for bound in bounds]
                kept = kept & (value >= bounds[0])
            kept = kept & (value <= bounds[-1])
        return kept

    def _measure(
        self,
        log_ratio: PerToken,
        kept: FlagPerToken,
        changed: Bool[Tensor, "*runs rollouts #tokens"],
        inputs: LossInputs,
        metrics: Metrics,
    ) -> None:
        """Add the metrics of the mismatch, over the tokens with an advantage.

        Others may have been left out of the inputs. Without such tokens the metrics are NaN.
        `sampler/kl` is Schulman's k3 estimate of KL(sampler ‖ trainer).
        """
        counted = inputs.completion_mask & (inputs.token_advantages != 0)
        number = counted.sum(dim=(-2, -1))

        def mean(values: Tensor) -> Tensor:
            summed = values.where(counted, 0.0).sum(dim=(-2, -1), dtype=torch.float64)
            return (summed / number).to(log_ratio.dtype)

        precise = log_ratio.double()
        metrics["sampler/kl"] = mean(precise.expm1() - precise)
        # The row of -∞ is for minibatches without a rollout.
        largest = torch.nn.functional.pad(
            log_ratio.where(counted, -math.inf), (0, 0, 0, 1), value=-math.inf
        )
        largest = largest.amax(dim=(-2, -1)).where(number > 0, math.nan)
        metrics["sampler/ratio_max"] = largest.exp()
        if self.needs_sampler:
            masked = ~kept | (changed & (self._resolved.outside == "mask"))
            metrics["sampler/masked"] = mean(masked.double())
            metrics["sampler/truncated"] = mean((changed & ~masked).double())


def _bounds(statistic: str, value: Any) -> list[float]:
    """Return the bounds of a statistic: of k1 both, as ratios; of k2 and k3 the upper one.

    Raises:
        ConfigError: there is no such statistic, or the bounds leave out equal policies.
    """
    if statistic not in STATISTICS:
        raise ConfigError(
            f"correction_reject: no statistic has the name '{statistic}'; "
            f"{nearest(statistic, STATISTICS)}"
        )
    is_ratio = statistic.endswith("k1")
    bounds = list(value) if isinstance(value, (list, tuple)) else [value]
    if _are_positive(bounds):
        bounds = [float(bound) for bound in bounds]
        if not is_ratio and len(bounds) == 1:
            return bounds
        if is_ratio and len(bounds) == 1:
            bounds = [1 / bounds[0], bounds[0]]
        if is_ratio and len(bounds) == 2 and bounds[0] <= 1 <= bounds[1]:
            return bounds
    expected = "[low, high] with 0 < low <= 1 <= high" if is_ratio else "a number above 0"
    raise ConfigError(f"correction_reject.{statistic}: expected {expected}, got {value!r}")


def _are_positive(bounds: Sequence[Any]) -> bool:
    """Whether all bounds are finite numbers above 0."""
    return all(type(bound) in (int, float) and 0 < bound < math.inf for bound in bounds)
