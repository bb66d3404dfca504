"""A stopping rule: end runs that make no more progress."""

from dataclasses import dataclass
from typing import ClassVar

from advsweep.components import option
from advsweep.sweep.early_stopping import Stopping


@dataclass(kw_only=True)
class Plateau(Stopping):
    """Stops a run whose metric rose by less than `gain` from one window of steps to the next."""

    name: ClassVar[str] = "plateau"

    metric: str = option("reward/mean", help="what must rise")
    window: int = option(50, ge=1, help="steps that are averaged over")
    gain: float = option(0.0, ge=0, help="least rise between two windows")

    def is_due(self, step):
        return step >= 2 * self.window and step % self.window == 0

    def judge(self, mean, step):
        before = mean(self.metric, step - 2 * self.window + 1, step - self.window)
        now = mean(self.metric, step - self.window + 1, step)
        if before is None or now is None or now - before >= self.gain:
            return None
        return (
            f"{self.metric} went from {before:.3f} to {now:.3f} over {self.window} steps, "
            f"less than gain={self.gain:g}"
        )
