"""The contract of a rule that stops runs early: means in, a reason or None out."""

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
    """What a rule sees of one run.

    Attributes:
        config_hash: runs that share it are replicates.
        step: training steps done.
        steps: training steps that are planned.
        done: true when it was trained to the last of them.
        mean: the mean of a metric over the steps from the first to the last that are given;
            None where there is no number. Steps whose value is not finite are left out.
    """

    config_hash: str
    step: int
    steps: int
    done: bool = False
    mean: Callable[[str, int, int], float | None]


class Stopping(Component, ABC):
    """Base of all rules. A rule keeps nothing between its judgements."""

    @property
    def least_configurations(self) -> int:
        """How many configurations there must be for any run to be stopped."""
        return 1

    def rule(self) -> Plain | None:
        """The rule as the store keeps it; None where nothing is ever stopped."""
        return self.plain()

    @abstractmethod
    def is_due(self, step: int) -> bool:
        """Whether runs are judged after a step."""

    @abstractmethod
    def judge(self, own: ObservedRun, others: Sequence[ObservedRun], step: int) -> str | None:
        """Why a run is to be stopped after a step; None to let it go on.

        Args:
            own: the run, with what it measured up to this step.
            others: the other runs of its sweeps, whatever became of them.
        """


@dataclass(kw_only=True)
class NoStopping(Stopping):
    """No early stopping: every run goes to its last step."""

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

    What is compared is the mean over the last `window` steps, and of that the mean over the
    replicates (seeds) of a configuration that have got so far: seeds are noise, and a rule
    that judged each by itself would keep the lucky ones.
    """

    metric: str = option("reward/mean", help="what is compared")
    better: MetricDirection = option(MetricDirection.HIGHER, help="which values of it are better")
    window: int = option(10, ge=1, help="steps up to the present one that are averaged over")

    def compared(
        self, own: ObservedRun, others: Sequence[ObservedRun], step: int
    ) -> tuple[float, list[float]] | None:
        """The run's configuration and the other configurations at a step.

        Returns:
            Its value and those of the others that have one; None where it has none itself.
        """
        by_config: dict[str, list[float]] = {}
        for trial in (own, *others):
            value = trial.mean(self.metric, step - self.window + 1, step)
            if value is not None and trial.step >= step:
                by_config.setdefault(trial.config_hash, []).append(value)
        means = {key: fmean(values) for key, values in by_config.items()}
        value = means.pop(own.config_hash, None)
        return None if value is None else (value, list(means.values()))

    def is_better(self, value: float, than: float) -> bool:
        return value > than if self.better is MetricDirection.HIGHER else value < than

    def where(self, step: int) -> str:
        """The metric and the steps that it is averaged over, for a reason."""
        return f"{self.metric} over steps {max(1, step - self.window + 1)} to {step}"
