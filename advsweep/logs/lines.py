"""Logs that are lines of text: named values, of which some are texts; above all JSON lines.

JSON lines, one object per line, as many loops and verl's file logger write:

    {"step": 1, "reward": 0.25, "loss": {"policy": 0.1}}
    {"step": 1, "data": {"critic/rewards/mean": 0.25}}      with data_key="data"
    {"step": 1, "metric": "reward", "value": 0.25}          a line per value
    {"config": {"estimator": "grpo", "seed": 0}}            settings, on a line without a step

A JSON document, an array of such objects or an object of columns, is read as well.
"""

from __future__ import annotations

import codecs
import dataclasses
import gzip
import json
import math
import shlex
import zlib
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import IO, Any, ClassVar

from advsweep.components import option
from advsweep.errors import ConfigError, first_of, nearest
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
from advsweep.logs.keys import (
    BY,
    Collision,
    Line,
    find_collision,
    is_moment,
    named_settings,
    parsed,
    usual_name,
    without_names_of_runs,
)
from advsweep.logs.names import STEP, LoggedStep, step_names
from advsweep.printable import printable_line
from advsweep.text_files import GZIP, encoding_of, other_form, read_text, unpacked

# The longest line of a text log, in bytes.
MAX_LINE = 16 * 2**20

NOT_WHOLE = f"lines whose step is no whole number from 0 to {LAST_STEP:,}"
DAMAGED = "lines that are cut or damaged"
_NOT_JSON = "lines that are not JSON"
_INCOMPLETE = "incomplete lines"
_NO_STEP = "lines without a step"
CUT_VALUES = "last values of a line without its end"

# Runs of one file.
MAX_RUNS = 10_000

# wandb's own count, which rises with each call of log(), several of which may be of one step.
OWN_STEP = "_step"

# What wandb and TensorBoard add to each line; their times are no metrics.
_OWN_COLUMNS = frozenset({OWN_STEP, "_runtime", "_timestamp", "_wandb", "Wall time"})

# What pandas calls the column of its index in a header; in the file it has no name.
INDEX = "Unnamed: 0"

# Columns of a table with a line per value: the name of the metric, and its value.
PAIR_NAMES = ("metric", "metric_name", "tag", "key", "variable", "name")
PAIR_VALUES = ("value", "metric_value")

_BLOCK = 2**20
# Bytes between two calls of `on_read`.
_LARGE = 2**25

# Bytes of a compressed log, unpacked, and of a JSON document.
_MOST_UNPACKED = 16 * 2**30
_MOST_DOCUMENT = 2**30

# Bytes of a file that show whether it is one document.
_SMALL = 2**20

_DEPTH = 16

# Objects without a step that may be the results of a run each.
_MOST_STEPLESS = 1000

# Columns that are named in a message.
_COLUMNS = 12


