"""Reads spaces of runs from the `sweep` node of an experiment and from overrides.

    sweep:
      name: fade-vs-static
      seeds: 5                                   # 0 to 4; or a list
      outcomes: [pass@1, 'pass@8[above=guess]']  # what reports test, in place of the default
      common: {group_size: [4, 8]}
      blocks:
        - {estimator: grpo}
        - {estimator: asym_grpo, estimator.delta: [0.3, 0.5, 2]}
        - {estimator: fade, zip: {estimator.h_star: [0.3, 0.5], optimizer.lr: [1e-4, 3e-4]}}
        - estimator: power_alpha
          estimator.alpha: [1, 2, 3]
          when: [{if: {group_size: 8}, optimizer.lr: [1e-4, 3e-4]}]    # two rates, only at 8
          exclude: [{estimator.alpha: 3, group_size: 4}]               # not these two together

A list is swept over; a value that is itself a list stands in another list. Values may use the
functions of the command line's grammar: `choice(4,8)`, `range(1,5)`. A condition (`if`, `exclude`)
holds for a run that has each of its keys with the value, or one of the values, given there. The
entries of `when` replace the values that a run had, one after the other; `exclude` comes last.
`common` may have both, too. `tune` lets each arm find its own value of a key (`Tune`), and
`controls: [aa, placebo]` repeats the runs of `baseline: NAME`, by default of the first estimator,
with each control (`advsweep.tasks.controls`). `race: true`, or a mapping of its settings, trains
only the seeds that settle something (`Race`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from advsweep.config.groups import ConfigGroups
from advsweep.config.overrides import Override, expand_call
from advsweep.config.space import (
    SEED,
    Assignment,
    Block,
    Condition,
    Delete,
    Dimension,
    Race,
    Space,
    Tune,
    When,
    has_value,
    keys_of,
)
from advsweep.errors import ConfigError, UnknownNameError, nearest
from advsweep.synonyms import KEYS
from advsweep.tasks.controls import CONTROL, Control

_BLOCK = "a mapping of keys and their values"
# The keys of a `sweep` node, each with its type and how a message describes it.
_KEYS: Mapping[str, tuple[type | tuple[type, ...], str]] = {
    "name": (str, "a text"),
    "seeds": ((int, list), "how many (1 or more), or a list of seeds"),
    "tune": (dict, "a mapping such as {key: optimizer.lr, values: [1e-4, 2e-4]}"),
    "race": (object, "true, or a mapping such as {margin: 0.05}"),
    "baseline": (str, "an estimator or a method"),
    "controls": (list, "a list such as [aa, placebo]"),
    "outcomes": (list, "a list of columns of reports, such as [pass@1]"),
    "common": (dict, _BLOCK),
    "blocks": (list, "a list of blocks"),
}

_MOST_SEEDS = 100_000

_NO_VALUES = ("when", "exclude", "zip")


def read_spaces(groups: ConfigGroups, overrides: Sequence[Override]) -> list[Space]:
    """Read a space for each chosen experiment, or a single one from the overrides alone.

    Raises:
        ConfigError: a key or an experiment does not exist, or a `sweep` node does not fit.
    """
    of_runs = [o for o in overrides if o.key != "experiment" and not _changes_node(o)]
    for override in of_runs:
        groups.check_key(override.key)
    spaces = []
    for name, node in sweep_nodes(groups, overrides):
        chosen = [] if name is None else [Override(f"experiment={name}", "experiment", (name,))]
        try:
            space = read_space(node, [*chosen, *of_runs])
        except ConfigError as error:
            raise groups.located(name, error) from error
        title = None if name is None else groups.sweep_name(name)
        spaces.append(replace(space, name=space.name or title))
    return spaces


def sweep_nodes(
    groups: ConfigGroups, overrides: Sequence[Override]
) -> list[tuple[str | None, Any]]:
    """Return the chosen experiments with their `sweep` nodes, changed by the overrides.

    Raises:
        ConfigError: an experiment does not exist, or a change does not fit.
    """
    changes: dict[str, Any] = {}
    for override in overrides:
        if not _changes_node(override):
            continue
        _, *path = override.key.split(".")
        if len(path) != 1 or override.swept or override.deleted:
            raise ConfigError(f"{override.text}: expected one of {_names()}, with one value")
        changes[path[0]] = override.values[0]
    chosen: list[Any] = []
    for override in overrides:
        if override.key == "experiment":
            chosen = [value for value in override.values if value is not None]
    if not chosen:
        return [(None, changes or None)]
    nodes: list[tuple[str | None, Any]] = []
    for value in chosen:
        name = groups.member("experiment", value)
        node = groups.compose({"experiment": name}).get("sweep")
        nodes.append((name, _changed(node, changes)))
    return nodes


def _changed(node: Any, changes: Mapping[str, Any]) -> Any:
    """Return a `sweep` node with changes; a node of another type stays, for `read_space`."""
    if not changes or not isinstance(node or {}, Mapping):
        return node
    settings = node or {}
    changed = {**settings, **changes}
    for key, value in changes.items():
        # `sweep.race=true` turns on what the file may have settings for.
        if value is True and isinstance(settings.get(key), Mapping):
            changed[key] = settings[key]
    return changed


def _changes_node(override: Override) -> bool:
    return override.key.split(".")[0] == "sweep"


def read_space(node: Mapping[str, Any] | None, overrides: Sequence[Override]) -> Space:
    """Read the space of a `sweep` node and of overrides, which replace the node's values.

    Args:
        node: the `sweep` key of a config; None for the overrides alone.
        overrides: the last override of a key counts.

    Raises:
        ConfigError: the node has an unknown key, a value that does not fit, or a condition on
            a value that nothing in it sets.
    """
    node = {} if node is None else node
    _check_node(node)
    overridden: dict[str, Dimension] = {}
    for override in overrides:
        values = (Delete(),) if override.deleted else override.values
        overridden[override.key] = [{override.key: value} for value in values]
    tune = node.get("tune")
    race = node.get("race")
    if race is True:
        race = {}
    return Space(
        name=node.get("name"),
        blocks=_blocks(node, overridden),
        controls=[_control(entry, i) for i, entry in enumerate(node.get("controls") or [])],
        baseline=node.get("baseline"),
        tune=None if tune is None else Tune.build(tune, where="sweep.tune"),
        outcomes=node.get("outcomes") or [],
        race=None if race in (None, False) else Race.build(race, where="sweep.race"),
    )


def _check_node(node: Any) -> None:
    """Refuse a `sweep` node with an unknown key, or a value of another type than its key has."""
    _expect(node, Mapping, "sweep", f"a mapping with {_names()}", or_empty=True)
    for key, value in node.items():
        if key not in _KEYS:
            raise UnknownNameError(f"sweep.{key}: no such key; {nearest(str(key), _KEYS, KEYS)}")
        if key == "seeds" or value is not None:
            _expect(value, _KEYS[key][0], f"sweep.{key}", _KEYS[key][1], or_empty=value != "")
    race = node.get("race")
    if race is not True and race not in (None, False):
        _expect(race, Mapping, "sweep.race", _KEYS["race"][1], or_empty=True)
    for i, outcome in enumerate(node.get("outcomes") or []):
        _expect(outcome, str, f"sweep.outcomes[{i}]", "a column of reports, such as pass@1")


def _names() -> str:
    return ", ".join(f"sweep.{key}" for key in _KEYS)


def _expect(
    value: Any, kind: type | tuple[type, ...], where: str, words: str, *, or_empty: bool = False
) -> Any:
    """Return a value of a sweep file; refuse one of another type, or an empty one."""
    if not isinstance(value, kind) or not (value or or_empty):
        got = "nothing" if value is None else repr(value)
        raise ConfigError(f"{where}: expected {words}, got {got}")
    return value


def _control(entry: Any, number: int) -> Assignment:
    options = dict(entry) if isinstance(entry, Mapping) else {"name": entry}
    name = options.pop("name", None)
    if not isinstance(name, str) or name == Control.name:
        words = "the name of a control, such as aa, or a mapping with a name"
        raise ConfigError(f"sweep.controls[{number}]: expected {words}, got {entry!r}")
    return {CONTROL: name, **{f"{CONTROL}.{key}": value for key, value in options.items()}}


def _blocks(node: Mapping[str, Any], overridden: Mapping[str, Dimension]) -> list[Block]:
    """Join each block with `common`, the overrides and the seeds; the more specific value wins.

    The order of dimensions is the block's, `common`'s, the overrides', and the seeds as the
    fastest.
    """
    blocks: list[Block] = []
    common_conditions: list[Condition] = []
    nodes = _expect(node.get("blocks", [{}]), list, "sweep.blocks", _KEYS["blocks"][1])
    for i, block_node in enumerate(nodes):
        block = _part(block_node, f"sweep.blocks[{i}]", overridden)
        overridden_keys = overridden.keys() | keys_of(block.dimensions)
        common = _part(node.get("common") or {}, "sweep.common", overridden_keys)
        used_keys = overridden_keys | keys_of(common.dimensions)
        seeds = _seeds(node)
        seeded: list[Dimension] = []
        if seeds is not None and SEED not in used_keys:
            listed = _expect(seeds, list, "sweep.seeds", _KEYS["seeds"][1])
            seeded = [[{SEED: seed} for seed in listed]]
        joined = Block(
            [*block.dimensions, *common.dimensions, *overridden.values(), *seeded],
            [*common.when, *block.when],
            [*common.exclude, *block.exclude],
        )
        blocks.append(joined)
        common_conditions = _conditions_of(common)
        _check_conditions(_conditions_of(block), [joined], overridden)
    _check_conditions(common_conditions, blocks, overridden)
    return blocks


def _conditions_of(block: Block) -> list[Condition]:
    return [*(entry.condition for entry in block.when), *block.exclude]


def _seeds(node: Mapping[str, Any]) -> Any:
    """Return the seeds of a sweep as a list where the node has their number."""
    seeds = node.get("seeds")
    if not isinstance(seeds, int) or isinstance(seeds, bool):
        return seeds
    if seeds < 1:
        raise ConfigError(f"sweep.seeds: expected {_KEYS['seeds'][1]}, got {seeds}")
    if seeds > _MOST_SEEDS:
        raise ConfigError(
            f"sweep.seeds: expected at most {_MOST_SEEDS:,} seeds, or a list of them, got {seeds}"
        )
    return list(range(seeds))


def _part(node: Any, where: str, used_keys: Collection[str]) -> Block:
    """Read a block, or what all have in common, without the values of used keys."""
    _expect(node, Mapping, where, _BLOCK, or_empty=True)
    lists: dict[str, list[Any]] = {}
    for key in ("when", "exclude"):
        words = "a list of mappings"
        lists[key] = _expect(node.get(key, []), list, f"{where}.{key}", words, or_empty=True)
    return Block(
        _dimensions(node, where, used_keys),
        [_when(e, f"{where}.when[{i}]", used_keys) for i, e in enumerate(lists["when"])],
        [_condition(e, f"{where}.exclude[{i}]") for i, e in enumerate(lists["exclude"])],
    )


def _when(entry: Any, where: str, used_keys: Collection[str]) -> When:
    words = "a mapping of `if`, with the values that other keys must have, and of keys to set there"
    _expect(entry, Mapping, where, words)
    replaced = {key: value for key, value in entry.items() if key != "if"}
    if not replaced or len(replaced) == len(entry) or replaced.keys() & {"when", "exclude"}:
        raise ConfigError(f"{where}: expected {words}, got {entry!r}")
    return When(_condition(entry["if"], f"{where}.if"), _dimensions(replaced, where, used_keys))


def _condition(node: Any, where: str) -> Condition:
    _expect(node, Mapping, where, _BLOCK)
    values = {str(k): v if isinstance(v, list) else [v] for k, v in node.items()}
    for key, listed in values.items():
        _expect(listed, list, f"{where}.{key}", "a value or a list of values")
    return Condition(where, values)


def _check_conditions(
    conditions: Iterable[Condition], blocks: Iterable[Block], overridden_keys: Collection[str]
) -> None:
    """Refuse conditions on a key or a value that no block has, unless an override replaces it."""
    values_by_key: dict[str, list[Any]] = {}
    for block in blocks:
        for dimension in _all_dimensions(block):
            for part in dimension:
                for key, value in part.items():
                    values_by_key.setdefault(key, []).append(value)
    for condition in conditions:
        for key, values in condition.values.items():
            if key not in values_by_key:
                raise UnknownNameError(
                    f"{condition.where}: nothing in the sweep sets '{key}'; "
                    f"{nearest(key, values_by_key)}"
                )
            if key in overridden_keys:
                continue
            for value in values:
                if not has_value(values_by_key[key], value):
                    raise ConfigError(
                        f"{condition.where}.{key}: expected a value that some run has, got "
                        f"{value!r}; remove it or set it in the sweep"
                    )


def _all_dimensions(block: Block) -> Iterator[Dimension]:
    """Yield the dimensions of a block and of its conditions."""
    yield from block.dimensions
    for when in block.when:
        yield from when.dimensions


def _dimensions(
    block: Mapping[Any, Any], where: str, used_keys: Collection[str]
) -> list[Dimension]:
    """Read the values of keys, without those of used keys."""
    dimensions: list[Dimension] = [
        [{str(key): value} for value in _values(values, key, where)]
        for key, values in block.items()
        if key not in _NO_VALUES and key not in used_keys
    ]
    zipped = block.get("zip", {})
    _expect(zipped, Mapping, f"{where}.zip", "keys with lists of equal length", or_empty=True)
    twice = set(zipped) & set(block)
    if twice:
        raise ConfigError(f"{where}: expected each key once, got '{min(twice)}' in zip as well")
    columns = {
        str(key): _values(values, key, f"{where}.zip")
        for key, values in zipped.items()
        if key not in used_keys
    }
    if len({len(values) for values in columns.values()}) > 1:
        shown = ", ".join(f"{key}: {len(values)}" for key, values in columns.items())
        raise ConfigError(f"{where}.zip: expected lists of equal length, got {shown}")
    if columns:
        rows = zip(*columns.values(), strict=True)
        dimensions.append([dict(zip(columns, row, strict=True)) for row in rows])
    return dimensions


def _values(values: Any, key: Any, where: str) -> list[Any]:
    if isinstance(values, list):
        return list(_expect(values, list, f"{where}.{key}", "a value or a list of values"))
    try:
        return expand_call(str(key), values)
    except ConfigError as error:
        raise type(error)(f"{where}.{error}") from error
