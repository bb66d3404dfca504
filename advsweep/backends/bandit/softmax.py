"""A softmax over behaviours: sampling, entropies and gradients in closed form.

Every function takes tables with any leading axes, for example one of runs. It computes each row
by itself, so a run gets the same numbers alone as in a stack.

`Policy` is computed from logits. `IncrementalSoftmax` follows logits from step to step: plain
gradient descent on advantages that sum to zero moves the logits of sampled behaviours alone, so
the exponentials of all others stay valid and a step needs no softmax.
"""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    from jaxtyping import Float, Int

_BELOW_1 = 1 - 2.0**-23
"""The largest float32 whose product with any other float32 is below that other."""


class Policy:
    """The distributions that behaviours are drawn from.

    Attributes:
        log: log π of every behaviour.
    """

    def __init__(self, log: Float[Tensor, "*runs prompts behaviours"]) -> None:
        self.log = log

    @classmethod
    def of(
        cls,
        logits: Float[Tensor, "*runs prompts behaviours"],
        temperature: Float[Tensor, "*#runs 1 1"] | float = 1.0,
    ) -> Policy:
        """Return softmax(z/T)."""
        return Policy(torch.log_softmax(logits / temperature, dim=-1))

    def __getitem__(self, runs: slice) -> Policy:
        """Return the policy of some runs, with the properties computed so far."""
        part = Policy(self.log[runs])
        for name in ("probabilities", "entropies"):
            if name in vars(self):
                vars(part)[name] = vars(self)[name][runs]
        return part

    def of_prompts(self, rows: Int[Tensor, "runs groups"]) -> Policy:
        """Return the policy at the prompt of each group."""
        return Policy(self.log[torch.arange(len(rows))[:, None], rows])

    @functools.cached_property
    def probabilities(self) -> Float[Tensor, "*runs prompts behaviours"]:
        """π of every behaviour."""
        return self.log.exp() if self.log.requires_grad else exp(self.log)

    @functools.cached_property
    def entropies(self) -> Float[Tensor, "*runs prompts"]:
        """H = -Σ π log π of each prompt, in nats."""
        return -(self.probabilities * self.log).sum(dim=-1)

    def certainties(self) -> Float[Tensor, "*runs prompts"]:
        """KL(uniform ‖ π) of each prompt, in nats."""
        return -self.log.mean(dim=-1) - math.log(self.log.shape[-1])

    def log_probs(
        self, actions: Int[Tensor, "*runs prompts rollouts"]
    ) -> Float[Tensor, "*runs prompts rollouts"]:
        """log π of sampled behaviours."""
        return self.log.gather(-1, actions)

    def sample(
        self, uniform: Float[Tensor, "*runs prompts rollouts"]
    ) -> Int[Tensor, "*runs prompts rollouts"]:
        """Draw behaviours by the inverse of the distribution function.

        Args:
            uniform: random numbers in [0, 1), one per rollout.
        """
        return draw(self.probabilities.cumsum(dim=-1), uniform)


def exp(values: Tensor, out: Tensor | None = None) -> Tensor:
    """Return e to the values, by numpy, which takes half the time of torch."""
    return torch.from_numpy(np.exp(values.numpy(), out=None if out is None else out.numpy()))


def draw(
    cumulated: Float[Tensor, "*runs prompts behaviours"],
    uniform: Float[Tensor, "*runs prompts rollouts"],
) -> Int[Tensor, "*runs prompts rollouts"]:
    """Find the first behaviour of each row whose cumulated mass exceeds a share of the total.

    A share that rounds to the total counts as a little less, so that behaviours without mass
    are never drawn.
    """
    # Binary search without branches: on random numbers a processor mispredicts half of
    # `searchsorted`'s branches, which makes that three times slower.
    thresholds = uniform.clamp(max=_BELOW_1) * cumulated[..., -1:]
    behaviours = cumulated.shape[-1]
    sums = cumulated.reshape(-1).numpy()
    wanted = thresholds.reshape(-1, thresholds.shape[-1]).numpy()
    starts = np.arange(0, sums.size, behaviours)[:, None]
    below = np.repeat(starts, wanted.shape[1], axis=1)
    last = starts + (behaviours - 1)
    stride = 1 << (behaviours - 1).bit_length()
    is_whole = stride == behaviours
    while stride := stride // 2:
        probe = below + (stride - 1)
        if not is_whole:
            np.minimum(probe, last, out=probe)
        below += stride * (sums[probe] <= wanted)
    found = np.minimum(below, last) - starts
    return torch.from_numpy(found).view(thresholds.shape)


def score_gradient(
    policy: Policy,
    actions: Int[Tensor, "*runs prompts rollouts"],
    weights: Float[Tensor, "*runs prompts rollouts"],
) -> Float[Tensor, "*runs prompts behaviours"]:
    """∂/∂z of Σᵢ wᵢ log π(aᵢ) at temperature 1: Σᵢ wᵢ 1{aᵢ = v} - π_v Σᵢ wᵢ.

    If the weights of a prompt sum to 0, the gradient of behaviours not sampled is exactly 0.
    """
    drift = total(weights)[..., None]
    pull = torch.zeros_like(policy.log).scatter_add_(-1, actions, weights)
    return pull - policy.probabilities * drift if drift.any() else pull


def total(weights: Float[Tensor, "*runs prompts rollouts"]) -> Float[Tensor, "*runs prompts"]:
    """Return Σᵢ wᵢ of each prompt; a sum within rounding of 0 counts as 0."""
    drift = weights.sum(dim=-1)
    rounding = weights.shape[-1] * torch.finfo(weights.dtype).eps * weights.abs().sum(dim=-1)
    return drift.masked_fill_(drift.abs() <= rounding, 0.0)


