"""Spaces of runs: a union of blocks, each a grid with zipped values and conditions.

    sweep:
      name: fade-vs-static
      seeds: 5                                   # 0 to 4; or a list
      common: {group_size: [4, 8]}
      blocks:
        - {estimator: grpo}
        - {estimator: asym_grpo, estimator.delta: [0.3, 0.5, 2]}
        - {estimator: fade, zip: {estimator.h_star: [0.3, 0.5], optimizer.lr: [1e-4, 3e-4]}}
        - estimator: power_alpha
          estimator.alpha: [1, 2, 3]
          when: [{if: {group_size: 8}, optimizer.lr: [1e-4, 3e-4]}]
          exclude: [{estimator.alpha: 3, group_size: 4}]

A list is swept over; a value that is itself a list stands in a list of its own. The functions
of the command line's grammar may be written here too, `choice(4,8)` or `range(1,5)`. What `when`
gives stands in the place of a run's own values, each entry's after those before it, and
`exclude` is looked at last; both may stand in `common` too. `advsweep.config.conditions`
says when a condition holds. `printed` is how long such a run took somebody else, of a block or,
in `common`, of all; `advsweep.config.conf_files` has its keys.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from advsweep.config.compose import Delete
from advsweep.config.conditions import (
    Addition,
    Assignment,
    Condition,
    Dimension,
    Matches,
    expanded,
    read_condition,
)
from advsweep.config.conf_files import PACE, Printed, read_printed
from advsweep.config.overrides import Override, listed
from advsweep.errors import ConfigError, UnknownNameError, nearest

_KEYS = ("name", "seeds", "common", "blocks")
_NO_VALUES = ("when", "exclude", "printed")


@dataclass(frozen=True)
class Refusal:
    """In the place of a value that cannot be used; overrides may replace it."""

    error: ConfigError


@dataclass(frozen=True)
class Block:
    """The runs of one block.

    Attributes:
        where: the block's place, such as `sweep.blocks[1]`.
        dimensions: the runs are their product, before conditions.
        additions: what `when` gives, in order.
        exclusions: combinations that are left out.
        printed: how long such a run took somebody else; None where nobody says.
    """

    where: str
    dimensions: Sequence[Dimension] = ()
    additions: Sequence[Addition] = ()
    exclusions: Sequence[Condition] = ()
    printed: Printed | None = None

    def __iter__(self) -> Iterator[Assignment]:
        """Every run's assignment, the last dimension fastest."""
        return self.points(Matches())

    def points(self, matches: Matches) -> Iterator[Assignment]:
        """As iterating over it; conditions that hold are remembered in `matches`."""
        points: Iterator[Assignment] = (
            {key: value for part in parts for key, value in part.items()}
            for parts in itertools.product(*self.dimensions)
        )
        for addition in self.additions:
            points = expanded(points, addition, matches)
        for point in points:
            # Every exclusion is asked, to know of each whether it ever holds.
            holding = [matches.holds(condition, point) for condition in self.exclusions]
            if not any(holding):
                yield point

    @property
    def keys(self) -> set[str]:
        """The keys that every run of it has."""
        return {key for dimension in self.dimensions for key in dimension[0]}

    @property
    def conditions(self) -> list[Condition]:
        return [*(addition.condition for addition in self.additions), *self.exclusions]

    def without(self, taken: set[str]) -> Block:
        """The same without keys that are set elsewhere."""
        additions = [Addition(a.condition, _without(a.dimensions, taken)) for a in self.additions]
        dimensions = _without(self.dimensions, taken)
        return replace(self, dimensions=dimensions, additions=additions)


@dataclass(frozen=True)
class Space:
    """A set of runs: the union of its blocks.

    Attributes:
        name: what the sweep is called; None where nobody named it.
    """

    name: str | None
    blocks: Sequence[Block]

    def __iter__(self) -> Iterator[Assignment]:
        """Every run's assignment; blocks in order, in each the last dimension fastest."""
        return itertools.chain.from_iterable(self.blocks)


def read_space(
    node: Mapping[str, Any] | None, overrides: Sequence[Override], *, whole: bool = True
) -> Space:
    """The space of a `sweep` node and of overrides, which beat the node's values.

    Args:
        node: the `sweep` key of a configuration; None for the overrides alone.
        overrides: of one key, the last one counts.
        whole: false where the overrides are one point of a space that was read before, so
            that conditions need not hold.

    Raises:
        ConfigError: the node has an unknown key, a value that does not fit, or a condition
            that holds for no run.
    """
    given = {o.key: _dimension(o) for o in overrides}
    node = {} if node is None else node
    where = "sweep"
    if not isinstance(node, Mapping):
        raise ConfigError(f"{where}: expected a mapping with {', '.join(_KEYS)}, got {node!r}")
    for key in node:
        if key not in _KEYS:
            raise UnknownNameError(f"{where}.{key}: no such key; {nearest(str(key), _KEYS)}")
    common = _block(node.get("common", {}), f"{where}.common")
    blocks = node.get("blocks", [{}])
    if not isinstance(blocks, list) or not blocks:
        raise ConfigError(f"{where}.blocks: expected a list of blocks, got {blocks!r}")
    seeds = _seeds(node.get("seeds"), f"{where}.seeds")
    read = [_block(block, f"{where}.blocks[{i}]") for i, block in enumerate(blocks)]
    name = node.get("name")
    if name is not None and (not isinstance(name, str) or not name):
        raise ConfigError(f"{where}.name: expected a text, got {name!r}")
    space = Space(name, [_merged(seeds, common, block, given) for block in read])
    _refuse_values(space.blocks)
    conditions = [c for block in [common, *read] for c in block.conditions]
    if whole and conditions:
        # Overrides may narrow a sweep file to runs for which a condition of it never holds.
        own = [_merged(seeds, common, block, {}) for block in read]
        matches = Matches()
        for block in [*own, *space.blocks]:
            for _ in block.points(matches):
                pass
        matches.check(conditions)
    return space


