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
with each control (`advsweep.tasks.controls`). `printed` is the time that such a run took according
to a paper, in a block or, for all of them, in `common` (`PublishedTime` has its keys).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from advsweep.config.groups import ConfigGroups
from advsweep.config.overrides import Override, expand_call
from advsweep.config.space import (
    Assignment,
    Block,
    Condition,
    ConditionMatches,
    Delete,
    Dimension,
    PublishedTime,
    Space,
    Tune,
    When,
)
from advsweep.errors import ConfigError, UnknownNameError, nearest
from advsweep.tasks.controls import CONTROL, Control

_KEYS = ("name", "seeds", "tune", "baseline", "controls", "outcomes", "common", "blocks")
_NO_VALUES = ("when", "exclude", "printed")
_PACE = {
    *("backend", "model", "model.path", "task", "method", "rollout"),
    *("group_size", "prompts_per_step", "generation", "generation.max_tokens"),
}
"""Keys that change how long a run takes: an override of one makes a published time useless."""


class _Refusal:
    """Takes the place of a value that cannot be used, in case an override replaces it."""

    def __init__(self, error: ConfigError) -> None:
        self.error = error


def read_spaces(
    groups: ConfigGroups, overrides: Sequence[Override], *, check_conditions: bool = True
) -> list[Space]:
    """Read a space for each chosen experiment, or a single one from the overrides alone.

    Args:
        check_conditions: as in `read_space`.

    Raises:
        ConfigError: a key or an experiment does not exist, or a `sweep` node does not fit.
    """
    rest = [o for o in overrides if o.key != "experiment" and not _changes_node(o)]
    for override in rest:
        groups.check_key(override.key)
    spaces = []
    for name, node in sweep_nodes(groups, overrides):
        chosen = [] if name is None else [Override(f"experiment={name}", "experiment", (name,))]
        space = read_space(node, [*chosen, *rest], check_conditions=check_conditions)
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
    changes = [o for o in overrides if _changes_node(o)]
    choices = [o for o in overrides if o.key == "experiment"]
    values = () if not choices or choices[-1].deleted else choices[-1].values
    experiments = [groups.member("experiment", v) for v in values if v is not None]
    if not experiments:
        return [(None, _changed(None, changes))]
    return [
        (name, _changed(groups.compose({"experiment": name}).config.get("sweep"), changes))
        for name in experiments
    ]


def _changes_node(override: Override) -> bool:
    return override.key.split(".")[0] == "sweep"


def _changed(node: Any, changes: Sequence[Override]) -> Any:
    """Apply overrides such as `sweep.seeds=5` to a `sweep` node."""
    for change in changes:
        _, *path = change.key.split(".")
        if len(path) != 1 or change.swept or change.deleted:
            raise ConfigError(
                f"{change.text}: expected one of {', '.join(f'sweep.{k}' for k in _KEYS)}, with "
                f"one value"
            )
        node = {**(node or {}), path[0]: change.values[0]}
    return node


def read_space(
    node: Mapping[str, Any] | None,
    overrides: Sequence[Override],
    *,
    check_conditions: bool = True,
) -> Space:
    """Read the space of a `sweep` node and of overrides, which replace the node's values.

    Args:
        node: the `sweep` key of a config; None for the overrides alone.
        overrides: the last override of a key counts.
        check_conditions: refuse conditions that hold for no run. False where the overrides are
            one point of a larger space.

    Raises:
        ConfigError: the node has an unknown key, a value that does not fit, or a condition
            that holds for no run.
    """
    given = {o.key: _override_dimension(o) for o in overrides}
    node = {} if node is None else node
    if not isinstance(node, Mapping):
        raise ConfigError(f"sweep: expected a mapping with {', '.join(_KEYS)}, got {node!r}")
    for key in node:
        if key not in _KEYS:
            raise UnknownNameError(f"sweep.{key}: no such key; {nearest(str(key), _KEYS)}")
    common = _block(node.get("common", {}), "sweep.common")
    nodes = node.get("blocks", [{}])
    if not isinstance(nodes, list) or not nodes:
        raise ConfigError(f"sweep.blocks: expected a list of blocks, got {nodes!r}")
    seeds = _seeds(node.get("seeds"), "sweep.seeds")
    blocks = [_block(block, f"sweep.blocks[{i}]") for i, block in enumerate(nodes)]
    name = node.get("name")
    if name is not None and (not isinstance(name, str) or not name):
        raise ConfigError(f"sweep.name: expected a text, got {name!r}")
    baseline = node.get("baseline")
    if baseline is not None and not isinstance(baseline, str):
        raise ConfigError(f"sweep.baseline: expected an estimator or a method, got {baseline!r}")
    outcomes = node.get("outcomes", [])
    if not isinstance(outcomes, list) or not all(isinstance(one, str) for one in outcomes):
        raise ConfigError(
            f"sweep.outcomes: expected a list of columns of reports, such as [pass@1], got "
            f"{outcomes!r}"
        )
    space = Space(
        name,
        [_merged(seeds, common, block, given) for block in blocks],
        _controls(node.get("controls") or []),
        baseline,
        _tune(node.get("tune")),
        outcomes,
    )
    for value in (value for block in space.blocks for value in block.values):
        if isinstance(value, _Refusal):
            raise value.error
    conditions = [c for block in [common, *blocks] for c in block.conditions]
    if check_conditions and conditions:
        # A condition may hold for runs of the file that the overrides leave out, so those count.
        unchanged = [_merged(seeds, common, block, {}) for block in blocks]
        matches = ConditionMatches()
        for block in [*unchanged, *space.blocks]:
            for _ in block.assignments(matches):
                pass
        matches.check(conditions)
    return space


