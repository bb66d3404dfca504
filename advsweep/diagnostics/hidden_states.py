"""Hidden states of correct and failed rollouts: how far tokens of each agree.

The state h that predicts a token splits into a part along one direction u₁ that all share and
the rest, h⊥ = h - (h·u₁) u₁. With v = onehot(token) - π,

    ρ = mean cosine of h⊥ over all pairs of tokens of a group
    R = (1/N) Σ v h⊥ᵀ over the N tokens of a group

R is what is left of the gradient of log π at the output head. Were the tokens of both groups
alike and independent, ‖R_failed‖ / ‖R_correct‖ would be √(N_correct / N_failed).

Source: FADE (arXiv:2607.01490), sec. 15.1-15.2. Departures: where one sentence divides R by the
number of all tokens, its equation, which is used here, divides by those of the group.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

import torch

from advsweep.errors import ConfigError

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int
    from torch import Tensor

_CHUNK = 1 << 24
"""Number of logits that are computed at once."""


class Direction(Enum):
    """The matrix whose top right singular vector is u₁.

    `HIDDEN`: the stacked hidden states (the paper's footnote). `GRADIENT`: the batch gradient at
    the output head, Σ A v hᵀ (the paper's text). `WEIGHTS`: the change of the output head by the
    training.
    """

    HIDDEN = "hidden"
    GRADIENT = "gradient"
    WEIGHTS = "weights"


@dataclass(frozen=True, kw_only=True)
class SampledTokens:
    """The tokens of some rollouts, and the states that predicted them.

    Attributes:
        hidden: inputs of the output head, after the last norm.
        tokens: token ids.
        owner: the rollout of each token.
        outcomes: the verdict on each rollout: 1 for a success, NaN for no verdict.
        advantages: the advantage of each rollout; None unless `GRADIENT` needs it.
        head: the output layer; logits are `hidden @ head.T`.
        temperature: the divisor of the logits.
    """

    hidden: Float[Tensor, "tokens width"]
    tokens: Int[Tensor, " tokens"]
    owner: Int[Tensor, " tokens"]
    outcomes: Float[Tensor, " rollouts"]
    advantages: Float[Tensor, " rollouts"] | None
    head: Float[Tensor, "vocabulary width"]
    temperature: float


@dataclass(frozen=True, kw_only=True)
class GroupStates:
    """The agreement among the tokens of correct, or of failed, rollouts.

    Attributes:
        rho: mean cosine of h⊥ over pairs of tokens with h⊥ ≠ 0; NaN for fewer than two tokens.
        residual: ‖R‖_F; NaN without tokens.
    """

    rollouts: int
    tokens: int
    rho: float
    residual: float


@dataclass(frozen=True, kw_only=True)
class HiddenStates:
    """The comparison of correct with failed rollouts.

    Attributes:
        unscorable: number of rollouts without a verdict, which are in neither group.
        along: share of Σ ‖h‖² that lies along u₁.
        residual_ratio: ‖R_failed‖ / ‖R_correct‖; NaN if a group is empty.
        clt_baseline: the expected ratio for identical, independent tokens.
    """

    correct: GroupStates
    failed: GroupStates
    unscorable: int
    along: float
    residual_ratio: float
    clt_baseline: float


def analyse_hidden_states(
    sampled: SampledTokens,
    direction: Direction = Direction.HIDDEN,
    *,
    changed: Float[Tensor, " width"] | None = None,
) -> HiddenStates:
    """Compare how the tokens of correct and of failed rollouts agree beyond u₁.

    Args:
        direction: the matrix from which u₁ is computed.
        changed: the top right singular vector of the head's change, for `WEIGHTS`.

    Raises:
        ConfigError: there are no tokens, no gradient, or no change to take u₁ from.
    """
    if not len(sampled.tokens):
        raise ConfigError("expected rollouts with tokens, got none")
    hidden = sampled.hidden
    if direction is Direction.HIDDEN:
        first = top_direction(hidden.double().T @ hidden.double())
    elif direction is Direction.GRADIENT:
        first = top_direction(_gradient_gram(sampled))
    else:
        assert changed is not None
        first = changed
    if not first.any():
        raise ConfigError(
            f"expected a direction to project off, got none: the {_MISSING[direction]} is 0; "
            "take another direction"
        )
    first = first.to(hidden)
    lengths = hidden @ first
    rest = hidden - lengths[:, None] * first
    outcomes = sampled.outcomes[sampled.owner]
    members = {"correct": outcomes == 1, "failed": (outcomes != 1) & ~outcomes.isnan()}
    residuals = _residual_norms(sampled, rest, list(members.values()))
    verdicts = sampled.outcomes
    counts = (int((verdicts == 1).sum()), int(((verdicts != 1) & ~verdicts.isnan()).sum()))
    correct, failed = (
        GroupStates(
            rollouts=count, tokens=int(member.sum()), rho=mean_cosine(rest[member]), residual=r
        )
        for member, count, r in zip(members.values(), counts, residuals, strict=True)
    )
    both = correct.tokens and failed.tokens and correct.residual
    return HiddenStates(
        correct=correct,
        failed=failed,
        unscorable=int(verdicts.isnan().sum()),
        along=(lengths.double().square().sum() / hidden.double().square().sum()).item(),
        residual_ratio=failed.residual / correct.residual if both else math.nan,
        clt_baseline=clt_baseline(correct.tokens, failed.tokens),
    )


_MISSING = {
    Direction.HIDDEN: "hidden state of every token",
    Direction.GRADIENT: "gradient of these rollouts, all of whose advantages may be 0,",
    Direction.WEIGHTS: "change of the output head",
}


def clt_baseline(correct: int, failed: int) -> float:
    """Return √(N_correct / N_failed); NaN if a group has no tokens.

    >>> round(clt_baseline(8968, 54700), 3)
    0.405
    """
    return math.sqrt(correct / failed) if correct and failed else math.nan


def top_direction(gram: Float[Tensor, "width width"]) -> Float[Tensor, " width"]:
    """Return the eigenvector of the largest eigenvalue; zeros for a zero matrix."""
    if not gram.any():
        return gram[0]
    vector: Tensor = torch.linalg.eigh(gram).eigenvectors[:, -1]
    return vector


def mean_cosine(vectors: Float[Tensor, "tokens width"]) -> float:
    """Return the mean cosine over pairs of nonzero vectors: (‖Σ v/|v|‖² - n) / (n (n-1))."""
    vectors = vectors.double()
    norms = vectors.norm(dim=1)
    # A vector along u₁ leaves only rounding error after the projection; its direction is noise.
    kept = norms > 1e-6 * norms.max() if len(norms) else norms.bool()
    count = int(kept.sum())
    if count < 2:
        return math.nan
    summed = (vectors[kept] / norms[kept, None]).sum(dim=0)
    energy: float = summed.square().sum().item()
    return (energy - count) / (count * (count - 1))


def _errors(sampled: SampledTokens) -> Iterator[Float[Tensor, "tokens some"]]:
    """Yield onehot(token) - π for consecutive parts of the vocabulary."""
    hidden, head = sampled.hidden, sampled.head
    size = max(1, _CHUNK // len(hidden))

    def logits(start: int) -> Tensor:
        return hidden @ head[start : start + size].to(hidden).T / sampled.temperature

    starts = range(0, len(head), size)
    parts = [logits(start).logsumexp(dim=1) for start in starts]
    total = torch.stack(parts).logsumexp(dim=0)
    for start in starts:
        errors = -(logits(start) - total[:, None]).exp()
        here = (sampled.tokens >= start) & (sampled.tokens < start + size)
        places = here.nonzero()[:, 0]
        errors[places, sampled.tokens[places] - start] += 1
        yield errors


def _residual_norms(
    sampled: SampledTokens,
    rest: Float[Tensor, "tokens width"],
    members: list[Bool[Tensor, " tokens"]],
) -> list[float]:
    """Return ‖R‖_F of each group of tokens."""
    energies = [0.0] * len(members)
    for errors in _errors(sampled):
        for number, member in enumerate(members):
            energies[number] += (errors[member].T @ rest[member]).double().square().sum().item()
    counts = [int(member.sum()) for member in members]
    return [
        math.sqrt(energy) / count if count else math.nan
        for energy, count in zip(energies, counts, strict=True)
    ]


def _gradient_gram(sampled: SampledTokens) -> Float[Tensor, "width width"]:
    """Return GᵀG of the batch gradient G = Σ A v hᵀ."""
    assert sampled.advantages is not None
    weighted = sampled.hidden * sampled.advantages[sampled.owner].to(sampled.hidden)[:, None]
    gram = torch.zeros(weighted.shape[1], weighted.shape[1]).to(weighted.device, torch.float64)
    for errors in _errors(sampled):
        part = (errors.T @ weighted).double()
        gram += part.T @ part
    return gram
