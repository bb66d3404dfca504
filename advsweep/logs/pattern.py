r"""Lines of text in which regular expressions find values, such as a trainer's console.

The named groups of a regular expression say what it finds:

    step (?P<step>\d+).*reward[=:] (?P<reward__mean>\S+)     a metric per group; __ stands for /
    (?P<name>[\w/]+): (?P<value>\S+)                         name and value, as often as they come

A line without a `step` belongs to the last step that was seen.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from advsweep.components import option
from advsweep.errors import ConfigError
from advsweep.logs.base import ImportedRun, ImportOptions, whole_step
from advsweep.logs.line_log import LineLog
from advsweep.logs.lines import CUT_VALUES
from advsweep.logs.names import LoggedStep

_COLOURS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")

# Characters of a line that are searched, since an expression may take long on long lines.
_LONGEST = 2**16


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
