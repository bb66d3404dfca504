"""Tables with a header, separated by commas, semicolons or tabs.

    step,reward,entropy          a column per metric
    step,name,value              or a line per value; `metric`, `tag` and `key` also name the name

A header that comes again, as after a resume, is skipped, or takes effect if it is another one.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from advsweep.errors import ConfigError
from advsweep.logs.base import STEP_KEYS, LoggedStep, TextLog, whole_step

_DELIMITERS = (",", "\t", ";")
_NAMES = ("name", "metric", "tag", "key")
_VALUE = "value"
_SHOWN = 12  # columns in a message


class CsvFile(TextLog):
    """A table of text with a header.

    Args:
        step_keys: names of the column of the step; the first that the header has counts.
        by: columns whose values tell the runs of one table apart; see `TextLog.tag`.
    """

    kind: ClassVar[str] = "csv"

    def __init__(
        self, path: Path, *, step_keys: Sequence[str] = STEP_KEYS, by: Sequence[str] = ()
    ) -> None:
        super().__init__(path, by=by)
        self._step_keys = (*step_keys, *(key.capitalize() for key in step_keys))
        self._delimiter = ","
        self._header: list[str] = []
        self._step_column = 0
        self._name_column: int | None = None

    def _restart(self) -> None:
        super()._restart()
        self._header = []

    def _parse(self, line: str, *, ended: bool) -> LoggedStep | None:
        if not self._header:
            # A header that is being written is not known yet.
            if ended:
                self._read_header(line)
            else:
                self.left_out["incomplete lines"] += 1
            return None
        cells = self._cells(line)
        step = whole_step(cells[self._step_column]) if self._step_column < len(cells) else None
        if step is None and any(cell in self._step_keys for cell in cells):
            self._read_header(line)
            return None
        if step is None or len(cells) < len(self._header):
            whole = ended and len(cells) >= len(self._header)
            self.left_out["lines without a step" if whole else "incomplete lines"] += 1
            return None
        if any(cell.strip() for cell in cells[len(self._header) :]):
            self.left_out["lines with more cells than the header"] += 1
            return None
        if not ended:
            # 0.5 may be all that was written of 0.55.
            cells[len(self._header) - 1] = ""
            self.left_out["last values of a line without its end"] += 1
        return LoggedStep(step, self._values(cells))

    def _cells(self, line: str) -> list[str]:
        try:
            return next(csv.reader([line], delimiter=self._delimiter))
        except (csv.Error, StopIteration):  # A cell of more than 128 KiB, for instance.
            return []

    def _read_header(self, line: str) -> None:
        self._delimiter = max(_DELIMITERS, key=line.count)
        header = [cell.strip() for cell in self._cells(line)]
        step = next((key for key in self._step_keys if key in header), None)
        if step is None:
            shown = ", ".join(header[:_SHOWN]) + (", ..." if len(header) > _SHOWN else "")
            raise ConfigError(
                f"{self.path}: expected a header with a column of the step "
                f"({', '.join(self._step_keys[:4])}, ...), got: {shown[:300]}; name it with "
                "--map COLUMN=step"
            )
        self._header, self._step_column = header, header.index(step)
        lower = [name.lower() for name in header]
        is_long = _VALUE in lower and any(name in lower for name in _NAMES)
        name = next((name for name in _NAMES if name in lower), None) if is_long else None
        self._name_column = None if name is None else lower.index(name)
        self._value_column = lower.index(_VALUE) if is_long else 0

    def _values(self, cells: list[str]) -> dict[str, float]:
        if self._name_column is not None:
            name, text = cells[self._name_column], cells[self._value_column]
            self._find_tag(dict(zip(self._header, cells, strict=False)))
            return self._numbers([(name, self._number(text))] if text.strip() else [])
        entry = {
            name: text
            for column, (name, text) in enumerate(zip(self._header, cells, strict=False))
            if column != self._step_column and text and not text.isspace()
        }
        self._find_tag(entry)
        numbers = []
        for name, text in entry.items():
            if name in self.by:
                continue
            if isinstance(value := self._number(text), str):
                self._setting(name, text)
            else:
                numbers.append((name, value))
        return self._numbers(numbers)

    def _number(self, text: str) -> float | str:
        try:
            return float(text)
        except ValueError:
            pass
        try:
            # Spreadsheets that separate by semicolons write a comma in numbers.
            return float(text.replace(",", ".")) if self._delimiter == ";" else text
        except ValueError:
            return text
