"""What a column is a number of: metrics of the training, stored analyses, and costs.

`Source` is the contract of all kinds of columns; those of evaluations are in
`evaluation_sources.py`. A source is a value: two columns of equal sources differ only in their
window and their cutoff.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from advsweep.names import ROLLOUT_COST, STEP_SECONDS, TOKEN_COST
from advsweep.report.data.analyses import AnalysisColumns, analysis_curves
from advsweep.report.data.metrics import CatalogueEntry, MetricDirection, find_metric
from advsweep.report.data.windows import END_STEPS, Curve, Window, smoothed

if TYPE_CHECKING:
    from advsweep.report.data.cutoffs import CutoffSteps
    from advsweep.report.data.run_data import RunData

# What a training may spend.
COSTS = ("steps", "rollouts", "tokens", "seconds")

_SHARE = (0.0, 1.0)
_ALL_STEPS = Window("mean")
_NO_CURVE = (np.array([]), np.array([]))


class Source(ABC):
    """What a column is a number of, in each run.

    It has a curve of each run along its training, and a number of each run: at the end of the
    training, in a window on the curve, or where the run comes to a cutoff.
    """

    @property
    @abstractmethod
    def name(self) -> str:
        """The name in the catalogue of metrics, such as `pass@8`."""

    def __str__(self) -> str:
        """Return the source as it stands in the name of a column, such as `pass@8[level=3]`."""
        return self.name

    @property
    def entry(self) -> CatalogueEntry | None:
        """What the catalogue of metrics says of it; None if it is not there."""
        return find_metric(self.name)

    @property
    def direction(self) -> MetricDirection:
        """Which values are better."""
        return MetricDirection.NEITHER if self.entry is None else self.entry.better

    @property
    def range(self) -> tuple[float, float] | None:
        """The bounds of its values if they are shares; None for others."""
        return _SHARE if self.entry is not None and self.entry.is_bounded else None

    @property
    def label(self) -> str:
        """What tables and figures call it: the catalogue's words, or else its name."""
        if self.entry is None or not self.entry.header:
            return str(self)
        return self._fill(self.entry.header)

    def _fill(self, words: str) -> str:
        """Return the words of the catalogue with the number of the column."""
        return words

    def label_in(self, window: Window) -> str:
        """Return what tables and figures call it in a window: `ACR end`, `reward/std@end`."""
        if self.label == str(self):
            return f"{self}@{window}"
        return f"{self.label} {window.label}"

    def takes(self, window: Window) -> bool:
        """Tell whether its curve can have a window."""
        return window.kind != "selected"

    @property
    def has_curve(self) -> bool:
        """Whether it has values within the training, as a cutoff takes."""
        return True

    def needs_curve(self, window: Window | None) -> bool:
        """Tell whether a window needs the values within the training.

        Models that no run trained have none.
        """
        return window is not None

    @abstractmethod
    def read_curves(self, data: RunData) -> Mapping[int, Curve]:
        """Read the curve of each run that has one, by the run's id."""

    @abstractmethod
    def number(self, curve: Curve, window: Window | None, step: float | None = None) -> float:
        """Return the number of a curve.

        Args:
            window: what of the curve; None for its value, or a metric's mean.
            step: where the curve ends, which may be between two points; None for its last one.
        """

    def values(self, data: RunData, window: Window | None) -> Mapping[int, float]:
        """Return the number of each run at the end of its training, by the run's id."""
        curves = data.curves(self)
        return {run_id: self.number(curve, window) for run_id, curve in curves.items()}

    def values_at(
        self, data: RunData, window: Window | None, at: CutoffSteps
    ) -> Mapping[int, float]:
        """Return the number of each run as it was where it came to a cutoff."""
        steps = at.usable
        return {
            run_id: self.number(curve, window, steps[run_id])
            for run_id, curve in data.curves(self).items()
            if run_id in steps
        }


@dataclass(frozen=True)
class Metric(Source):
    """A metric of the training's steps: their mean.

    Attributes:
        metric: its name, such as `collapse/acr`.
    """

    metric: str

    @property
    def name(self) -> str:
        return self.metric

    def needs_curve(self, window: Window | None) -> bool:
        # The store itself has means over the first and the last steps.
        return window is not None and not window.is_mean_of_steps

    def read_curves(self, data: RunData) -> Mapping[int, Curve]:
        return data.store.metrics.series(data.ids, self.metric)

    def number(self, curve: Curve, window: Window | None, step: float | None = None) -> float:
        window = window or _ALL_STEPS
        if window.kind == "steps_to=":
            # A single step would decide: metrics of the training are noisy.
            curve = smoothed(curve) or _NO_CURVE
        return window.of(curve, None if step is None else math.floor(step))

    def values(self, data: RunData, window: Window | None) -> Mapping[int, float]:
        if self.needs_curve(window):
            return super().values(data, window)
        first = int(window.value) if window is not None and window.kind == "first" else None
        last = END_STEPS if window is not None and window.kind == "end" else None
        return data.store.metrics.means(data.ids, self.metric, first=first, last=last)


