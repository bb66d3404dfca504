"""How far a step moves weights and policy: the metrics that every backend shares.

    optim/change_norm      ‖w_t - w_0‖, the change since the base model
    optim/step_norm        ‖w_t - w_{t-1}‖, the change of the step
    optim/update_cosine    cosine between this step's change and the previous one's
    policy/kl_step         KL(old ‖ new) of the step, per token, in nats
    optim/weights_changed  share of the weights with a gradient that the first step changes (TRL)

The cosine is left out where one of the two changes is 0, and so in the first step. A resumed
training continues it, because checkpoints hold the last change.
"""

from __future__ import annotations

import math
import resource
import sys
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from advsweep.names import CHANGE_NORM, POLICY_LOSS, WEIGHTS_CHANGED

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int
    from torch import Tensor

    PerToken = Float[Tensor, "rows tokens"]

KL_STEP = "policy/kl_step"

_CHANGE = "change"


class ChangeMeter:
    """Measures the changes of weights that are trained in place.

    Sums are in double precision, over the weights in the given order, so that equal weights
    give equal bits.

    Args:
        weights: the weights in training, by name; at this moment they are the base model's.
    """

    def __init__(self, weights: Mapping[str, Tensor]) -> None:
        self._weights = list(weights.values())
        self._base = self._last = self._flat()
        self._change: Float[Tensor, " weights"] | None = None

    def _flat(self) -> Float[Tensor, " weights"]:
        return torch.cat([weight.detach().reshape(-1) for weight in self._weights])

    def begin(self) -> None:
        """Take the current weights as those before the next step; call this after loading."""
        self._last = self._flat()
        self._base = self._base.to(self._last.device)
        if self._change is not None:
            self._change = self._change.to(self._last.device)

    def measure(self) -> dict[str, float]:
        """Return the metrics of the step that has just ended."""
        last = self._flat()
        change = last - self._last
        total = last - self._base
        before = self._change
        sums = [_dot(total, total), _dot(change, change)]
        if before is not None:
            sums += [_dot(change, before), _dot(before, before)]
        self._last = last
        self._change = change
        return change_metrics(*torch.stack(sums).tolist())

    def state(self) -> dict[str, Tensor]:
        """Return the change of the last step; empty before the first."""
        return {} if self._change is None else {_CHANGE: self._change}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Load what `state` returned, once the weights are those of that step."""
        self._change = state.get(_CHANGE)
        self.begin()


# Weights that are looked at.
_SAMPLED_WEIGHTS = 1_000_000


class WeightSample:
    """A sample of all weights before an update, with those that have a gradient.

    An update below the rounding of a weight's type leaves it as it is: that is how a training in 16
    bits, or at a tiny rate, does nothing without an error.

    Args:
        weights: the weights in training, with the gradients of the update.
    """

    def __init__(self, weights: Sequence[Tensor]) -> None:
        total = sum(weight.numel() for weight in weights)
        self._every = -(-total // _SAMPLED_WEIGHTS)
        self._weights = [weight for weight in weights if weight.grad is not None]
        self._before = [self._sample(weight.detach()).clone() for weight in self._weights]
        gradients = [weight.grad for weight in self._weights if weight.grad is not None]
        self._has_gradient = [self._sample(gradient) != 0 for gradient in gradients]

    def _sample(self, values: Tensor) -> Float[Tensor, " some"]:
        return values.reshape(-1)[:: self._every]

    def metrics(self) -> dict[str, float]:
        """Return `optim/weights_changed`; empty if no weight had a gradient."""
        changed = 0
        counted = 0
        parts = zip(self._weights, self._before, self._has_gradient, strict=True)
        for weight, before, has_gradient in parts:
            moved = self._sample(weight.detach()) != before
            changed += int((moved & has_gradient).sum())
            counted += int(has_gradient.sum())
        return {WEIGHTS_CHANGED: changed / counted} if counted else {}


def _dot(first: Float[Tensor, " weights"], second: Float[Tensor, " weights"]) -> Float[Tensor, ""]:
    return torch.sum(first * second, dtype=torch.float64)


def change_metrics(
    total: float, change: float, along: float = 0.0, previous: float = 0.0
) -> dict[str, float]:
    """Return `optim/change_norm`, `optim/step_norm` and `optim/update_cosine`.

    Args:
        total: squared norm of the change since the base model.
        change: squared norm of the step's change.
        along: dot product of the step's change and the previous one's.
        previous: squared norm of the previous step's change; 0 without one.
    """
    metrics = {CHANGE_NORM: total**0.5, "optim/step_norm": change**0.5}
    lengths = change**0.5 * previous**0.5
    if lengths > 0:
        metrics["optim/update_cosine"] = min(max(along / lengths, -1.0), 1.0)
    return metrics


def kl_estimate(
    old: PerToken, new: PerToken, mask: Bool[Tensor, "rows tokens"]
) -> Float[Tensor, " 2"]:
    """Return the sum of the k3 estimate of KL(old ‖ new) over sampled tokens, and their number.

    k3 = r - 1 - log r with r = π_new/π_old: never negative, and its mean over tokens drawn from
    the old policy is the divergence.

    Args:
        old, new: log π of the sampled tokens before and after the step.
        mask: the tokens that count.

    Source: J. Schulman, "Approximating KL divergence" (2020).
    """
    log_ratio = (new.double() - old.double()).where(mask, 0.0)
    estimate = torch.expm1(log_ratio) - log_ratio
    return torch.stack((estimate.sum(), mask.sum().double()))


def evenly_spaced(rows: int, most: int) -> list[int]:
    """Return at most `most` of the numbers 0 to rows - 1, spread evenly."""
    count = min(rows, most)
    return [index * rows // count for index in range(count)]


def loss_variance(losses: Sequence[float]) -> dict[str, float]:
    """Return the variance of the policy loss over a step's updates; empty for fewer than two.

    It is the population variance, that is the mean squared deviation from the mean. Losses are
    NaN for objectives that do not tell theirs apart from penalties; then there is no variance.
    """
    if len(losses) < 2 or any(map(math.isnan, losses)):
        return {}
    mean = sum(losses) / len(losses)
    return {"loss/variance": sum((loss - mean) ** 2 for loss in losses) / len(losses)}


def update_means(updates: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the means of metrics over a step's updates, and `loss_variance` of the policy loss.

    Values that are NaN, such as the mismatch of an update without advantages, are left out.
    """
    sums: dict[str, float] = defaultdict(float)
    numbers = Counter[str]()
    # One after another: Python's `sum` rounds otherwise from version 3.12 on.
    for update in updates:
        for name, value in update.items():
            if not math.isnan(value):
                sums[name] += value
                numbers[name] += 1
    means = {name: value / numbers[name] for name, value in sums.items()}
    return means | loss_variance([update.get(POLICY_LOSS, math.nan) for update in updates])


