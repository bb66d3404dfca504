"""The runs of a table: filters select them, and their configs group them into rows.

    estimator=fade,grpo group_size>=8

    KEY=VALUE,...     one of these values; KEY!=VALUE,... none of them
    KEY>=NUMBER       also >, <= and <

KEY is a config key (a component's value is its name), `seed`, `status` or `sweep`. Spaces separate
filters (`and` may stand between them); a run must match all of them. Values are JSON, and other
words are texts; quotes enclose values with spaces.

Runs with the same configuration hash are replicates. A row is named by its estimator and by
every config key that varies over the table. A component's parameter varies only if it differs
among rows with the same component: between two estimators nearly every parameter differs. Rows
can be named by chosen keys instead.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import operator
import re
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from advsweep.backends.base import Backend
from advsweep.components import leaves, option_of
from advsweep.errors import ConfigError, NotFoundError, ReportError, first_of, nearest
from advsweep.names import COLLAPSED
from advsweep.store import RunRecord, Status, Store
from advsweep.store.imported import IMPORTED, is_calibration, is_imported, setting_leaves
from advsweep.store.sanity import HASH
from advsweep.tasks.controls import CONTROL, titled

# The name of a row: config keys, `estimator` first, and their values.
Group = dict[str, Any]

HASH_KEY = "config_hash"

# The preset that sets estimator, objective and rollout policy, where a sweep was given one.
METHOD = "method"
METHOD_NODES = ("estimator", "objective", "rollout")

# The value of a key that a run's config lacks.
MISSING = object()

_OPERATORS = r"!=|<=|>=|=|<|>"
_CONDITION = re.compile(rf"([^=!<>]+)({_OPERATORS})(.*)", re.DOTALL)
_ORDERS = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
_NODES = (
    *("estimator", "objective", "rollout", "task", "model"),
    *("optimizer", "generation", "backend"),
)
_NUMBERS = ("group_size", "prompts_per_step", "steps")
_SHOWN = 4  # values of a key in a message


@dataclass(frozen=True)
class Filter:
    """A test of one key; `text` is what the user wrote."""

    key: str
    operator: str
    values: tuple[Any, ...]
    text: str

    def holds(self, value: Any) -> bool:
        """Test a value; `MISSING` and NaN never match."""
        if value is MISSING or value != value:
            return False
        if self.operator in _ORDERS:
            number = isinstance(value, (int, float)) and not isinstance(value, bool)
            return number and bool(_ORDERS[self.operator](value, self.values[0]))
        among = value if isinstance(value, tuple) else (value,)
        # In Python True is 1.
        found = any(
            own == other and isinstance(own, bool) == isinstance(other, bool)
            for own in among
            for other in self.values
        )
        return found is (self.operator == "=")


def parse_where(text: str, option: str = "--where") -> list[Filter]:
    """Parse filters.

    Args:
        option: the option that the text comes from, for the message.

    Raises:
        ConfigError: a part of the text is no filter; the message names it.
    """
    try:
        tokens = shlex.split(re.sub(rf"\s*({_OPERATORS})\s*", r"\1", text))
    except ValueError as error:
        raise ConfigError(f"{option}: {text!r} has a quote that does not end") from error
    filters = [_parse_filter(token, option) for token in tokens if token != "and"]
    if not filters:
        raise ConfigError(f"{option}: expected a condition such as group_size=8, got nothing")
    return filters


def _parse_filter(text: str, option: str) -> Filter:
    match = _CONDITION.fullmatch(text)
    key, sign, listed = match.groups() if match is not None else ("", "", "")
    items = split_list(listed)
    # A hash may look like a number: 00e12345, 12345678.
    values = tuple(items) if key == HASH_KEY else tuple(map(_parse_value, items))
    # A bool is an int in Python.
    is_number = len(values) == 1 and type(values[0]) in (int, float)
    if "" in items or listed.startswith("=") or (sign in _ORDERS and not is_number):
        raise ConfigError(
            f"{option}: expected KEY=VALUE,... KEY!=VALUE,... or KEY>=NUMBER, got {text!r}"
        )
    return Filter(key, sign, values, text)


def _parse_value(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):  # no JSON, thousands of digits, or nested too deeply
        return text


def split_list(text: str) -> list[str]:
    """Split a text at its commas, except for those in brackets.

    >>> split_list("pass@1[gsm8k,level=3],seed")
    ['pass@1[gsm8k,level=3]', 'seed']
    """
    items, depth = [""], 0
    for character in text:
        depth += (character in "[{(") - (character in "]})")
        if character == "," and depth == 0:
            items.append("")
        else:
            items[-1] += character
    return [item.strip() for item in items]


def describe_filters(filters: Sequence[Filter]) -> str:
    """Join the filters as the user wrote them."""
    return " ".join(filter.text for filter in filters)


def show_key(value: Any) -> str:
    """Format a config value: the items of a list, short numbers, `null`."""
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(show_key(item) for item in value) + "]"
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


def short_keys(keys: Iterable[str]) -> dict[str, str]:
    """Return the last part of each dotted key, or the key itself where others end the same."""
    last = {key: key.rpartition(".")[2] for key in keys}
    counts = Counter(last.values())
    return {key: part if counts[part] == 1 else key for key, part in last.items()}


def title_key(groups: Iterable[Mapping[str, Any]]) -> str:
    """Return the key whose value names a row first: its method, or its estimator."""
    return METHOD if all(METHOD in group for group in groups) else "estimator"


def name_group(group: Mapping[str, Any]) -> str:
    """Name a row in words, such as `grpo, group_size=8`; by its method if a preset names it."""
    title = title_key([group])
    parts = []
    for key, value in group.items():
        if key == title:
            parts.append(show_key(value))
        elif key != "estimator":
            parts.append(f"{key}={show_key(value)}")
    return ", ".join(parts)


def value_of(run: Any, key: str) -> Any:
    """Return a run's value of a config key, or of `seed`, `status`, `sweep` or `config_hash`.

    The value of a component is its name; `MISSING` for a key that the config lacks.
    """
    match key:
        case "seed":
            return MISSING if run.seed is None else run.seed
        case "status":
            return run.status.value
        case "sweep":
            return run.sweeps
        case "config_hash":
            return run.config_hash[:HASH]
        case "method":
            return MISSING if run.method is None else run.method
    value: Any = run.config
    for part in key.split("."):
        if not isinstance(value, Mapping) or part not in value:
            return MISSING
        value = value[part]
    value = value.get("name", MISSING) if isinstance(value, Mapping) else value
    is_titled = key == "estimator" and isinstance(value, str) and not is_imported(run.config)
    return titled(value, run.config) if is_titled else value


def is_key(runs: Iterable[Any], key: str) -> bool:
    """Test whether a run has a value of a key."""
    return any(value_of(run, key) is not MISSING for run in runs)


def known_keys(runs: Iterable[RunRecord]) -> set[str]:
    """Return every config key of the runs."""
    configs = {run.config_hash: run.config for run in runs}
    return {"seed", *(key for config in configs.values() for key, _ in leaves(config, named=True))}


def read_runs(
    store: Store, sweep: str | None, run_ids: Sequence[int] | None = None
) -> list[RunRecord]:
    """Read the runs of a sweep, of all sweeps, or of some ids; one attempt of each identity.

    Of several attempts it is the newest that is done, or else the newest. Calibrations of
    learning rates are read only by their ids. Runs have the methods by which the sweep named them.

    Raises:
        NotFoundError: the sweep or an id does not exist.
    """
    listed = store.runs.select(sweep=sweep, ids=run_ids, newest_first=False)
    if run_ids is None:
        listed = _ordered(listed)
    latest: dict[str, RunRecord] = {}
    for run in listed:
        if sweep is None and run_ids is None and is_calibration(run.config):
            continue
        known = latest.setdefault(run.identity, run)
        if (run.status is Status.DONE, run.attempt) > (known.status is Status.DONE, known.attempt):
            latest[run.identity] = run
    methods = store.sweeps.methods(sweep)
    runs = latest.values()
    return [dataclasses.replace(run, method=methods.get(run.config_hash)) for run in runs]


def _ordered(runs: Sequence[RunRecord]) -> list[RunRecord]:
    """Return runs with the imported ones, at their places, in an order that no file name decides.

    Runs of one folder were added at the same time; their settings order them.
    """
    imported = iter(sorted(filter(_is_imported, runs), key=_import_order))
    return [next(imported) if _is_imported(run) else run for run in runs]


def _is_imported(run: RunRecord) -> bool:
    return is_imported(run.config)


def _import_order(run: RunRecord) -> tuple[Any, ...]:
    return run.created, run.estimator, [*map(_setting_order, setting_leaves(run.config))]


def _setting_order(setting: tuple[str, Any]) -> tuple[str, bool, float, str]:
    """Return the sort key of a config key and its value: numbers first, ascending."""
    key, value = setting
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return key, not is_number, value if is_number else 0.0, "" if is_number else show_key(value)


def metric_names(store: Store, runs: Sequence[RunRecord]) -> list[str]:
    """Return the metrics of some runs, sorted."""
    # The run of each configuration that came furthest: its other runs record the same.
    furthest = {run.config_hash: run for run in sorted(runs, key=lambda run: run.step)}
    return sorted({name for run in furthest.values() for name in store.metrics.names(run.id)})


def collapsed_runs(store: Store, runs: Sequence[RunRecord]) -> set[int]:
    """Return the ids of the runs whose policy collapsed in training."""
    summaries = store.metrics.summaries([run.id for run in runs])
    return {run_id for run_id, values in summaries.items() if values.get(COLLAPSED)}


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
        known = shared[json.dumps(name)]
        name |= {key: value for key, value in leaf.items() if key not in known}
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
            hint = nearest(key, known_keys(runs))
            raise NotFoundError(f"--rows: no run has a key '{key}'; {hint}")
    groups: dict[str, tuple[Group, list[RunRecord]]] = {}
    for run in runs:
        values = {key: value_of(run, key) for key in keys}
        group = {key: value for key, value in values.items() if value is not MISSING}
        groups.setdefault(json.dumps(group), (group, []))[1].append(run)
    for group, members in groups.values():
        if len({run.config_hash for run in members}) > 1:
            listed = "; ".join(
                f"{key}: {first_of(map(show_key, values), _SHOWN)}"
                for key, values in varying_keys(members).items()
            )
            raise ReportError(
                f"the runs of {name_group(group)} differ in other keys as well "
                f"({listed or f'{HASH_KEY}, from before and after a fix'}): give them among "
                "--rows, or choose with --where"
            )
    return list(groups.values())


def varying_keys(runs: Sequence[RunRecord]) -> dict[str, list[Any]]:
    """Return the keys that can change a result and whose values differ, with these values."""
    values: dict[str, dict[str, Any]] = {}
    for leaf in _replicates(runs)[1]:
        # A parameter that only some have follows from their component.
        for key, value in leaf.items():
            values.setdefault(key, {})[json.dumps(value)] = value
    varying = {k: list(values[k].values()) for k in sorted(values, key=key_order)}
    varying = {key: found for key, found in varying.items() if len(found) > 1}
    # Where a component varies, its parameters add nothing.
    return {k: found for k, found in varying.items() if not varying.keys() & set(_above(k))}


def common_group(groups: Sequence[Group]) -> Group:
    """Return what the names of some rows have in common, except for the estimator."""
    first, *rest = groups
    return {
        key: value
        for key, value in first.items()
        if not key.startswith("estimator") and all(g.get(key) == value for g in rest)
    }


@functools.cache
def key_order(key: str) -> tuple[int, int, str]:
    """Return the sort key: method, estimator, other components, numbers, then parameters."""
    if key == METHOD:
        return -1, 0, key
    node, _, parameter = key.partition(".")
    order = _NODES.index(node) if node in _NODES else len(_NODES)
    if parameter:
        return 3, order, key
    if key in _NUMBERS:
        return 2, _NUMBERS.index(key), key
    return (0 if key == "estimator" else 1), order, key


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
        own = dict(_leaves(first.config))
        leaves.append(own)
        # Equal hashes have equal results: what differs between them changes none.
        for run in others:
            # Flattening takes most of the time, and replicates are nearly always alike.
            if run.config != first.config:
                free |= {key for key, value in _leaves(run.config) if own.get(key) != value}
    return replicates, [{k: v for k, v in leaf.items() if k not in free} for leaf in leaves]


def _leaves(config: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the dotted keys that can distinguish rows; a component's value is its name."""
    if is_imported(config):
        yield "backend", IMPORTED
        for key, value in setting_leaves(config):
            yield key.removesuffix(".name"), value
        return
    own = {key: config[key] for key in (*_NODES, *_NUMBERS) if key in config}
    for key, value in leaves(own, named=True):
        yield key, titled(value, config) if key == "estimator" else value
    for key, value in leaves({CONTROL: config.get(CONTROL, {})}, named=True):
        # The control itself is part of the estimator's name.
        if key != CONTROL:
            yield key, value