@dataclass(kw_only=True)
class LineLog(Reader):
    """A log of lines of text.

    The text is UTF-8 or UTF-16, and may be compressed by gzip. A file that has become shorter was
    written anew and is read again from its start.

    Attributes:
        is_strict: whether bytes that are no UTF-8 are refused; else they become U+FFFD.
        line: the number of the line that was read last.
    """

    is_strict: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self.on_read: Callable[[str, int, int], None] | None = None
        self._restart()

    def _restart(self) -> None:
        """Forget what was read of a file that is written anew."""
        self.line = 0
        self._offset = 0
        self._rest = b""
        self._skipping = False  # Within a line that is too long.
        self._decoder: codecs.IncrementalDecoder | None = None

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
                self.line += 1
                if text := self._text(line):
                    yield text, True
            self._rest = b"" if self._skipping else rest
            if len(self._rest) > MAX_LINE:
                # The memory that a line takes is bounded, not only its text.
                self.left_out[f"lines of more than {MAX_LINE // 2**20} MiB"] += 1
                self._rest, self._skipping = b"", True
        if self._finished and self._rest:
            rest, self._rest = self._rest, b""
            self.line += 1
            if text := self._text(rest):
                yield text, False

    def _text(self, line: bytes) -> str:
        """Return a line as text without its end; empty for one of nothing but spaces."""
        try:
            text = line.decode("utf-8", "strict" if self.is_strict else "replace")
        except UnicodeDecodeError as error:
            raise ConfigError(
                f"{self.path}: line {self.line}: expected text in UTF-8 or UTF-16, got the byte "
                f"{line[error.start]:#04x}; save it as UTF-8, as with `iconv -f WINDOWS-1252 "
                "-t UTF-8 FILE`"
            ) from None
        text = text.rstrip("\r").lstrip("\ufeff")
        return text if text.strip() else ""

    def _blocks(self) -> Iterator[bytes]:
        """Yield what was added to the file, in UTF-8."""
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
            file.seek(0)
            if file.peek(2)[:2] == GZIP:
                if self._offset < size:
                    yield from self._unpacked_blocks(file)
                    self._offset = size
                return
            file.seek(self._offset)
            while block := file.read(_BLOCK):
                is_first = self._offset == 0
                self._offset += len(block)
                if self.on_read is not None and self._offset % _LARGE < len(block):
                    self.on_read(self.path.name, self._offset, size)
                yield self._recoded(block, is_first=is_first)

    def _unpacked_blocks(self, file: IO[bytes]) -> Iterator[bytes]:
        """Yield what a gzip file holds, as far as it is whole."""
        stream, size = unpacked(file), 0
        try:
            while block := stream.read(_BLOCK):
                yield self._recoded(block, is_first=size == 0)
                size += len(block)
                if size > _MOST_UNPACKED:
                    raise ConfigError(
                        f"{self.path}: expected at most {_MOST_UNPACKED >> 30} GiB, unpacked, got "
                        "more"
                    )
        except (EOFError, zlib.error, gzip.BadGzipFile):
            self.left_out["gzip files that are cut or damaged"] += 1

    def _recoded(self, block: bytes, *, is_first: bool) -> bytes:
        """Return a block of the file in UTF-8."""
        if is_first:
            if form := other_form(block):
                raise ConfigError(f"{self.path}: expected lines of text, got {form}")
            encoding = encoding_of(block)
            is_utf_8 = encoding == "utf-8-sig"
            self._decoder = None if is_utf_8 else codecs.getincrementaldecoder(encoding)("replace")
        if self._decoder is None:
            return block
        return self._decoder.decode(block).encode("utf-8", "replace")


class _RunTexts:
    """The texts of one run, of which those that never change are settings.

    Attributes:
        changing: the columns whose texts change.
    """

    def __init__(self) -> None:
        self._texts: dict[str, tuple[str | None, int]] = {}
        """The only text of a name, with how often; None if it has numbers or other texts, too."""
        self.changing: set[str] = set()

    @property
    def settings(self) -> dict[str, str]:
        """The texts that were the same on every line."""
        return {name: text for name, (text, _) in self._texts.items() if text is not None}

    def add(self, name: str, text: str, *, may_be_setting: bool) -> int:
        """Add a text; return how many texts of that name turned out to be no setting."""
        known, count = self._texts.get(name, (text, 0))
        is_room = len(text) <= MAX_NAME and len(self._texts) < MAX_NAMES
        if known == text and (count or (is_room and may_be_setting)):
            self._texts[name] = text, count + 1
            return 0
        if known is not None and known != text:
            self.changing.add(name)
        return self.drop(name) + 1

    def drop(self, name: str) -> int:
        """Say that a name is no setting; return how many of its texts were taken for one."""
        count = self._texts.get(name, (None, 0))[1]
        self._texts[name] = None, 0
        return count

    def __contains__(self, name: str) -> bool:
        return name in self._texts


