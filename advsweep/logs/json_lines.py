"""JSON lines: one object per line, flat or nested, as many loops and verl's file logger write.

One object per line:

    {"step": 1, "reward": 0.25, "loss": {"policy": 0.1}}
    {"step": 1, "data": {"critic/rewards/mean": 0.25}}      with data_key="data"
    {"config": {"estimator": "grpo", "seed": 0}}            settings, on a line without a step

A file that begins with `[` is one array of such objects, which is read when it is complete.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from advsweep.errors import ConfigError
from advsweep.local_files import open_regular
from advsweep.logs.base import MAX_LINE, STEP_KEYS, LoggedStep, TextLog, unreadable, whole_step

DAMAGED = "lines that are cut or damaged"
_LARGEST = 2**30
_ARRAY = re.compile(r"\s*\[\s*(?:\{|\]|$)")
_DEPTH = 16


def json_objects(path: Path, left_out: Counter[str]) -> Iterator[dict[str, Any]]:
    """Yield the objects of a file of JSON lines, and count other lines in `left_out`.

    Raises:
        ConfigError: the file cannot be read.
    """
    try:
        stream = open_regular(path.resolve())
    except OSError as error:
        raise unreadable(path, error) from error
    with stream:
        while line := stream.readline(MAX_LINE):
            ended = len(line) < MAX_LINE or line.endswith(b"\n")
            while not ended and (rest := stream.readline(MAX_LINE)):
                line, ended = b"-", rest.endswith(b"\n")  # Too long: damaged.
            if not line.strip():
                continue
            try:
                row = json.loads(line.decode("utf-8", "replace"))
            except (ValueError, RecursionError):
                row = None
            if isinstance(row, dict):
                yield row
            else:
                left_out[DAMAGED] += 1


def entries_of(text: str, place: int) -> tuple[list[Any], int]:
    """Return the complete entries of an array from a place within it, and the place after them."""
    entries: list[Any] = []
    decoder = json.JSONDecoder()
    while True:
        while place < len(text) and text[place] in " \t\r\n,":
            place += 1
        try:
            entry, place = decoder.raw_decode(text, place)
        except (ValueError, RecursionError):
            return entries, place
        entries.append(entry)


def read_whole(path: Path) -> str | None:
    """Return a text of at most 1 GiB; None if there is no such file.

    Raises:
        ConfigError: it cannot be read, or is larger.
    """
    try:
        with open_regular(path.resolve()) as stream:
            data = stream.read(_LARGEST + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise unreadable(path, error) from error
    if len(data) > _LARGEST:
        raise ConfigError(f"{path}: expected at most 1 GiB, got more")
    return data.decode("utf-8", "replace")


class JsonLines(TextLog):
    """JSON lines with a step in each.

    Args:
        step_keys: keys of the step; the first that a line has counts.
        data_key: the key of the mapping that holds the values; by default the line itself.
            Nested mappings get names with `/`.
        by: keys whose values tell the runs of one file apart; see `TextLog.tag`.
    """

    kind: ClassVar[str] = "jsonl"

    def __init__(
        self,
        path: Path,
        *,
        step_keys: Sequence[str] = STEP_KEYS,
        data_key: str | None = None,
        by: Sequence[str] = (),
    ) -> None:
        super().__init__(path, by=by)
        self._step_keys = step_keys
        self._data_key = data_key
        self._is_array: bool | None = None

    def _restart(self) -> None:
        super()._restart()
        self._is_array = None

    def iter_new(self) -> Iterator[LoggedStep]:
        yield from super().iter_new()
        if not self._finished or not self._is_array:
            return
        self._is_array = False
        text = read_whole(self.path) or ""
        entries, end = entries_of(text, text.find("[") + 1)
        for entry in entries:
            if (step := self._step(entry)) is not None:
                yield step
        if text[end : end + 1] != "]":
            self.left_out[f"what follows entry {len(entries):,} of an array that is cut"] += 1
        elif text[end + 1 :].strip():
            self.left_out["what follows the end of an array"] += 1

    def _parse(self, line: str, *, ended: bool) -> LoggedStep | None:
        if self._is_array is None:
            self._is_array = _ARRAY.match(line) is not None
        if self._is_array:
            return None
        try:
            return self._step(json.loads(line))
        except (ValueError, RecursionError):
            whole = ended and line.rstrip().endswith("}")
            self.left_out["lines that are not JSON" if whole else "incomplete lines"] += 1
            return None

    def _step(self, entry: Any) -> LoggedStep | None:
        if not isinstance(entry, dict):
            self.left_out["lines that are not JSON objects"] += 1
            return None
        key = next((key for key in self._step_keys if key in entry), None)
        step = None if key is None else whole_step(entry[key])
        if step is None:
            if isinstance(entry.get("config"), dict):
                self._config |= entry["config"]
            else:
                self._no_step(None if key is None else entry[key])
            return None
        values = entry if self._data_key is None else entry.get(self._data_key)
        if not isinstance(values, Mapping):
            self.left_out[f"lines without a mapping '{self._data_key}'"] += 1
            return None
        self._find_tag(entry)
        items = _flat(values)
        return LoggedStep(
            step, self._values((k, v) for k, v in items if k != key and v is not None)
        )


def _flat(node: Mapping[str, Any], prefix: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
    for key, value in node.items():
        if isinstance(value, Mapping) and depth < _DEPTH:
            yield from _flat(value, f"{prefix}{key}/", depth + 1)
        else:
            yield f"{prefix}{key}", value
