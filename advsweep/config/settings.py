"""Settings of every run: its optimizer, its generation and its evaluation.

Nothing heavy is imported here; building an optimizer builds its reference estimator.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, Self

from advsweep.components import Component, Plain, option
from advsweep.errors import ConfigError
from advsweep.estimators import ESTIMATORS

# What learning rates make equal between estimators, if anything: a size of advantages, or the
# change of the weights over the first steps.
Match = Literal["none", "max_advantage", "mass", "step"]


@dataclass(kw_only=True)
class Optimizer(Component):
    """Base class of optimizers: a schedule, gradient clipping, and matched learning rates.

    With `match=max_advantage` or `mass` the run's learning rate is
    lr · size(reference) / size(estimator), so that runs compare the shapes of advantages and not
    their sizes. The size is max|A| (FADE, arXiv:2607.01490, sec. 11.3) or the mean of |A| (ours),
    over groups with every number of successes at the run's group size; see
    `diagnostics.probes`.

    With `match=step` (ours) the learning rate is lr · f, where the run's weights change as far in
    its first `match_steps` steps as those of the reference do at lr, from the same base and with
    the same prompts. A calibration, which is a run of its own, finds f; see
    `sweep.worker.calibration`.
    """

    scale_invariant: ClassVar[bool] = False
    """Whether the size of its steps is independent of the size of gradients."""

    lr: float = option(3e-4, gt=0, help="learning rate after the warm-up")
    max_grad_norm: float = option(1.0, ge=0, help="gradients are clipped to this norm; 0: never")
    warmup_steps: int = option(0, ge=0, help="training steps over which lr rises from 0")
    schedule: Literal["constant", "cosine"] = option(
        "constant", absent="constant", help="course of lr after the warm-up"
    )
    final_share: float = option(
        0.1, ge=0, le=1, absent=0.1, help="of lr, what schedule=cosine falls to"
    )
    match: Match = option(
        "none", help="scale lr so that this is equal between estimators: a size, or steps"
    )
    match_reference: str | dict[str, Any] | Component = option(
        "dr_grpo", help="the estimator whose lr stays unchanged: a name or a mapping"
    )
    match_steps: int = option(
        20, ge=1, absent=20, help="first steps over which match=step compares changes of weights"
    )
    calibrates: int = option(
        0,
        ge=0,
        absent=0,
        help="above 0: the run only finds the rate of runs of this many steps; match=step makes it",
    )

    reset_every: int = option(
        0, ge=0, absent=0, help="steps after which its moments start anew; 0: never"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.match_reference, Component):
            self.match_reference = ESTIMATORS.build(self.match_reference, where="match_reference")
        if self.calibrates and self.match != "step":
            raise ConfigError(
                f"calibrates: expected 0 without match=step, got {self.calibrates}; "
                f"calibrations are made for runs with match=step"
            )

    @property
    def reference(self) -> Any:
        """The built `match_reference`."""
        return self.match_reference

    @property
    def decays_weights(self) -> bool:
        """Whether weights change without a gradient."""
        return False

    def resets(self, step: int) -> bool:
        """Return whether the moments start anew after `step` steps (ProRL, arXiv:2505.24864)."""
        return self.reset_every > 0 and step % self.reset_every == 0

    def share(self, step: int, steps: int) -> float:
        """Return the share of `lr` at a step, counted from 1.

        It rises linearly over the warm-up. A cosine falls from 1, at the first step after the
        warm-up, towards `final_share`, like transformers' `cosine_with_min_lr`.
        """
        if step <= self.warmup_steps or self.schedule == "constant":
            return min(1.0, step / max(1, self.warmup_steps))
        done = (step - 1 - self.warmup_steps) / max(1, steps - self.warmup_steps)
        fallen = (1 + math.cos(math.pi * done)) / 2
        return self.final_share + (1 - self.final_share) * fallen

    def identity(self) -> Plain:
        """As `Component.identity`; without matching it is that of versions before matching."""
        material = super().identity()
        if self.match == "none":
            for name in ("match", "match_reference", "match_steps", "calibrates"):
                material.pop(name, None)
        return material


@dataclass(kw_only=True)
class AdamW(Optimizer):
    """AdamW with gradient clipping (Loshchilov and Hutter, 2019).

    Unless a gradient is clipped, its step does not depend on the gradient's scale. Rates matched
    by the size of advantages would therefore make steps differ by the factor of the rates, and
    are refused; FADE (sec. 11.3) prescribes them nevertheless. `match=step` works.
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
    """Plain gradient descent with optional momentum."""

    name: ClassVar[str] = "sgd"

    lr: float = option(0.1, gt=0, help="learning rate after the warm-up")
    max_grad_norm: float = option(0.0, ge=0, help="gradients are clipped to this norm; 0: never")
    momentum: float = option(0.0, ge=0, lt=1, help="decay of the running sum of gradients")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.reset_every and self.momentum == 0:
            raise ConfigError(
                f"reset_every: expected 0 with momentum=0, which has no moments, got "
                f"{self.reset_every}"
            )


