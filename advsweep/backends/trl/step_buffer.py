"""The values of one training step on TRL, from the first generated token to its metrics."""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from advsweep.backends.step_changes import loss_variance
from advsweep.backends.training_loop import reads_answers

if TYPE_CHECKING:
    from jaxtyping import Float

    from advsweep.backends.base import Run
    from advsweep.backends.trl.step_effect import StepEffect
    from advsweep.tasks.base import Problem


class UpdateMeans:
    """Means of the objective's metrics over the passes of an update and the updates of a step.

    Attributes:
        norm: norm of the current update's gradient before clipping.
    """

    def __init__(self) -> None:
        self.norm = 0.0
        self._sums: dict[str, float] = defaultdict(float)
        self._losses: list[float] = []
        self._lr = 0.0
        self.begin()

    def begin(self) -> None:
        """Start an update: the next pass is its first."""
        self._passes: list[Tensor] = []
        self._names: list[str] = []

    def add(self, metrics: Mapping[str, Tensor], loss: Tensor) -> None:
        """Add a forward pass."""
        self._names = list(metrics)
        # Stays on the device: one transfer per update, not one per pass.
        self._passes.append(torch.stack([loss, *metrics.values()]).detach())

    def means(self) -> tuple[list[str], Float[Tensor, " values"]]:
        """Return the names of the metrics, and the means of the loss and of each metric."""
        return self._names, torch.stack(self._passes).mean(dim=0)

    def end(self, metrics: Mapping[str, float], lr: float) -> None:
        """Count an update that the optimizer makes."""
        for name, value in {**metrics, "optim/grad_norm": self.norm}.items():
            self._sums[name] += value
        self._losses.append(metrics.get("loss/policy", math.nan))
        self._lr = lr
        self.begin()

    @property
    def metrics(self) -> dict[str, float]:
        """Means over the updates of the step, and `loss/variance`; empty without an update."""
        if not self._losses:
            return {}
        means = {name: value / len(self._losses) for name, value in self._sums.items()}
        return means | loss_variance(self._losses) | {"optim/lr": self._lr}


@dataclass
class StepBuffer:
    """What the callbacks of one step leave for each other.

    TRL calls `EstimatorTrainer` back many times in a step, each time with other arguments. The
    trainer makes a new buffer when a step starts; each callback fills the next part of it.

    Attributes:
        control_rng: randomness of this process's verdicts, for a control; None before training.
        base_rate: the base's solve rate, for a control that needs it.
        statistics: token statistics of this process's rollouts in the last draw; see
            `TokenStatistics.stacked`.
        scored: rewards of the last draw, of all processes. Its columns are the reward, the
            verdict if the task shapes rewards, and whether the rollout has an answer if the
            estimator reads that.
        outcomes: verdicts of the completions that this process judged last.
        answered: 1 for those completions in which an answer could be read.
        reward_seconds: time spent in the verifier.
        metrics: what is known of the step before its updates.
        effect: compares the policy before and after the updates.
        update_started: clock time when the rollouts were complete.
        shares: rollouts and tokens that each forward pass stands for.
        updates: what the updates measured.
    """

    control_rng: np.random.Generator | None = None
    base_rate: float = math.nan
    statistics: Float[Tensor, "rows columns"] | None = None
    scored: Float[Tensor, "rows functions"] | None = None
    outcomes: list[float] = field(default_factory=list)
    answered: list[float] = field(default_factory=list)
    reward_seconds: float = 0.0
    metrics: dict[str, float] = field(default_factory=dict)
    effect: StepEffect | None = None
    update_started: float = 0.0
    shares: list[tuple[float, float]] = field(default_factory=list)
    updates: UpdateMeans = field(default_factory=UpdateMeans)

    def judge(
        self, run: Run, problems: Sequence[Problem], texts: Sequence[str], lengths: Sequence[float]
    ) -> list[float]:
        """Verify completions and return their rewards.

        Args:
            lengths: tokens of each completion.
        """
        started = time.perf_counter()
        assert self.control_rng is not None
        outcomes = run.control.verdicts(
            run.task.score(problems, texts), self.control_rng, self.base_rate
        )
        if reads_answers(run.estimator):
            answers = run.task.answers(problems, texts)
            self.answered = [float(answer is not None) for answer in answers]
        rewards: list[float] = run.task.rewards(
            texts, outcomes, np.array(lengths, dtype=np.float64)
        ).tolist()
        self.outcomes = outcomes.tolist()
        self.reward_seconds += time.perf_counter() - started
        return rewards

    def take_draw(self) -> tuple[Float[Tensor, "rows functions"], Float[Tensor, "rows columns"]]:
        """Return the rewards and the token statistics of the last draw, and forget them."""
        scored, statistics = self.scored, self.statistics
        assert scored is not None
        assert statistics is not None
        self.scored = self.statistics = None
        return scored, statistics
