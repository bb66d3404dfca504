"""Tables with a header, separated by commas, semicolons or tabs.

    step,reward,entropy          a column per metric
    step,name,value              or a line per value; `metric`, `tag` and `key` also name the name

A header that comes again, as after a resume, is skipped, or takes effect if it is another one.
"""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass
from typing import Any, ClassVar

from advsweep.errors import ConfigError
from advsweep.logs.base import whole_step
from advsweep.logs.lines import CUT_VALUES, TextLog
from advsweep.logs.names import LoggedStep

_DELIMITERS = (",", "\t", ";")
_NAMES = ("name", "metric", "tag", "key")
_VALUE = "value"

# Numbers with a comma, which may be a decimal comma or separate groups of three digits.
_UNCLEAR = re.compile(
    r"[+-]?(?:\d+,\d*|,\d+|[1-9]\d{0,2}(?:,\d{3})+(?:\.\d*)?|[1-9]\d{0,2}(?:\.\d{3})+,\d*)"
    r"(?:e[+-]?\d+)?",
    re.IGNORECASE | re.ASCII,
)

_GROUPED = re.compile(r"[+-]?[1-9]\d{0,2}(?:\.\d{3})+")


@dataclass(kw_only=True)
class CsvFile(TextLog):
    """A table of text with a header: `step,reward,...`, or `step,name,value`.

    Numbers have a decimal point. A cell that may also be a number with a decimal comma, or with
    groups of digits, is refused.
    """

    name: ClassVar[str] = "csv"
    table: ClassVar[str] = "csv"
    endings: ClassVar[tuple[str, ...]] = (".csv", ".tsv")

    def __post_init__(self) -> None:
        super().__post_init__()
        self._step_names += tuple(key.capitalize() for key in self._step_names)
        self._delimiter = ","
        self._step_column = 0
        self._pair: tuple[int, int] | None = None
        """The columns of a table with a line per value: those of the name and of the value."""

    def _restart(self) -> None:
        super()._restart()
        self._header: list[str] = []

    def _parse(self, line: str, *, ended: bool) -> LoggedStep | None:
        if not self._header:
            # A header that is being written is not known yet.
            if ended:
                self._read_header(line)
            else:
                self.left_out["incomplete lines"] += 1
            return None
        cells = self._cells(line)
        value = cells[self._step_column] if self._step_column < len(cells) else None
        step = whole_step(self._number(value))
        # A trainer that resumes may write its header again in the middle.
        if step is None and any(cell in self._step_names for cell in cells):
            self._read_header(line)
            return None
        # A step that is cut, 12 of 123, would be another step: only whole lines have one.
        if len(cells) < len(self._header) or (step is None and not ended):
            self.left_out["incomplete lines"] += 1
            return None
        if step is None:
            self._no_step(value)
            return None
        if any(cell.strip() for cell in cells[len(self._header) :]):
            self.left_out["lines with more cells than the header"] += 1
            return None
        if not ended:
            # 0.5 may be all that was written of 0.55.
            cells[len(self._header) - 1] = ""
            self.left_out[CUT_VALUES] += 1
        entry = {
            name: text
            for column, (name, text) in enumerate(zip(self._header, cells, strict=False))
            if column != self._step_column and text and not text.isspace()
        }
        self._find_tag(entry)
        if self._pair is None:
            return LoggedStep(step, self._values(entry.items()))
        name, text = (cells[column] for column in self._pair)
        return LoggedStep(step, self._numbers([(name, text)] if text.strip() else []))

    def _cells(self, line: str) -> list[str]:
        try:
            return next(csv.reader([line], delimiter=self._delimiter))
        except (csv.Error, StopIteration):  # A cell of more than 128 KiB, for instance.
            return []

    def _read_header(self, line: str) -> None:
        self._delimiter = max(_DELIMITERS, key=line.count)
        header = [cell.strip() for cell in self._cells(line)]
        step = next((key for key in self._step_names if key in header), None)
        if step is None:
            raise ConfigError(
                f"{self.path}: expected a header with a column of the step "
                f"({', '.join(self._step_names[:4])}, ...), got: {', '.join(header)[:300]}; name "
                "it with --map COLUMN=step"
            )
        self._header, self._step_column = header, header.index(step)
        lower = [name.lower() for name in header]
        names = [lower.index(name) for name in _NAMES if name in lower]
        is_long = names and _VALUE in lower
        self._pair = (names[0], lower.index(_VALUE)) if is_long else None

    def _number(self, value: Any) -> float | None:
        text = value.strip() if isinstance(value, str) else ""
        # A table separated by semicolons is often of a country with decimal commas.
        is_unclear = ("," in text and _UNCLEAR.fullmatch(text)) or (
            self._delimiter == ";" and _GROUPED.fullmatch(text)
        )
        if is_unclear:
            raise ConfigError(
                f"{self.path}: expected numbers with a decimal point and no other sign, got "
                f"{text[:40]!r}; save the table so, separated by commas"
            )
        return super()._number(value)
