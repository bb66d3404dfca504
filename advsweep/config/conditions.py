"""Conditions in a space: values that only some runs get, and combinations that are left out.

    when:
      - {if: {group_size: [8, 16]}, optimizer.lr: [1e-4, 3e-4]}   # two rates, at 8 and 16 alone
    exclude:
      - {estimator.delta: 2, group_size: 4}                       # not these two together

A condition holds for a run that has every key of it, each with its value or one of its list.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from advsweep.errors import ConfigError, UnknownNameError, nearest

Assignment = dict[str, Any]
"""What sets one run apart: members by group and values by dotted key; `Delete` for neither."""

Dimension = Sequence[Assignment]
"""Assignments of which each run has one: a key's values, or zipped keys that move together."""


@dataclass(frozen=True, eq=False)
class Condition:
    """Keys and the values that they may have.

    Attributes:
        where: the condition's place in the sweep's node.
    """

    where: str
    values: Mapping[str, Sequence[Any]]

    def matched(self, point: Assignment) -> set[tuple[str, int]] | None:
        """The values that a run has, as keys and their places in the lists; None: no match."""
        found = set()
        for key, values in self.values.items():
            if key not in point:
                return None
            value = point[key]
            place = next((i for i, v in enumerate(values) if _equal(v, value)), None)
            if place is None:
                return None
            found.add((key, place))
        return found


@dataclass(frozen=True, eq=False)
class Addition:
    """Dimensions of the runs for which a condition holds."""

    condition: Condition
    dimensions: Sequence[Dimension]

    @property
    def keys(self) -> set[str]:
        return {key for dimension in self.dimensions for key in dimension[0]}


class Matches:
    """Which values of which conditions were seen to hold, and which keys runs have."""

    def __init__(self) -> None:
        self._found: dict[Condition, set[tuple[str, int]]] = {}
        self._keys: dict[Condition, set[str]] = {}

    def holds(self, condition: Condition, point: Assignment) -> bool:
        """Whether a condition holds for a run, which is remembered."""
        self._keys.setdefault(condition, set()).update(point)
        matched = condition.matched(point)
        if matched is None:
            return False
        self._found.setdefault(condition, set()).update(matched)
        return True

    def check(self, conditions: Iterable[Condition]) -> None:
        """Refuses conditions, or values in them, that held for no run.

        Raises:
            ConfigError: the message names the condition and the key.
        """
        for condition in conditions:
            known = self._keys.get(condition, set())
            for key in condition.values:
                if key not in known:
                    raise UnknownNameError(
                        f"{condition.where}: nothing in the sweep sets '{key}'; "
                        f"{nearest(key, known)}"
                    )
            found = self._found.get(condition, set())
            for key, values in condition.values.items():
                for place, value in enumerate(values):
                    if (key, place) not in found:
                        raise ConfigError(_never(condition, key, value))


def expanded(
    points: Iterable[Assignment], addition: Addition, matches: Matches
) -> Iterator[Assignment]:
    """The runs, with an addition's values in the place of their own where it applies."""
    keys = addition.keys
    seen: set[str] = set()
    for point in points:
        if not matches.holds(addition.condition, point):
            yield point
            continue
        rest = {key: value for key, value in point.items() if key not in keys}
        if len(rest) < len(point):
            # Runs that differed in the values that are replaced are one run now.
            text = repr(rest)
            if text in seen:
                continue
            seen.add(text)
        for parts in itertools.product(*addition.dimensions):
            yield rest | {key: value for part in parts for key, value in part.items()}


def read_condition(node: Any, where: str) -> Condition:
    """A condition from its mapping.

    Raises:
        ConfigError: it is no mapping with keys and values.
    """
    if not isinstance(node, Mapping) or not node:
        raise ConfigError(f"{where}: expected a mapping of keys and their values, got {node!r}")
    values = {}
    for key, value in node.items():
        values[str(key)] = value if isinstance(value, list) else [value]
        if not values[str(key)]:
            raise ConfigError(f"{where}.{key}: expected a value or a list of values, got []")
    return Condition(where, values)


def _never(condition: Condition, key: str, value: Any) -> str:
    others = [k for k in condition.values if k != key]
    rest = f" that has its {', '.join(others)} as well" if others else ""
    return (
        f"{condition.where}.{key}: expected a value that some run has, got {value!r}, "
        f"which none has{rest}; take it out or set it in the sweep"
    )


def _equal(one: Any, other: Any) -> bool:
    # In Python True is 1.
    return bool(one == other) and isinstance(one, bool) == isinstance(other, bool)