@dataclass(frozen=True)
class Analysis(Metric):
    """A number of stored analyses, which another package adds: that of the last analysed step.

    Windows are over the analysed steps.

    Attributes:
        columns: the package's columns.
    """

    columns: AnalysisColumns

    def read_curves(self, data: RunData) -> Mapping[int, Curve]:
        return analysis_curves(data.store, data.ids, self.columns, self.metric)

    def number(self, curve: Curve, window: Window | None, step: float | None = None) -> float:
        if window is None and step is None:
            return float(curve[1][-1])
        return super().number(curve, window, step)

    def values(self, data: RunData, window: Window | None) -> Mapping[int, float]:
        return Source.values(self, data, window)


@dataclass(frozen=True)
class Total(Source):
    """A cost, summed up over the training.

    `rollouts` and `tokens` include those that are discarded; `rollouts` also those of the
    reference. `seconds` are without evaluations and checkpoints. Runs that did not record a cost
    have no number, and neither have imported runs whose sizes are not known.

    Attributes:
        cost: one of `COSTS`.
    """

    cost: str

    @property
    def name(self) -> str:
        return f"total/{self.cost}"

    def _fill(self, words: str) -> str:
        return words.format(cost=self.cost)

    def takes(self, window: Window) -> bool:
        return False

    def read_curves(self, data: RunData) -> Mapping[int, Curve]:
        """Read each run's cost after each of its steps, from 0 at step 0."""
        match self.cost:
            case "steps":
                return _count_steps(data)
            case "tokens":
                tokens = data.store.metrics.series(data.ids, TOKEN_COST)
                return {run_id: _summed(*curve) for run_id, curve in tokens.items()}
            case "rollouts":
                return _count_rollouts(data)
            case _:
                return _count_seconds(data)

    def number(self, curve: Curve, window: Window | None, step: float | None = None) -> float:
        if step is None:
            return float(curve[1][-1])
        return float(np.interp(step, *curve))


def _count_steps(data: RunData) -> dict[int, Curve]:
    return {run.id: _summed(np.arange(1, run.steps + 1), np.ones(run.steps)) for run in data.runs}


def _count_rollouts(data: RunData) -> dict[int, Curve]:
    # The metric is relative to the rollouts of one step without resampling.
    sizes: dict[int, int] = {}
    for run in data.runs:
        factors: list[Any] = [run.config.get(key) for key in ("prompts_per_step", "group_size")]
        if all(isinstance(factor, int) and factor > 0 for factor in factors):
            sizes[run.id] = math.prod(factors)
    relative = data.store.metrics.series(list(sizes), ROLLOUT_COST)
    return {
        run_id: _summed(steps, values * sizes[run_id])
        for run_id, (steps, values) in relative.items()
    }


def _count_seconds(data: RunData) -> dict[int, Curve]:
    parts = [data.store.metrics.series(data.ids, name) for name in STEP_SECONDS]
    curves: dict[int, Curve] = {}
    for run_id in set.intersection(*(set(part) for part in parts)):
        steps = parts[0][run_id][0]
        if all(np.array_equal(part[run_id][0], steps) for part in parts):
            seconds = np.sum([part[run_id][1] for part in parts], axis=0)
            curves[run_id] = _summed(steps, seconds)
    return curves


def _summed(steps: np.ndarray, values: np.ndarray) -> Curve:
    return np.concatenate([[0], steps]), np.concatenate([[0.0], np.cumsum(values)])


@dataclass(frozen=True)
class Reached(Source):
    """Whether a run comes to its column's cutoff: 1, or 0."""

    @property
    def name(self) -> str:
        return "reached"

    @property
    def direction(self) -> MetricDirection:
        return MetricDirection.NEITHER

    @property
    def range(self) -> tuple[float, float] | None:
        return _SHARE

    def takes(self, window: Window) -> bool:
        return False

    @property
    def has_curve(self) -> bool:
        return False

    def read_curves(self, data: RunData) -> Mapping[int, Curve]:
        return {}

    def number(self, curve: Curve, window: Window | None, step: float | None = None) -> float:
        return math.nan

    def values_at(
        self, data: RunData, window: Window | None, at: CutoffSteps
    ) -> Mapping[int, float]:
        return {run_id: float(not math.isnan(step)) for run_id, step in at.steps.items()}
