"""Windows: one number from a curve, such as its slope or the step at which it reaches a value.

    @firstN        mean over the first N steps
    @end           mean over the last 10 steps
    @min, @max     the least and the largest value
    @argmin, @argmax   the first step that has it
    @slope         slope of the line of least squares, per 100 steps
    @var           variance of the values, with n - 1
    @steps_to=X    the first step at X, from whichever side
    @share>X, @share<X   the share of the steps above, or below X

A curve has a point per step (a training metric) or per evaluation. Values that are not a number
are left out, of `@share` too.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

import numpy as np

from advsweep.statistics import value_at

if TYPE_CHECKING:
    from jaxtyping import Float, Int

Curve = tuple[np.ndarray, np.ndarray]
"""Steps and the values at them."""

END_STEPS = 10
"""How many steps `@end` averages over."""

SMOOTHED = 10
"""Steps in the running mean of a training metric in which a value is looked for."""

PER_STEPS = 100
"""Steps that `@slope` is per."""

NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"

_PATTERN = re.compile(
    r"(?P<kind>first)(?P<steps>[1-9]\d{0,8})|(?P<plain>end|min|max|argmin|argmax|slope|var)"
    rf"|(?P<valued>steps_to=|share>|share<)(?P<value>{NUMBER})"
)


class WindowKind(Enum):
    """What a window takes from a curve."""

    FIRST = "first"
    END = "end"
    MIN = "min"
    MAX = "max"
    ARGMIN = "argmin"
    ARGMAX = "argmax"
    SLOPE = "slope"
    VAR = "var"
    STEPS_TO = "steps_to="
    ABOVE = "share>"
    BELOW = "share<"

    @property
    def keeps_unit(self) -> bool:
        """Whether its number is a value of the curve, or a mean of such."""
        return self in (WindowKind.FIRST, WindowKind.END, WindowKind.MIN, WindowKind.MAX)

    @property
    def is_share(self) -> bool:
        return self in (WindowKind.ABOVE, WindowKind.BELOW)


@dataclass(frozen=True)
class Window:
    """A window on a curve.

    Attributes:
        value: the steps of `@firstN`, or the X of `@steps_to=X` and `@share>X`; 0 for others.
    """

    kind: WindowKind
    value: float = 0.0

    def of(self, curve: Curve, end: float | None = None) -> float:
        """Returns the window's number; NaN where the curve has none.

        Args:
            end: the step at which the curve ends; None for its last one. Later points do not
                count.
        """
        steps, values = _finite(curve)
        if end is not None:
            steps, values = steps[steps <= end], values[steps <= end]
        if self.kind is WindowKind.FIRST:
            values = values[steps <= self.value]
        elif self.kind is WindowKind.END and len(steps):
            values = values[steps > (steps[-1] if end is None else end) - END_STEPS]
        if not len(values):
            return math.nan
        if self.kind is WindowKind.SLOPE:
            return _slope(steps, values)
        if self.kind is WindowKind.STEPS_TO:
            return step_at((steps, values), self.value)
        return self._of_values(steps, values)

    def _of_values(self, steps: Int[np.ndarray, " n"], values: Float[np.ndarray, " n"]) -> float:
        match self.kind:
            case WindowKind.MIN:
                return float(values.min())
            case WindowKind.MAX:
                return float(values.max())
            case WindowKind.ARGMIN:
                return float(steps[values.argmin()])
            case WindowKind.ARGMAX:
                return float(steps[values.argmax()])
            case WindowKind.VAR:
                return float(values.var(ddof=1)) if len(values) > 1 else math.nan
            case WindowKind.ABOVE:
                return float((values > self.value).mean())
            case WindowKind.BELOW:
                return float((values < self.value).mean())
            case _:
                # fsum, as the store's own means: a value does not depend on the order of its sum.
                return math.fsum(values) / len(values)


def parse_window(text: str) -> Window | None:
    """Parses a window, without its `@`; returns None if it cannot be one."""
    match = _PATTERN.fullmatch(text)
    if match is None:
        return None
    if match["kind"]:
        return Window(WindowKind.FIRST, float(match["steps"]))
    if match["plain"]:
        return Window(WindowKind(match["plain"]))
    value = float(match["value"])
    return Window(WindowKind(match["valued"]), value) if math.isfinite(value) else None


def step_at(curve: Curve, value: float) -> float:
    """Returns the step at which a curve first reaches a value, from whichever side.

    The curve is a straight line between two points.

    Returns:
        NaN for a curve that never reaches it.
    """
    steps, values = _finite(curve)
    # A curve that starts above is mirrored, so that it comes from below.
    side = -1.0 if values.size and values[0] > value else 1.0
    return float(value_at(side * values, steps, side * value))


def smoothed(curve: Curve) -> Curve | None:
    """Returns the running mean of a metric over ten steps; None for a shorter run."""
    steps, values = curve
    if len(steps) < SMOOTHED:
        return None
    window = np.ones(SMOOTHED) / SMOOTHED
    return steps[SMOOTHED - 1 :], np.convolve(values, window, "valid")


def _finite(curve: Curve) -> Curve:
    steps, values = curve
    known = ~np.isnan(values)
    return steps[known], values[known]


def _slope(steps: Int[np.ndarray, " n"], values: Float[np.ndarray, " n"]) -> float:
    centred = steps - steps.mean()
    spread = float(centred @ centred)
    return PER_STEPS * float(centred @ (values - values.mean())) / spread if spread else math.nan
