"""Spaces of runs: a union of blocks, each a grid with zipped values and conditions.

A point of a space is an assignment: the group members and values that set one run apart from the
defaults. `advsweep.config.sweep_file` reads a space from YAML and overrides, and
`advsweep.config.compose` turns each point into a config.

`Tune`, in a sweep file, lets each arm find its own value of a key, and `Race` trains only the seeds
that settle something:

    sweep:
      seeds: 8
      tune: {key: optimizer.lr, values: [1e-4, 2e-4, 4e-4]}
      race: {metric: pass@1, margin: 0.02, most: 12}
      blocks: [{estimator: [grpo, fade]}]
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from advsweep.components import Component, option
from advsweep.errors import ConfigError, UnknownNameError, nearest
from advsweep.tasks.controls import CONTROL, Control

# Group members and values by dotted key; a value may be `Delete`.
Assignment = dict[str, Any]

SEED = "seed"

_METHODS = ("estimator", "method")

# Assignments of which each run has one: the values of a key, or of keys zipped together.
Dimension = Sequence[Assignment]


@dataclass(frozen=True)
class Delete:
    """Takes the place of a value and sets the key back to its default."""


@dataclass(frozen=True)
class Condition:
    """Keys with the values that they may have: it holds for runs that match every key.

    Attributes:
        where: the condition's place in the sweep file.
    """

    where: str
    values: Mapping[str, Sequence[Any]]

    def holds(self, assignment: Assignment) -> bool:
        return all(
            key in assignment and has_value(values, assignment[key])
            for key, values in self.values.items()
        )


@dataclass(frozen=True)
class When:
    """Dimensions that only the runs get for which a condition holds; an entry of `when`."""

    condition: Condition
    dimensions: Sequence[Dimension]

    def expand(self, assignments: Iterable[Assignment]) -> Iterator[Assignment]:
        """Replace each run for which the condition holds by one for each of its values."""
        keys = keys_of(self.dimensions)
        seen: set[str] = set()
        for assignment in assignments:
            if not self.condition.holds(assignment):
                yield assignment
                continue
            rest = {key: value for key, value in assignment.items() if key not in keys}
            # Runs that differed only in the replaced values are the same run now.
            if (text := repr(rest)) in seen:
                continue
            seen.add(text)
            for parts in itertools.product(*self.dimensions):
                yield rest | _joined(parts)


@dataclass(frozen=True)
class Block:
    """The runs of one block: the product of its dimensions, changed by its conditions.

    Attributes:
        dimensions: of keys that every run has.
        when: values for the runs that fulfil a condition, applied in order.
        exclude: combinations that are left out.
    """

    dimensions: Sequence[Dimension] = ()
    when: Sequence[When] = ()
    exclude: Sequence[Condition] = ()

    def assignments(self) -> Iterator[Assignment]:
        """Generate every run's assignment; the last dimension varies fastest."""
        assignments: Iterable[Assignment] = map(_joined, itertools.product(*self.dimensions))
        for entry in self.when:
            assignments = entry.expand(assignments)
        for assignment in assignments:
            if not any(condition.holds(assignment) for condition in self.exclude):
                yield assignment


