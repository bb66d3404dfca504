"""Rows of a table: which runs are replicates, and what tells the rows apart.

Runs with the same configuration hash are replicates. A row is named by its estimator and by
every config key that varies over the table; a component's parameter counts as varying when
it does so among the rows that have the same component there, since between two estimators
nearly every parameter differs.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from advsweep.backends.base import Backend
from advsweep.components import option_of
from advsweep.store import RunRecord

Group = dict[str, Any]
"""What names a row: config keys, `estimator` first, and their values."""

_NODES = (
    *("estimator", "objective", "rollout", "task", "model"),
    *("optimizer", "generation", "backend"),
)
_NUMBERS = ("group_size", "prompts_per_step", "steps")
_SHORT = 8  # characters of a hash


def group_runs(runs: Sequence[RunRecord]) -> list[tuple[Group, list[RunRecord]]]:
    """The replicates of each configuration with its name, in order of first appearance."""
    replicates: dict[str, list[RunRecord]] = {}
    for run in runs:
        replicates.setdefault(run.config_hash, []).append(run)
    free = _free_keys(replicates.values())
    leaves = [
        {key: value for key, value in _leaves(members[0].config) if key not in free}
        for members in replicates.values()
    ]
    names = _names(leaves)
    # What is named alike has other revisions of a component: from before and after a fix.
    alike = Counter(map(json.dumps, names))
    names = [
        {**name, "config_hash": config_hash[:_SHORT]} if alike[json.dumps(name)] > 1 else name
        for name, config_hash in zip(names, replicates, strict=True)
    ]
    return list(zip(names, replicates.values(), strict=True))


def common_group(groups: Sequence[Group]) -> Group:
    """What some rows have in common, their estimator aside."""
    first, *rest = groups
    return {
        key: value
        for key, value in first.items()
        if not key.startswith("estimator") and all(g.get(key) == value for g in rest)
    }


def _names(leaves: Sequence[Mapping[str, Any]]) -> list[Group]:
    kinds: dict[tuple[str, tuple[str, ...]], set[str]] = {}
    for leaf in leaves:
        for key, value in leaf.items():
            kinds.setdefault((key, _kind(key, leaf)), set()).add(json.dumps(value))
    return [
        {
            key: leaf[key]
            for key in sorted(leaf, key=key_order)
            if key == "estimator" or len(kinds[key, _kind(key, leaf)]) > 1
        }
        for leaf in leaves
    ]


def _kind(key: str, leaf: Mapping[str, Any]) -> tuple[str, ...]:
    """The components that a key is below; only among the same ones does it compare."""
    parts = key.split(".")
    above = (".".join(parts[:depth]) for depth in range(1, len(parts)))
    return tuple(str(leaf.get(node)) for node in above)


def key_order(key: str) -> tuple[int, int, str]:
    """Sorts keys: estimator, other components, numbers, then parameters of each component."""
    node, _, parameter = key.partition(".")
    order = _NODES.index(node) if node in _NODES else len(_NODES)
    if parameter:
        return 3, order, key
    if key in _NUMBERS:
        return 2, _NUMBERS.index(key), key
    return (0 if key == "estimator" else 1), order, key


def _leaves(config: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """What can make rows differ, as dotted keys; a component's name stands for it."""
    for key in (*_NODES, *_NUMBERS):
        if key in config:
            yield from _flat(key, config[key])


def _flat(key: str, value: Any) -> Iterator[tuple[str, Any]]:
    if not isinstance(value, Mapping):
        yield key, value
        return
    for inner, item in value.items():
        yield from _flat(key if inner == "name" else f"{key}.{inner}", item)


def _free_keys(replicates: Iterable[Sequence[RunRecord]]) -> set[str]:
    """Keys that cannot change a result: they differ between replicates, or are known to."""
    free = set(_free_backend_keys())
    for members in replicates:
        first = dict(_leaves(members[0].config))
        for run in members[1:]:
            free |= {key for key, value in _leaves(run.config) if first.get(key) != value}
    return free


@functools.cache
def _free_backend_keys() -> frozenset[str]:
    fields = dataclasses.fields(Backend)
    return frozenset(f"backend.{f.name}" for f in fields if not option_of(f).identity)
