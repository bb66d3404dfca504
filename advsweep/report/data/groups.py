"""Groups: the replicates of each configuration, and the keys that name them.

Runs with the same configuration hash are replicates. A row is named by its estimator and by
every config key that varies over the table. A component's parameter varies only if it differs
among rows with the same component: between two estimators nearly every parameter differs. Rows
can be named by chosen keys instead.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from advsweep.backends.base import Backend
from advsweep.components import leaves, option_of
from advsweep.errors import NotFoundError, ReportError, first_of, nearest
from advsweep.report.data.keys import (
    HASH_KEY,
    METHOD,
    METHOD_NODES,
    MISSING,
    NODES,
    NUMBERS,
    is_key,
    key_order,
    known_keys,
    value_of,
)
from advsweep.report.data.labels import name_group, show_key
from advsweep.store import RunRecord
from advsweep.store.imported import IMPORTED, is_imported, setting_leaves
from advsweep.store.sanity import HASH
from advsweep.synonyms import KEYS
from advsweep.tasks.controls import CONTROL, titled

# The name of a row: config keys, `estimator` first, and their values.
Group = dict[str, Any]

_SHOWN = 4  # values of a key in a message


def group_runs(
    runs: Sequence[RunRecord], *, always: str = ""
) -> list[tuple[Group, list[RunRecord]]]:
    """Return the replicates of each configuration with its name, in order of appearance.

    Args:
        always: a key that is part of names even if its value is the same for all.
    """
    replicates, leaves = _replicates(runs)
    values: dict[tuple[str, ...], set[str]] = {}
    for leaf in leaves:
        for key, value in leaf.items():
            values.setdefault(_kind(key, leaf), set()).add(json.dumps(value))
    names = [
        {
            key: leaf[key]
            for key in sorted(leaf, key=key_order)
            if key in ("estimator", always) or len(values[_kind(key, leaf)]) > 1
        }
        for leaf in leaves
    ]
    names = _named_by_method(names, [members[0].method for members in replicates.values()])
    shared: dict[str, set[str]] = {}
    for text, leaf in zip(map(json.dumps, names), leaves, strict=True):
        shared[text] = shared.get(text, leaf.keys()) & leaf.keys()
    for name, leaf in zip(names, leaves, strict=True):
        # Of equal names, some may lack a key, such as that of a part of the reward.
        in_all = shared[json.dumps(name)]
        name |= {key: value for key, value in leaf.items() if key not in in_all}
    # Equal names have different revisions of a component, from before and after a fix.
    alike = Counter(map(json.dumps, names))
    return [
        ({**name, HASH_KEY: config_hash[:HASH]} if alike[json.dumps(name)] > 1 else name, members)
        for name, (config_hash, members) in zip(names, replicates.items(), strict=True)
    ]


def _named_by_method(names: Sequence[Group], methods: Sequence[str | None]) -> list[Group]:
    """Put the method before each name that has one, in place of what the method sets.

    A key of estimator, objective or rollout policy stays where runs of one method differ in it.
    """
    if len(set(methods)) < 2:
        return list(names)
    values: dict[tuple[str | None, str], set[str]] = {}
    for name, method in zip(names, methods, strict=True):
        for key, value in name.items():
            values.setdefault((method, key), set()).add(json.dumps(value))
    titled_names = []
    for name, method in zip(names, methods, strict=True):
        if method is None:
            titled_names.append(name)
            continue
        kept = {
            key: value
            for key, value in name.items()
            if key == "estimator"
            or key.partition(".")[0] not in METHOD_NODES
            or len(values[method, key]) > 1
        }
        titled_names.append({METHOD: method, **kept})
    return titled_names


def _kind(key: str, leaf: Mapping[str, Any]) -> tuple[str, ...]:
    """Return a key with the components above it: it compares only among equal ones."""
    return key, *(str(leaf.get(node)) for node in _above(key))


@functools.cache
def _above(key: str) -> tuple[str, ...]:
    parts = key.split(".")
    return tuple(".".join(parts[:depth]) for depth in range(1, len(parts)))


def group_by(runs: Sequence[RunRecord], keys: Sequence[str]) -> list[tuple[Group, list[RunRecord]]]:
    """Group runs by the values of some keys, in order of appearance.

    Args:
        keys: dotted config keys, `seed`, or `config_hash`.

    Raises:
        NotFoundError: no run has one of the keys; the message offers the nearest.
        ReportError: runs of a row differ in other keys; the message names them.
    """
    for key in keys:
        if not is_key(runs, key):
            hint = nearest(key, known_keys(runs), KEYS)
            raise NotFoundError(f"--rows: no run has a key '{key}'; {hint}")
    groups: dict[str, tuple[Group, list[RunRecord]]] = {}
    for run in runs:
        values = {key: value_of(run, key) for key in keys}
        group = {key: value for key, value in values.items() if value is not MISSING}
        groups.setdefault(json.dumps(group), (group, []))[1].append(run)
    for group, members in groups.values():
        if len({run.config_hash for run in members}) > 1:
            keys_that_differ = [
                f"{key}: {first_of(map(show_key, listed), _SHOWN)}"
                for key, listed in varying_keys(members).items()
            ]
            differing = "; ".join(keys_that_differ) or f"{HASH_KEY}, from before and after a fix"
            raise ReportError(
                f"the runs of {name_group(group)} differ in other keys as well ({differing}): "
                "give them among --rows, or choose with --where"
            )
    return list(groups.values())


def varying_keys(runs: Sequence[RunRecord]) -> dict[str, list[Any]]:
    """Return the keys that can change a result and whose values differ, with these values."""
    values: dict[str, dict[str, Any]] = {}
    for leaf in _replicates(runs)[1]:
        # A parameter that only some have follows from their component.
        for key, value in leaf.items():
            values.setdefault(key, {})[json.dumps(value)] = value
    varying = {
        key: list(values[key].values())
        for key in sorted(values, key=key_order)
        if len(values[key]) > 1
    }
    # Where a component varies, its parameters add nothing.
    return {key: listed for key, listed in varying.items() if not varying.keys() & set(_above(key))}


def common_group(groups: Sequence[Group]) -> Group:
    """Return what the names of some rows have in common, except for the estimator."""
    first, *rest = groups
    return {
        key: value
        for key, value in first.items()
        if not key.startswith("estimator") and all(g.get(key) == value for g in rest)
    }


def _replicates(
    runs: Sequence[RunRecord],
) -> tuple[dict[str, list[RunRecord]], list[dict[str, Any]]]:
    """Return the runs by config hash, and the leaves of each that can change a result."""
    replicates: dict[str, list[RunRecord]] = {}
    for run in runs:
        replicates.setdefault(run.config_hash, []).append(run)
    fields = dataclasses.fields(Backend)
    free = {f"backend.{f.name}" for f in fields if not option_of(f).identity}
    leaves = []
    for first, *others in replicates.values():
        of_first = dict(_leaves(first.config))
        leaves.append(of_first)
        naming = _naming_part(first.config)
        # Equal hashes have equal results: what differs between them changes none.
        for run in others:
            # Flattening takes most of the time, and replicates nearly always differ in the seed
            # only, which names no row.
            if _naming_part(run.config) != naming:
                free |= {key for key, value in _leaves(run.config) if of_first.get(key) != value}
    return replicates, [{k: v for k, v in leaf.items() if k not in free} for leaf in leaves]


def _naming_part(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the part of a config that `_leaves` reads; all of an imported one."""
    if is_imported(config):
        return config
    return {key: config[key] for key in (*NODES, *NUMBERS, CONTROL) if key in config}


def _leaves(config: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the dotted keys that can distinguish rows; a component's value is its name."""
    if is_imported(config):
        yield "backend", IMPORTED
        for key, value in setting_leaves(config):
            yield key.removesuffix(".name"), value
        return
    naming = {key: config[key] for key in (*NODES, *NUMBERS) if key in config}
    for key, value in leaves(naming, named=True):
        yield key, titled(value, config) if key == "estimator" else value
    for key, value in leaves({CONTROL: config.get(CONTROL, {})}, named=True):
        # The control itself is part of the estimator's name.
        if key != CONTROL:
            yield key, value
