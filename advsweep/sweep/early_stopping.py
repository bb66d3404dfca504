"""Early stopping: rules as pure functions of curves, and the check that applies one of them.

A rule sees means and returns a reason or None.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import TYPE_CHECKING, ClassVar, Literal

from advsweep.components import Component, Plain, Retired, option
from advsweep.errors import counted
from advsweep.sweep.registry import STOPPINGS

if TYPE_CHECKING:
    from advsweep.store import RunRecord, Store

ACR = "collapse/acr"


@dataclass(frozen=True, kw_only=True)
class ObservedRun:
    """A run as a rule sees it.

    Attributes:
        config_hash: runs that share it are replicates.
        step: completed training steps.
        steps: planned training steps.
        mean: `mean(metric, first, last)`, over the steps from the first to the last; None if
            there is no value. Non-finite values count as missing.
    """

    config_hash: str
    step: int
    steps: int
    mean: Callable[[str, int, int], float | None]


class Stopping(Component, ABC):
    """Base of all rules. A rule keeps no state between its judgements.

    A subclass implements `is_due` and `judge`. A run that a rule ends is `pruned`, not failed.
    Rules that compare configurations by a metric build on `ComparativeRule`.
    """

    def rule(self) -> Plain | None:
        """Return the rule as the store keeps it; None if it never stops a run."""
        return self.plain()

    @abstractmethod
    def is_due(self, step: int) -> bool:
        """Return whether runs are judged after a step."""

    @abstractmethod
    def judge(self, own: ObservedRun, others: Sequence[ObservedRun], step: int) -> str | None:
        """Return why a run should stop after a step; None if it should continue.

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


@dataclass(kw_only=True)
class ComparativeRule(Stopping):
    """Base of the rules that compare configurations by a metric near the same step.

    They compare the mean over the last `window` steps, averaged over the replicates (seeds) of
    a configuration that have reached the step. Seeds are noise: a rule that judged each by
    itself would keep the lucky ones.
    """

    metric: str = option("reward/mean", help="what is compared")
    better: Literal["higher", "lower"] = option("higher", help="which values of it are better")
    window: int = option(10, ge=1, help="steps up to the present one that are averaged over")

    def judge(self, own: ObservedRun, others: Sequence[ObservedRun], step: int) -> str | None:
        by_config: dict[str, list[float]] = {}
        for run in (own, *others):
            value = run.mean(self.metric, step - self.window + 1, step)
            if value is not None and run.step >= step:
                by_config.setdefault(run.config_hash, []).append(value)
        means = {key: fmean(values) for key, values in by_config.items()}
        value = means.pop(own.config_hash, None)
        if value is None or not (reason := self.compare(value, list(means.values()))):
            return None
        first = max(1, step - self.window + 1)
        return f"{self.metric} over steps {first} to {step} is {value:.3f}, {reason}"

    @abstractmethod
    def compare(self, value: float, rest: Sequence[float]) -> str:
        """Return why a configuration should stop, by the values of the others; empty if not."""

    def is_better(self, value: float, than: float) -> bool:
        return value > than if self.better == "higher" else value < than


@dataclass(kw_only=True)
class EarlyAcr(Stopping):
    """Stops a run by its mean ACR (share of groups without a signal) over the first steps.

    "Advantage Collapse in GRPO: Diagnosis and Mitigation" regresses the final accuracy on
    the mean ACR of the first 100 steps. A run is stopped after `first` steps when its early ACR,
    the mean over the replicates (seeds) that have reached them, is above `threshold`.

    Departures: 50 steps rather than 100, as runs here have some hundred steps.
    """

    name: ClassVar[str] = "acr"
    retired: ClassVar[Retired] = {"runs": (), "margin": (), "metric": (), "last": ()}

    first: int = option(50, ge=1, help="steps that the early ACR is the mean of")
    threshold: float = option(0.95, gt=0, le=1, help="early ACR above which a run is stopped")

    def is_due(self, step: int) -> bool:
        return step == self.first

    def judge(self, own: ObservedRun, others: Sequence[ObservedRun], step: int) -> str | None:
        early = [
            value
            for run in (own, *others)
            if run.config_hash == own.config_hash and run.step >= self.first
            if (value := run.mean(ACR, 1, self.first)) is not None
        ]
        if not early or (acr := fmean(early)) <= self.threshold:
            return None
        steps = counted(self.first, "step")
        return f"ACR over the first {steps} is {acr:.3f}, above {self.threshold:g}"


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

    def is_due(self, step: int) -> bool:
        rung = self.grace
        while rung < step:
            rung *= self.factor
        return rung == step

    def compare(self, value: float, rest: Sequence[float]) -> str:
        n = len(rest) + 1
        passing = n // self.factor
        ahead = sum(self.is_better(other, than=value) for other in rest)
        if n < self.factor or ahead < passing:
            return ""
        return f"number {ahead + 1} of {n} configurations; the best {passing} go on"


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

    def is_due(self, step: int) -> bool:
        return step >= self.grace and (step - self.grace) % self.every == 0

    def compare(self, value: float, rest: Sequence[float]) -> str:
        if len(rest) < self.minimum or not self.is_better(median(rest), than=value):
            return ""
        others = counted(len(rest), "other configuration")
        return f"worse than {median(rest):.3f}, the median of {others}"


class StoppingCheck:
    """Judges one run by its rule, in comparison with all runs that share a sweep with it.

    The other runs may be on other machines: the store has their points up to the last batch.
    """

    def __init__(self, store: Store, record: RunRecord) -> None:
        self._store = store
        self._record = record
        assert record.stopping is not None
        self._rule: Stopping = STOPPINGS.build(record.stopping, where="stopping")

    def is_due(self, step: int) -> bool:
        return self._rule.is_due(step)

    def judge(self, step: int) -> str | None:
        """Return why the run should stop after a step; None if it should continue.

        The points up to this step must be in the store.
        """
        runs, run_id = self._store.runs, self._record.id
        [now] = runs.select(ids=[run_id])
        if now.stopping != self._record.stopping:
            # The run was planned again meanwhile, with another rule or none.
            return None
        # Read lazily: most rules need one metric, of the runs that have reached the step.
        means = functools.cache(functools.partial(self._store.metrics.peers_means, run_id))

        def mean(peer: int, metric: str, first: int, last: int) -> float | None:
            return means(metric, first, last).get(peer)

        observed = {
            peer.id: ObservedRun(
                config_hash=peer.config_hash,
                step=peer.step,
                steps=peer.steps,
                mean=functools.partial(mean, peer.id),
            )
            for peer in runs.peers(run_id)
        }
        own = observed.pop(run_id)
        return self._rule.judge(own, list(observed.values()), step)