def _refuse_values(blocks: Sequence[Block]) -> None:
    dimensions = [d for block in blocks for d in block.dimensions]
    dimensions += [d for block in blocks for a in block.additions for d in a.dimensions]
    for value in (value for d in dimensions for point in d for value in point.values()):
        if isinstance(value, Refusal):
            raise value.error


def _merged(seeds: Block, common: Block, block: Block, given: Mapping[str, Dimension]) -> Block:
    """A block with what it shares, without the keys that a later layer, or overrides, set.

    Overrides keep their order and the layers theirs, seeds being the fastest of all.
    """
    taken = set(given)
    own = block.without(taken)
    shared = common.without(taken | block.keys)
    seeding = seeds.without(taken | block.keys | common.keys)
    return Block(
        block.where,
        [*own.dimensions, *shared.dimensions, *given.values(), *seeding.dimensions],
        [*shared.additions, *own.additions],
        [*shared.exclusions, *own.exclusions],
        None if taken & PACE else own.printed or shared.printed,
    )


def _without(dimensions: Sequence[Dimension], taken: set[str]) -> list[Dimension]:
    kept = [[{k: v for k, v in point.items() if k not in taken} for point in d] for d in dimensions]
    return [dimension for dimension in kept if dimension[0]]


def _dimension(override: Override) -> Dimension:
    if override.deleted:
        return [{override.key: Delete(override.values)}]
    return [{override.key: value} for value in override.values]


def _block(block: Any, where: str) -> Block:
    if not isinstance(block, Mapping):
        raise ConfigError(f"{where}: expected a mapping of keys and their values, got {block!r}")
    exclusions = _entries(block.get("exclude", []), f"{where}.exclude")
    return Block(
        where,
        _dimensions({k: v for k, v in block.items() if k not in _NO_VALUES}, where),
        [_addition(e, at) for at, e in _entries(block.get("when", []), f"{where}.when")],
        [read_condition(condition, at) for at, condition in exclusions],
        read_printed(block["printed"], f"{where}.printed") if "printed" in block else None,
    )


def _entries(entries: Any, where: str) -> list[tuple[str, Any]]:
    if not isinstance(entries, list):
        raise ConfigError(f"{where}: expected a list of mappings, got {entries!r}")
    return [(f"{where}[{i}]", entry) for i, entry in enumerate(entries)]


def _addition(entry: Any, where: str) -> Addition:
    if not isinstance(entry, Mapping) or "if" not in entry:
        raise ConfigError(
            f"{where}: expected a mapping of `if`, with the values that other keys must have, "
            f"and of the keys to set there, got {entry!r}"
        )
    dimensions = _dimensions({k: v for k, v in entry.items() if k != "if"}, where)
    if not dimensions:
        raise ConfigError(f"{where}: expected keys to set where `if` holds, got none")
    return Addition(read_condition(entry["if"], f"{where}.if"), dimensions)


def _dimensions(block: Mapping[Any, Any], where: str) -> list[Dimension]:
    dimensions: list[Dimension] = [
        [{str(key): value} for value in _values(values, key, where)]
        for key, values in block.items()
        if key != "zip"
    ]
    zipped = block.get("zip", {})
    if not isinstance(zipped, Mapping):
        raise ConfigError(f"{where}.zip: expected keys with lists of equal length, got {zipped!r}")
    if twice := set(zipped) & set(block):
        raise ConfigError(f"{where}: expected each key once, got '{min(twice)}' in zip as well")
    columns = {str(key): _values(values, key, f"{where}.zip") for key, values in zipped.items()}
    if lengths := {key: len(values) for key, values in columns.items()}:
        if len(set(lengths.values())) > 1:
            shown = ", ".join(f"{key}: {length}" for key, length in lengths.items())
            raise ConfigError(f"{where}.zip: expected lists of equal length, got {shown}")
        dimensions.append(
            [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        )
    return dimensions


def _values(values: Any, key: Any, where: str) -> list[Any]:
    if isinstance(values, list):
        if not values:
            raise ConfigError(f"{where}.{key}: expected a value or a list of values, got []")
        return values
    try:
        return listed(str(key), values)
    except ConfigError as error:
        return [Refusal(type(error)(f"{where}.{error}"))]


def _seeds(seeds: Any, where: str) -> Block:
    if seeds is None:
        return Block(where)
    if isinstance(seeds, int) and not isinstance(seeds, bool) and seeds >= 1:
        seeds = list(range(seeds))
    if not isinstance(seeds, list) or not seeds:
        raise ConfigError(f"{where}: expected how many, or a list of seeds, got {seeds!r}")
    return Block(where, [[{"seed": seed} for seed in seeds]])