@dataclass(frozen=True)
class Space:
    """The runs of all its blocks, and of its control arms.

    Attributes:
        name: the sweep's name; None if it has none.
        controls: the keys of each control; it repeats the runs of the baseline.
        baseline: an estimator or a method; None: that of the first run.
        tune: how arms find a value of their own; None: they do not.
        outcomes: the primary outcomes that it declares, for its reports; empty for the default.
        race: how seeds are given to arms; None: each has all seeds.
    """

    name: str | None
    blocks: Sequence[Block]
    controls: Sequence[Assignment] = ()
    baseline: str | None = None
    tune: Tune | None = None
    outcomes: Sequence[str] = ()
    race: Race | None = None

    def control_points(self, listed: Sequence[Assignment]) -> list[Assignment]:
        """Return the runs of its control arms.

        Args:
            listed: the runs of its blocks.

        Raises:
            ConfigError: none of them has the baseline.
        """
        repeated = self._baseline_points(listed)
        if self.controls and not repeated:
            raise ConfigError("sweep.controls: expected runs without a control to repeat, got none")
        return [{**point, **control} for control in self.controls for point in repeated]

    def _baseline_points(self, listed: Sequence[Assignment]) -> list[Assignment]:
        plain = [point for point in listed if point.get(CONTROL) in (None, Control.name)]
        methods = [_method(point) for point in plain]
        if self.baseline is None:
            # If all have one estimator, the first arm is the baseline.
            arm = _method if any(method != methods[0] for method in methods) else arm_of
            return [point for point in plain if arm(point) == arm(plain[0])]
        names = {name for method in methods for name in _method_names(method)}
        if self.baseline not in names:
            raise UnknownNameError(
                f"sweep.baseline: expected an estimator or a method of the sweep, got "
                f"'{self.baseline}'; {nearest(self.baseline, names)}"
            )
        return [
            point
            for point, method in zip(plain, methods, strict=True)
            if self.baseline in _method_names(method)
        ]

    def race_points(self, listed: Sequence[Assignment]) -> list[Assignment]:
        """Return the runs that a race may need: each arm with `most` seeds, the baseline first.

        Further seeds count on from the greatest one of the sweep.

        Args:
            listed: the runs of its blocks and controls.

        Raises:
            ConfigError: there is one arm, arms have other seeds, or the baseline is not one arm.
        """
        assert self.race is not None
        arms: dict[str, Assignment] = {}
        seeds: dict[str, dict[Any, None]] = {}
        for point in [*self._baseline_points(listed), *listed]:
            arm = {key: value for key, value in point.items() if key != SEED}
            text = ", ".join(f"{key}={value}" for key, value in sorted(arm.items()))
            arms[text] = arm
            seeds.setdefault(text, {})[point.get(SEED, 0)] = None
        (first, own), *others = seeds.items()
        if not others:
            raise ConfigError("sweep.race: expected two arms or more to compare, got one")
        for text, their in others:
            if their.keys() != own.keys():
                raise ConfigError(
                    f"sweep.race: expected the same seeds for every arm, as differences are paired "
                    f"by seed, got {', '.join(map(str, own))} for {first} and "
                    f"{', '.join(map(str, their))} for {text}"
                )
        further = itertools.count(max(own) + 1)
        numbers = [*own, *itertools.islice(further, self.race.most)][: self.race.most]
        return [{**arm, SEED: seed} for arm in arms.values() for seed in numbers]


def points(spaces: Iterable[Space]) -> Iterator[Assignment]:
    """Generate the runs of spaces, block by block and controls last.

    The last dimension of a block varies fastest. Of a race these are the runs that it may need,
    those of the baseline first.

    Raises:
        ConfigError: as `Space.control_points`, or a race's arms cannot be compared.
    """
    for space in spaces:
        own = [assignment for block in space.blocks for assignment in block.assignments()]
        listed = [*own, *space.control_points(own)]
        yield from listed if space.race is None else space.race_points(listed)


def arm_of(assignment: Assignment) -> Assignment:
    """Return what a run is compared as: its keys without seed and control."""
    return {k: v for k, v in assignment.items() if k.partition(".")[0] not in (SEED, CONTROL)}


def _method(assignment: Assignment) -> Assignment:
    """Return the keys of a run that say how it weighs its rollouts."""
    return {k: v for k, v in assignment.items() if k.partition(".")[0] in _METHODS}


def _method_names(method: Assignment) -> set[str]:
    """Return the names that a run has for its method, without those in fields, such as a base."""
    return {str(value) for key, value in method.items() if key in _METHODS}


def keys_of(dimensions: Iterable[Dimension]) -> set[str]:
    """Return the keys of dimensions."""
    return {key for dimension in dimensions for key in dimension[0]}


def has_value(values: Iterable[Any], value: Any) -> bool:
    """Return whether a value is one of several, of which True is not 1 as in Python."""
    return any(one == value and isinstance(one, bool) == isinstance(value, bool) for one in values)


def _joined(parts: Iterable[Assignment]) -> Assignment:
    return {key: value for part in parts for key, value in part.items()}


