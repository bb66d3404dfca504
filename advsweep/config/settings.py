"""Settings that every run has and no registry offers a choice of behaviour for.

They are components, so that YAML, the command line and Python go through one check. Nothing
heavy is imported here; building an optimizer builds its reference estimator.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar

from advsweep.components import Component, Plain, option
from advsweep.errors import ConfigError
from advsweep.estimators.registry import ESTIMATORS


class Match(Enum):
    """What learning rates make equal between estimators, if anything."""

    NONE = "none"
    MAX_ADVANTAGE = "max_advantage"
    MASS = "mass"


class Schedule(Enum):
    """How the learning rate goes on after the warm-up."""

    CONSTANT = "constant"
    COSINE = "cosine"


@dataclass(kw_only=True)
class Optimizer(Component):
    """What every optimizer has: a schedule, gradient clipping, and matched learning rates.

    With `match` the run's learning rate is lr · size(reference) / size(estimator), so that a
    comparison is of the shapes of advantages rather than of their size. The size is max|A|
    (FADE, arXiv:2607.01490, sec. 11.3) or the mean of |A| (ours), over groups with every
    number of successes at the run's group size: `diagnostics.matching` says how.
    """

    scale_invariant: ClassVar[bool] = False
    """True if the size of its steps does not depend on the size of gradients."""

    lr: float = option(3e-4, gt=0, help="learning rate after the warm-up")
    max_grad_norm: float = option(1.0, ge=0, help="gradients are clipped to this norm; 0: never")
    warmup_steps: int = option(0, ge=0, help="training steps over which lr rises from 0")
    schedule: Schedule = option(
        Schedule.CONSTANT, absent="constant", help="how lr goes on after the warm-up"
    )
    final_share: float = option(
        0.1, ge=0, le=1, absent=0.1, help="of lr, what schedule=cosine falls to"
    )
    match: Match = option(Match.NONE, help="scale lr by the size of advantages, and by which")
    match_reference: str | dict[str, Any] | Component = option(
        "dr_grpo", help="the estimator that keeps lr as it is: a name or a mapping"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.match_reference, Component):
            self.match_reference = ESTIMATORS.build(self.match_reference, where="match_reference")

    @property
    def decays_weights(self) -> bool:
        """Whether weights change where no gradient does."""
        return False

    def share(self, step: int, steps: int) -> float:
        """The share of `lr` that a step has, counted from 1 of `steps`.

        It rises linearly over the warm-up. A cosine falls from 1, at the first step after it,
        towards `final_share`, as transformers' `cosine_with_min_lr` does.
        """
        if step <= self.warmup_steps or self.schedule is Schedule.CONSTANT:
            return min(1.0, step / max(1, self.warmup_steps))
        done = (step - 1 - self.warmup_steps) / max(1, steps - self.warmup_steps)
        fallen = (1 + math.cos(math.pi * done)) / 2
        return self.final_share + (1 - self.final_share) * fallen

    def identity(self) -> Plain:
        """As of any component; without matching, no more than before there was any."""
        material = super().identity()
        if self.match is Match.NONE:
            del material["match"], material["match_reference"]
        return material


@dataclass(kw_only=True)
class AdamW(Optimizer):
    """AdamW with gradient clipping (Loshchilov and Hutter, 2019).

    Its step does not depend on the scale of the gradient, as long as no gradient is clipped:
    there an unmatched estimator moves as far as its reference, and matching makes it move by
    that factor more or less. It is what the paper prescribes.
    """

    name: ClassVar[str] = "adamw"
    scale_invariant: ClassVar[bool] = True

    beta1: float = option(0.9, ge=0, lt=1, help="decay of the gradient's running mean")
    beta2: float = option(0.999, ge=0, lt=1, help="decay of the squared gradient's running mean")
    eps: float = option(1e-8, gt=0, help="added to the denominator of the update")
    weight_decay: float = option(0.0, ge=0, help="decoupled weight decay")

    @property
    def decays_weights(self) -> bool:
        return self.weight_decay > 0


@dataclass(kw_only=True)
class Sgd(Optimizer):
    """Plain gradient descent, with momentum if asked for."""

    name: ClassVar[str] = "sgd"

    lr: float = option(0.1, gt=0, help="learning rate after the warm-up")
    max_grad_norm: float = option(0.0, ge=0, help="gradients are clipped to this norm; 0: never")
    momentum: float = option(0.0, ge=0, lt=1, help="decay of the running sum of gradients")


@dataclass(kw_only=True)
class Generation(Component):
    """How rollouts are sampled while training."""

    name: ClassVar[str] = "sampling"
    elsewhere: ClassVar[str] = "generation=transformers and generation=vllm have more"
    sampler: ClassVar[str | None] = None
    """What samples, where evaluations are to say so: another than the backend's own code."""

    temperature: float = option(1.0, gt=0, help="sampling temperature of the rollouts")

    @property
    def is_greedy(self) -> bool:
        """Whether the likeliest token is always taken, so that all rollouts of a prompt agree."""
        return False


@dataclass(kw_only=True)
class EvaluationSettings(Component):
    """How held-out problems are evaluated: n samples each, pass@k by the unbiased estimator."""

    name: ClassVar[str] = "standard"

    n: int = option(128, ge=1, help="samples per held-out problem")
    k: tuple[int, ...] = option((1, 8, 64, 128), ge=1, help="the k of pass@k; none above n")
    every: int = option(
        50, ge=0, help="training steps between evaluations; 0: only before and after training"
    )
    temperature: float = option(
        1.0, ge=0, help="sampling temperature of the evaluation; 0: the likeliest token each time"
    )
    top_p: float = option(1.0, gt=0, le=1, help="share of the probability that is sampled from")
    seed: int = option(0, ge=0, help="seed of the evaluation's sampling")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.temperature == 0 and self.n > 1:
            raise ConfigError(
                f"n: expected 1 with temperature=0, where all samples are the same, got {self.n}"
            )
        if not self.k:
            raise ConfigError("k: expected at least one k of pass@k, got an empty list")
        beyond = [k for k in self.k if k > self.n]
        if beyond:
            raise ConfigError(
                f"k: expected every k of pass@k to be at most n={self.n}, got {beyond[0]}; "
                f"raise n or leave that k out"
            )

    @property
    def is_truncated(self) -> bool:
        """Whether samples are not drawn from the whole distribution."""
        return self.temperature == 0 or self.top_p < 1
