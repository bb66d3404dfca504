"""Settings that every run has and no registry offers a choice of behaviour for.

They are components, so that YAML, the command line and Python go through one check. Only
the standard library is imported here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from advsweep.components import Component, option
from advsweep.errors import ConfigError


@dataclass(kw_only=True)
class Optimizer(Component):
    """AdamW with linear warm-up and gradient clipping (Loshchilov and Hutter, 2019)."""

    name: ClassVar[str] = "adamw"

    lr: float = option(3e-4, gt=0, help="learning rate after the warm-up")
    beta1: float = option(0.9, ge=0, lt=1, help="decay of the gradient's running mean")
    beta2: float = option(0.999, ge=0, lt=1, help="decay of the squared gradient's running mean")
    eps: float = option(1e-8, gt=0, help="added to the denominator of the update")
    weight_decay: float = option(0.0, ge=0, help="decoupled weight decay")
    max_grad_norm: float = option(1.0, ge=0, help="gradients are clipped to this norm; 0: never")
    warmup_steps: int = option(0, ge=0, help="training steps over which lr rises from 0")


@dataclass(kw_only=True)
class Generation(Component):
    """How rollouts are sampled while training."""

    name: ClassVar[str] = "sampling"

    temperature: float = option(1.0, gt=0, help="sampling temperature of the rollouts")


@dataclass(kw_only=True)
class EvaluationSettings(Component):
    """How held-out problems are evaluated: n samples each, pass@k by the unbiased estimator."""

    name: ClassVar[str] = "standard"

    n: int = option(128, ge=1, help="samples per held-out problem")
    k: tuple[int, ...] = option((1, 8, 64, 128), ge=1, help="the k of pass@k; none above n")
    every: int = option(
        50, ge=0, help="training steps between evaluations; 0: only before and after training"
    )
    temperature: float = option(1.0, gt=0, help="sampling temperature of the evaluation")
    seed: int = option(0, ge=0, help="seed of the evaluation's sampling")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.k:
            raise ConfigError("k: expected at least one k of pass@k, got an empty list")
        beyond = [k for k in self.k if k > self.n]
        if beyond:
            raise ConfigError(
                f"k: expected every k of pass@k to be at most n={self.n}, got {beyond[0]}; "
                f"raise n or leave that k out"
            )
