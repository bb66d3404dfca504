"""Policies that are kept from step to step, where steps move few logits.

Plain descent on advantages that sum to zero moves the logits of sampled behaviours alone. So the
exponentials of all others are still those of the step before, and a step needs no softmax.
"""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from advsweep.backends.bandit.softmax import Policy, draw, exp

if TYPE_CHECKING:
    from jaxtyping import Float, Int

_SPAN = 60.0
"""How far the largest logit may rise above that of the base policy before exponentials are taken
of differences to itself: e^60 is far from what float32 cannot hold."""


class KeptPolicy(Policy):
    """softmax(z/T) of logits that change in place.

    What is kept follows from the logits alone: made anew, of a checkpoint, it has the same bits.

    Args:
        logits: z; whoever changes them says so by `follow` or `renew`.
        base: the base policy's.
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
        # Of z/T less the shift, the exponentials.
        self._masses = torch.empty_like(logits)
        self._scratch = torch.empty_like(logits)
        self.renew()

    def __getitem__(self, runs: slice) -> KeptPolicy:
        part = object.__new__(KeptPolicy)
        vars(part).update({name: value[runs] for name, value in vars(self).items()})
        return part

    def renew(self) -> None:
        """Takes notice of logits that have changed, whichever they are."""
        self._shift.copy_(self._next_shift())
        torch.div(self._logits, self._temperature, out=self._scratch)
        exp(self._scratch.sub_(self._shift), out=self._masses)
        self.forget()

    def follow(
        self,
        actions: Int[Tensor, "runs prompts rollouts"],
        moved: Float[Tensor, "runs prompts rollouts"],
    ) -> None:
        """Takes notice of logits that have changed at sampled behaviours alone.

        Args:
            moved: the logits there.
        """
        cold = moved / self._temperature - self._shift
        # Few rows ever rise so far, and a look at the sampled logits tells that none has.
        is_low = bool(((cold <= _SPAN) & (self._shift == self._origin)).all())
        if is_low or torch.equal(self._next_shift(), self._shift):
            self._masses.scatter_(-1, actions, exp(cold))
            self.forget()
        else:
            self.renew()

    def forget(self) -> None:
        """Takes notice that a part of it has."""
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
        return self._logits.gather(-1, actions) / self._temperature - self._level[..., None]

    def sample(
        self, uniform: Float[Tensor, "runs prompts rollouts"]
    ) -> Int[Tensor, "runs prompts rollouts"]:
        return draw(torch.cumsum(self._masses, dim=-1, out=self._scratch), uniform)

    def blank(self) -> Float[Tensor, "runs prompts behaviours"]:
        """Zeros, in memory that is used for something else by the next call of anything."""
        return self._scratch.zero_()

    @functools.cached_property
    def _total(self) -> Float[Tensor, "runs prompts"]:
        """Σ of the masses."""
        return self._masses.sum(dim=-1)

    @functools.cached_property
    def _level(self) -> Float[Tensor, "runs prompts"]:
        """log Σ e^(z/T)."""
        return self._total.log() + self._shift[..., 0]

    def _next_shift(self) -> Float[Tensor, "runs prompts 1"]:
        highest = self._logits.amax(dim=-1, keepdim=True) / self._temperature
        return torch.where(highest - self._origin > _SPAN, highest, self._origin)