@dataclass(kw_only=True)
class TextLog(LineLog):
    """A log of lines with named values, of which some are texts: one run, or several.

    A text that is the same on every line is a setting of the run. In an import a folder stands
    for all its files of the format.

    Attributes:
        endings: of the files in a folder.
        tag: the columns with their values that tell the run of the last line apart.
        texts: the texts of the last line.
        is_timeless: whether the table has no column of the step; its lines are of step 0.
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
        self.tag: tuple[tuple[str, str], ...] = ()
        self.texts: dict[str, str] = {}
        self.is_timeless = False
        self._is_import = False
        self._of_runs: dict[tuple[tuple[str, str], ...], _RunTexts] = {}
        self._named_step: dict[tuple[tuple[str, str], ...], int] = {}
        self._key_names: dict[str, bool] = {}
        self._columns: dict[str, None] = {}
        self._keys_seen: set[str] = set()
        self._numeric: set[str] = set()
        self._odd_step: Any = None

    def runs(self, source: Path | str, options: ImportOptions) -> Iterator[ImportedRun]:
        root = existing(source)
        yield from self._runs_of(self._files(root), root, options)

    def _runs_of(
        self, files: Iterable[Path], root: Path, options: ImportOptions
    ) -> Iterator[ImportedRun]:
        """Yield the runs of some files below what the user named, or of that file."""
        by = dict.fromkeys([*BY, *options.names.settings, *options.by])
        reader = dataclasses.replace(self, step_keys=options.names.steps, by=tuple(by))
        seen: set[str] = set()
        columns: set[str] = set()
        for file in files:
            place = file.name if file == root else file.relative_to(root).as_posix()
            log = reader.open(file)
            log._is_import = True
            yield from log._runs(place, options)
            seen |= log._keys_seen
            columns.update(log._columns)
        for name in options.by:
            if columns and name not in seen:
                raise ConfigError(
                    f"--by: expected columns of the table, got {name!r}; {nearest(name, columns)}"
                )

    def _files(self, root: Path) -> list[Path]:
        """Return the files of a source.

        Raises:
            ConfigError: there are none.
        """
        files = [root]
        if root.is_dir():
            endings = tuple(f"{end}{more}" for end in self.endings for more in ("", ".gz"))
            inside = (file for file in root.rglob("*") if file.name.endswith(endings))
            files = sorted(file for file in inside if file.is_file())
        if not files:
            some = ", ".join(f"*{ending}" for ending in self.endings)
            raise ConfigError(f"{root}: expected a file, or a folder with {some}, got none")
        return files

    def _runs(self, place: str, options: ImportOptions) -> Iterator[ImportedRun]:
        """Yield the runs of one file."""
        self.on_read = options.on_read
        lines: dict[tuple[tuple[str, str], ...], list[Line]] = {}
        for step in self.steps():
            if self.tag in lines or len(lines) < MAX_RUNS:
                lines.setdefault(self.tag, []).append(Line(step, self.texts))
            else:
                self.left_out[f"lines of more than {MAX_RUNS:,} runs"] += 1
        if not lines and self.path.stat().st_size == 0:
            self.left_out["empty files"] += 1
        if not lines:
            lines = self._timeless_lines()
            if count := self.left_out.pop(NOT_WHOLE, 0):
                shown = printable_line(str(self._odd_step))[:40]
                self.left_out[f"{NOT_WHOLE}, such as {shown}"] += count
        notes = []
        if self.is_timeless and lines:
            self._check_timeless(lines)
            notes.append(
                "there is no column of the step: each line is the result of a run, at step 0; "
                "--map COLUMN=step names one"
            )
        for tag, of_run in lines.items():
            self._check_collisions(tag, of_run)
        if lines and not any(line.logged.values for of_run in lines.values() for line in of_run):
            first = next(iter(lines.values()))[0]
            cells = ", ".join(f"{name}: {text}" for name, text in first.texts.items())
            self.left_out[f"tables without a number (the first line has {cells[:300]})"] += 1
        lines = lines or {(): []}
        sources = []
        for tag in lines:
            parts = [f"{key}={text}" for key, text in tag] if len(lines) > 1 else []
            sources.append("/".join([place, *parts]))
        configs = without_names_of_runs(
            [self._settings_of(tag) for tag in lines],
            [{**(options.in_name(source) or {}), **options.settings} for source in sources],
        )
        for source, of_run, config in zip(sources, lines.values(), configs, strict=True):
            yield ImportedRun(
                source=source,
                config=config,
                steps=[options.names.rename_step(line.logged) for line in of_run],
                left_out=self.left_out,
                notes=notes,
            )
            # What is wrong with a file is told once.
            self.left_out, notes = Counter(), []

    def _settings_of(self, tag: tuple[tuple[str, str], ...]) -> dict[str, Any]:
        """Return the settings of the run whose columns `BY` have these values."""
        texts = self._of_runs[tag].settings if tag in self._of_runs else {}
        texts = {name: text for name, text in texts.items() if not is_moment(name, text)}
        return named_settings(self._config | parsed({**texts, **dict(tag)}))

    def _timeless_lines(self) -> dict[tuple[tuple[str, str], ...], list[Line]]:
        """Return the lines of a file in which no line has a step, if they are results of runs."""
        return {}

    def _check_collisions(self, tag: tuple[tuple[str, str], ...], lines: list[Line]) -> None:
        """Refuse lines of several runs that would become one.

        Raises:
            ConfigError: some do; the message proposes what tells them apart.
        """
        collision = find_collision(lines)
        if collision is None:
            return
        run = ", ".join(f"{key}={text}" for key, text in tag)
        more = shlex.quote(",".join(collision.by))
        first, second = (f"{value:g}" for value in collision.values)
        seen = (
            f"{self.path}: expected one value of {printable_line(collision.metric)} at step "
            f"{collision.step:,}{' of ' + printable_line(run) if run else ''}, got {first} and "
            f"{second}"
        )
        if not collision.by:
            raise ConfigError(
                f"{seen}, as at most steps and at the last one, and no column tells the lines "
                "apart: if they are of several runs, add a column seed or run that does, or write "
                "a file for each; of a run that was trained anew, remove the lines before"
            )
        apart = "" if collision.parts_all else "; further columns may be needed"
        raise ConfigError(
            f"{seen} on lines that differ in {printable_line(' and '.join(collision.by))}: "
            f"--by {printable_line(more)} makes them runs of their own{apart}"
            f"{self._step_hint(collision, lines)}"
        )

    def _step_hint(self, collision: Collision, lines: Sequence[Line]) -> str:
        """Return how to say that a column is the step, where it may be it; empty otherwise."""
        if not self.is_timeless or len(collision.by) > 1:
            return ""
        name = collision.by[0]
        values = [line.logged.values.get(name, math.nan) for line in lines]
        is_rising = all(before < after for before, after in pairwise(values))
        if not is_rising or not all(value.is_integer() for value in values):
            return ""
        return f"; --map {printable_line(shlex.quote(f'{name}={STEP}'))} if it is the step"

    def _check_timeless(self, lines: Mapping[tuple[tuple[str, str], ...], list[Line]]) -> None:
        """Refuse a table without a column of the step that has several lines of a run.

        Raises:
            ConfigError: it has; the message names its columns.
        """
        for tag, of_run in lines.items():
            if find_collision(of_run) is not None:
                self._check_collisions(tag, of_run)
            names = Counter(name for line in of_run for name in line.logged.values)
            if max(names.values(), default=0) > 1:
                raise self._stepless()

    def _stepless(self) -> ConfigError:
        """Return the error for a table without a column of the step."""
        known = ", ".join(name for name in self._step_names if name in ("step", "global_step"))
        columns = printable_line(", ".join(self._columns))[:300]
        others = "or tell runs apart with --by COLUMN or a column seed"
        if INDEX in self._columns:
            others = f"or take each line for a run with --by {shlex.quote(INDEX)}"
        return ConfigError(
            f"{self.path}: expected a header with a column of the step "
            f"({known or ', '.join(self._step_names[:4])}, ...), got: {columns}; name it with "
            f"--map COLUMN={STEP}, {others}"
        )

    @property
    def config(self) -> Mapping[str, Any]:
        texts = self._of_runs[()].settings if () in self._of_runs else {}
        return texts | self._config

    def _find_tag(self, entry: Mapping[str, Any]) -> None:
        """Keep the values of `entry` that tell runs apart."""
        if not self.by:
            return
        found = {}
        key_names = self._key_names
        for name, value in entry.items():
            is_key = key_names[name] if name in key_names else self._is_key(name)
            if not is_key or value is None or isinstance(value, (dict, list)):
                continue
            text = str(value).strip()[:MAX_NAME]
            if text:
                found[name] = text
                self._keys_seen.add(name)
        if len(found) < 2:
            self.tag = tuple(found.items())
            return
        order = {name: rank for rank, name in enumerate(self.by)}
        ranks = sorted(found, key=lambda name: order.get(name, order.get(usual_name(name), 0)))
        self.tag = tuple((name, found[name]) for name in ranks)

    def _is_key(self, name: str) -> bool:
        """Return whether a column tells the runs of one file apart."""
        known = self._key_names.get(name)
        if known is None:
            known = name in self.by or (usual_name(name) in BY and bool(self.by))
            if len(self._key_names) < MAX_NAMES:
                self._key_names[name] = known
        return known

    def _no_step(self, value: Any, columns: Iterable[str] = ()) -> None:
        """Count a line without a step."""
        if len(self._columns) < MAX_NAMES:
            self._columns |= dict.fromkeys(columns)
        number = self._number(value)
        if number is not None and self._odd_step is None:
            self._odd_step = value
        self.left_out[_NO_STEP if number is None else NOT_WHOLE] += 1

    def _step_of(self, name: str, step: int) -> int:
        """Return the step of a line by its column and number.

        wandb's own count rises with each call of log(): a line that has this count alone belongs
        to the last step that was named.
        """
        if name == OWN_STEP:
            return self._named_step.get(self.tag, step)
        self._named_step[self.tag] = step
        return step

    def _values(self, items: Iterable[tuple[str, Any]]) -> dict[str, float]:
        """Return the numbers of a line, and keep its texts as settings."""
        texts = self._texts_of_run()
        self.texts = {}
        numbers = []
        for name, value in items:
            if name in _OWN_COLUMNS or name in self._keys_seen:
                continue
            if isinstance(value, bool):
                value = str(value)
            number = self._number(value) if isinstance(value, str) else value
            if number is None:
                # Whether a text is a setting is not known before the last line: until another
                # value comes it is one, and then all of them are counted at once.
                self.texts[name] = value[:MAX_NAME]
                if dropped := texts.add(name, value, may_be_setting=name not in self._numeric):
                    self._drop_texts(texts, name, dropped)
            else:
                numbers.append((name, number))
                self._numeric.add(name)
                if name in texts and (dropped := texts.drop(name)):
                    self._drop_texts(texts, name, dropped)
        return self._numbers(numbers)

    def _texts_of_run(self) -> _RunTexts:
        """Return the texts of the run of the last line."""
        texts = self._of_runs.get(self.tag)
        if texts is None:
            texts = self._of_runs[self.tag] = _RunTexts()
        return texts

    def _drop_texts(self, texts: _RunTexts, name: str, count: int) -> None:
        """Count texts that are no settings."""
        changes = name in texts.changing and name not in self._numeric
        why = "that are texts which change within a run" if changes else "that are not numbers"
        self._drop(name, why, count)


@dataclass(kw_only=True)
class JsonLines(TextLog):
    """JSON lines with a step in each. Nested mappings get names with `/`."""

    name: ClassVar[str] = "jsonl"
    endings: ClassVar[tuple[str, ...]] = (".jsonl", ".ndjson")

    data_key: str = option("", help="key of the mapping with the values; empty: the line itself")

    def __post_init__(self) -> None:
        super().__post_init__()
        self._is_document: bool | None = None
        self._stepless_entries: list[dict[str, Any]] = []

    def _timeless_lines(self) -> dict[tuple[tuple[str, str], ...], list[Line]]:
        lines: dict[tuple[tuple[str, str], ...], list[Line]] = {}
        for entry in self._stepless_entries:
            self._find_tag(entry)
            values = self._values((k, v) for k, v in _flat(entry) if v is not None)
            lines.setdefault(self.tag, []).append(Line(LoggedStep(0, values), self.texts))
        is_whole = len(self._stepless_entries) == self.left_out[_NO_STEP]
        is_results = all(len(of_run) == 1 and of_run[0].logged.values for of_run in lines.values())
        if lines and is_whole and is_results:
            del self.left_out[_NO_STEP]
            self.is_timeless = True
            return lines
        damaged = self.left_out[_NOT_JSON] + self.left_out[_INCOMPLETE]
        if damaged == self.line > 0:
            self.left_out[
                "a text without JSON (`advsweep import console` reads what is printed)"
            ] = 1
        if count := self.left_out.pop(_NO_STEP, 0):
            columns = first_of(map(printable_line, self._columns), _COLUMNS)
            self.left_out[f"{_NO_STEP} (columns: {columns}; name it with --map COLUMN={STEP})"] += (
                count
            )
        return {}

    def poll(self) -> Iterator[LoggedStep]:
        if self._is_document is None and _has_content(self.path):
            self._is_document = _is_document(self.path, is_whole=self._is_import)
        if not self._is_document:
            yield from super().poll()
        elif self._finished:
            for entry in self._entries():
                if (step := self._step(entry)) is not None:
                    yield step

    def _entries(self) -> Iterator[dict[str, Any]]:
        """Yield the objects of a JSON document."""
        text = read_text(self.path, most_bytes=_MOST_DOCUMENT)
        try:
            document = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ConfigError(
                f"{self.path}: expected JSON, an object per line or an array of objects, got a "
                f"document that is cut or damaged: {error}"
            ) from None
        if isinstance(document, dict) and isinstance(document.get("log_history"), list):
            raise ConfigError(
                f"{self.path}: expected an object per line, got the state of a trainer; "
                "`advsweep import trl` reads it"
            )
        rows = document if isinstance(document, list) else _rows_of_columns(document)
        for row in rows:
            if isinstance(row, dict):
                yield row
            else:
                self.left_out["entries that are not JSON objects"] += 1

    def _parse(self, line: str, *, ended: bool) -> LoggedStep | None:
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError):
            whole = ended and line.rstrip().endswith("}")
            self.left_out[_NOT_JSON if whole else _INCOMPLETE] += 1
            return None
        if not isinstance(entry, dict):
            self.left_out["lines that are not JSON objects"] += 1
            return None
        return self._step(entry)

    def _step(self, entry: dict[str, Any]) -> LoggedStep | None:
        """Return the step of an object."""
        self._find_tag(entry)
        key, step = self._find_step(entry)
        if step is None:
            if isinstance(entry.get("config"), dict):
                self._config |= entry["config"]
            else:
                self._no_step(None if key is None else entry[key], entry)
                if self._is_import and len(self._stepless_entries) < _MOST_STEPLESS:
                    self._stepless_entries.append(entry)
            return None
        assert key is not None
        values = entry.get(self.data_key) if self.data_key else entry
        if not isinstance(values, Mapping):
            self.left_out[f"lines without a mapping '{self.data_key}'"] += 1
            return None
        step = self._step_of(key, step)
        pair = _pair(values)
        if pair is not None:
            name, value = pair
            others = [(k, v) for k, v in values.items() if k not in (key, name, value)]
            self._values((k, str(v)) for k, v in others if isinstance(v, (str, bool)))
            return LoggedStep(step, self._numbers([(values[name], values[value])]))
        items = _flat(values)
        return LoggedStep(
            step, self._values((k, v) for k, v in items if k != key and v is not None)
        )

    def _find_step(self, entry: Mapping[str, Any]) -> tuple[str | None, int | None]:
        """Return the name and the number of the step of an object; None for what it lacks."""
        first = None
        for key in self._step_names:
            value = entry.get(key)
            if value is None or (isinstance(value, float) and math.isnan(value)):
                continue
            if first is None:
                first = key
            step = whole_step(value)
            if step is None and isinstance(value, str):
                # ms-swift writes "5/100".
                step = whole_step(value.partition("/")[0])
            if step is not None:
                return key, step
            break
        return first, None


def _pair(values: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return the keys of a metric's name and value, where an object is one value."""
    for value in PAIR_VALUES:
        if value not in values or isinstance(values[value], Mapping):
            continue
        for name in PAIR_NAMES:
            if isinstance(values.get(name), str):
                return name, value
    return None


