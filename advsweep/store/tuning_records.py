"""The tuning of a sweep: the values that each arm tried, their scores, and its choice.

A sweep keeps it in its spec. What the spec of a store from elsewhere holds is checked here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, Self

from advsweep.errors import first_of

# The key of a sweep's spec.
TUNE_KEY = "tune"

# Follows a choice that is the smallest or the largest value that was tried.
EDGE = " (edge)"


class ValueState(StrEnum):
    """How far the runs of an arm with one value are.

    `OPEN`: some are still to be trained. `FAILED`, `PRUNED`: some failed or were stopped early.
    `UNMEASURED`: some lack a finite value of the metric. `DROPPED`: done, and among the worse half
    on so many seeds. Only those that are `DONE` may be chosen.
    """

    OPEN = "open"
    DONE = "done"
    FAILED = "failed"
    PRUNED = "pruned"
    UNMEASURED = "unmeasured"
    DROPPED = "dropped"


@dataclass(frozen=True, kw_only=True)
class TunedValue:
    """One value of an arm's grid.

    Attributes:
        seeds: the number of tuning seeds that it is trained with so far, the first ones.
        scores: the metric of each of these, in their order; empty unless its runs are done.
    """

    value: float
    state: ValueState
    seeds: int
    scores: tuple[float, ...] = ()

    @property
    def score(self) -> float | None:
        """The mean over its tuning seeds."""
        return math.fsum(self.scores) / len(self.scores) if self.scores else None


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
    def is_at_edge(self) -> bool:
        """Whether its choice is the smallest or the largest value that was tried."""
        return self.chosen is not None and self.chosen in (
            self.grid[0].value,
            self.grid[-1].value,
        )

    @property
    def choice(self) -> str:
        """Its choice in words: `0.0004`, `0.0004 (edge)` of the grid, `none` or `open`."""
        if self.chosen is None:
            return "open" if self.is_open else "none"
        return f"{self.chosen:g}{EDGE if self.is_at_edge else ''}"


@dataclass(frozen=True, kw_only=True)
class TuningRecord:
    """The tuning of a sweep.

    Attributes:
        key: the key that was tuned.
        metric: what decided, at the last step.
        lower: whether a lower metric is better.
        seeds: the tuning seeds.
        sweep: the sweep of the tuning runs.
        halving: whether values were dropped after a part of the seeds.
        arms: in the order of the sweep.
    """

    key: str
    metric: str
    lower: bool
    seeds: tuple[int, ...]
    sweep: str
    halving: bool = False
    arms: Sequence[TunedArm]

    @property
    def is_complete(self) -> bool:
        """Whether every arm has its choice, or can have none."""
        return not any(arm.is_open for arm in self.arms)

    @property
    def grid_runs(self) -> int:
        """The number of runs that all values of all arms have with all tuning seeds."""
        return sum(len(arm.grid) for arm in self.arms) * len(self.seeds)

    @property
    def runs(self) -> int:
        """The number of runs of the values so far."""
        return sum(each.seeds for arm in self.arms for each in arm.grid)

    @property
    def title(self) -> str:
        """What was tuned, and how."""
        seeds = first_of(map(str, self.seeds), 4)
        title = f"{self.key} tuned for each arm by {self.metric} on seeds {seeds} ({self.sweep})"
        if self.halving and self.is_complete:
            return f"{title}, by halving with {self.runs} of the {self.grid_runs} runs of the grid"
        return f"{title}, by halving" if self.halving else title

    @property
    def text(self) -> str:
        """The choices in a line."""
        return f"{self.title}: {', '.join(f'{arm.name} {arm.choice}' for arm in self.arms)}"

    def plain(self) -> dict[str, Any]:
        """Return the record in JSON types."""
        return asdict(self)

    @classmethod
    def of_spec(cls, spec: Mapping[str, Any]) -> Self | None:
        """Return the tuning in the spec of a sweep; None without one that advsweep wrote."""
        try:
            node = spec[TUNE_KEY]
            arms = []
            for arm in node["arms"]:
                grid = [_read_value(each, len(node["seeds"])) for each in arm["grid"]]
                chosen = next((each.value for each in grid if each.value == arm["chosen"]), None)
                arms.append(TunedArm(name=str(arm["name"]), grid=grid, chosen=chosen))
            return cls(
                key=str(node["key"]),
                metric=str(node["metric"]),
                lower=bool(node["lower"]),
                seeds=tuple(map(int, node["seeds"])),
                sweep=str(node["sweep"]),
                halving=bool(node.get("halving", False)),
                arms=arms,
            )
        except (KeyError, TypeError, ValueError, OverflowError):
            return None


def _read_value(node: Mapping[str, Any], seeds: int) -> TunedValue:
    """Return a value of a spec.

    Args:
        seeds: the number of tuning seeds, with all of which earlier versions trained every value.

    Raises:
        KeyError, TypeError, ValueError, OverflowError: advsweep did not write it.
    """
    value = TunedValue(
        value=_number(node["value"]),
        state=ValueState(node["state"]),
        seeds=int(node.get("seeds", seeds)),
        scores=tuple(map(_number, node["scores"])),
    )
    if not len(value.scores) <= value.seeds <= seeds:
        raise ValueError(node)
    return value


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise ValueError(value)
    return value
