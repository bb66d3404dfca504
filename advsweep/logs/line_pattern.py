"""Values in lines of text, such as the console of a trainer, found by regular expressions.

The named groups of an expression say what it finds:

    step (?P<step>\\d+).*reward[=:] (?P<reward__mean>\\S+)     a metric per group; __ stands for /
    (?P<name>[\\w/]+): (?P<value>\\S+)                         name and value, as often as they come

A line without a `step` belongs to the last step that was seen.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import ClassVar

from advsweep.errors import ConfigError
from advsweep.logs.base import LineLog, LoggedStep, whole_step

_LONGEST = 2**16
"""Characters of a line that are searched, since an expression may take long on long lines."""

_COLOURS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class LinePattern(LineLog):
    """Lines of text in which regular expressions find values.

    Args:
        pattern: an expression, or several, with named groups; each line is searched with all.

    Raises:
        ConfigError: an expression is malformed or has no group for a value.
    """

    kind: ClassVar[str] = "pattern"

    def __init__(self, path: Path, *, pattern: str | Sequence[str]) -> None:
        super().__init__(path)
        patterns = [pattern] if isinstance(pattern, str) else pattern
        self._patterns = [_compiled(each) for each in patterns]
        self._last: int | None = None

    def _restart(self) -> None:
        super()._restart()
        self._last = None

    def _parse(self, line: str, *, ended: bool) -> LoggedStep | None:
        if len(line) > _LONGEST:
            self.left_out[f"ends of lines of more than {_LONGEST:,} characters"] += 1
            line, ended = line[:_LONGEST], False
        # A progress bar writes over its line.
        parts = _COLOURS.sub("", line).split("\r")
        found = [each for i, part in enumerate(parts) for each in self._find(part, i, parts, ended)]
        values = self._numbers((name, value) for name, value in found if name != "step")
        if not found or (not values and all(name != "step" for name, _ in found)):
            return None
        if self._last is None:
            self.left_out["values before the first step"] += len(values)
            return None
        return LoggedStep(self._last, values) if values else None

    def _find(
        self, text: str, place: int, parts: Sequence[str], ended: bool
    ) -> Iterator[tuple[str, int | str]]:
        is_open = not ended and place == len(parts) - 1
        for pattern in self._patterns:
            for match in pattern.finditer(text):
                # 0.5 may be all that was written of 0.55.
                if is_open and match.end() == len(text):
                    self.left_out["last values of a line without its end"] += 1
                    continue
                groups = {k: v for k, v in match.groupdict().items() if v is not None}
                if (step := whole_step(groups.pop("step", None))) is not None:
                    self._last = step
                    yield "step", step
                if "value" in groups and "name" in groups:
                    groups = {groups["name"]: groups["value"]}
                for name, value in groups.items():
                    yield name.replace("__", "/"), value.replace(",", "")


def _compiled(pattern: str) -> re.Pattern[str]:
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise ConfigError(
            f"pattern: expected a regular expression, got {pattern!r}: {error}"
        ) from error
    names = set(compiled.groupindex)
    if not names - {"step"} or bool("name" in names) != bool("value" in names):
        raise ConfigError(
            f"pattern: expected named groups: step with metrics, or name and value, got {pattern!r}"
        )
    return compiled
