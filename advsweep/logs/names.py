"""Names of other trainers' metrics with ours, and their settings.

The names of metrics have a table for each format, a YAML file beside this module:

    include: [trl, verl]         # tables whose entries follow
    prefixes: [train/]           # names are also looked up without these
    step: [step, global_step]    # names of the step, where the format has none of its own
    names:
      reward: reward/mean
      entropy: {name: entropy/token, note: mean over tokens instead of rollouts}
    ours: [mass/]                # beginnings of our names, which the log may have with a prefix
    config:                      # our keys of settings by theirs, both dotted
      num_generations: group_size

The entries are in order of preference: of two names that a log has for the same metric of ours,
the first keeps it, and the other stays as it is.
"""

from __future__ import annotations

import functools
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePath
from typing import Any, NamedTuple

from advsweep.errors import ConfigError, UnknownNameError, nearest
from advsweep.printable import printable_line
from advsweep.yaml_files import read_yaml

_FOLDER = Path(__file__).with_name("names")
# Names of all tables.
TABLES = sorted(path.stem for path in _FOLDER.glob("*.yaml"))

# What `--map NAME=step` calls the name of the step.
STEP = "step"

# Top level keys of a config, which `--map COLUMN=KEY` may name as well as a metric.
SETTINGS = frozenset(
    {
        "estimator",
        "seed",
        "task",
        "model",
        "objective",
        "rollout",
        "optimizer",
        "generation",
        "evaluation",
        "backend",
        "method",
        "group_size",
        "prompts_per_step",
        "steps",
    }
)

# Characters with a meaning in the names of columns of a report.
_UNUSABLE = str.maketrans(dict.fromkeys("[]=<>,*", "_"))
# An @ before a digit belongs to a name, as no window on a curve begins with one.
_WINDOW = re.compile(r"@(?!\d)|(?<=^pass)@")

# Names that columns of a report have for numbers of other sources (`report.data.columns`): a metric
# of such a name could not be shown. A test compares them.
_RESERVED = re.compile(
    r"total/(?:steps|rollouts|tokens|seconds)|entropy/(?:answer|right(?:_rarefied(?:_share)?)?)"
    r"|kl/base|law/(?:[abc]|(?:mse|aic)/\w+)"
)
_LOGGED = "_logged"

_FIELD = re.compile(r"\{([A-Za-z_][\w.]*)\}")
_ENDINGS = frozenset(
    {".csv", ".tsv", ".json", ".jsonl", ".ndjson", ".parquet", ".wandb", ".log", ".txt"}
)

# The estimator of a run whose files and command do not name one.
UNKNOWN = "unknown"


class LoggedStep(NamedTuple):
    """What a log holds of one step; a step may be logged in several parts.

    Attributes:
        values: finite numbers by the names of the log, without control characters.
    """

    step: int
    values: dict[str, float]


class _Entry(NamedTuple):
    name: str
    rank: int
    note: str | None = None