def _has_content(path: Path) -> bool:
    """Return whether a file is there and not empty."""
    return path.is_file() and path.stat().st_size > 0


def _is_document(path: Path, *, is_whole: bool) -> bool:
    """Return whether a file is one JSON document, and not an object per line.

    Args:
        is_whole: whether nothing more is written to the file.
    """
    try:
        with open_regular(path.resolve()) as file:
            is_packed = file.peek(2)[:2] == GZIP
            stream: Any = unpacked(file) if is_packed else file
            start = stream.read(_SMALL)
    except (OSError, EOFError, zlib.error):
        return False
    if other_form(start):
        return False
    text = start.decode(encoding_of(start), "replace").lstrip("\ufeff \r\n\t")
    first, _, rest = text.partition("\n")
    first = first.rstrip()
    if is_whole and not rest.strip() and first.endswith("}") and len(start) < _SMALL:
        # An object of columns on one line, as pandas and json.dump() write it.
        return True
    # An object over several lines begins with a line that is no object.
    return bool(text.startswith("[") or first == "{")


def _rows_of_columns(document: Any) -> list[Any]:
    """Return the rows of an object of columns, as pandas writes it; else the object alone.

    >>> _rows_of_columns({"step": [1, 2], "reward": [0.5, 1]})
    [{'step': 1, 'reward': 0.5}, {'step': 2, 'reward': 1}]
    """
    if not isinstance(document, dict) or not document:
        return [document]
    columns = list(document.values())
    if all(isinstance(column, list) for column in columns):
        if len({len(column) for column in columns}) == 1:
            return [dict(zip(document, row, strict=True)) for row in zip(*columns, strict=True)]
        return [document]
    if all(isinstance(column, dict) and column.keys() == columns[0].keys() for column in columns):
        is_indexed = all(key.isdecimal() for key in columns[0])
        if columns[0] and is_indexed:
            return [{name: column[key] for name, column in document.items()} for key in columns[0]]
    return [document]


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