@dataclass(kw_only=True)
class Race(Component):
    """How a sweep gives seeds to its arms until nothing is open.

    Arms are compared with the baseline and with the best one by their differences on the same
    seeds (`advsweep.statistics.racing`). The intervals of these hold at every look, so that an arm
    ends as soon as it is settled.
    """

    name: ClassVar[str] = "race"

    metric: str = option("pass@1", help="the metric of the last step that is compared")
    lower: bool = option(False, help="whether a lower metric is better")
    margin: float = option(0.02, gt=0, help="differences of the metric below it do not matter")
    alpha: float = option(
        0.05, gt=0, lt=1, help="the probability that any verdict is false, at any look"
    )
    most: int = option(12, ge=2, help="seeds of an arm at most")
    give_up: bool = option(
        True, help="whether an arm that its remaining seeds would not settle gets no more"
    )


# Where tuning seeds begin, so that few sweeps have them as seeds of their own.
FIRST_SEED = 1000


@dataclass(frozen=True, kw_only=True)
class Rung:
    """A comparison of the values of an arm.

    Attributes:
        values: how many are compared.
        seeds: the number of tuning seeds that each has, the first ones.
    """

    values: int
    seeds: int


@dataclass(kw_only=True)
class Tune(Component):
    """How each arm of a sweep finds its own value of a key.

    An arm is trained with each value and all tuning seeds, and the value with the best mean is
    its choice; of equals the smallest. While that is the least or the greatest value, the grid
    grows by one more beyond it, as far apart as the two at that edge.

    With `halving` all values begin with a few of the tuning seeds. The better half goes on, with
    about twice as many, until two or three are left, which have all of them.
    Values are compared on equal seeds at their last step: at fewer steps the largest rates lead,
    as they learn fastest at first.
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
    halving: bool = option(
        False, help="whether the worse half of the values is dropped after a few seeds, and so on"
    )
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
        if self.halving and (len(self.values) < 3 or len(self.tuning_seeds) < 2):
            raise ConfigError(
                f"halving: expected three or more values and two or more seeds, got "
                f"{len(self.values)} and {len(self.tuning_seeds)}; without it all are trained"
            )

    @property
    def tuning_seeds(self) -> tuple[int, ...]:
        if isinstance(self.seeds, int):
            return tuple(range(FIRST_SEED, FIRST_SEED + self.seeds))
        return tuple(dict.fromkeys(self.seeds))

    @property
    def rungs(self) -> list[Rung]:
        """The rungs that the values of an arm climb; without halving a single one.

        The last one has all seeds, and each one before about half as many as the next. Five values
        and eight seeds: 5 values with 2 seeds, 3 with 4, 2 with 8.
        """
        most = len(self.tuning_seeds)
        if not self.halving:
            return [Rung(values=len(self.values), seeds=most)]
        sizes = [len(self.values)]
        while sizes[-1] > 2:
            sizes.append(-(-sizes[-1] // 2))
        counts = [-(-most // 2**left) for left in range(len(sizes))]
        # With few seeds there are as many rungs as there are different numbers of them.
        increasing = sorted(set(counts))
        return [
            Rung(values=values, seeds=seeds)
            for values, seeds in zip(sizes, increasing, strict=False)
        ]

    @property
    def runs(self) -> int:
        """The number of runs of an arm with its values; by halving the most, if none fails."""
        runs = 0
        earlier_seeds = 0
        for rung in self.rungs:
            runs += rung.values * (rung.seeds - earlier_seeds)
            earlier_seeds = rung.seeds
        return runs

    def ranked(self, scores: Mapping[float, float | None]) -> list[float]:
        """Return the values that have a score, the best first, and of equals the smallest."""
        sign = 1 if self.lower else -1
        scored = [(sign * score, value) for value, score in scores.items() if score is not None]
        return [value for _, value in sorted(scored)]

    def best(self, scores: Mapping[float, float | None]) -> float | None:
        """Return the value with the best score, of equals the smallest; None without a score."""
        return next(iter(self.ranked(scores)), None)

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