def entropy_gradient(policy: Policy) -> Float[Tensor, "*runs prompts behaviours"]:
    """∂H/∂z of each prompt at temperature 1: -π_v (log π_v + H)."""
    return -policy.probabilities * (policy.log + policy.entropies[..., None])


def divergences(
    probabilities: Float[Tensor, "*runs prompts behaviours"],
    change: Float[Tensor, "*runs prompts behaviours"],
) -> Float[Tensor, "*runs prompts"]:
    """Return KL(old ‖ new) of each prompt, in nats, after a change of its logits.

    With x the change of z/T and means over the old policy, log E[e^x] - E[x]: in this form
    nothing cancels where the change is small.

    Args:
        probabilities: the old policy.
        change: x.
    """
    mean = (probabilities * change).sum(dim=-1).double()
    curvature = (probabilities * (torch.expm1(change) - change)).sum(dim=-1)
    return (torch.log1p(curvature + mean) - mean).clamp(min=0)


_SPAN = 60.0
"""How far the largest logit may rise above that of the base policy before exponentials refer to
it instead: e^60 is far below the largest float32."""


class IncrementalSoftmax(Policy):
    """softmax(z/T) of logits that change in place.

    Its state depends on the logits alone: rebuilt from a checkpoint, it has the same bits.

    Args:
        logits: z; after changing them, call `follow` or `renew`.
        base: logits of the base policy.
    """

    def __init__(
        self,
        logits: Float[Tensor, "runs prompts behaviours"],
        base: Float[Tensor, "runs prompts behaviours"],
        temperature: Float[Tensor, "runs 1 1"],
    ) -> None:
        self._logits = logits
        self._temperature = temperature
        self._origin = (base / temperature).amax(dim=-1, keepdim=True)
        self._shift = torch.empty_like(self._origin)
        # The exponentials of z/T minus the shift.
        self._masses = torch.empty_like(logits)
        self._scratch = torch.empty_like(logits)
        self.renew()

    def __getitem__(self, runs: slice) -> IncrementalSoftmax:
        part = object.__new__(IncrementalSoftmax)
        vars(part).update({name: value[runs] for name, value in vars(self).items()})
        return part

    def renew(self) -> None:
        """Recompute everything after any change of the logits."""
        self._shift.copy_(self._next_shift())
        torch.div(self._logits, self._temperature, out=self._scratch)
        exp(self._scratch.sub_(self._shift), out=self._masses)
        self.forget()

    def follow(
        self,
        actions: Int[Tensor, "runs prompts rollouts"],
        moved: Float[Tensor, "runs prompts rollouts"],
    ) -> None:
        """Update the state after a change of the logits of sampled behaviours alone.

        Args:
            moved: the new logits of those behaviours.
        """
        cold = moved / self._temperature - self._shift
        # Few rows ever rise so far; the sampled logits alone usually show that none did.
        is_low = bool(((cold <= _SPAN) & (self._shift == self._origin)).all())
        if is_low or torch.equal(self._next_shift(), self._shift):
            self._masses.scatter_(-1, actions, exp(cold))
            self.forget()
        else:
            self.renew()

    def forget(self) -> None:
        """Drop cached properties, after a part of this policy (`__getitem__`) has changed."""
        for name in ("log", "probabilities", "entropies", "_total", "_level"):
            vars(self).pop(name, None)

    @functools.cached_property
    def log(self) -> Float[Tensor, "runs prompts behaviours"]:  # type: ignore[override]
        return self._logits / self._temperature - self._level[..., None]

    @functools.cached_property
    def probabilities(self) -> Float[Tensor, "runs prompts behaviours"]:
        return self._masses / self._total[..., None]

    @functools.cached_property
    def entropies(self) -> Float[Tensor, "runs prompts"]:
        """H = log Σ e^(z/T) - E[z/T] of each prompt, in nats; to 1e-6, which is not below 0."""
        mean = torch.mul(self._masses, self._logits, out=self._scratch).sum(dim=-1) / self._total
        return (self._level - mean / self._temperature[..., 0]).clamp_(min=0.0)

    def certainties(self) -> Float[Tensor, "runs prompts"]:
        mean = self._logits.mean(dim=-1) / self._temperature[..., 0]
        return self._level - mean - math.log(self._logits.shape[-1])

    def log_probs(
        self, actions: Int[Tensor, "runs prompts rollouts"]
    ) -> Float[Tensor, "runs prompts rollouts"]:
        return self.log_probs_at(self._logits.gather(-1, actions))

    def log_probs_at(
        self, logits: Float[Tensor, "runs prompts rollouts"]
    ) -> Float[Tensor, "runs prompts rollouts"]:
        """Return log π of behaviours with the given current logits."""
        return logits / self._temperature - self._level[..., None]

    def sample(
        self, uniform: Float[Tensor, "runs prompts rollouts"]
    ) -> Int[Tensor, "runs prompts rollouts"]:
        return draw(torch.cumsum(self._masses, dim=-1, out=self._scratch), uniform)

    def blank(self) -> Float[Tensor, "runs prompts behaviours"]:
        """Return zeros in scratch memory, which the next call of any method overwrites."""
        return self._scratch.zero_()

    @functools.cached_property
    def _total(self) -> Float[Tensor, "runs prompts"]:
        """Sum of the masses."""
        return self._masses.sum(dim=-1)

    @functools.cached_property
    def _level(self) -> Float[Tensor, "runs prompts"]:
        """log Σ e^(z/T)."""
        return self._total.log() + self._shift[..., 0]

    def _next_shift(self) -> Float[Tensor, "runs prompts 1"]:
        highest = self._logits.amax(dim=-1, keepdim=True) / self._temperature
        return torch.where(highest - self._origin > _SPAN, highest, self._origin)
