"""Logs that are lines of text: JSON objects, or whatever regular expressions find.

JSON lines, one object per line, as many loops and verl's file logger write:

    {"step": 1, "reward": 0.25, "loss": {"policy": 0.1}}
    {"step": 1, "data": {"critic/rewards/mean": 0.25}}      with data_key="data"
    {"config": {"estimator": "grpo", "seed": 0}}            settings, on a line without a step

The named groups of a regular expression say what it finds:

    step (?P<step>\\d+).*reward[=:] (?P<reward__mean>\\S+)     a metric per group; __ stands for /
    (?P<name>[\\w/]+): (?P<value>\\S+)                         name and value, as often as they come

A line without a `step` belongs to the last step that was seen.
"""

from __future__ import annotations

import dataclasses
import json
import re
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from advsweep.components import option
from advsweep.errors import ConfigError
from advsweep.local_files import open_regular
from advsweep.logs.base import (
    LAST_STEP,
    MAX_NAME,
    MAX_NAMES,
    ImportedRun,
    ImportOptions,
    Reader,
    existing,
    unreadable,
    whole_step,
)
from advsweep.logs.names import LoggedStep, parse_value, step_names

# The longest line of a text log, in bytes.
MAX_LINE = 16 * 2**20

NOT_WHOLE = f"lines whose step is no whole number from 0 to {LAST_STEP:,}"
DAMAGED = "lines that are cut or damaged"
CUT_VALUES = "last values of a line without its end"

# Columns that tell the runs of one file apart.
BY = ("estimator", "seed", "run", "run_id", "run_name")

# Runs of one file.
MAX_RUNS = 10_000

_BLOCK = 2**20
# Bytes between two calls of `on_read`.
_LARGE = 2**25

_DEPTH = 16
_COLOURS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")

# Characters of a line that are searched, since an expression may take long on long lines.
_LONGEST = 2**16

# What a file is that begins with these bytes, and what makes it text.
_OTHER_FORMS = {
    b"\x1f\x8b": "gzip: unpack it first",
    b"PK\x03\x04": "a zip archive: unpack it first",
    b"PAR1": "a parquet table: save it as CSV",
    b"\xff\xfe": "UTF-16: save it as UTF-8",
    b"{\0": "UTF-16: save it as UTF-8",
    b"\xfe\xff": "UTF-16: save it as UTF-8",
    b"[{": "a JSON array: write an object per line (jq -c '.[]')",
    b"[\n": "a JSON array: write an object per line (jq -c '.[]')",
}


