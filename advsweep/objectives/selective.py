"""Losses that treat a few tokens of a minibatch otherwise: by covariance or second moment."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import torch

from advsweep.components import option
from advsweep.objectives.base import Choice, LossInputs
from advsweep.objectives.clipped import Clipped
from advsweep.objectives.tokenwise import Aggregation, Tokenwise, exp, share, total

if TYPE_CHECKING:
    from jaxtyping import Float, Int
    from torch import Tensor

    from advsweep.objectives.base import FlagPerToken, Metrics, PerToken, PerTokenOrRollout


@dataclass(kw_only=True)
class ClipCov(Clipped):
    """Clip-Cov: the clipped surrogate without some tokens of high covariance.

    With the covariance c = (A - mean A)(l - mean l) of a token, means over the tokens of the
    minibatch, max(1, ⌊`fraction` times their number⌋) of the tokens with
    `cov_low` < c < `cov_high` that the clip leaves are drawn; their loss is 0. The rest is that of
    `clipped`.
    """

    name: ClassVar[str] = "clip_cov"
    formula: ClassVar[str] = (
        "loss = 0 for the tokens drawn, that of `clipped` else\nc = (A - mean A) (l - mean l)"
    )
    when_to_use: ClassVar[str] = (
        "if entropy falls too fast. A few tokens whose advantage and probability are both high "
        "cause most of the fall, and it leaves some of them out."
    )
    source: ClassVar[str] = "Cui et al. 2025 (arXiv:2505.22617) and verl's `clip_cov`."
    departures: ClassVar[str] = (
        "the draw is by the last digits of log π, so that a run repeats itself, and not by "
        "torch's random numbers. `loss/clip_fraction` is that of the clip alone, "
        "`loss/cov_fraction` the share of the drawn tokens."
    )
    reads_all: ClassVar[bool] = True
    chooses_tokens: ClassVar[bool] = True

    aggregation: Aggregation = option("token_mean", help="how token losses become one number")
    fraction: float = option(2e-4, gt=0, le=1, help="share of tokens that are drawn")
    cov_low: float = option(1.0, help="tokens with a covariance above this may be drawn")
    cov_high: float = option(5.0, help="tokens with a covariance below this may be drawn")

    def _choose_tokens(self, inputs: LossInputs) -> Choice:
        _, stopped = self._surrogate(inputs, {})
        covariances = _covariances(inputs)
        inside = (covariances > self.cov_low) & (covariances < self.cov_high)
        eligible = inside & ~stopped & inputs.completion_mask
        # By digits of log π, not its size, and by the token's position where these are equal.
        positions = inputs.completion_mask.flatten(-2).cumsum(dim=-1).view_as(eligible)
        mantissas = inputs.log_probs.detach().double().frexp().mantissa
        digits = (mantissas * 4096 + positions * 0.6180339887).frac().abs()
        drawn = eligible & _first(digits.where(eligible, math.inf), _count(self.fraction, inputs))
        return Choice(tokens={"drawn": drawn})

    def _token_losses(self, inputs: LossInputs, metrics: Metrics) -> PerToken:
        loss, _ = self._surrogate(inputs, metrics)
        assert inputs.choice is not None
        drawn = inputs.choice.tokens["drawn"]
        metrics["loss/cov_fraction"] = share(drawn, inputs)
        return loss.where(~drawn, 0.0)


@dataclass(kw_only=True)
class KlCov(Tokenwise):
    """KL-Cov: the unclipped surrogate, with a penalty on the tokens of largest covariance.

    w = exp(l - l₀). With the covariance of `clip_cov`, the max(1, ⌊`fraction` times the number of
    tokens⌋) tokens of the largest have the loss -w A + `penalty` |l - l₀|.
    """

    name: ClassVar[str] = "kl_cov"
    formula: ClassVar[str] = (
        "loss = -w A + penalty |l - l₀|    for the tokens of largest covariance\n"
        "loss = -w A                       for all others"
    )
    when_to_use: ClassVar[str] = (
        "if entropy falls too fast, and the tokens that cause it should train slower rather than "
        "not at all, as with `clip_cov`."
    )
    source: ClassVar[str] = "Cui et al. 2025 (arXiv:2505.22617) and verl's `kl_cov`."
    departures: ClassVar[str] = "log-ratios above 40 count as 40 in w, without gradient."
    reads_all: ClassVar[bool] = True
    chooses_tokens: ClassVar[bool] = True
    treats_few_apart: ClassVar[bool] = True

    aggregation: Aggregation = option("token_mean", help="how token losses become one number")
    fraction: float = option(2e-4, gt=0, le=1, help="share of tokens with a penalty")
    penalty: float = option(0.1, ge=0, help="weight of their |log-ratio|")

    def _choose_tokens(self, inputs: LossInputs) -> Choice:
        order = (-_covariances(inputs)).where(inputs.completion_mask, math.inf)
        return Choice(tokens={"largest": _first(order, _count(self.fraction, inputs))})

    def _token_losses(self, inputs: LossInputs, metrics: Metrics) -> PerToken:
        log_ratios = self._log_ratios(inputs)
        loss = -inputs.token_advantages * exp(log_ratios)
        assert inputs.choice is not None
        largest = inputs.choice.tokens["largest"]
        metrics["loss/cov_fraction"] = share(largest, inputs)
        return loss + (self.penalty * log_ratios.abs()).where(largest, 0.0)


# What M2PO does with the tokens that make the second moment too large.
M2poRule = Literal["drop", "released"]


@dataclass(kw_only=True)
class M2po(Tokenwise):
    """M2PO: the surrogate with a bound on the second moment of the log-ratios.

    w = exp(d), d = l - l₀. With `rule=drop` tokens of a minibatch are dropped, largest d² first,
    until the mean of d² over the rest is below `threshold`; one token always stays.
    `loss/clip_fraction` is the share of dropped tokens.

    `rule=released` is what the authors' code does. It counts only the tokens that lead away from
    the sampler: A > 0 with w > 1, and A < 0 with w < 1. If their mean d² is above `threshold`, τ²
    is the largest of their d² for which the mean of min(d², τ²) is below it, 0 if there is none,
    and these tokens are clipped there, the one that gives τ included. `loss/clip_fraction` is the
    share of clipped tokens.
    """

    name: ClassVar[str] = "m2po"
    formula: ClassVar[str] = (
        "loss = -w A                                  for the tokens kept, 0 for those dropped\n"
        "loss = -min(w A, clip(w, e^-τ, e^τ) A)       for all, with `rule=released`"
    )
    when_to_use: ClassVar[str] = (
        "for old rollouts. It bounds the spread of the ratios over the whole batch, and touches "
        "no token while that is small, whatever its own ratio."
    )
    source: ClassVar[str] = (
        "M2PO (arXiv:2510.01161); `drop` is the search of the mask in AReaL's code, `released` "
        "`compute_m2po_policy_loss` of the authors' (Infini-AI-Lab/M2PO), with their M2_budget as "
        "`threshold`."
    )
    departures: ClassVar[str] = (
        "`drop`, the default, is AReaL's and not the authors' code: it counts the tokens that "
        "lead back to the sampler too, and drops where theirs clips. In theirs, in single "
        "precision, rounding decides whether the token that gives τ is clipped; and a smallest "
        "clip range (`miniclip_low`, `miniclip_high`), which their scripts do not set, is left "
        "out. Log-ratios above 40 count as 40 in w, without gradient."
    )
    reads_all: ClassVar[bool] = True
    chooses_tokens: ClassVar[bool] = True

    aggregation: Aggregation = option("token_mean", help="how token losses become one number")
    threshold: float = option(0.04, gt=0, help="largest mean of squared log-ratios")
    rule: M2poRule = option(
        "drop",
        absent="drop",
        help="drop the tokens of largest log-ratio, or clip as the authors' code does (released)",
    )

    def _choose_tokens(self, inputs: LossInputs) -> Choice:
        if self.rule == "released":
            squares = self._squares_leading_away(inputs)
            bound = _largest_square(squares.flatten(-2), self.threshold)
            # Decided once: in a pass over some rollouts the token that gives τ has other last bits.
            stopped = squares.isfinite() & (squares >= bound[..., None, None])
            return Choice(tokens={"stopped": stopped}, numbers={"bound": bound})
        squares = self._log_ratios(inputs).square().where(inputs.completion_mask, math.inf)
        ordered = squares.flatten(-2).sort(dim=-1).values
        counts = torch.arange(1, ordered.shape[-1] + 1, device=ordered.device)
        means = ordered.cumsum(dim=-1) / counts
        kept = _first(squares, (means < self.threshold).sum(dim=-1).clamp(min=1))
        return Choice(tokens={"kept": kept})

    def _token_losses(self, inputs: LossInputs, metrics: Metrics) -> PerToken:
        if self.rule == "released":
            return self._clipped_losses(inputs, metrics)
        log_ratios = self._log_ratios(inputs)
        assert inputs.choice is not None
        kept = inputs.choice.tokens["kept"]
        metrics["loss/clip_fraction"] = share(~kept, inputs)
        return (-inputs.token_advantages * exp(log_ratios)).where(kept, 0.0)

    def _clipped_losses(self, inputs: LossInputs, metrics: Metrics) -> PerToken:
        log_ratios = self._log_ratios(inputs)
        advantages = inputs.token_advantages
        assert inputs.choice is not None
        stopped = inputs.choice.tokens["stopped"]
        bound = inputs.choice.numbers["bound"][..., None, None]
        metrics["loss/clip_fraction"] = share(stopped, inputs)
        at_bound = -advantages * exp(log_ratios.detach().sign() * bound.sqrt())
        return torch.where(stopped, at_bound, -advantages * exp(log_ratios))

    def _squares_leading_away(self, inputs: LossInputs) -> PerToken:
        """Return d² of the tokens that lead away from the sampler, infinite for all others."""
        log_ratios = self._log_ratios(inputs).detach()
        leads_away = (log_ratios.sign() * inputs.token_advantages > 0) & inputs.completion_mask
        return log_ratios.square().where(leads_away, math.inf)


def _largest_square(
    squares: Float[Tensor, "*runs tokens"], threshold: float
) -> Float[Tensor, "*runs"]:
    """Return the τ² to which squared log-ratios are clipped so that their mean is small.

    It is one of the squares, or 0 where none is small enough, and infinite where the mean is not
    above the threshold.

    Args:
        squares: squared log-ratios; infinite for tokens that do not count.
    """
    ordered = squares.sort(dim=-1).values
    counted = ordered.isfinite()
    counts = counted.sum(dim=-1, keepdim=True)
    places = torch.arange(1, ordered.shape[-1] + 1, device=ordered.device)
    sums = ordered.where(counted, 0.0).cumsum(dim=-1)
    # Σ min(d², τ²) if τ² is the square at each place: those behind it count as it.
    clipped_sums = sums + ordered * (counts - places)
    fits = counted & (clipped_sums < threshold * counts)
    largest = ordered.where(fits, 0.0).amax(dim=-1)
    is_small = sums[..., -1] <= threshold * counts[..., 0]
    return torch.where(is_small, math.inf, largest)


def _covariances(inputs: LossInputs) -> PerToken:
    """Return (A - mean A)(l - mean l), without gradient, with means over each run's tokens."""
    mask = inputs.completion_mask
    number = total(mask)[..., None, None].clamp(min=1)

    def centred(values: PerTokenOrRollout) -> Tensor:
        values = torch.where(mask, values, 0.0)
        return values - total(values)[..., None, None] / number

    return centred(inputs.token_advantages) * centred(inputs.log_probs.detach())


def _count(fraction: float, inputs: LossInputs) -> Int[Tensor, "*runs"]:
    return (total(inputs.completion_mask).double() * fraction).long().clamp(min=1)


def _first(keys: PerToken, counts: Int[Tensor, "*runs"]) -> FlagPerToken:
    """Flag the tokens with each run's smallest keys, as many as it counts."""
    order = keys.flatten(-2).argsort(dim=-1, stable=True)
    is_first = torch.arange(order.shape[-1], device=keys.device) < counts[..., None]
    return torch.zeros_like(is_first).scatter(-1, order, is_first).view(keys.shape)
