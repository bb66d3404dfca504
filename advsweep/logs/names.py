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

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any, NamedTuple

from advsweep.errors import ConfigError, UnknownNameError, nearest
from advsweep.printable import printable_line
from advsweep.yaml_files import read_yaml

_FOLDER = Path(__file__).with_name("names")

STEP = "step"
"""What `--map NAME=step` calls the name of the step."""

# Characters with a meaning in the names of columns of a report.
_UNUSABLE = str.maketrans(dict.fromkeys("[]=<>,*", "_"))
# An @ before a digit belongs to a name, as no window on a curve begins with one.
_WINDOW = re.compile(r"@(?!\d)|(?<=^pass)@")


_FIELD = re.compile(r"\{([A-Za-z_][\w.]*)\}")
_KEY = re.compile(r"[A-Za-z_][\w.\-/]*")
_ESTIMATOR = re.compile(r"[a-z0-9_]{1,64}")
_ENDINGS = frozenset(
    {".csv", ".tsv", ".json", ".jsonl", ".ndjson", ".parquet", ".wandb", ".log", ".txt"}
)

UNKNOWN = "unknown"
"""The estimator of a run whose files and command do not name one."""

STEP_KEYS = (
    *("step", "global_step", "_step", "training/global_step", "train/global_step"),
    *("trainer/global_step", "iteration", "iter", "rollout_step", "policy_step", "update"),
)
"""Names of the step in logs, in the order in which they are looked for."""


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
    note: str | None