@dataclass(kw_only=True)
class LineLog(Reader):
    """A log of lines of text.

    The text is UTF-8; other bytes become U+FFFD. A file that has become shorter was written anew
    and is read again from its start.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        self.on_read: Callable[[str, int, int], None] | None = None
        self._restart()

    def _restart(self) -> None:
        """Forget what was read of a file that is written anew."""
        self._offset = 0
        self._rest = b""
        self._skipping = False  # Within a line that is too long.

    @abstractmethod
    def _parse(self, line: str, *, ended: bool) -> LoggedStep | None:
        """Return the step of a line; None for a line without one, which it counts.

        Args:
            ended: False for the last line of a log that may have been cut within it.
        """

    def poll(self) -> Iterator[LoggedStep]:
        for line, ended in self.lines():
            if (step := self._parse(line, ended=ended)) is not None:
                yield step

    def lines(self) -> Iterator[tuple[str, bool]]:
        """Yield each new line with whether its end was read."""
        # Blocks and not lines are read, since a line without an end could fill the memory.
        for block in self._blocks():
            *lines, rest = (self._rest + block).split(b"\n")
            if lines and self._skipping:
                lines, self._skipping = lines[1:], False
            for line in lines:
                if text := _text(line):
                    yield text, True
            self._rest = b"" if self._skipping else rest
            if len(self._rest) > MAX_LINE:
                # The memory that a line takes is bounded, not only its text.
                self.left_out[f"lines of more than {MAX_LINE // 2**20} MiB"] += 1
                self._rest, self._skipping = b"", True
        if self._finished and self._rest:
            rest, self._rest = self._rest, b""
            if text := _text(rest):
                yield text, False

    def _blocks(self) -> Iterator[bytes]:
        try:
            file = open_regular(self.path.resolve())
        except FileNotFoundError:
            return
        except OSError as error:
            raise unreadable(self.path, error) from error
        with file:
            # Opened anew at each poll: a trainer that restarts replaces its file.
            if (size := file.seek(0, 2)) < self._offset:
                self._restart()
            file.seek(self._offset)
            while block := file.read(_BLOCK):
                for start, form in _OTHER_FORMS.items():
                    if self._offset == 0 and block.startswith(start):
                        raise ConfigError(f"{self.path}: expected lines of text, got {form}")
                self._offset += len(block)
                if self.on_read is not None and self._offset % _LARGE < len(block):
                    self.on_read(self.path.name, self._offset, size)
                yield block


@dataclass(kw_only=True)
class LinePattern(LineLog):
    """Lines of text in which regular expressions find values, such as a trainer's console.

    Raises:
        ConfigError: an expression is malformed or has no group for a value.
    """

    name: ClassVar[str] = "pattern"

    pattern: tuple[str, ...] | str = option(
        (), help="an expression, or several, with named groups; each line is searched with all"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        given = (self.pattern,) if isinstance(self.pattern, str) else self.pattern
        try:
            self._patterns = [re.compile(each) for each in given]
        except re.error as error:
            raise ConfigError(f"pattern: expected a regular expression, got {error}") from error
        for pattern in self._patterns:
            names = set(pattern.groupindex)
            if not names - {"step"} or ("name" in names) != ("value" in names):
                raise ConfigError(
                    "pattern: expected named groups: step with metrics, or name and value, got "
                    f"{pattern.pattern!r}"
                )
        if not given:
            raise ConfigError(
                "pattern: expected a regular expression in metrics.options of a template, got none"
            )

    def _restart(self) -> None:
        super()._restart()
        self._last: int | None = None

    def runs(self, source: Path | str, options: ImportOptions) -> Iterator[ImportedRun]:
        raise ConfigError(f"expected a format with names of its own, got '{self.name}'")

    def _parse(self, line: str, *, ended: bool) -> LoggedStep | None:
        if len(line) > _LONGEST:
            self.left_out[f"ends of lines of more than {_LONGEST:,} characters"] += 1
            line, ended = line[:_LONGEST], False
        # A progress bar writes over its line.
        *parts, last = _COLOURS.sub("", line).split("\r")
        found = [pair for part in parts for pair in self._find(part, ended=True)]
        values = self._numbers([*found, *self._find(last, ended=ended)])
        if not values:
            return None
        if self._last is None:
            self.left_out["values before the first step"] += len(values)
            return None
        return LoggedStep(self._last, values)

    def _find(self, text: str, *, ended: bool) -> Iterator[tuple[str, str]]:
        """Yield names and values; keep the step that comes with them."""
        for pattern in self._patterns:
            for match in pattern.finditer(text):
                # 0.5 may be all that was written of 0.55.
                if not ended and match.end() == len(text):
                    self.left_out[CUT_VALUES] += 1
                    continue
                groups = {k: v for k, v in match.groupdict().items() if v is not None}
                if (step := whole_step(groups.pop("step", None))) is not None:
                    self._last = step
                if "value" in groups and "name" in groups:
                    groups = {groups["name"]: groups["value"]}
                for name, value in groups.items():
                    if name != "step":
                        yield name.replace("__", "/"), value.replace(",", "")


@dataclass(kw_only=True)
class TextLog(LineLog):
    """A log of lines with named values, of which some are texts: one run, or several.

    A text that is the same on every line is a setting of the run. In an import a folder stands
    for all its files of the format.

    Attributes:
        endings: of the files in a folder.
        tag: the values of `by` on the line of the step that `poll` yielded last; empty texts
            where the line has none.
    """

    endings: ClassVar[tuple[str, ...]]

    step_keys: tuple[str, ...] = option(
        (),
        help="names of the step; the first that a line has counts (default: those of the format)",
    )
    by: tuple[str, ...] = option(
        (), help="names whose values tell the runs of one file apart; they are no metrics"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self._step_names = self.step_keys or step_names(self.table)
        self.tag: tuple[str, ...] = ()
        self._texts: dict[str, tuple[str | None, int]] = {}
        """The only text of a name, with how often; None if it has numbers or other texts, too."""

    def runs(self, source: Path | str, options: ImportOptions) -> Iterator[ImportedRun]:
        root = existing(source)
        files = [root]
        if root.is_dir():
            inside = (file for file in root.rglob("*") if file.name.endswith(self.endings))
            files = sorted(file for file in inside if file.is_file())
        if not files:
            some = ", ".join(f"*{ending}" for ending in self.endings)
            raise ConfigError(f"{root}: expected a file, or a folder with {some}, got none")
        reader = dataclasses.replace(self, step_keys=options.names.steps, by=options.by or BY)
        for file in files:
            place = file.name if file == root else file.relative_to(root).as_posix()
            yield from reader.open(file)._runs(place, options)

    def _runs(self, place: str, options: ImportOptions) -> Iterator[ImportedRun]:
        """Yield the runs of one file."""
        self.on_read = options.on_read
        steps: dict[tuple[str, ...], list[LoggedStep]] = {}
        for step in self.steps():
            if self.tag in steps or len(steps) < MAX_RUNS:
                steps.setdefault(self.tag, []).append(options.names.rename_step(step))
            else:
                self.left_out[f"lines of more than {MAX_RUNS:,} runs"] += 1
        if not steps and self.path.stat().st_size == 0:
            self.left_out["empty files"] += 1
        for tag, own in (steps or {(): []}).items():
            tags = {key: text for key, text in zip(self.by, tag, strict=False) if text}
            parts = [f"{key}={text}" for key, text in tags.items()] if len(steps) > 1 else []
            yield ImportedRun(
                source="/".join([place, *parts]),
                config={**self.config, **{key: parse_value(text) for key, text in tags.items()}},
                steps=own,
                left_out=self.left_out,
            )
            # What is wrong with a file is told once.
            self.left_out = Counter()

    @property
    def config(self) -> Mapping[str, Any]:
        texts = {name: text for name, (text, _) in self._texts.items() if text is not None}
        return texts | self._config

    def _find_tag(self, entry: Mapping[str, Any]) -> None:
        if self.by:
            values = [entry.get(name) for name in self.by]
            self.tag = tuple(
                "" if value is None or isinstance(value, (dict, list)) else str(value)[:MAX_NAME]
                for value in values
            )

    def _no_step(self, value: Any) -> None:
        """Count a line without a step."""
        number = self._number(value)
        self.left_out["lines without a step" if number is None else NOT_WHOLE] += 1

    def _values(self, items: Iterable[tuple[str, Any]]) -> dict[str, float]:
        """Return the numbers of a line, and keep its texts as settings."""
        numbers = []
        for name, value in items:
            if name in self.by:
                continue
            if isinstance(value, str) and self._number(value) is None:
                # Whether a text is a setting is not known before the last line: until another
                # value comes it is one, and then all of them are counted at once.
                known, count = self._texts.get(name, (value, 0))
                is_room = len(value) <= MAX_NAME and len(self._texts) < MAX_NAMES
                if known == value and (count or (is_room and name not in self._names)):
                    self._texts[name] = value, count + 1
                else:
                    self._no_setting(name)
                    self._drop(name, "that are not numbers")
            else:
                numbers.append((name, value))
                if name in self._texts:
                    self._no_setting(name)
        return self._numbers(numbers)

    def _no_setting(self, name: str) -> None:
        """Count the texts that were taken for a setting."""
        if count := self._texts.get(name, (None, 0))[1]:
            self._drop(name, "that are not numbers", count)
        self._texts[name] = None, 0


@dataclass(kw_only=True)
class JsonLines(TextLog):
    """JSON lines with a step in each. Nested mappings get names with `/`."""

    name: ClassVar[str] = "jsonl"
    endings: ClassVar[tuple[str, ...]] = (".jsonl", ".ndjson")

    data_key: str = option("", help="key of the mapping with the values; empty: the line itself")

    def _parse(self, line: str, *, ended: bool) -> LoggedStep | None:
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError):
            whole = ended and line.rstrip().endswith("}")
            self.left_out["lines that are not JSON" if whole else "incomplete lines"] += 1
            return None
        if not isinstance(entry, dict):
            self.left_out["lines that are not JSON objects"] += 1
            return None
        key = next((key for key in self._step_names if key in entry), None)
        step = None if key is None else whole_step(entry[key])
        if step is None:
            if isinstance(entry.get("config"), dict):
                self._config |= entry["config"]
            else:
                self._no_step(None if key is None else entry[key])
            return None
        values = entry.get(self.data_key) if self.data_key else entry
        if not isinstance(values, Mapping):
            self.left_out[f"lines without a mapping '{self.data_key}'"] += 1
            return None
        self._find_tag(entry)
        items = _flat(values)
        return LoggedStep(
            step, self._values((k, v) for k, v in items if k != key and v is not None)
        )


def json_objects(path: Path, left_out: Counter[str]) -> Iterator[dict[str, Any]]:
    """Yield the objects of a file of JSON lines, and count other lines in `left_out`.

    Raises:
        ConfigError: the file cannot be read.
    """
    log = JsonLines().open(path)
    log.finish()
    for line, _ in log.lines():
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            row = None
        if isinstance(row, dict):
            yield row
        else:
            left_out[DAMAGED] += 1
    left_out.update(log.left_out)


def _flat(node: Mapping[str, Any], prefix: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
    for key, value in node.items():
        if isinstance(value, Mapping) and depth < _DEPTH:
            yield from _flat(value, f"{prefix}{key}/", depth + 1)
        else:
            yield f"{prefix}{key}", value


def _text(line: bytes) -> str:
    """Return a line as text without its end; empty for one of nothing but spaces."""
    text = line.decode("utf-8", "replace").rstrip("\r").lstrip("\ufeff")
    return text if text.strip() else ""