class NameMap:
    """Names of one format with ours, and what it renamed so far.

    Args:
        table: the format whose table is used; empty for none.
        extra: our names by theirs, before those of the table; `step` names the step.

    Attributes:
        steps: names of the step, in order of preference.
        settings: our keys of settings by theirs, of `extra`.
        renamed: our names by theirs, of the metrics seen so far.
        kept: the metrics seen so far that kept their names.

    Raises:
        UnknownNameError: there is no such table.
    """

    def __init__(self, table: str = "", extra: Mapping[str, str] | None = None) -> None:
        found = _read(table) if table else {}
        extra = dict(extra or {})
        self._settings: dict[str, str] = found.get("config", {})
        self.settings = {theirs: ours for theirs, ours in extra.items() if is_setting(ours)}
        self._extra = {
            theirs: ours
            for theirs, ours in extra.items()
            if ours != STEP and theirs not in self.settings
        }
        self._entries = {
            theirs: _Entry(ours, rank) if isinstance(ours, str) else _Entry(rank=rank, **ours)
            for rank, (theirs, ours) in enumerate(found.get("names", {}).items())
        }
        self._lower = {theirs.lower(): theirs for theirs in reversed(self._entries)}
        self._prefixes = tuple(found.get("prefixes", ()))
        self._ours = tuple(found.get("ours", ()))
        named = [theirs for theirs, ours in extra.items() if ours == STEP]
        self.steps = tuple(named) or step_names(table or "jsonl")
        self.renamed: dict[str, str] = {}
        self.kept: set[str] = set()
        self._notes: dict[str, str] = {}

    @property
    def wanted(self) -> tuple[str, ...]:
        """Their names of metrics that `extra` renames."""
        return tuple(self._extra)

    def with_slashes(self, name: str) -> str:
        """Return the name of a metric of which a file's name has `_` for `/`, if it is known.

        >>> NameMap("trl").with_slashes("train_clip_ratio_region_mean")
        'train/clip_ratio/region_mean'
        """
        for known in self._entries:
            for prefix in ("", *self._prefixes):
                if f"{prefix}{known}".replace("/", "_") == name:
                    return f"{prefix}{known}"
        return name

    def apply(self, values: Mapping[str, float]) -> dict[str, float]:
        """Return the values of a step under the names that they get.

        A name without an entry keeps its own, except for characters with a meaning in the columns
        of a report: `loss[0]` becomes `loss_0_`, and `acc@end` becomes `acc_at_end`.
        """
        # Most steps of a log have the names of the step before.
        if values.keys() - self.renamed.keys() - self.kept:
            self._learn(values)
        renamed = self.renamed
        return {renamed.get(name, name): value for name, value in values.items()}

    def rename_step(self, step: LoggedStep) -> LoggedStep:
        """Return a step with the names that its values get."""
        return LoggedStep(step.step, self.apply(step.values))

    def combine(
        self, logged: Iterable[LoggedStep], found: Mapping[int, Mapping[str, float]]
    ) -> Iterator[LoggedStep]:
        """Yield what is logged, then what was found by our names, which counts where both say it.

        A step may be logged several times.
        """
        for step, values in logged:
            own = found.get(step, {})
            named = self.apply(values)
            yield LoggedStep(step, {name: v for name, v in named.items() if name not in own})
        for step, own in found.items():
            yield LoggedStep(step, dict(own))

    def with_settings(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Return a config with our keys beside theirs, where ours are missing."""
        result = dict(config)
        for theirs, ours in self._settings.items():
            value = value_at(config, theirs)
            if isinstance(value, (str, int, float)):
                result.setdefault(ours, value)
        for theirs, ours in self.settings.items():
            value = config.get(theirs, value_at(config, theirs))
            if isinstance(value, (str, int, float)):
                result.pop(theirs, None)
                assign(result, ours, value)
        return result

    def notes(self) -> list[str]:
        """Return what the table says about the metrics renamed so far, a line each."""
        return [f"{ours}: {self._notes[ours]}" for ours in sorted(self._notes)]

    def _learn(self, values: Mapping[str, float]) -> None:
        new = [name for name in values if name not in self.renamed and name not in self.kept]
        # The names of this step count as taken, so that a metric of ours in the log stays itself.
        taken = {*self.renamed.values(), *self.kept, *values, *self._extra.values()}
        entries = [(self._find(name), name) for name in new]
        for entry, name in sorted(entries, key=lambda pair: pair[0].rank):
            ours = entry.name
            # A name of --map is wanted even if the log has that name already.
            if ours in taken and name not in self._extra:
                usable = _usable(name)
                ours = name if usable in taken else usable
            if ours == name and name in self.renamed.values():
                # An earlier step gave this name to another metric.
                ours = f"{name}{_LOGGED}"
            if ours == name:
                self.kept.add(name)
                continue
            taken.add(ours)
            self.renamed[name] = ours
            if entry.note and entry.name == ours:
                self._notes[ours] = f"from {printable_line(name)}, {entry.note}"

    def _find(self, name: str) -> _Entry:
        if name in self._extra:
            return _Entry(self._extra[name], -2)
        if name in self._entries:
            return self._entries[name]
        for prefix in self._prefixes:
            rest = name.removeprefix(prefix)
            if rest != name and rest in self._entries:
                return self._entries[rest]
            if rest != name and rest.startswith(self._ours):
                return _Entry(rest, -1)
        if name.lower() in self._lower and name != name.lower():
            # Spreadsheets write Reward. Where a log has both, the name of the table comes first.
            return self._entries[self._lower[name.lower()]]
        return _Entry(_usable(name), len(self._entries))


def _usable(name: str) -> str:
    usable = _WINDOW.sub("_at_", name.translate(_UNUSABLE))
    return f"{usable}{_LOGGED}" if _RESERVED.fullmatch(usable) else usable


def step_names(table: str) -> tuple[str, ...]:
    """Return the names of the step in a format, in order of preference."""
    return tuple(_read(table)["step"])


@functools.cache
def _read(table: str) -> dict[str, Any]:
    """Return the content of a table; what it has itself comes before what it includes."""
    if table not in TABLES:
        raise UnknownNameError(f"names: no table is called '{table}'; {nearest(table, TABLES)}")
    content: dict[str, Any] = dict(read_yaml(_FOLDER / f"{table}.yaml"))
    for other in content.pop("include", ()):
        for key, more in _read(other).items():
            own = content.get(key, type(more)())
            if isinstance(more, dict):
                content[key] = own | {k: v for k, v in more.items() if k not in own}
            else:
                content[key] = list(dict.fromkeys([*own, *more]))
    return content


def is_setting(ours: str) -> bool:
    """Return whether a name of ours is a key of the config, and not a metric.

    >>> [is_setting(name) for name in ("estimator", "optimizer.lr", "optim/lr", "my.metric")]
    [True, True, False, False]
    """
    return ours.partition(".")[0] in SETTINGS


def value_at(config: Any, key: str) -> Any:
    """Return the value of a dotted key; None without one."""
    for part in key.split("."):
        config = config.get(part) if isinstance(config, Mapping) else None
    return config


def parse_value(text: str) -> Any:
    """Return the value of a setting that was written as a text: JSON, or else the text itself.

    >>> [parse_value(text) for text in ("0.5", "grpo", "true", "[1, 2]", "1e-6")]
    [0.5, 'grpo', True, [1, 2], 1e-06]
    """
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    # Infinities have no place in JSON.
    return text if isinstance(value, float) and not math.isfinite(value) else value


def assign(settings: dict[str, Any], key: str, value: Any) -> None:
    """Set a dotted key; a text on the way, such as an estimator's name, becomes its `name`."""
    *above, last = key.split(".")
    node = settings
    for part in above:
        inner = node.get(part)
        if not isinstance(inner, dict):
            inner = {} if inner is None else {"name": inner}
        # A copy, since nodes may be shared with what a file says.
        node[part] = inner = dict(inner)
        node = inner
    if isinstance(node.get(last), dict) and not isinstance(value, dict):
        node[last] = {**node[last], "name": value}
    else:
        node[last] = value


class NamePattern:
    """A pattern over the names of folders or files, such as `{estimator}-s{seed}`.

    Raises:
        ConfigError: the pattern has no field.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self._keys: list[str] = []
        expression, place = "", 0
        for match in _FIELD.finditer(text):
            self._keys.append(match[1])
            expression += re.escape(text[place : match.start()]) + "([^/]+?)"
            place = match.end()
        if not self._keys or len(set(self._keys)) < len(self._keys):
            raise ConfigError(
                "--name-pattern: expected different fields in braces, such as "
                f"'{{estimator}}-s{{seed}}', got {text!r}"
            )
        self._expression = re.compile(expression + re.escape(text[place:]))
        self._depth = text.count("/") + 1

    def settings(self, source: str) -> dict[str, Any] | None:
        """Return the settings in a path; None if no part of it matches. The last part wins."""
        parts = PurePath(source).parts
        for end in range(len(parts), self._depth - 1, -1):
            *above, last = parts[end - self._depth : end]
            # A dot may also belong to a setting, as in `lr0.5`.
            ending = PurePath(last).suffix
            stem = last.removesuffix(ending) if ending in _ENDINGS else last
            # Runs of a table are COLUMN=VALUE, and a pattern is of the value.
            value = "" if "=" in self.text else last.partition("=")[2]
            for name in dict.fromkeys((value, stem, last) if value else (stem, last)):
                if match := self._expression.fullmatch("/".join([*above, name])):
                    settings: dict[str, Any] = {}
                    for key, text in zip(self._keys, match.groups(), strict=True):
                        assign(settings, key, parse_value(text))
                    return settings
        return None


def merged(config: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return a config with other settings in it, node by node.

    A name that a node has already leaves the node as it is, with its options.
    """
    result = dict(config)
    for key, value in settings.items():
        old = result.get(key)
        if isinstance(value, str) and isinstance(old, Mapping) and old.get("name") == value:
            continue
        if isinstance(value, Mapping):
            base = old if isinstance(old, Mapping) else {} if old is None else {"name": old}
            result[key] = merged(base, value)
        else:
            result[key] = value
    return result


def estimator_node(value: Any) -> dict[str, Any]:
    """Return the config node of an estimator of any form.

    The name is made of lower-case letters, digits and underscores, as a store demands.
    """
    node = dict(value) if isinstance(value, Mapping) else {"name": value}
    name = re.sub(r"[^a-z0-9_]+", "_", str(node.get("name") or UNKNOWN).lower()).strip("_")[:64]
    others = {key: item for key, item in node.items() if key != "name"}
    return {"name": name or UNKNOWN, **others}