def _controls(node: Any) -> list[Assignment]:
    if not isinstance(node, list):
        raise ConfigError(f"sweep.controls: expected a list such as [aa, placebo], got {node!r}")
    controls = []
    for place, entry in enumerate(node):
        fields = dict(entry) if isinstance(entry, Mapping) else {"name": entry}
        name = fields.pop("name", None)
        if not isinstance(name, str) or name == Control.name:
            raise ConfigError(
                f"sweep.controls[{place}]: expected the name of a control, such as aa, or a "
                f"mapping with a name, got {entry!r}"
            )
        controls.append({CONTROL: name, **{f"{CONTROL}.{k}": v for k, v in fields.items()}})
    return controls


def _tune(node: Any) -> Tune | None:
    if node is None:
        return None
    if not isinstance(node, Mapping) or "values" not in node:
        raise ConfigError(
            f"sweep.tune: expected a mapping with values, such as {{key: optimizer.lr, values: "
            f"[1e-4, 2e-4]}}, got {node!r}"
        )
    return Tune.build(node, where="sweep.tune")


def _merged(seeds: Block, common: Block, block: Block, given: Mapping[str, Dimension]) -> Block:
    """Join a block with `common`, the overrides and the seeds; the more specific value wins.

    The order of dimensions is the block's, `common`'s, the overrides', and the seeds as the
    fastest.
    """
    taken = set(given)
    own = block.without(taken)
    shared = common.without(taken | block.keys)
    seeding = seeds.without(taken | block.keys | common.keys)
    return Block(
        block.where,
        [*own.dimensions, *shared.dimensions, *given.values(), *seeding.dimensions],
        [*shared.when, *own.when],
        [*shared.exclude, *own.exclude],
        None if taken & _PACE else own.published or shared.published,
    )


def _override_dimension(override: Override) -> Dimension:
    if override.deleted:
        return [{override.key: Delete(override.values)}]
    return [{override.key: value} for value in override.values]


def _block(node: Any, where: str) -> Block:
    if not isinstance(node, Mapping):
        raise ConfigError(f"{where}: expected a mapping of keys and their values, got {node!r}")
    return Block(
        where,
        _dimensions({k: v for k, v in node.items() if k not in _NO_VALUES}, where),
        [_when(entry, place) for place, entry in _entries(node, "when", where)],
        [_condition(entry, place) for place, entry in _entries(node, "exclude", where)],
        read_published(node["printed"], f"{where}.printed") if "printed" in node else None,
    )


def _entries(block: Mapping[Any, Any], key: str, where: str) -> list[tuple[str, Any]]:
    entries = block.get(key, [])
    if not isinstance(entries, list):
        raise ConfigError(f"{where}.{key}: expected a list of mappings, got {entries!r}")
    return [(f"{where}.{key}[{i}]", entry) for i, entry in enumerate(entries)]


def _when(entry: Any, where: str) -> When:
    if not isinstance(entry, Mapping) or "if" not in entry:
        raise ConfigError(
            f"{where}: expected a mapping of `if`, with the values that other keys must have, "
            f"and of the keys to set there, got {entry!r}"
        )
    dimensions = _dimensions({k: v for k, v in entry.items() if k != "if"}, where)
    if not dimensions:
        raise ConfigError(f"{where}: expected keys to set where `if` holds, got none")
    return When(_condition(entry["if"], f"{where}.if"), dimensions)


def _condition(node: Any, where: str) -> Condition:
    if not isinstance(node, Mapping) or not node:
        raise ConfigError(f"{where}: expected a mapping of keys and their values, got {node!r}")
    values = {str(k): v if isinstance(v, list) else [v] for k, v in node.items()}
    for key, listed in values.items():
        if not listed:
            raise ConfigError(f"{where}.{key}: expected a value or a list of values, got []")
    return Condition(where, values)


def read_published(node: Any, where: str) -> PublishedTime:
    """Read the node `printed` of a sweep file.

    Raises:
        ConfigError: a key is missing or unknown, or a value does not fit.
    """
    known = [field.name for field in fields(PublishedTime)]
    if not isinstance(node, Mapping) or (missing := [key for key in known if key not in node]):
        lacking = f", which lacks {', '.join(missing)}" if isinstance(node, Mapping) else ""
        raise ConfigError(
            f"{where}: expected a mapping of {', '.join(known)}, got {node!r}{lacking}"
        )
    return PublishedTime.build(node, where=where)


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
    lengths = {key: len(values) for key, values in columns.items()}
    if len(set(lengths.values())) > 1:
        shown = ", ".join(f"{key}: {length}" for key, length in lengths.items())
        raise ConfigError(f"{where}.zip: expected lists of equal length, got {shown}")
    if columns:
        rows = zip(*columns.values(), strict=True)
        dimensions.append([dict(zip(columns, row, strict=True)) for row in rows])
    return dimensions


def _values(values: Any, key: Any, where: str) -> list[Any]:
    if isinstance(values, list):
        if not values:
            raise ConfigError(f"{where}.{key}: expected a value or a list of values, got []")
        return values
    try:
        return expand_call(str(key), values)
    except ConfigError as error:
        return [_Refusal(type(error)(f"{where}.{error}"))]


def _seeds(seeds: Any, where: str) -> Block:
    if seeds is None:
        return Block(where)
    if isinstance(seeds, int) and not isinstance(seeds, bool) and seeds >= 1:
        seeds = list(range(seeds))
    if not isinstance(seeds, list) or not seeds:
        raise ConfigError(f"{where}: expected how many, or a list of seeds, got {seeds!r}")
    return Block(where, [[{"seed": seed} for seed in seeds]])
