"""Groups runs into the rows of a table, and names the rows.

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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from advsweep.backends.base import Backend
from advsweep.components import option_of
from advsweep.errors import NotFoundError, ReportError, first_of, nearest
from advsweep.report.data.filters import HASH_KEY, MISSING, lookup, show_key
from advsweep.store import RunOutline, RunRecord
from advsweep.store.imported import IMPORTED, is_imported, setting_leaves
from advsweep.store.sanity import HASH
from advsweep.tasks.controls import CONTROL, titled

Group = dict[str, Any]
"""The name of a row: config keys, `estimator` first, and their values."""

_NODES = (
    *("estimator", "objective", "rollout", "task", "model"),
    *("optimizer", "generation", "backend"),
)
_NUMBERS = ("group_size", "prompts_per_step", "steps")
_SHOWN = 4  # values of a key in a message


def group_runs(
    runs: Sequence[RunRecord], *, always: str = ""
) -> list[tuple[Group, list[RunRecord]]]:
    """Returns the replicates of each configuration with its name, in order of appearance.

    Args:
        always: a key that is part of names even if its value is the same for all.
    """
    replicates = _replicates(runs)
    free = _free_keys(replicates.values())
    leaves = [
        {key: value for key, value in _leaves(members[0].config) if key not in free}
        for members in replicates.values()
    ]
    names = _names(leaves, always)
    # Equal names have different revisions of a component, from before and after a fix.
    alike = Counter(map(json.dumps, names))
    names = [
        {**name, HASH_KEY: config_hash[:HASH]} if alike[json.dumps(name)] > 1 else name
        for name, config_hash in zip(names, replicates, strict=True)
    ]
    return list(zip(names, replicates.values(), strict=True))


def group_by(
    runs: Sequence[RunRecord], keys: Sequence[str], *, pool: bool = False
) -> list[tuple[Group, list[RunRecord]]]:
    """Groups runs by the values of some keys, in order of appearance.

    Args:
        keys: dotted config keys, `seed`, or `config_hash`.
        pool: accept rows whose runs differ in other keys.

    Raises:
        NotFoundError: no run has one of the keys; the message offers the nearest.
        ReportError: runs of a row differ in other keys; the message names them.
    """
    _refuse_unknown(runs, keys)
    groups: dict[str, tuple[Group, list[RunRecord]]] = {}
    for run in runs:
        values = {key: value_of(run, key) for key in keys}
        group = {key: value for key, value in values.items() if value is not MISSING}
        groups.setdefault(json.dumps(group), (group, []))[1].append(run)
    if not pool:
        refuse_mixtures(groups.values())
    return list(groups.values())


def refuse_mixtures(groups: Iterable[tuple[Group, Sequence[RunRecord]]]) -> None:
    """Refuses rows whose runs have several configurations.

    Raises:
        ReportError: the message names the keys that differ.
    """
    for group, members in groups:
        if len({run.config_hash for run in members}) > 1:
            _refuse_mixture(group, members)


def value_of(run: RunRecord | RunOutline, key: str) -> Any:
    """Returns a run's value of a config key, or of `seed`, `status`, `sweep` or `config_hash`."""
    match key:
        case "seed":
            return run.seed
        case "status":
            return run.status.value
        case "sweep":
            return run.sweeps
        case "config_hash":
            return run.config_hash[:HASH]
    value = lookup(run.config, key)
    is_titled = key == "estimator" and isinstance(value, str) and not is_imported(run.config)
    return titled(value, run.config) if is_titled else value


def is_key(runs: Iterable[RunRecord | RunOutline], key: str) -> bool:
    """Tests whether a run has a value of a key."""
    return any(value_of(run, key) is not MISSING for run in runs)


def known_keys(runs: Iterable[RunRecord | RunOutline]) -> set[str]:
    """Returns every config key of the runs."""
    known = {"seed"}
    seen = set()
    for run in runs:
        if run.config_hash not in seen:
            seen.add(run.config_hash)
            known |= {key for key, _ in flatten(run.config)}
    return known


def varying_keys(runs: Sequence[RunRecord]) -> dict[str, list[Any]]:
    """Returns the keys that can change a result and whose values differ, with these values."""
    replicates = _replicates(runs)
    free = _free_keys(replicates.values())
    values: dict[str, dict[str, Any]] = {}
    leaves = [dict(_leaves(members[0].config)) for members in replicates.values()]
    for key in sorted({key for leaf in leaves for key in leaf} - free, key=key_order):
        for leaf in leaves:
            value = leaf.get(key, MISSING)
            # A parameter that only some have follows from their component.
            if value is not MISSING:
                values.setdefault(key, {})[json.dumps(value)] = value
    varying = {key: list(found.values()) for key, found in values.items() if len(found) > 1}
    # Where a component varies, its parameters add nothing.
    return {k: found for k, found in varying.items() if not varying.keys() & _above(k)}


