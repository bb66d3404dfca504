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

from collections.abc import Collection, Iterable, Mapping, Sequence
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
    rest = [o for o in overrides if o.key != "experiment" and not _changes_node(o)]
    for override in rest:
        groups.check_key(override.key)
    spaces = []
    for name, node in sweep_nodes(groups, overrides):
        chosen = [] if name is None else [Override(f"experiment={name}", "experiment", (name,))]
        try:
            space = read_space(node, [*chosen, *rest])
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
    for change in filter(_changes_node, overrides):
        _, *path = change.key.split(".")
        if len(path) != 1 or change.swept or change.deleted:
            raise ConfigError(f"{change.text}: expected one of {_names()}, with one value")
        changes[path[0]] = change.values[0]
    choices = [o for o in overrides if o.key == "experiment"]
    names = [v for v in choices[-1].values if v is not None] if choices else []
    if not names:
        return [(None, changes or None)]
    nodes: list[tuple[str | None, Any]] = []
    for name in (groups.member("experiment", value) for value in names):
        node = groups.compose({"experiment": name}).get("sweep")
        if not isinstance(node or {}, Mapping):
            nodes.append((name, node))  # `read_space` says what it expects
            continue
        # `sweep.race=true` turns on what the file may have settings for.
        own = {key: value for key, value in (node or {}).items() if isinstance(value, Mapping)}
        kept = {key: own[key] for key, value in changes.items() if value is True and key in own}
        nodes.append((name, {**(node or {}), **changes, **kept} if changes else node))
    return nodes


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
    _expect(node, Mapping, "sweep", f"a mapping with {_names()}", or_empty=True)
    for key, value in node.items():
        if key not in _KEYS:
            raise UnknownNameError(f"sweep.{key}: no such key; {nearest(str(key), _KEYS)}")
        if key == "seeds" or value is not None:
            _expect(value, _KEYS[key][0], f"sweep.{key}", _KEYS[key][1], or_empty=value != "")
    given: dict[str, Dimension] = {}
    for o in overrides:
        values = (Delete(),) if o.deleted else o.values
        given[o.key] = [{o.key: value} for value in values]
    tune, outcomes = node.get("tune"), node.get("outcomes") or []
    race = {} if (race := node.get("race")) is True else race
    if race not in (None, False):
        _expect(race, Mapping, "sweep.race", _KEYS["race"][1], or_empty=True)
    for place, outcome in enumerate(outcomes):
        _expect(outcome, str, f"sweep.outcomes[{place}]", "a column of reports, such as pass@1")
    return Space(
        node.get("name"),
        _blocks(node, given),
        [_control(entry, i) for i, entry in enumerate(node.get("controls") or [])],
        node.get("baseline"),
        None if tune is None else Tune.build(tune, where="sweep.tune"),
        outcomes,
        None if race in (None, False) else Race.build(race, where="sweep.race"),
    )


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


def _control(entry: Any, place: int) -> Assignment:
    options = dict(entry) if isinstance(entry, Mapping) else {"name": entry}
    name = options.pop("name", None)
    if not isinstance(name, str) or name == Control.name:
        words = "the name of a control, such as aa, or a mapping with a name"
        raise ConfigError(f"sweep.controls[{place}]: expected {words}, got {entry!r}")
    return {CONTROL: name, **{f"{CONTROL}.{key}": value for key, value in options.items()}}


