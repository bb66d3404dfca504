"""The contract of an early-stopping rule: means in, a reason or None out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from statistics import fmean
from typing import ClassVar

from advsweep.components import Component, Plain, option


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
