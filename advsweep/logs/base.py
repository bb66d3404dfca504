"""What every reader of a trainer's logs offers: runs for an import, new steps while it grows.

    reader = READERS.build("jsonl")
    for run in reader.runs(Path("logs"), ImportOptions(names=...)): ...

    log = reader.open(Path("metrics.jsonl"))    # before or after the trainer writes to it
    steps = list(log.poll())    # again and again while the trainer writes
    log.finish()                # the trainer has ended
    steps += log.poll()         # what a last line without its end held
    log.left_out                # Counter({"incomplete lines": 1})

What cannot be used is counted, not raised: one damaged line must not hide the rest of a log.
"""

from __future__ import annotations

import dataclasses
import math
import os
import re
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self, TypeGuard

from advsweep.bounds import BEYOND, is_bounded
from advsweep.components import Component
from advsweep.errors import ConfigError, reason_of
from advsweep.logs.names import LoggedStep, NameMap, merged
from advsweep.printable import printable_line

# The largest step that a store holds.
LAST_STEP = 2**31 - 1

# The longest name of a metric that a store accepts, in characters.
MAX_NAME = 200

# Names of metrics that are read from one log.
MAX_NAMES = 10_000

_DEPTH = 8
_MOST_FOLDERS = 20_000
_CHECKPOINT = re.compile(r"(?:global_step_|checkpoint-)\d+")

# Columns of a log that counts of left out values name.
_NAMED = 20


class ProblemCount(NamedTuple):
    """The samples of one problem in one evaluation.

    Attributes:
        step: training steps of the weights; 0 is the base model.
        problem: a stable name of the problem.
        n: samples.
        correct: those that are right; at most `n`.
        task: the name of the set of problems; empty for the run's own task.
    """

    step: int
    problem: str
    n: int
    correct: int
    task: str = ""


