"""Tables `[runs, prompts, behaviours]`: tasks, parameters, and the softmax over behaviours.

Functions take tables with any leading axes, for example one of runs. Each computes a row by itself,
so a run gets the same numbers alone as in a stack.

`Policy` is a log-softmax. `ShiftedPolicy` takes fewer passes over the table, for plain gradient
descent on tables; both have the roundings that recorded runs have.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from advsweep.backends.randomness import Stream, numpy_generator
from advsweep.components import identity_of

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int

    from advsweep.backends.models import Table
    from advsweep.tasks.bandit import BanditTask

    # Tensors of several runs, or of one run without its axis. A group is of one prompt.
    PerBehaviour = Float[Tensor, "*runs prompts behaviours"]
    FlagPerBehaviour = Bool[Tensor, "*#runs prompts behaviours"]
    PerPrompt = Float[Tensor, "*runs prompts"]
    PerRollout = Float[Tensor, "*runs groups rollouts"]
    # The sampled behaviours, and the prompt of each group.
    Actions = Int[Tensor, "*runs groups rollouts"]
    Owners = Int[Tensor, "runs groups"]
    # What is trained: a row for each prompt, or of a map that prompts share.
    Parameters = Float[Tensor, "runs rows behaviours"]
    PerRun = Float[Tensor, " runs"]
    FlagPerRun = Bool[Tensor, " runs"]


@dataclass(frozen=True)
class Tables:
    """The behaviours of the prompts of several runs; runs with equal tasks share memory.

    Attributes:
        logits: logits of the base policies at temperature 1.
        rewards: reward of each behaviour.
        correct: whether a behaviour has the greatest reward of its prompt.
        levels: difficulty level of each prompt.
        trained: the prompts in training.
        is_binary: whether each reward is 1 for correct and 0 for other behaviours.
    """

    logits: PerBehaviour
    rewards: PerBehaviour
    correct: FlagPerBehaviour
    levels: Int[np.ndarray, "runs prompts"]
    trained: Int[np.ndarray, "runs trained"]
    is_binary: bool

    @classmethod
    def of(cls, tasks: Sequence[BanditTask]) -> Tables:
        by_identity: dict[str, BanditTask] = {}
        shared = [by_identity.setdefault(str(identity_of(task)), task) for task in tasks]
        different = shared if len(by_identity) > 1 else shared[:1]
        arms = [task.arms for task in different]

        # One table for all runs costs its memory once, and its way into the cache.
        def stacked(tables: Sequence[np.ndarray]) -> np.ndarray:
            return np.broadcast_to(np.stack(tables), (len(tasks), *tables[0].shape))

        def tensor(tables: Sequence[np.ndarray]) -> Tensor:
            return torch.from_numpy(np.stack(tables)).expand(len(tasks), -1, -1)

        return cls(
            logits=tensor([a.logits.astype(np.float32) for a in arms]),
            rewards=tensor([a.rewards.astype(np.float32) for a in arms]),
            correct=tensor([a.correct for a in arms]),
            levels=stacked([a.levels for a in arms]),
            trained=stacked([task.train_rows for task in different]),
            is_binary=all(task.is_binary for task in different),
        )

    def __getitem__(self, runs: Sequence[int]) -> Tables:
        """Return the tables of some runs."""
        return Tables(
            logits=self.logits[runs],
            rewards=self.rewards[runs],
            correct=self.correct[runs],
            levels=self.levels[runs],
            trained=self.trained[runs],
            is_binary=self.is_binary,
        )


def at_actions(table: Tensor, rows: Owners | None, actions: Actions) -> Tensor:
    """Return the entries of sampled behaviours.

    Args:
        rows: the prompt of each group; None for all prompts in order.
    """
    if rows is None:
        return table.gather(-1, actions)
    return table[torch.arange(len(rows))[:, None, None], rows[:, :, None], actions]


class Logits:
    """Maps trained parameters to logits: the logits themselves, or a map that prompts share.

    Attributes:
        base: logits of the base policies, at temperature 1.
        is_shared: whether prompts share a map; its product is added to `base`.
    """

    def __init__(self, table: Table, base: PerBehaviour) -> None:
        self.base = base
        self.is_shared = table.rank > 0
        self._rank = table.rank
        prompts = base.shape[1]
        self._features = _features(table, prompts) if self.is_shared else torch.empty(0)

    def origin(self) -> Parameters:
        """Return the parameters before training; weight decay pulls towards them."""
        if not self.is_shared:
            return self.base.clone()
        runs, _, behaviours = self.base.shape
        return torch.zeros(runs, self._rank, behaviours)

    def of(self, parameters: Parameters) -> PerBehaviour:
        """Return the logits that belong to parameters."""
        return self.base + self.change(parameters) if self.is_shared else parameters

    def change(self, parameters: Parameters) -> PerBehaviour:
        """Return the change of the logits that belongs to a change of the parameters."""
        if not self.is_shared:
            return parameters
        # One product per run: a batched product rounds otherwise, and a run's numbers must
        # not depend on the other runs.
        return torch.stack([self._features @ of_run for of_run in parameters])

    def pull_back(self, gradient: PerBehaviour) -> Parameters:
        """Return the gradient of the parameters, given that of the logits."""
        if not self.is_shared:
            return gradient
        return torch.stack([self._features.T @ of_run for of_run in gradient])


def _features(table: Table, prompts: int) -> Float[Tensor, "prompts rank"]:
    """Make unit vectors: one part in common, one part in a random direction."""
    rng = numpy_generator(table.seed, Stream.WEIGHTS)
    directions = rng.standard_normal((prompts, table.rank - 1))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    shared = np.full((prompts, 1), math.sqrt(table.overlap))
    features = np.concatenate([shared, math.sqrt(1 - table.overlap) * directions], axis=1)
    return torch.from_numpy(features).float()


# The largest float32 whose product with any other float32 is below that other.
_BELOW_1 = 1 - 2.0**-23


class Policy:
    """The distributions that behaviours are drawn from.

    Attributes:
        log: log π of every behaviour.
    """

    def __init__(self, log: PerBehaviour) -> None:
        self.log = log

    @classmethod
    def of(
        cls, logits: PerBehaviour, temperature: Float[Tensor, "*#runs 1 1"] | float = 1.0
    ) -> Policy:
        """Return softmax(z/T)."""
        return Policy(torch.log_softmax(logits / temperature, dim=-1))

    def of_prompts(self, rows: Owners) -> Policy:
        """Return the policy at the prompt of each group."""
        return Policy(self.log[torch.arange(len(rows))[:, None], rows])

    @functools.cached_property
    def probabilities(self) -> PerBehaviour:
        """π of every behaviour."""
        return self.log.exp() if self.log.requires_grad else exp(self.log)

    @functools.cached_property
    def entropies(self) -> PerPrompt:
        """H = -Σ π log π of each prompt, in nats."""
        return -(self.probabilities * self.log).sum(dim=-1)

    def certainties(self) -> PerPrompt:
        """KL(uniform ‖ π) of each prompt, in nats."""
        return -self.log.mean(dim=-1) - math.log(self.log.shape[-1])

    def log_probs(self, actions: Actions) -> PerRollout:
        """log π of sampled behaviours."""
        return self.log.gather(-1, actions)

    def sample(self, uniform: PerRollout) -> Actions:
        """Draw behaviours by the inverse of the distribution function.

        Args:
            uniform: random numbers in [0, 1), one per rollout.
        """
        return draw(self.probabilities.cumsum(dim=-1), uniform)


def exp(values: Tensor) -> Tensor:
    """Return e to the values, by numpy, which takes half the time of torch."""
    return torch.from_numpy(np.exp(values.numpy()))


def draw(cumulated: PerBehaviour, uniform: PerRollout) -> Actions:
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
    while stride > 1:
        stride //= 2
        probe = below + (stride - 1)
        if not is_whole:
            np.minimum(probe, last, out=probe)
        below += stride * (sums[probe] <= wanted)
    numbers = np.minimum(below, last) - starts
    return torch.from_numpy(numbers).view(thresholds.shape)


def score_gradient(policy: Policy, actions: Actions, weights: PerRollout) -> PerBehaviour:
    """∂/∂z of Σᵢ wᵢ log π(aᵢ) at temperature 1: Σᵢ wᵢ 1{aᵢ = v} - π_v Σᵢ wᵢ.

    If the weights of a prompt sum to 0, the gradient of behaviours not sampled is exactly 0.
    """
    drift = total(weights)[..., None]
    pull = torch.zeros_like(policy.log).scatter_add_(-1, actions, weights)
    return pull - policy.probabilities * drift if drift.any() else pull


def total(weights: PerRollout) -> PerPrompt:
    """Return Σᵢ wᵢ of each prompt; a sum within rounding of 0 counts as 0."""
    drift = weights.sum(dim=-1)
    rounding = weights.shape[-1] * torch.finfo(weights.dtype).eps * weights.abs().sum(dim=-1)
    return drift.masked_fill_(drift.abs() <= rounding, 0.0)


def entropy_gradient(policy: Policy) -> PerBehaviour:
    """∂H/∂z of each prompt at temperature 1: -π_v (log π_v + H)."""
    return -policy.probabilities * (policy.log + policy.entropies[..., None])


def divergences(probabilities: PerBehaviour, change: PerBehaviour) -> PerPrompt:
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


# How far the largest logit may rise above that of the base policy before exponentials refer to it
# instead: e^60 is far below the largest float32.
_SPAN = 60.0


class ShiftedPolicy(Policy):
    """softmax(z/T) by exponentials of z/T minus a fixed shift, for steps without a log-softmax.

    Everything is computed when it is first read, from logits that must not have changed by then.

    Args:
        logits: z.
        origin: the shift: the largest z/T of the base policy.
    """

    def __init__(
        self,
        logits: PerBehaviour,
        origin: Float[Tensor, "runs prompts 1"],
        temperature: Float[Tensor, "runs 1 1"],
    ) -> None:
        self._logits = logits
        self._temperature = temperature
        scaled = logits / temperature
        highest = scaled.amax(dim=-1, keepdim=True)
        self._shift = torch.where(highest - origin > _SPAN, highest, origin)
        self._masses = scaled.sub_(self._shift)
        np.exp(self._masses.numpy(), out=self._masses.numpy())

    @functools.cached_property
    def _total(self) -> PerPrompt:
        return self._masses.sum(dim=-1)

    @functools.cached_property
    def _level(self) -> PerPrompt:
        """log Σ e^(z/T)."""
        return self._total.log() + self._shift[..., 0]

    @functools.cached_property
    def log(self) -> PerBehaviour:  # type: ignore[override]
        return self._logits / self._temperature - self._level[..., None]

    @functools.cached_property
    def probabilities(self) -> PerBehaviour:
        return self._masses / self._total[..., None]

    @functools.cached_property
    def entropies(self) -> PerPrompt:
        """H = log Σ e^(z/T) - E[z/T] of each prompt, in nats; to 1e-6, which is not below 0."""
        mean = (self._masses * self._logits).sum(dim=-1) / self._total
        return (self._level - mean / self._temperature[..., 0]).clamp_(min=0.0)

    def certainties(self) -> PerPrompt:
        mean = self._logits.mean(dim=-1) / self._temperature[..., 0]
        return self._level - mean - math.log(self._logits.shape[-1])

    def log_probs(self, actions: Actions) -> PerRollout:
        return self._logits.gather(-1, actions) / self._temperature - self._level[..., None]

    def sample(self, uniform: PerRollout) -> Actions:
        return draw(self._masses.cumsum(dim=-1), uniform)


# The most behaviours whose single probabilities are metrics.
_FEW = 8


def exact_metrics(
    before: Policy, after: Policy, correct: FlagPerBehaviour, ks: Sequence[int]
) -> list[dict[str, float]]:
    """Return metrics of a step of each run: means over all prompts, drawn or not.

    Args:
        before, after: the policies before and after the step.
        ks: the k of pass@k.

    Returns:
        `exact/pass@K` and `exact/entropy` (nats) after the step; `exact/correct_modes`, the
        exponential of the entropy among correct behaviours, which is their number if all
        are equally likely; `exact/pass@1_change` and `exact/entropy_change`, their changes in
        the step; `exact/entropy_predicted`, the latter to first order in the logits:
        -Cov(log π, Δlog π); `exact/probability_I` of each behaviour, if there are at most
        eight.
    """
    policy = after.probabilities
    failing = _failing(after, correct)
    failed = _failing(before, correct)
    among = torch.log_softmax(after.log.masked_fill(~correct, -torch.inf), dim=-1)
    modes = (-(among.exp() * among.masked_fill(~correct, 0.0)).sum(dim=-1)).exp()
    first_order = (entropy_gradient(before) * (after.log - before.log)).sum(dim=-1)
    metrics = {
        **{f"exact/pass@{k}": 1 - _power(failing, k) for k in ks},
        "exact/pass@1_change": failed - failing,
        "exact/entropy": after.entropies,
        "exact/correct_modes": modes,
        "exact/entropy_change": after.entropies - before.entropies,
        "exact/entropy_predicted": first_order,
    }
    if policy.shape[-1] <= _FEW:
        metrics |= {f"exact/probability_{i}": policy[..., i] for i in range(policy.shape[-1])}
    means = torch.stack([values.double().mean(dim=-1) for values in metrics.values()])
    return [dict(zip(metrics, of_run, strict=True)) for of_run in means.T.tolist()]


def _failing(policy: Policy, correct: FlagPerBehaviour) -> PerPrompt:
    """Return the probability of a wrong behaviour of each prompt."""
    solving = (policy.probabilities * correct).sum(dim=-1)
    return (1 - solving.double()).clamp(min=0)


def _power(values: PerPrompt, exponent: int) -> PerPrompt:
    """Return a power of the values, the same to the bit whatever other runs are in the stack.

    torch computes the last values of a tensor in another way than full vectors.
    """
    return torch.stack([of_run**exponent for of_run in values])


def solve_rates(policy: PerBehaviour, correct: FlagPerBehaviour) -> PerPrompt:
    """Return the probability of a correct behaviour of each prompt."""
    # Rounding may give a sum above 1.
    return (policy * correct).sum(dim=-1).clamp(max=1)