class NameMap:
    """Names of one format with ours, and what it renamed so far.

    Args:
        entries: our names with notes by theirs, in order of preference.
        prefixes: parts in front of their names that are ignored, such as `train/`.
        ours: beginnings of our names, which need no entries.
        steps: names of the step in this format, in order of preference.
        extra: our names by theirs, before those of the table; `step` names the step.
        settings: our config keys by theirs.

    Attributes:
        steps: names of the step.
        renamed: our names by theirs, of the metrics seen so far.
        kept: the metrics seen so far that kept their names.
    """

    def __init__(
        self,
        entries: Mapping[str, tuple[str, str | None]],
        *,
        prefixes: Iterable[str] = (),
        ours: Iterable[str] = (),
        steps: Iterable[str] = STEP_KEYS,
        extra: Mapping[str, str] | None = None,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self._settings = dict(settings or {})
        extra = dict(extra or {})
        self._extra = {theirs: ours for theirs, ours in extra.items() if ours != STEP}
        self._entries = {
            theirs: _Entry(ours, rank, note)
            for rank, (theirs, (ours, note)) in enumerate(entries.items())
        }
        self._prefixes = tuple(prefixes)
        self._ours = tuple(ours)
        named = [theirs for theirs, ours in extra.items() if ours == STEP]
        self.steps = tuple(named or steps)
        self.renamed: dict[str, str] = {}
        self.kept: set[str] = set()
        self._notes: dict[str, str] = {}

    @classmethod
    def load(cls, table: str, extra: Mapping[str, str] | None = None) -> NameMap:
        """Load the table of a format.

        Raises:
            UnknownNameError: there is no such table.
        """
        found = _read(table)
        return cls(
            {
                theirs: (ours, None) if isinstance(ours, str) else (ours["name"], ours["note"])
                for theirs, ours in found.get("names", {}).items()
            },
            prefixes=found.get("prefixes", ()),
            ours=found.get("ours", ()),
            steps=found.get("step", STEP_KEYS),
            extra=extra,
            settings=found.get("config"),
        )

    def rename(self, name: str) -> str | None:
        """Return the name that a metric gets; None if it keeps its own.

        A name without an entry keeps its own, except for characters with a meaning in the columns
        of a report: `loss[0]` becomes `loss_0_`, and `acc@end` becomes `acc_at_end`.
        """
        if (found := self._extra.get(name)) is not None:
            return found
        if (entry := self._find(name)) is not None:
            return None if entry.name == name else entry.name
        usable = _usable(name)
        return None if usable == name else usable

    def apply(self, values: Mapping[str, float]) -> dict[str, float]:
        """Return the values of a step under the names that they get."""
        # Most steps of a log have the names of the step before.
        if values.keys() - self.renamed.keys() - self.kept:
            self._learn(values)
        renamed = self.renamed
        return {renamed.get(name, name): value for name, value in values.items()}

    def rename_step(self, step: LoggedStep) -> LoggedStep:
        """Return a step with the names that its values get."""
        return LoggedStep(step.step, self.apply(step.values))

    def with_settings(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Return a config with our keys beside theirs, where ours are missing."""
        result = dict(config)
        for theirs, ours in self._settings.items():
            node: Any = config
            for part in theirs.split("."):
                node = node.get(part) if isinstance(node, Mapping) else None
            if isinstance(node, (str, int, float)):
                result.setdefault(ours, node)
        return result

    def notes(self) -> list[str]:
        """Return what the table says about the metrics renamed so far, a line each."""
        return [f"{ours}: {self._notes[ours]}" for ours in sorted(self._notes)]

    def _find(self, name: str) -> _Entry | None:
        if (found := self._entries.get(name)) is not None:
            return found
        for prefix in self._prefixes:
            if not name.startswith(prefix):
                continue
            rest = name.removeprefix(prefix)
            if (entry := self._entries.get(rest)) is not None:
                return entry
            if rest.startswith(self._ours):
                return _Entry(rest, -1, None)
        return None

    def _learn(self, values: Mapping[str, float]) -> None:
        def rank(name: str) -> tuple[int, int]:
            if name in self._extra:
                return 0, 0
            entry = self._find(name)
            return (2, 0) if entry is None else (1, entry.rank)

        new = [name for name in values if name not in self.renamed and name not in self.kept]
        taken = {*self.renamed.values(), *self.kept, *values, *self._extra.values()}
        for name in sorted(new, key=rank):
            ours = self.rename(name)
            # A name of --map is wanted even if the log has that name already.
            if ours is None or (ours in taken and name not in self._extra):
                usable = _usable(name)
                ours = usable if usable != name and usable not in taken else None
            if ours is None and name in self.renamed.values():
                # An earlier step gave this name to another metric.
                ours = f"{name}_logged"
            if ours is None:
                self.kept.add(name)
                continue
            taken.add(ours)
            self.renamed[name] = ours
            entry = self._find(name)
            if entry is not None and entry.note and entry.name == ours:
                self._notes[ours] = f"from {printable_line(name)}, {entry.note}"


def _usable(name: str) -> str:
    return _WINDOW.sub("_at_", name.translate(_UNUSABLE))


def tables() -> list[str]:
    """Return the names of all tables, sorted."""
    return sorted(path.stem for path in _FOLDER.glob("*.yaml"))


def _read(table: str) -> dict[str, Any]:
    """Return the content of a table; what it has itself comes before what it includes."""
    if table not in tables():
        raise UnknownNameError(f"names: no table is called '{table}'; {nearest(table, tables())}")
    content: dict[str, Any] = dict(read_yaml(_FOLDER / f"{table}.yaml"))
    for other in content.pop("include", ()):
        for key, more in _read(other).items():
            own = content.get(key, type(more)())
            if isinstance(more, dict):
                content[key] = own | {k: v for k, v in more.items() if k not in own}
            else:
                content[key] = list(dict.fromkeys([*own, *more]))
    return content


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


def parse_settings(assignments: Sequence[str], option: str = "--set") -> dict[str, Any]:
    """Return nested settings of assignments such as `estimator.delta=0.5`.

    Raises:
        ConfigError: an assignment has no `=`, or its key no letters.
    """
    settings: dict[str, Any] = {}
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        if not equals or not _KEY.fullmatch(key):
            raise ConfigError(f"{option}: expected KEY=VALUE, got {assignment!r}")
        assign(settings, key, parse_value(text))
    return settings


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
            for name in dict.fromkeys((stem, last)):
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
    return {"name": name if _ESTIMATOR.fullmatch(name) else UNKNOWN, **others}
