"""The tuning of a sweep as its spec has it: each arm's grid, scores and choice.

The runs that were trained for it are a sweep of their own, `TuningRecord.sweep`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Self

from advsweep.errors import first_of

TUNE_KEY = "tune"
"""The key of a sweep's spec."""


class ValueState(Enum):
    """How far the runs of an arm with one value are.

    `OPEN`: some are still to be trained. `FAILED`, `PRUNED`: some failed or were stopped early.
    `UNMEASURED`: some lack a finite value of the metric. Only those that are `DONE` may be chosen.
    """

    OPEN = "open"
    DONE = "done"
    FAILED = "failed"
    PRUNED = "pruned"
    UNMEASURED = "unmeasured"


@dataclass(frozen=True, kw_only=True)
class TunedValue:
    """One value of an arm's grid.

    Attributes:
        score: the mean of the metric over the tuning seeds; None unless its runs are done.
    """

    value: float
    state: ValueState
    score: float | None = None


@dataclass(frozen=True, kw_only=True)
class TunedArm:
    """The tuning of one arm.

    Attributes:
        name: the arm, such as `grpo` or `grpo group_size=8`.
        grid: its values, ascending.
        chosen: None before all its runs are over, or if none of its values may be chosen.
    """

    name: str
    grid: Sequence[TunedValue]
    chosen: float | None = None

    @property
    def is_open(self) -> bool:
        return any(each.state is ValueState.OPEN for each in self.grid)

    @property
    def choice(self) -> str:
        """Its choice in words: `0.0004`, `0.0004 (edge)` of the grid, `none` or `open`."""
        if self.chosen is None:
            return "open" if self.is_open else "none"
        at_edge = self.chosen in (self.grid[0].value, self.grid[-1].value)
        return f"{self.chosen:g}{' (edge)' if at_edge else ''}"


@dataclass(frozen=True, kw_only=True)
class TuningRecord:
    """The tuning of a sweep.

    Attributes:
        key: the key that was tuned.
        metric: what decided, at the last step.
        lower: whether a lower metric is better.
        seeds: the tuning seeds.
        sweep: the sweep of the tuning runs.
        arms: in the order of the sweep.
    """

    key: str
    metric: str
    lower: bool
    seeds: tuple[int, ...]
    sweep: str
    arms: Sequence[TunedArm]

    @property
    def is_over(self) -> bool:
        """Whether every arm has its choice, or can have none."""
        return not any(arm.is_open for arm in self.arms)

    @property
    def title(self) -> str:
        """What was tuned, and how."""
        seeds = first_of(map(str, self.seeds), 4)
        return f"{self.key} tuned for each arm by {self.metric} on seeds {seeds} ({self.sweep})"

    @property
    def text(self) -> str:
        """The choices in a line."""
        return f"{self.title}: {', '.join(f'{arm.name} {arm.choice}' for arm in self.arms)}"

    def plain(self) -> dict[str, Any]:
        """Return the record in JSON types."""
        return {
            "key": self.key,
            "metric": self.metric,
            "lower": self.lower,
            "seeds": list(self.seeds),
            "sweep": self.sweep,
            "arms": [
                {
                    "name": arm.name,
                    "chosen": arm.chosen,
                    "grid": [
                        {"value": each.value, "state": each.state.value, "score": each.score}
                        for each in arm.grid
                    ],
                }
                for arm in self.arms
            ],
        }

    @classmethod
    def of_spec(cls, spec: Mapping[str, Any]) -> Self | None:
        """Return the tuning in the spec of a sweep; None without one that advsweep wrote."""
        try:
            return cls._read(spec[TUNE_KEY])
        except (KeyError, TypeError, ValueError):
            return None

    @classmethod
    def _read(cls, node: Mapping[str, Any]) -> Self:
        arms = [
            TunedArm(
                name=str(arm["name"]),
                grid=[
                    TunedValue(
                        value=_number(each["value"]),
                        state=ValueState(each["state"]),
                        score=None if each["score"] is None else _number(each["score"]),
                    )
                    for each in arm["grid"]
                ],
                chosen=None if arm["chosen"] is None else _number(arm["chosen"]),
            )
            for arm in node["arms"]
        ]
        if not all(arm.grid for arm in arms):
            raise ValueError("an arm without a grid")
        return cls(
            key=str(node["key"]),
            metric=str(node["metric"]),
            lower=bool(node["lower"]),
            seeds=tuple(int(seed) for seed in node["seeds"]),
            sweep=str(node["sweep"]),
            arms=arms,
        )


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise ValueError(value)
    return value