@dataclass
class ImportedRun:
    """A run of another trainer, as far as its files tell.

    Attributes:
        source: where it comes from, relative to what the user named; `.` for a single run. Runs
            of one import have different sources.
        key: an id that its trainer gave it, which then identifies it instead of its place.
        path: the folders and names in which --name-pattern looks; None for those of `source`.
        config: its settings as the files have them, in JSON types. The estimator and the seed
            are added from the options of the command where they are missing.
        steps: values by our names (`ImportOptions.names.rename_step`). A step may come several
            times; the last value wins.
        evaluations: results per problem; several results of one step and task are one evaluation.
        left_out: why parts of the files were not used, with how often. It is complete once
            `steps` has been read.
        notes: what else a reader of a report should know, a sentence each.
    """

    source: str
    config: dict[str, Any]
    steps: Iterable[LoggedStep]
    evaluations: list[ProblemCount] = field(default_factory=list)
    left_out: Mapping[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    key: str | None = None
    path: str | None = None


@dataclass(frozen=True, kw_only=True)
class ImportOptions:
    """What the user says about the files.

    Attributes:
        names: their names of metrics and ours.
        settings: values of config keys that the user gives; readers may use theirs.
        by: columns whose values tell the runs of one file apart.
        in_name: returns the settings in the name of a run, by its `path`.
        on_read: called with the name of a large file, the bytes read of it and its size.
    """

    names: NameMap
    settings: Mapping[str, Any] = field(default_factory=dict)
    by: tuple[str, ...] = ()
    in_name: Callable[[str], Mapping[str, Any] | None] = lambda source: None
    on_read: Callable[[str, int, int], None] = lambda name, done, size: None

    def settings_of(self, path: str) -> dict[str, Any]:
        """Return what the user says about the settings of one run."""
        return merged(self.in_name(path) or {}, self.settings)


@dataclass(kw_only=True)
class Reader(Component):
    """Reads the logs of one format; registered in `advsweep.logs.READERS`.

    Attributes:
        table: the YAML file of `advsweep/logs/names/` with the metrics of the format.
        path: the file or folder of the log that is open; it need not exist yet.
        left_out: why parts of this log were not used, with how often.
    """

    table: ClassVar[str] = "jsonl"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.path = Path()
        self.left_out: Counter[str] = Counter()
        self._config: dict[str, Any] = {}
        self._names: dict[str, str | None] = {}
        self._dropped: set[str] = set()
        self._finished = False

    @abstractmethod
    def runs(self, source: Path | str, options: ImportOptions) -> Iterator[ImportedRun]:
        """Yield the runs of a file, a folder or an address, in a fixed order.

        Damaged parts are left out and counted in `ImportedRun.left_out`.

        Raises:
            ConfigError: the source does not exist or holds no run of this format; the message
                says what was expected.
        """

    def open(self, path: Path) -> Self:
        """Return a reader of one log with the same options, at its start."""
        log = dataclasses.replace(self)
        log.path = path
        return log

    def poll(self) -> Iterator[LoggedStep]:
        """Yield the steps that were added to the log since the last call, in its order.

        A missing log is an empty one. A last line without its end waits for a later call.

        Raises:
            ConfigError: the log is of another format, or cannot be read; the message says why.
        """
        raise ConfigError(
            f"kind: expected a format that is read while a trainer writes it, got '{self.name}'"
        )

    @property
    def config(self) -> Mapping[str, Any]:
        """What this log says about the settings of the run."""
        return self._config

    def finish(self) -> None:
        """Say that the log will not grow: the next `poll` also uses a last, unended line."""
        self._finished = True

    def steps(self) -> Iterator[LoggedStep]:
        """Yield all steps of a log that is complete."""
        yield from self.poll()
        self.finish()
        yield from self.poll()

    def _numbers(self, items: Iterable[tuple[Any, Any]]) -> dict[str, float]:
        """Return the bounded numbers among names and values; count the others by name."""
        numbers: dict[str, float] = {}
        for name, value in items:
            number = value if type(value) is float else self._number(value)
            if number is None:
                self._drop(name, "that are not numbers")
            elif not is_bounded(number):
                is_finite = math.isfinite(number)
                self._drop(name, BEYOND if is_finite else "that are NaN or infinite")
            elif (known := self._name(name)) is not None:
                numbers[known] = number
        return numbers

    def _number(self, value: Any) -> float | None:
        """Return a number, which may be written as a text; None for anything else."""
        if isinstance(value, bool) or not isinstance(value, (int, float, str)):
            return None
        try:
            # Python takes quadratic time for long integers.
            return float(value) if not isinstance(value, str) or len(value) <= 64 else None
        except OverflowError:  # An integer with more than 308 digits.
            return math.inf
        except ValueError:
            return None

    def _drop(self, name: Any, why: str, count: int = 1) -> None:
        if (known := self._name(name)) is not None:
            # Reasons are stored and shown, so that their number is bounded.
            if len(self._dropped) < _NAMED:
                self._dropped.add(known)
            shown = known if known in self._dropped else "further metrics"
            self.left_out[f"values of {shown} {why}"] += count

    def _name(self, name: Any) -> str | None:
        """Return the name under which a metric is kept; count a name that cannot be kept."""
        if not isinstance(name, str):
            name = str(name)
        # Cleaned once per name: a log has many steps with the same few names.
        if name not in self._names:
            # A hostile log may have a new name on every line.
            if len(self._names) >= MAX_NAMES:
                self.left_out[f"values of more than {MAX_NAMES:,} metrics"] += 1
                return None
            # Stores refuse characters that Unicode does not define, too.
            cleaned = "".join(c if c.isprintable() else "\ufffd" for c in printable_line(name))
            self._names[name] = cleaned if 0 < len(cleaned) <= MAX_NAME else None
        found = self._names[name]
        if found is None:
            self.left_out[f"values whose names are empty or have over {MAX_NAME} characters"] += 1
        return found


def is_number(value: Any) -> TypeGuard[int | float]:
    """Return whether a value is an integer or a float, and no truth value."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def whole_step(value: Any) -> int | None:
    """Return a step as an integer from 0 to `LAST_STEP`; None for anything else.

    >>> [whole_step(value) for value in (3, 3.0, "3", " 3.0 ", 3.5, "x", -1, True, None)]
    [3, 3, 3, 3, None, None, None, None, None]
    """
    if isinstance(value, str):
        # Longer texts are no steps, and Python takes quadratic time for long integers.
        try:
            value = float(value) if len(value) <= 32 else None
        except ValueError:
            return None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return int(value) if 0 <= value <= LAST_STEP and value == int(value) else None


def existing(source: Path | str) -> Path:
    """Return the path of logs that the user named.

    Raises:
        ConfigError: there is no such file or folder.
    """
    path = Path(source)
    if not path.exists():
        raise ConfigError(
            f"{printable_line(str(source))}: expected a file or a folder of logs, got nothing"
        )
    return path


def folders_of_runs(source: Path, inner: Container[str]) -> Iterator[Path]:
    """Yield the folders that may be of a run, in a fixed order; links are not followed.

    Args:
        inner: names of folders that belong to the run above them, as checkpoints do.

    Raises:
        ConfigError: there are too many.
    """
    for count, (place, folders, _) in enumerate(os.walk(source)):
        if count > _MOST_FOLDERS:
            raise ConfigError(
                f"{printable_line(str(source))}: expected at most {_MOST_FOLDERS:,} folders, got "
                "more; name the folder of one run"
            )
        depth = len(Path(place).parts) - len(source.parts)
        folders[:] = sorted(
            name
            for name in folders
            if depth < _DEPTH
            and name not in inner
            and not name.startswith(".")
            and not _CHECKPOINT.fullmatch(name)
        )
        yield Path(place)


def unreadable(path: Path, error: OSError) -> ConfigError:
    """Return the error for a log that exists and cannot be read."""
    return ConfigError(f"{path}: expected a log to read; {reason_of(error)}")
