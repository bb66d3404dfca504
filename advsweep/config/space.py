"""Spaces of runs: a union of blocks, each a grid with zipped values.

    sweep:
      name: fade-vs-static
      seeds: 5                                   # 0 to 4; or a list
      common: {group_size: [4, 8]}
      blocks:
        - {estimator: grpo}
        - {estimator: asym_grpo, estimator.delta: [0.3, 0.5, 2]}
        - {estimator: fade, zip: {estimator.h_star: [0.3, 0.5], optimizer.lr: [1e-4, 3e-4]}}

A list is swept over; a value that is itself a list stands in a list of its own.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from advsweep.config.compose import Delete
from advsweep.config.overrides import Override
from advsweep.errors import ConfigError, UnknownNameError, nearest

Assignment = dict[str, Any]
"""What sets one run apart: members by group and values by dotted key; `Delete` for neither."""

Dimension = Sequence[Assignment]
"""Assignments of which each run has one: a key's values, or zipped keys that move together."""

_KEYS = ("name", "seeds", "common", "blocks")


@dataclass(frozen=True)
class Space:
    """A set of runs as its dimensions.

    Attributes:
        name: what the sweep is called; None where nobody named it.
        blocks: dimensions of each block; a block's runs are their product.
    """

    name: str | None
    blocks: Sequence[Sequence[Dimension]]

    def __iter__(self) -> Iterator[Assignment]:
        """Every run's assignment; blocks in order, in each the last dimension fastest."""
        for dimensions in self.blocks:
            for point in itertools.product(*dimensions):
                yield {key: value for part in point for key, value in part.items()}


def read_space(node: Mapping[str, Any] | None, overrides: Sequence[Override]) -> Space:
    """The space of a `sweep` node and of overrides, which beat the node's values.

    Args:
        node: the `sweep` key of a configuration; None for the overrides alone.
        overrides: of one key, the last one counts.

    Raises:
        ConfigError: the node has an unknown key or a value that does not fit.
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
    return Space(name, [_merged([seeds, common, block], given) for block in read])


def _merged(
    layers: Sequence[Sequence[Dimension]], given: Mapping[str, Dimension]
) -> list[Dimension]:
    """The layers' dimensions without the keys that a later layer, or the overrides, set.

    Overrides keep their order and the layers theirs, seeds being the fastest of all.
    """
    taken = set(given)
    kept: list[list[Dimension]] = []
    for layer in reversed(layers):
        dimensions = [_without(dimension, taken) for dimension in layer]
        taken |= {key for dimension in layer for key in dimension[0]}
        kept.append([d for d in dimensions if d[0]])
    return [*itertools.chain(*kept[:-1]), *given.values(), *kept[-1]]


def _without(dimension: Dimension, taken: set[str]) -> Dimension:
    return [{k: v for k, v in point.items() if k not in taken} for point in dimension]


def _dimension(override: Override) -> Dimension:
    if override.deleted:
        return [{override.key: Delete(override.values)}]
    return [{override.key: value} for value in override.values]


def _block(block: Any, where: str) -> list[Dimension]:
    if not isinstance(block, Mapping):
        raise ConfigError(f"{where}: expected a mapping of keys and their values, got {block!r}")
    dimensions: list[Dimension] = [
        [{key: value} for value in _values(values, key, where)]
        for key, values in block.items()
        if key != "zip"
    ]
    zipped = block.get("zip", {})
    if not isinstance(zipped, Mapping):
        raise ConfigError(f"{where}.zip: expected keys with lists of equal length, got {zipped!r}")
    if twice := set(zipped) & set(block):
        raise ConfigError(f"{where}: expected each key once, got '{min(twice)}' in zip as well")
    columns = {key: _values(values, key, f"{where}.zip") for key, values in zipped.items()}
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
    return [values]


def _seeds(seeds: Any, where: str) -> list[Dimension]:
    if seeds is None:
        return []
    if isinstance(seeds, int) and not isinstance(seeds, bool) and seeds >= 1:
        seeds = list(range(seeds))
    if not isinstance(seeds, list) or not seeds:
        raise ConfigError(f"{where}: expected how many, or a list of seeds, got {seeds!r}")
    return [[{"seed": seed} for seed in seeds]]
