"""Curves of runs, and the windows that take a number from a curve."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

import numpy as np

from advsweep.statistics import value_at

# How many steps `@end` averages over.
END_STEPS = 10

# Steps in the running mean of a training metric in which a value is looked for.
SMOOTHED = 10

# Steps that `@slope` is per.
PER_STEPS = 100

# Steps and the values at them.
Curve = tuple[np.ndarray, np.ndarray]

NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"

_WINDOW = re.compile(
    r"(?P<first>first)(?P<steps>[1-9]\d{0,8})"
    r"|(?P<plain>end|last|min|max|argmin|argmax|slope|var|selected)"
    rf"|(?P<valued>steps_to=|share>|share<)(?P<value>{NUMBER})"
)


@dataclass(frozen=True)
class Window:
    """What a column takes from a curve.

    Attributes:
        kind: `first`, `end`, `min`, `steps_to=`, `share>`, ...; `mean` of all its values.
        value: the steps of `@firstN`, or the X of `@steps_to=X` and `@share>X`; 0 for others.
    """

    kind: str
    value: float = 0.0

    def __str__(self) -> str:
        """Return it as it stands after the @ of a column."""
        if self.kind == "first":
            return f"first{self.value:.0f}"
        if self.kind in ("steps_to=", "share>", "share<"):
            return f"{self.kind}{self.value!r}"
        return self.kind

    @property
    def label(self) -> str:
        """What follows the label of a column: `end`, or the steps, as `1-100`."""
        return f"1-{self.value:.0f}" if self.kind == "first" else str(self)

    @property
    def keeps_unit(self) -> bool:
        """Whether its number is a value of the curve, or a mean of such."""
        return self.kind in ("first", "end", "last", "min", "max", "selected")

    @property
    def is_share(self) -> bool:
        """Whether its number is a share of the steps."""
        return self.kind in ("share>", "share<")

    @property
    def is_mean_of_steps(self) -> bool:
        """Whether its number is a mean over the first or the last steps."""
        return self.kind in ("first", "end")

    def of(self, curve: Curve, end: float | None = None) -> float:
        """Return the window's number; NaN where the curve has none.

        Args:
            end: the step at which the curve ends; None for its last one.
        """
        steps, values = self._within(curve, end)
        if not len(values):
            return math.nan
        match self.kind:
            case "last":
                return float(values[-1])
            case "min" | "max":
                return float(getattr(values, self.kind)())
            case "argmin" | "argmax":
                return float(steps[getattr(values, self.kind)()])
            case "var":
                return float(values.var(ddof=1)) if len(values) > 1 else math.nan
            case "slope":
                return _slope(steps, values)
            case "steps_to=":
                return step_at((steps, values), self.value)
            case "share>":
                return float((values > self.value).mean())
            case "share<":
                return float((values < self.value).mean())
        # fsum, as the store's own means: a value does not depend on the order of its sum.
        return math.fsum(values) / len(values)

    def _within(self, curve: Curve, end: float | None) -> Curve:
        """Return the points of a curve that the window looks at."""
        steps, values = _finite(curve)
        if end is not None:
            is_before = steps <= end
            steps, values = steps[is_before], values[is_before]
        if not len(steps) or not self.is_mean_of_steps:
            return steps, values
        if self.kind == "first":
            is_inside = steps <= self.value
        else:
            last = steps[-1] if end is None else end
            is_inside = steps > last - END_STEPS
        return steps[is_inside], values[is_inside]


def parse_window(text: str) -> Window | None:
    """Parse a window as it stands after the @ of a column; return None if it cannot be one."""
    match = _WINDOW.fullmatch(text)
    if match is None:
        return None
    kind = match["first"] or match["plain"] or match["valued"]
    value = float(match["steps"] or match["value"] or 0)
    return Window(kind, value) if math.isfinite(value) else None


def _slope(steps: np.ndarray, values: np.ndarray) -> float:
    """Return the slope of the line of least squares, per 100 steps; NaN for a single step."""
    # The covariance with the steps over the variance of the steps.
    centred = steps - steps.mean()
    variance = float(centred @ centred)
    if not variance:
        return math.nan
    return PER_STEPS * float(centred @ (values - values.mean())) / variance


def step_at(curve: Curve, value: float) -> float:
    """Return the step at which a curve first reaches a value, from whichever side; NaN if never.

    The curve is a straight line between two points.
    """
    steps, values = _finite(curve)
    # A curve that starts above is mirrored, so that it comes from below.
    side = -1.0 if values.size and values[0] > value else 1.0
    return float(value_at(side * values, steps, side * value))


def smoothed(curve: Curve) -> Curve | None:
    """Return the running mean of a metric over ten steps; None for a shorter run."""
    steps, values = curve
    if len(steps) < SMOOTHED:
        return None
    window = np.ones(SMOOTHED) / SMOOTHED
    return steps[SMOOTHED - 1 :], np.convolve(values, window, "valid")


def _finite(curve: Curve) -> Curve:
    """Return the points of a curve whose value is a number."""
    steps, values = curve
    is_number = ~np.isnan(values)
    return steps[is_number], values[is_number]