@dataclass(kw_only=True)
class Generation(Component):
    """Sampling of rollouts in training."""

    name: ClassVar[str] = "sampling"
    hint_for_unknown: ClassVar[str] = "generation=transformers and generation=vllm have more"
    sampler: ClassVar[str | None] = None
    """The library that samples, as evaluations record it; None for the backend's own code."""

    temperature: float = option(1.0, gt=0, help="sampling temperature of the rollouts")

    @property
    def is_greedy(self) -> bool:
        """Whether it always takes the likeliest token, so that all rollouts of a prompt agree."""
        return False


@dataclass(kw_only=True)
class Validation(Component):
    """Validation problems, on which a run's checkpoint is chosen; see `config.validation`.

    They are a share of the task's held-out problems, the others of which are reported, or the
    held-out problems of the same task with other settings.
    """

    name: ClassVar[str] = "validation"

    share: float | None = option(
        None, gt=0, lt=1, help="share of the held-out problems of each level"
    )
    task: dict[str, Any] | None = option(None, help="settings of the task that differ")
    n: int | None = option(
        None, ge=1, help="samples per problem; null: those of evaluations within the training"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.share is None) == (self.task is None):
            got = "neither" if self.task is None else "both"
            raise ConfigError(f"share: expected either share or task, got {got}")


@dataclass(kw_only=True)
class EvaluationSettings(Component):
    """Evaluation of held-out problems: n samples each, pass@k by the unbiased estimator."""

    name: ClassVar[str] = "standard"

    n: int = option(128, ge=1, help="samples per held-out problem")
    k: tuple[int, ...] = option((1, 8, 64, 128), ge=1, help="the k of pass@k; none above n")
    every: int = option(
        50, ge=0, help="training steps between evaluations; 0: only before and after training"
    )
    at: tuple[int, ...] = option(
        (), ge=0, absent=[], help="steps after which evaluations are made as well, as [1,2,4,8]"
    )
    n_between: int | None = option(
        None,
        ge=1,
        absent=None,
        help="samples per problem of the evaluations between the first and the last; null: n. "
        "Their curves leave out the k above it",
    )
    train_problems: int = option(
        0,
        ge=0,
        absent=0,
        help="training problems, spread evenly, that are evaluated at the same steps, for columns "
        "such as pass@1[split=train]",
    )
    select_on: dict[str, Any] | Component | None = option(
        None,
        absent=None,
        help="validation problems, evaluated at the same steps; the step with the best pass@1 is "
        "that of columns such as pass@1@selected. {share: 0.5} of the held-out problems, or "
        "{task: {held_out_data: FILE}}, settings of the task that differ; n: their samples",
    )
    temperature: float = option(
        1.0, ge=0, help="sampling temperature of the evaluation; 0: the likeliest token each time"
    )
    top_p: float = option(1.0, gt=0, le=1, help="share of the probability that is sampled from")
    seed: int = option(0, ge=0, help="seed of the evaluation's sampling")

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.select_on, dict):
            self.select_on = Validation.build(self.select_on, where="select_on")
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

        if self.n_between is not None and self.n_between > self.n:
            raise ConfigError(
                f"n_between: expected at most n={self.n}, got {self.n_between}; it saves samples "
                f"between the first and the last evaluation"
            )

    @property
    def validation(self) -> Validation | None:
        """The built `select_on`."""
        assert self.select_on is None or isinstance(self.select_on, Validation)
        return self.select_on

    @property
    def validation_share(self) -> float:
        """The share of the held-out problems that is not reported."""
        return (self.validation.share or 0.0) if self.validation else 0.0

    def of_validation(self) -> Self:
        """Return the settings of an evaluation of validation problems."""
        assert self.validation is not None
        return replace(self.between(), n=self.validation.n or self.between().n, k=(1,))

    def schedule(self, steps: int) -> list[int]:
        """Return the steps of a training of `steps` steps after which it is evaluated."""
        regular = range(self.every, steps, self.every) if self.every else ()
        return sorted({0, steps, *regular, *(step for step in self.at if step < steps)})

    def between(self) -> Self:
        """Return the settings of an evaluation between the first and the last."""
        n = self.n if self.n_between is None else self.n_between
        ks = tuple(k for k in self.k if k <= n) or (1,)
        return replace(self, n=n, k=ks, n_between=None)

    @property
    def is_truncated(self) -> bool:
        """Whether samples are not drawn from the whole distribution."""
        return self.temperature == 0 or self.top_p < 1