def _refuse_unknown(runs: Sequence[RunRecord], keys: Sequence[str]) -> None:
    for key in keys:
        if not is_key(runs, key):
            known = known_keys(runs)
            raise NotFoundError(f"--rows: no run has a key '{key}'; {nearest(key, known)}")


def _refuse_mixture(group: Group, members: Sequence[RunRecord]) -> None:
    name = ", ".join(f"{key}={show_key(value)}" for key, value in group.items())
    varying = varying_keys(members)
    if not varying:
        raise ReportError(
            f"the runs of {name} are of several revisions of a component, from before and after "
            f"a fix: give {HASH_KEY} among --rows, choose with --where, or average them with --pool"
        )
    listed = "; ".join(f"{key}: {_some(values)}" for key, values in varying.items())
    raise ReportError(
        f"the runs of {name} differ in other keys as well ({listed}): give them among --rows or "
        "--columns, choose with --where, or average over them with --pool"
    )


def _some(values: Sequence[Any]) -> str:
    return first_of(map(show_key, values), _SHOWN)


def common_group(groups: Sequence[Group]) -> Group:
    """Returns what the names of some rows have in common, except for the estimator."""
    first, *rest = groups
    return {
        key: value
        for key, value in first.items()
        if not key.startswith("estimator") and all(g.get(key) == value for g in rest)
    }


def _replicates(runs: Sequence[RunRecord]) -> dict[str, list[RunRecord]]:
    replicates: dict[str, list[RunRecord]] = {}
    for run in runs:
        replicates.setdefault(run.config_hash, []).append(run)
    return replicates


def _names(leaves: Sequence[Mapping[str, Any]], always: str) -> list[Group]:
    kinds: dict[tuple[str, tuple[str, ...]], set[str]] = {}
    for leaf in leaves:
        for key, value in leaf.items():
            kinds.setdefault((key, _kind(key, leaf)), set()).add(json.dumps(value))
    return [
        {
            key: leaf[key]
            for key in sorted(leaf, key=key_order)
            if key in ("estimator", always) or len(kinds[key, _kind(key, leaf)]) > 1
        }
        for leaf in leaves
    ]


def _kind(key: str, leaf: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns the components above a key; the key compares only among equal ones."""
    return tuple(str(leaf.get(node)) for node in _above(key))


@functools.cache
def _above(key: str) -> tuple[str, ...]:
    parts = key.split(".")
    return tuple(".".join(parts[:depth]) for depth in range(1, len(parts)))


@functools.cache
def key_order(key: str) -> tuple[int, int, str]:
    """Returns the sort key: estimator, other components, numbers, then components' parameters."""
    node, _, parameter = key.partition(".")
    order = _NODES.index(node) if node in _NODES else len(_NODES)
    if parameter:
        return 3, order, key
    if key in _NUMBERS:
        return 2, _NUMBERS.index(key), key
    return (0 if key == "estimator" else 1), order, key


def _leaves(config: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yields the dotted keys that can distinguish rows; a component's value is its name."""
    if is_imported(config):
        yield "backend", IMPORTED
        for key, value in setting_leaves(config):
            yield key.removesuffix(".name"), value
        return
    for key in (*_NODES, *_NUMBERS):
        if key in config:
            for leaf, value in _flat(key, config[key]):
                yield leaf, titled(value, config) if leaf == "estimator" else value
    for key, value in _flat(CONTROL, config.get(CONTROL, {})):
        # The control itself is part of the estimator's name.
        if key != CONTROL:
            yield key, value


def flatten(config: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yields the dotted keys of a config with their values; a component's value is its name."""
    for key, value in config.items():
        yield from _flat(key, value)


def _flat(key: str, value: Any) -> Iterator[tuple[str, Any]]:
    if not isinstance(value, Mapping):
        yield key, value
        return
    for inner, item in value.items():
        yield from _flat(key if inner == "name" else f"{key}.{inner}", item)


def _free_keys(replicates: Iterable[Sequence[RunRecord]]) -> set[str]:
    """Returns the keys that cannot change a result, as replicates or backends show."""
    free = set(_free_backend_keys())
    for members in replicates:
        first = members[0].config
        flat: dict[str, Any] | None = None
        for run in members[1:]:
            # Flattening takes most of the time, and replicates are nearly always alike.
            if all(run.config.get(key) == first.get(key) for key in (*_NODES, *_NUMBERS)):
                continue
            if is_imported(first):
                # Equal hashes have equal settings; the rest was left out by `setting_leaves`.
                continue
            flat = dict(_leaves(first)) if flat is None else flat
            free |= {key for key, value in _leaves(run.config) if flat.get(key) != value}
    return free


@functools.cache
def _free_backend_keys() -> frozenset[str]:
    fields = dataclasses.fields(Backend)
    return frozenset(f"backend.{f.name}" for f in fields if not option_of(f).identity)
