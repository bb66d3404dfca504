"""The tuning of a key for each arm of a sweep: `tune` in a sweep file.

sweep:
  seeds: 8
  tune: {key: optimizer.lr, values: [1e-4, 2e-4, 4e-4]}
  blocks: [{estimator: [grpo, fade]}]
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from advsweep.components import Component, option
from advsweep.config.space import SEED
from advsweep.errors import ConfigError
from advsweep.tasks.controls import CONTROL

FIRST_SEED = 1000
"""Where tuning seeds begin, so that few sweeps have them as seeds of their own."""


@dataclass(kw_only=True)
class Tune(Component):
    """How each arm of a sweep finds its own value of a key.

    An arm is trained with each value and all tuning seeds, and the value with the best mean is
    its choice; of equals the smallest. While that is the least or the greatest value, the grid
    grows by one more beyond it, as far apart as the two at that edge.
    """

    name: ClassVar[str] = "tune"

    key: str = option("optimizer.lr", help="the key that is tuned for each arm")
    values: tuple[int | float, ...] = option(
        gt=0, help="the grid of each arm, such as [1e-4, 2e-4, 4e-4]; a factor of 2 is usual"
    )
    extend: int = option(
        2, ge=0, help="most values that an arm's grid grows by while its best is at an edge"
    )
    seeds: int | tuple[int, ...] = option(
        3, ge=0, help="how many tuning seeds, counted from 1000, or a list of seeds"
    )
    metric: str = option("pass@1", help="the metric of the last step that decides")
    lower: bool = option(False, help="whether a lower metric is better")
    set: dict[str, Any] = option(
        {}, help="keys that have another value in tuning runs, such as steps or a split of data"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self.values = tuple(sorted({*self.values}))
        if len(self.values) < 2:
            raise ConfigError(
                f"values: expected two or more different values to choose from, got "
                f"{len(self.values)}"
            )
        for key in (self.key, SEED, CONTROL):
            if key in self.set:
                raise ConfigError(f"set.{key}: expected a key that tuning leaves alone")
        if not self.tuning_seeds:
            raise ConfigError("seeds: expected at least one seed, got none")

    @property
    def tuning_seeds(self) -> tuple[int, ...]:
        if isinstance(self.seeds, int):
            return tuple(range(FIRST_SEED, FIRST_SEED + self.seeds))
        return tuple(dict.fromkeys(self.seeds))

    def best(self, scores: Mapping[float, float | None]) -> float | None:
        """Return the value with the best score, of equals the smallest; None without a score."""
        sign = -1 if self.lower else 1
        known = [(sign * score, -value) for value, score in scores.items() if score is not None]
        return -max(known)[1] if known else None

    def beyond(self, grid: Sequence[float], best: float) -> float | None:
        """Return the next value beyond the edge of a grid that the best is at.

        None if the best is within the grid.

        Args:
            grid: ascending.
        """
        for edge, inner in ((grid[0], grid[1]), (grid[-1], grid[-2])):
            if best == edge:
                # 1e-4 and 3e-4 are followed by 9e-4, not by 8.999999999999999e-4.
                value = float(f"{edge * edge / inner:.12g}")
                whole = isinstance(edge, int) and isinstance(inner, int) and value.is_integer()
                return int(value) if whole else value
        return None
