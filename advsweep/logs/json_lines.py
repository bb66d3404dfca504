"""JSON lines: one object per line, flat or nested, as many loops and verl's file logger write.

{"step": 1, "reward": 0.25, "loss": {"policy": 0.1}}
{"step": 1, "data": {"critic/rewards/mean": 0.25}}      with data_key="data"
{"config": {"estimator": "grpo", "seed": 0}}            the settings, on a line without a step
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

from advsweep.logs.base import STEP_KEYS, LineLog, LoggedStep, whole_step

_DEPTH = 16
_MISSING = object()


class JsonLines(LineLog):
    """JSON lines with a step in each.

    Args:
        step_key: the key of the step; by default the first of `STEP_KEYS` that a line has.
        data_key: the key of the mapping that holds the values; by default the line itself.
            Nested mappings get names with `/`.
    """

    kind: ClassVar[str] = "jsonl"

    def __init__(
        self, path: Path, *, step_key: str | None = None, data_key: str | None = None
    ) -> None:
        super().__init__(path)
        self._step_keys = STEP_KEYS if step_key is None else (step_key,)
        self._data_key = data_key
        self._changing: set[str] = set()

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
        numbers = []
        for name, value in _flat(values):
            if name == key or value is None:
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

    def _setting(self, name: str, value: str) -> None:
        """Keeps a text that is the same on every line as a setting of the run."""
        if name in self._changing:
            self.left_out["values that are not numbers"] += 1
        elif self._config.setdefault(name, value) != value:
            self._changing.add(name)
            del self._config[name]
            self.left_out["values that are not numbers"] += 1


def _flat(node: Mapping[str, Any], prefix: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
    for key, value in node.items():
        if isinstance(value, Mapping) and depth < _DEPTH:
            yield from _flat(value, f"{prefix}{key}/", depth + 1)
        else:
            yield f"{prefix}{key}", value
