"""JSON lines, an object for each line, as many loops and verl's file logger write them.

    {"step": 1, "reward": 0.25, "loss": {"policy": 0.1}}
    {"step": 1, "data": {"critic/rewards/mean": 0.25}}      with data_key="data"
    {"step": 1, "metric": "reward", "value": 0.25}          a line per value
    {"config": {"estimator": "grpo", "seed": 0}}            settings, on a line without a step

A JSON document, an array of such objects or an object of columns, is read as well.
"""

from __future__ import annotations

import json
import math
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from advsweep.components import option
from advsweep.errors import ConfigError, first_of
from advsweep.local_files import open_regular
from advsweep.logs.base import whole_step
from advsweep.logs.keys import Line
from advsweep.logs.lines import NO_STEP, PAIR_NAMES, PAIR_VALUES, Tag, TextLog
from advsweep.logs.names import STEP, LoggedStep
from advsweep.printable import printable_line
from advsweep.text_files import GZIP, encoding_of, other_form, read_text, unpacked

DAMAGED = "lines that are cut or damaged"
_NOT_JSON = "lines that are not JSON"
_INCOMPLETE = "incomplete lines"

# Bytes of a JSON document.
_MOST_DOCUMENT = 2**30

# Bytes of a file that show whether it is one document.
_SMALL = 2**20

_DEPTH = 16

# Objects without a step that may be the results of a run each.
_MOST_STEPLESS = 1000

# Columns that are named in a message.
_COLUMNS = 12


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

    def _timeless_lines(self) -> dict[Tag, list[Line]]:
        lines: dict[Tag, list[Line]] = {}
        for entry in self._stepless_entries:
            self._find_tag(entry)
            values = self._values((k, v) for k, v in _flat(entry) if v is not None)
            lines.setdefault(self.tag, []).append(Line(LoggedStep(0, values), self.texts))
        is_whole = len(self._stepless_entries) == self.left_out[NO_STEP]
        is_results = all(len(of_run) == 1 and of_run[0].logged.values for of_run in lines.values())
        if lines and is_whole and is_results:
            del self.left_out[NO_STEP]
            self.is_timeless = True
            return lines
        damaged = self.left_out[_NOT_JSON] + self.left_out[_INCOMPLETE]
        if damaged == self.line > 0:
            reason = "a text without JSON (`advsweep import console` reads what is printed)"
            self.left_out[reason] = 1
        count = self.left_out.pop(NO_STEP, 0)
        if count:
            columns = first_of(map(printable_line, self._columns), _COLUMNS)
            reason = f"{NO_STEP} (columns: {columns}; name it with --map COLUMN={STEP})"
            self.left_out[reason] += count
        return {}

    def poll(self) -> Iterator[LoggedStep]:
        if self._is_document is None and _has_content(self.path):
            self._is_document = _is_document(self.path, is_whole=self._is_import)
        if not self._is_document:
            yield from super().poll()
        elif self._finished:
            steps = map(self._step, self._entries())
            yield from (step for step in steps if step is not None)

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
            self._read_stepless(entry, None if key is None else entry[key])
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
        items = [(k, v) for k, v in _flat(values) if k != key and v is not None]
        return LoggedStep(step, self._values(items))

    def _read_stepless(self, entry: dict[str, Any], value: Any) -> None:
        """Take the settings of an object without a step, or keep it as the result of a run.

        Args:
            value: what it has in place of a step.
        """
        if isinstance(entry.get("config"), dict):
            self._config |= entry["config"]
            return
        self._no_step(value, entry)
        if self._is_import and len(self._stepless_entries) < _MOST_STEPLESS:
            self._stepless_entries.append(entry)

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
    keys = _common_keys(columns)
    if keys is None:
        return [document]
    return [{name: column[key] for name, column in document.items()} for key in keys]


def _common_keys(columns: Sequence[Any]) -> Sequence[Any] | None:
    """Return the keys of the rows that columns have, all the same; None if they are no columns."""
    if all(isinstance(column, list) for column in columns):
        sizes = {len(column) for column in columns}
        return range(sizes.pop()) if len(sizes) == 1 else None
    first = columns[0]
    if not all(isinstance(column, dict) and column.keys() == first.keys() for column in columns):
        return None
    is_indexed = bool(first) and all(key.isdecimal() for key in first)
    return list(first) if is_indexed else None


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
