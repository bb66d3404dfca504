"""Early stopping: rules as pure functions of curves, and the check that applies one of them.

A rule sees means and returns a reason or None.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from statistics import fmean
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from advsweep.components import Component, Plain, option
from advsweep.errors import counted
from advsweep.sweep.registry import STOPPINGS

if TYPE_CHECKING:
    from advsweep.store import RunRecord, Store
    from advsweep.store.owners import AnyRow

ACR = "collapse/acr"


@dataclass(frozen=True, kw_only=True)
class ObservedRun:
    """A run as a rule sees it.

    Attributes:
        config_hash: runs that share it are replicates.
        step: completed training steps.
        steps: planned training steps.
        done: true if the last of them is completed.
        mean: `mean(metric, first, last)`, over the steps from the first to the last; None if
            there is no value. Non-finite values count as missing.
    """

    config_hash: str
    step: int
    steps: int
    done: bool = False
    mean: Callable[[str, int, int], float | None]


class Stopping(Component, ABC):
    """Base of all rules. A rule keeps no state between its judgements.

    A subclass implements `is_due` and `judge`. A run that a rule ends is `pruned`, not failed.
    Rules that compare configurations by a metric build on `ComparativeRule`.
    """

    @property
    def least_configurations(self) -> int:
        """The number of configurations below which no run is stopped."""
        return 1

    def rule(self) -> Plain | None:
        """Returns the rule as the store keeps it; None if it never stops a run."""
        return self.plain()

    @abstractmethod
    def is_due(self, step: int) -> bool:
        """Returns whether runs are judged after a step."""

    @abstractmethod
    def judge(self, own: ObservedRun, others: Sequence[ObservedRun], step: int) -> str | None:
        """Returns why a run should stop after a step; None if it should continue.

        Args:
            own: the run, with its metrics up to this step.
            others: the other runs of its sweeps, in any state.
        """


@dataclass(kw_only=True)
class NoStopping(Stopping):
    """No early stopping: every run trains to its last step."""

    name: ClassVar[str] = "none"

    def rule(self) -> Plain | None:
        return None

    def is_due(self, step: int) -> bool:
        return False

    def judge(self, own: ObservedRun, others: Sequence[ObservedRun], step: int) -> str | None:
        return None


class MetricDirection(Enum):
    """Which values of a metric are better."""

    HIGHER = "higher"
    LOWER = "lower"


@dataclass(kw_only=True)
class ComparativeRule(Stopping):
    """Base of the rules that compare configurations by a metric near the same step.

    They compare the mean over the last `window` steps, averaged over the replicates (seeds) of
    a configuration that have reached the step. Seeds are noise: a rule that judged each by
    itself would keep the lucky ones.
    """

    metric: str = option("reward/mean", help="what is compared")
    better: MetricDirection = option(MetricDirection.HIGHER, help="which values of it are better")
    window: int = option(10, ge=1, help="steps up to the present one that are averaged over")

    def compared(
        self, own: ObservedRun, others: Sequence[ObservedRun], step: int
    ) -> tuple[float, list[float]] | None:
        """Compares the run's configuration with the others at a step.

        Returns:
            Its value, and those of the others that have one; None if it has none itself.
        """
        by_config: dict[str, list[float]] = {}
        for run in (own, *others):
            value = run.mean(self.metric, step - self.window + 1, step)
            if value is not None and run.step >= step:
                by_config.setdefault(run.config_hash, []).append(value)
        means = {key: fmean(values) for key, values in by_config.items()}
        value = means.pop(own.config_hash, None)
        return None if value is None else (value, list(means.values()))

    def is_better(self, value: float, than: float) -> bool:
        return value > than if self.better is MetricDirection.HIGHER else value < than

    def where(self, step: int) -> str:
        """Returns the metric and the steps that it is averaged over, for a reason."""
        return f"{self.metric} over steps {max(1, step - self.window + 1)} to {step}"


@dataclass(kw_only=True)
class EarlyAcr(Stopping):
    """Stops a run by its mean ACR (share of groups without a signal) over the first steps.

    "Advantage Collapse in GRPO: Diagnosis and Mitigation" regresses the final accuracy on
    the mean ACR of the first 100 steps. A run is stopped after `first` steps

    - when its early ACR is above `threshold`, or
    - when it is predicted to stay below the median of the finished runs: the upper end of
      the 95 % prediction interval of that regression, over the runs of its sweeps that are
      done, is below the median of their final values by more than `margin`.

    Because of the interval, a regression that explains little stops nothing. The early ACR of a
    run is the mean over the replicates (seeds) that have reached `first`.

    Departures: 50 steps rather than 100, as runs here have some hundred steps; the final value
    is the mean of a training metric, unless `metric` names that of an evaluation.
    """

    name: ClassVar[str] = "acr"

    first: int = option(50, ge=1, help="steps that the early ACR is the mean of")
    threshold: float = option(0.95, gt=0, le=1, help="early ACR above which a run is stopped")
    runs: int = option(10, ge=0, help="finished runs that a prediction takes; 0: no prediction")
    margin: float = option(0.0, ge=0, help="how far below the median the prediction must be")
    metric: str = option("reward/mean", help="what is predicted; higher is better")
    last: int = option(10, ge=1, help="steps at the end that its final value is the mean of")

    def is_due(self, step: int) -> bool:
        return step == self.first

    def judge(self, own: ObservedRun, others: Sequence[ObservedRun], step: int) -> str | None:
        early = [
            value
            for run in (own, *others)
            if run.config_hash == own.config_hash and run.step >= self.first
            if (value := self._early(run)) is not None
        ]
        if not early:
            return None
        acr = float(np.mean(early))
        where = f"ACR over the first {counted(self.first, 'step')} is {acr:.3f}"
        if acr > self.threshold:
            return f"{where}, above {self.threshold:g}"
        if forecast := self._predicted_low(acr, others):
            return f"{where}: {forecast}"
        return None

    def _early(self, run: ObservedRun) -> float | None:
        return run.mean(ACR, 1, self.first)

    def _predicted_low(self, acr: float, others: Sequence[ObservedRun]) -> str | None:
        from advsweep.statistics import predict

        points = [
            (x, y)
            for run in others
            if run.done
            and (x := self._early(run)) is not None
            and (y := run.mean(self.metric, run.steps - self.last + 1, run.steps)) is not None
        ]
        # A line with a residual variance needs three points.
        if self.runs == 0 or len(points) < max(3, self.runs):
            return None
        xs, ys = zip(*points, strict=True)
        forecast, median = predict(xs, ys, acr), float(np.median(ys))
        if not forecast.high < median - self.margin:
            return None
        return (
            f"{self.metric} is predicted to end at {forecast.mean:.3f}, at most "
            f"{forecast.high:.3f}, where the median of {len(points)} finished runs is {median:.3f}"
        )


@dataclass(kw_only=True)
class Asha(ComparativeRule):
    """Lets the best 1/`factor` of the configurations pass each rung.

    Rungs are at `grace`, `grace · factor`, `grace · factor²`, ... steps. Of the n
    configurations that have reached a rung, the best max(1, ⌊n/factor⌋) continue; while
    n < `factor` all do. Li et al., "A System for Massively Parallel Hyperparameter Tuning"
    (2020), arXiv:1810.05934.

    Departures: a run is stopped at a rung rather than paused, so that early runs pass where
    later ones would have held them back; replicates count as one configuration.
    """

    name: ClassVar[str] = "asha"

    grace: int = option(25, ge=1, help="steps to the first rung")
    factor: int = option(3, ge=2, help="one of so many passes a rung; the next is so much later")

    @property
    def least_configurations(self) -> int:
        return self.factor

    def is_due(self, step: int) -> bool:
        rung = self.grace
        while rung < step:
            rung *= self.factor
        return rung == step

    def judge(self, own: ObservedRun, others: Sequence[ObservedRun], step: int) -> str | None:
        compared = self.compared(own, others, step)
        if compared is None:
            return None
        value, rest = compared
        n = len(rest) + 1
        if n < self.factor:
            return None
        passing = n // self.factor
        ahead = sum(self.is_better(other, than=value) for other in rest)
        if ahead < passing:
            return None
        return (
            f"{self.where(step)} is {value:.3f}, number {ahead + 1} of {n} configurations; "
            f"the best {passing} go on"
        )


@dataclass(kw_only=True)
class MedianRule(ComparativeRule):
    """Stops a run whose configuration is worse than the median of the others at its step.

    Golovin et al., "Google Vizier" (2017), sec. 3.2.

    Departures: both sides are means over the last `window` steps, where Vizier compares the
    best value so far with running averages from the start; replicates count as one.
    """

    name: ClassVar[str] = "median"

    grace: int = option(50, ge=1, help="steps that every run may do")
    every: int = option(25, ge=1, help="steps between two judgements")
    minimum: int = option(4, ge=1, help="other configurations that a judgement takes")

    @property
    def least_configurations(self) -> int:
        return self.minimum + 1

    def is_due(self, step: int) -> bool:
        return step >= self.grace and (step - self.grace) % self.every == 0

    def judge(self, own: ObservedRun, others: Sequence[ObservedRun], step: int) -> str | None:
        compared = self.compared(own, others, step)
        if compared is None:
            return None
        value, rest = compared
        if len(rest) < self.minimum:
            return None
        median = float(np.median(rest))
        if not self.is_better(median, than=value):
            return None
        return (
            f"{self.where(step)} is {value:.3f}, worse than {median:.3f}, the median of "
            f"{counted(len(rest), 'other configuration')}"
        )


@dataclass(frozen=True)
class StoppingCheck:
    """Judges one run by a rule, in comparison with all runs that share a sweep with it.

    The other runs may be on other machines: the store has their points up to the last batch.
    """

    store: Store
    run_id: int
    rule: Stopping

    @classmethod
    def of(cls, store: Store, record: RunRecord) -> StoppingCheck | None:
        """Makes the check of a run; None if no rule may stop it."""
        if record.stopping is None:
            return None
        return cls(store, record.id, STOPPINGS.build(record.stopping, where="stopping"))

    def is_due(self, step: int) -> bool:
        return self.rule.is_due(step)

    def judge(self, step: int) -> str | None:
        """Returns why the run should stop after a step; None if it should continue.

        The points up to this step must be in the store.
        """
        [own] = self.store.runs.select(ids=[self.run_id])
        if own.stopping != self.rule.plain():
            # The run was planned again meanwhile, with another rule or none.
            return None
        # Read lazily: most rules need one metric, of the runs that have reached the step.
        means = functools.cache(functools.partial(self.store.metrics.peers_means, self.run_id))
        runs = {peer.id: _observed(peer, means) for peer in self.store.runs.peers(self.run_id)}
        own_curve = runs.pop(self.run_id)
        return self.rule.judge(own_curve, list(runs.values()), step)


def _observed(peer: AnyRow, means: Callable[[str, int, int], Mapping[int, float]]) -> ObservedRun:
    """Returns a run whose means are read, with those of all others, at the first use."""
    return ObservedRun(
        config_hash=peer.config_hash,
        step=peer.step,
        steps=peer.steps,
        done=peer.done,
        mean=lambda metric, first, last: means(metric, first, last).get(peer.id),
    )