def peak_memory() -> dict[str, float]:
    """Return `memory/peak_mb`: the largest resident memory of this process so far, in MiB.

    With a CUDA device in use also `memory/peak_gpu_mb`: the most memory that torch allocated.
    """
    unit = 2**20 if sys.platform == "darwin" else 2**10
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit
    metrics = {"memory/peak_mb": float(peak)}
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        metrics["memory/peak_gpu_mb"] = torch.cuda.max_memory_allocated() / 2**20
    return metrics


# KL(policy ‖ base model) on evaluated problems is that of whole answers: log π(y) - log π_base(y)
# in the mean over answers y of the policy. The estimate replaces each token's log-ratio by its
# mean given the tokens before: the exact KL over the vocabulary, summed over the tokens of a
# sampled answer. It has the same mean and about half the variance (Amini et al. 2025,
# arXiv:2504.10637).

# One of so many answers is measured: of 128 answers to a problem four, and with 16 the first answer
# to each second problem. On the tiny backend that takes about 4 % of the time of sampling.
KL_EVERY = 32


def measured_answers(answers: int) -> Int[np.ndarray, " measured"]:
    """Return the places of the answers at which the KL is measured, problem after problem."""
    return np.arange(0, answers, KL_EVERY)


def at_answers(kl: Float[Tensor, " measured"], answers: int) -> Float[Tensor, " answers"]:
    """Return the KL of each answer; NaN where it is not measured."""
    of_answers = torch.full((answers,), torch.nan, dtype=torch.float64)
    of_answers[torch.from_numpy(measured_answers(answers))] = kl
    return of_answers


def mean_by_problem(kl: Float[Tensor, " answers"], n: int) -> Float[np.ndarray, " problems"] | None:
    """Return the mean KL of n answers to each problem, NaN where none is measured.

    None if it is measured at no answer.
    """
    if kl.isnan().all():
        return None
    # The KL of equal distributions may be rounded to below 0.
    means: Float[np.ndarray, " problems"] = kl.view(-1, n).nanmean(dim=1).clamp(min=0).numpy()
    return means
