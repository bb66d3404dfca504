"""Maps the names of other trainers' metrics to ours, by a table for each format.

A table is a YAML file beside this module:

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

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from advsweep.errors import ConfigError, UnknownNameError, nearest
from advsweep.logs.base import STEP_KEYS, LoggedStep
from advsweep.printable import printable_line
from advsweep.yaml_files import read_yaml

V = TypeVar("V")

_FOLDER = Path(__file__).with_name("names")

STEP = "step"
"""What `--map NAME=step` calls the name of the step."""

# Characters with a meaning in the names of columns of a report.
_UNUSABLE = str.maketrans(dict.fromkeys("[]=<>,*", "_"))
# An @ before a digit belongs to a name, as no window on a curve begins with one.
_WINDOW = re.compile(r"@(?!\d)|(?<=^pass)@")


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
        """Loads the table of a format.

        Raises:
            UnknownNameError: there is no such table.
        """
        found = _read(table)
        return cls(
            found.entries,
            prefixes=found.prefixes,
            ours=found.ours,
            steps=found.steps or STEP_KEYS,
            extra=extra,
            settings=found.settings,
        )

    def rename(self, name: str) -> str | None:
        """Returns the name that a metric gets; None if it keeps its own.

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
        """Returns the values of a step under the names that they get."""
        # Most steps of a log have the names of the step before.
        if values.keys() - self.renamed.keys() - self.kept:
            self._learn(values)
        renamed = self.renamed
        return {renamed.get(name, name): value for name, value in values.items()}

    def rename_step(self, step: LoggedStep) -> LoggedStep:
        """Returns a step with the names that its values get."""
        return LoggedStep(step.step, self.apply(step.values))

    def with_settings(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Returns a config with our keys beside theirs, where ours are missing."""
        result = dict(config)
        for theirs, ours in self._settings.items():
            node: Any = config
            for part in theirs.split("."):
                node = node.get(part) if isinstance(node, Mapping) else None
            if isinstance(node, (str, int, float)):
                result.setdefault(ours, node)
        return result

    def notes(self) -> list[str]:
        """Returns what the table says about the metrics renamed so far, a line each."""
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
        new = [name for name in values if name not in self.renamed and name not in self.kept]
        taken = {*self.renamed.values(), *self.kept, *values, *self._extra.values()}
        for name in sorted(new, key=self._rank):
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

    def _rank(self, name: str) -> tuple[int, int]:
        if name in self._extra:
            return 0, 0
        entry = self._find(name)
        return (2, 0) if entry is None else (1, entry.rank)


def _usable(name: str) -> str:
    return _WINDOW.sub("_at_", name.translate(_UNUSABLE))


def tables() -> list[str]:
    """Returns the names of all tables, sorted."""
    return sorted(path.stem for path in _FOLDER.glob("*.yaml"))


class _Table(NamedTuple):
    """The content of a table with those that it includes."""

    entries: dict[str, tuple[str, str | None]]
    prefixes: list[str]
    ours: list[str]
    steps: list[str]
    settings: dict[str, str]


def _read(table: str, above: tuple[str, ...] = ()) -> _Table:
    if table not in tables():
        raise UnknownNameError(f"names: no table is called '{table}'; {nearest(table, tables())}")
    path = _FOLDER / f"{table}.yaml"
    content = read_yaml(path) or {}
    known = {"include", "prefixes", "ours", "step", "names", "config"}
    if not isinstance(content, dict) or content.keys() - known:
        raise ConfigError(f"{path}: expected a mapping with {', '.join(sorted(known))}")
    found = _Table(
        entries={str(k): _entry(path, k, v) for k, v in (content.get("names") or {}).items()},
        prefixes=[str(prefix) for prefix in content.get("prefixes") or ()],
        ours=[str(beginning) for beginning in content.get("ours") or ()],
        steps=[str(step) for step in content.get("step") or ()],
        settings={str(k): str(v) for k, v in (content.get("config") or {}).items()},
    )
    for other in content.get("include") or ():
        if other in above:
            raise ConfigError(f"{path}: includes itself through '{other}'")
        more = _read(str(other), (*above, table))
        found = _Table(
            entries=_followed(found.entries, more.entries),
            prefixes=list(dict.fromkeys([*found.prefixes, *more.prefixes])),
            ours=list(dict.fromkeys([*found.ours, *more.ours])),
            steps=list(dict.fromkeys([*found.steps, *more.steps])),
            settings=_followed(found.settings, more.settings),
        )
    return found


def _followed(first: dict[str, V], more: dict[str, V]) -> dict[str, V]:
    """Returns the entries of two tables, those of the first before the others."""
    return {**first, **{key: value for key, value in more.items() if key not in first}}


def _entry(path: Path, theirs: Any, value: Any) -> tuple[str, str | None]:
    if isinstance(value, str):
        return value, None
    if isinstance(value, dict) and isinstance(value.get("name"), str):
        note = value.get("note")
        return value["name"], None if note is None else str(note)
    raise ConfigError(f"{path}: expected a name, or a mapping with name and note, of {theirs!r}")