def _blocks(node: Mapping[str, Any], given: Mapping[str, Dimension]) -> list[Block]:
    """Join each block with `common`, the overrides and the seeds; the more specific value wins.

    The order of dimensions is the block's, `common`'s, the overrides', and the seeds as the
    fastest.
    """
    blocks: list[Block] = []
    shared: list[Condition] = []
    nodes = _expect(node.get("blocks", [{}]), list, "sweep.blocks", _KEYS["blocks"][1])
    for place, block in enumerate(nodes):
        own = _part(block, f"sweep.blocks[{place}]", given)
        beaten = given.keys() | keys_of(own.dimensions)
        rest = _part(node.get("common") or {}, "sweep.common", beaten)
        taken = beaten | keys_of(rest.dimensions)
        seeds = node.get("seeds")
        if isinstance(seeds, int) and not isinstance(seeds, bool):
            if seeds < 1:
                raise ConfigError(f"sweep.seeds: expected {_KEYS['seeds'][1]}, got {seeds}")
            seeds = range(min(seeds, _MOST_SEEDS + 1))
            if len(seeds) > _MOST_SEEDS:
                raise ConfigError(
                    f"sweep.seeds: expected at most {_MOST_SEEDS:,} seeds, or a list of them, got "
                    f"{node['seeds']}"
                )
            seeds = list(seeds)
        seeded: list[Dimension] = []
        if seeds is not None and SEED not in taken:
            listed = _expect(seeds, list, "sweep.seeds", _KEYS["seeds"][1])
            seeded = [[{SEED: seed} for seed in listed]]
        joined = Block(
            [*own.dimensions, *rest.dimensions, *given.values(), *seeded],
            [*rest.when, *own.when],
            [*rest.exclude, *own.exclude],
        )
        blocks.append(joined)
        shared = [*(entry.condition for entry in rest.when), *rest.exclude]
        _check_conditions([*(e.condition for e in own.when), *own.exclude], [joined], given)
    _check_conditions(shared, blocks, given)
    return blocks


def _part(node: Any, where: str, taken: Collection[str]) -> Block:
    """Read a block, or what all have in common, without the values of keys that are taken."""
    _expect(node, Mapping, where, _BLOCK, or_empty=True)
    places: dict[str, list[tuple[str, Any]]] = {}
    for key in ("when", "exclude"):
        inner = f"{where}.{key}"
        listed = _expect(node.get(key, []), list, inner, "a list of mappings", or_empty=True)
        places[key] = [(f"{inner}[{i}]", entry) for i, entry in enumerate(listed)]

    return Block(
        _dimensions(node, where, taken),
        [_when(entry, place, taken) for place, entry in places["when"]],
        [_condition(entry, place) for place, entry in places["exclude"]],
    )


def _when(entry: Any, where: str, taken: Collection[str]) -> When:
    words = "a mapping of `if`, with the values that other keys must have, and of keys to set there"
    _expect(entry, Mapping, where, words)
    rest = {key: value for key, value in entry.items() if key != "if"}
    if not rest or len(rest) == len(entry) or rest.keys() & {"when", "exclude"}:
        raise ConfigError(f"{where}: expected {words}, got {entry!r}")
    return When(_condition(entry["if"], f"{where}.if"), _dimensions(rest, where, taken))


def _condition(node: Any, where: str) -> Condition:
    _expect(node, Mapping, where, _BLOCK)
    values = {str(k): v if isinstance(v, list) else [v] for k, v in node.items()}
    for key, listed in values.items():
        _expect(listed, list, f"{where}.{key}", "a value or a list of values")
    return Condition(where, values)


def _check_conditions(
    conditions: Iterable[Condition], blocks: Iterable[Block], given: Collection[str]
) -> None:
    """Refuse conditions on a key or a value that no block has, unless an override replaces it."""
    known: dict[str, list[Any]] = {}
    for block in blocks:
        for dimension in (*block.dimensions, *(d for when in block.when for d in when.dimensions)):
            for part in dimension:
                for key, value in part.items():
                    known.setdefault(key, []).append(value)
    for condition in conditions:
        for key, values in condition.values.items():
            if key not in known:
                raise UnknownNameError(
                    f"{condition.where}: nothing in the sweep sets '{key}'; {nearest(key, known)}"
                )
            for value in values:
                if key not in given and not has_value(known[key], value):
                    raise ConfigError(
                        f"{condition.where}.{key}: expected a value that some run has, got "
                        f"{value!r}; remove it or set it in the sweep"
                    )


def _dimensions(block: Mapping[Any, Any], where: str, taken: Collection[str]) -> list[Dimension]:
    """Read the values of keys, without those of keys that are taken."""
    dimensions: list[Dimension] = [
        [{str(key): value} for value in _values(values, key, where)]
        for key, values in block.items()
        if key not in _NO_VALUES and key not in taken
    ]
    zipped = block.get("zip", {})
    _expect(zipped, Mapping, f"{where}.zip", "keys with lists of equal length", or_empty=True)
    if twice := set(zipped) & set(block):
        raise ConfigError(f"{where}: expected each key once, got '{min(twice)}' in zip as well")
    columns = {
        str(key): _values(values, key, f"{where}.zip")
        for key, values in zipped.items()
        if key not in taken
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
