"""JSON lines: one object per line, flat or nested, as many loops and verl's file logger write.

One object per line:

    {"step": 1, "reward": 0.25, "loss": {"policy": 0.1}}
    {"step": 1, "data": {"critic/rewards/mean": 0.25}}      with data_key="data"
    {"config": {"estimator": "grpo", "seed": 0}}            settings, on a line without a step
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from advsweep.local_files import open_regular
from advsweep.logs.base import MAX_LINE, STEP_KEYS, LoggedStep, TextLog, unreadable, whole_step

DAMAGED = "lines that are cut or damaged"
_DEPTH = 16
_MISSING = object()


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
        return self._step(entry)

    def _step(self, entry: dict[str, Any]) -> LoggedStep | None:
        key, step = self._find_step(entry)
        if step is None:
            if isinstance(entry.get("config"), dict):
                self._config |= entry["config"]
            else:
                self.left_out["lines without a step"] += 1
            return None
        values = entry if self._data_key is None else entry.get(self._data_key)
        if not isinstance(values, Mapping):
            self.left_out[f"lines without a mapping '{self._data_key}'"] += 1
            return None
        self._find_tag(entry)
        numbers = []
        for name, value in _flat(values):
            if name == key or value is None or name in self.by:
                continue
            if isinstance(value, str):
                self._setting(name, value)
            else:
                numbers.append((name, value))
        return LoggedStep(step, self._numbers(numbers))

    def _find_step(self, entry: Mapping[str, Any]) -> tuple[str | None, int | None]:
        for key in self._step_keys:
            if (value := entry.get(key, _MISSING)) is not _MISSING:
                return key, whole_step(value)
        return None, None


def _flat(node: Mapping[str, Any], prefix: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
    for key, value in node.items():
        if isinstance(value, Mapping) and depth < _DEPTH:
            yield from _flat(value, f"{prefix}{key}/", depth + 1)
        else:
            yield f"{prefix}{key}", value
