"""Early stopping: rules as pure functions of means, and the check that applies one to a run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, ClassVar

from advsweep.components import Component, Plain, Retired, option
from advsweep.errors import counted
from advsweep.names import ACR
from advsweep.sweep.registry import STOPPINGS

if TYPE_CHECKING:
    from advsweep.store import RunRecord, Store


# `mean(metric, first, last)` is the mean over the steps from the first to the last, and over the
# replicates (seeds) that have reached the last. It is None without a value; non-finite values
# count as missing.
Mean = Callable[[str, int, int], "float | None"]


class Stopping(Component):
    """Base of all rules. A rule keeps no state between its judgements.

    A subclass implements `is_due` and `judge`. A run that a rule ends is `pruned`, not failed.
    """

    def rule(self) -> Plain | None:
        """Return the rule as the store keeps it; None if it never stops a run."""
        return self.plain()

    def is_due(self, step: int) -> bool:
        """Return whether runs are judged after a step; by default they never are."""
        return False

    def judge(self, mean: Mean, step: int) -> str | None:
        """Return why a run should stop after a step; None if it should continue.

        Args:
            mean: means of the metrics of the run and its replicates, up to this step.
        """
        return None


@dataclass(kw_only=True)
class NoStopping(Stopping):
    """No early stopping: every run trains to its last step."""

    name: ClassVar[str] = "none"

    def rule(self) -> Plain | None:
        return None


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

    def judge(self, mean: Mean, step: int) -> str | None:
        acr = mean(ACR, 1, self.first)
        if acr is None or acr <= self.threshold:
            return None
        steps = counted(self.first, "step")
        return f"ACR over the first {steps} is {acr:.3f}, above {self.threshold:g}"


class StoppingCheck:
    """Judges one run by its rule.

    Its replicates may be on other machines: the store has their points up to the last batch.

    Raises:
        UnknownNameError: no rule has the name that the store holds.
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
        [now] = self._store.runs.select(ids=[self._record.id])
        if now.stopping != self._record.stopping:
            # The run was planned again meanwhile, with another rule or none.
            return None
        return self._rule.judge(self._mean, step)

    def _mean(self, metric: str, first: int, last: int) -> float | None:
        means = self._store.metrics.replicate_means(self._record.id, metric, first, last)
        return fmean(means) if means else None
