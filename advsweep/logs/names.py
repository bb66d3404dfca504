"""Maps the names of other trainers' metrics to ours, by a table for each format.

A table is a YAML file beside this module:

    include: [trl, verl]         # tables whose entries follow
    prefixes: [train/]           # names are also looked up without these
    step: [step, global_step]    # names of the step, where the format has none of its own
    names:
      reward: reward/mean
      entropy: {name: entropy/token, note: mean over tokens instead of rollouts}

The entries are in order of preference: of two names that a log has for the same metric of ours,
the first keeps it, and the other stays as it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from advsweep.errors import ConfigError, UnknownNameError, nearest
from advsweep.logs.base import STEP_KEYS, LoggedStep
from advsweep.printable import printable_line
from advsweep.yaml_files import read_yaml

_FOLDER = Path(__file__).with_name("names")

STEP = "step"
"""What `--map NAME=step` calls the name of the step."""

# Characters with a meaning in the names of columns of a report.
_UNUSABLE = str.maketrans(
    {"@": "_at_", "[": "_", "]": "_", "=": "_", "<": "_", ">": "_", ",": "_", "*": "_"}
)


class _Entry(NamedTuple):
    name: str
    rank: int
    note: str | None


class NameMap:
    """Names of one format with ours, and what it renamed so far.

    Args:
        entries: our names with notes by theirs, in order of preference.
        prefixes: parts in front of their names that are ignored, such as `train/`.
        steps: names of the step in this format, in order of preference.
        extra: our names by theirs, before those of the table; `step` names the step.

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
        steps: Iterable[str] = STEP_KEYS,
        extra: Mapping[str, str] | None = None,
    ) -> None:
        extra = dict(extra or {})
        self._extra = {theirs: ours for theirs, ours in extra.items() if ours != STEP}
        self._entries = {
            theirs: _Entry(ours, rank, note)
            for rank, (theirs, (ours, note)) in enumerate(entries.items())
        }
        self._prefixes = tuple(prefixes)
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
        entries, prefixes, steps = _read(table)
        return cls(entries, prefixes=prefixes, steps=steps or STEP_KEYS, extra=extra)

    def rename(self, name: str) -> str | None:
        """Returns the name that a metric gets; None if it keeps its own.

        A name without an entry keeps its own, except for characters such as `@`, which have a
        meaning in the columns of a report: `acc/mean@8` becomes `acc/mean_at_8`.
        """
        if (found := self._extra.get(name)) is not None:
            return found
        if (entry := self._find(name)) is not None:
            return None if entry.name == name else entry.name
        usable = name.translate(_UNUSABLE)
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

    def notes(self) -> list[str]:
        """Returns what the table says about the metrics renamed so far, a line each."""
        return [f"{ours}: {self._notes[ours]}" for ours in sorted(self._notes)]

    def _find(self, name: str) -> _Entry | None:
        if (found := self._entries.get(name)) is not None:
            return found
        for prefix in self._prefixes:
            if name.startswith(prefix) and (entry := self._entries.get(name[len(prefix) :])):
                return entry
        return None

    def _learn(self, values: Mapping[str, float]) -> None:
        new = [name for name in values if name not in self.renamed and name not in self.kept]
        taken = {*self.renamed.values(), *self.kept, *values, *self._extra.values()}
        for name in sorted(new, key=self._rank):
            ours = self.rename(name)
            # A name of --map is wanted even if the log has that name already.
            if ours is None or (ours in taken and name not in self._extra):
                usable = name.translate(_UNUSABLE)
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


def tables() -> list[str]:
    """Returns the names of all tables, sorted."""
    return sorted(path.stem for path in _FOLDER.glob("*.yaml"))


def _read(
    table: str, above: tuple[str, ...] = ()
) -> tuple[dict[str, tuple[str, str | None]], list[str], list[str]]:
    """Returns the entries, the prefixes and the names of the step of a table."""
    if table not in tables():
        raise UnknownNameError(f"names: no table is called '{table}'; {nearest(table, tables())}")
    path = _FOLDER / f"{table}.yaml"
    content = read_yaml(path) or {}
    known = {"include", "prefixes", "step", "names"}
    if not isinstance(content, dict) or content.keys() - known:
        raise ConfigError(f"{path}: expected a mapping with {', '.join(sorted(known))}")
    entries = {str(k): _entry(path, k, v) for k, v in (content.get("names") or {}).items()}
    prefixes = [str(prefix) for prefix in content.get("prefixes") or ()]
    steps = [str(step) for step in content.get("step") or ()]
    for other in content.get("include") or ():
        if other in above:
            raise ConfigError(f"{path}: includes itself through '{other}'")
        more, their_prefixes, their_steps = _read(str(other), (*above, table))
        entries = {**entries, **{k: v for k, v in more.items() if k not in entries}}
        prefixes += [prefix for prefix in their_prefixes if prefix not in prefixes]
        steps += [step for step in their_steps if step not in steps]
    return entries, prefixes, steps


def _entry(path: Path, theirs: Any, value: Any) -> tuple[str, str | None]:
    if isinstance(value, str):
        return value, None
    if isinstance(value, dict) and isinstance(value.get("name"), str):
        note = value.get("note")
        return value["name"], None if note is None else str(note)
    raise ConfigError(f"{path}: expected a name, or a mapping with name and note, of {theirs!r}")
