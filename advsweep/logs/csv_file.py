"""Tables with a header, separated by commas, semicolons, tabs or bars.

    step,reward,entropy          a column per metric
    step,name,value              or a line per value; `metric`, `tag` and `key` also name the name
    estimator,seed,accuracy      or a line per run, without a step: the results of trainings

A header that comes again, as after a resume, is skipped, or takes effect if it is another one.
The exports of wandb's and TensorBoard's web pages are in `exports`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from advsweep.components import option
from advsweep.delimited import (
    COMMENT,
    find_delimiter,
    is_open,
    refuse_doubled,
    separator_of,
    split_line,
)
from advsweep.errors import ConfigError, first_of
from advsweep.logs.base import MAX_NAME, ImportedRun, ImportOptions, existing, whole_step
from advsweep.logs.exports import is_export, runs_of_exports
from advsweep.logs.keys import NAMES_OF_ESTIMATORS, columns_of_runs, usual_name
from advsweep.logs.line_log import MAX_LINE
from advsweep.logs.lines import CUT_VALUES, INDEX, OWN_STEP, PAIR_NAMES, PAIR_VALUES, TextLog
from advsweep.logs.names import LoggedStep, step_names
from advsweep.printable import printable_line

# Numbers with a comma, which may be a decimal comma or separate groups of three digits.
_UNCLEAR = re.compile(
    r"[+-]?(?:\d+,\d*|,\d+|[1-9]\d{0,2}(?:,\d{3})+(?:\.\d*)?|[1-9]\d{0,2}(?:\.\d{3})+,\d*)"
    r"(?:e[+-]?\d+)?",
    re.IGNORECASE | re.ASCII,
)

_GROUPED = re.compile(r"[+-]?[1-9]\d{0,2}(?:\.\d{3})+")

_PERCENT = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)\s*%", re.ASCII)

# How cells say that they hold nothing.
_EMPTY = frozenset({"-", "--", "\u2013", "\u2014", "n/a", "na", "#n/a", "<na>"})

_LONGEST_EMPTY = max(map(len, _EMPTY))

_DECIMALS = ("", ".", ",")


@dataclass(kw_only=True)
class CsvFile(TextLog):
    """A table of text with a header: `step,reward,...`, or `step,name,value`.

    Numbers have a decimal point. A cell that may also be a number with a decimal comma, or with
    groups of digits, is refused unless `decimal` says which.
    """

    name: ClassVar[str] = "csv"
    table: ClassVar[str] = "csv"
    endings: ClassVar[tuple[str, ...]] = (".csv", ".tsv")
    is_strict: ClassVar[bool] = True

    decimal: str = option(
        "", help="the decimal sign of numbers: '.' or ','; the other one separates groups of digits"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.decimal not in _DECIMALS:
            raise ConfigError(f"decimal: expected '.' or ',', got {self.decimal!r}")
        self._delimiter = ","
        self._steps_by_column: list[tuple[int, str]] = []
        """The columns of the step with their names, in order of preference."""
        self._pair: tuple[int, int] | None = None
        """The columns of a table with a line per value: those of the name and of the value."""

    def _restart(self) -> None:
        super()._restart()
        self._header: list[str] = []
        self._names_of_cells: list[str] = []
        """The names in the header, empty for those of the step."""
        self._given_delimiter = ""
        self._open_line = ""
        """The lines so far of a record with a line end within quotes."""

    def runs(self, source: Path | str, options: ImportOptions) -> Iterator[ImportedRun]:
        root = existing(source)
        files = self._files(root)
        exports = [file for file in files if is_export(file)]
        yield from runs_of_exports(exports, root, options)
        others = [file for file in files if file not in exports]
        yield from self._runs_of(others, root, options)

    def _parse(self, line: str, *, ended: bool) -> LoggedStep | None:
        if self._open_line:
            line = f"{self._open_line}\n{line}"
            self._open_line = ""
        if ended and '"' in line and len(line) < MAX_LINE and is_open(line, self._delimiter):
            self._open_line = line
            return None
        if not self._header:
            self._start(line, ended=ended)
            return None
        cells = split_line(line, self._delimiter)
        if not cells:
            self.left_out["incomplete lines"] += 1
            return None
        name, step = self._find_step(cells)
        # A trainer that resumes may write its header again in the middle.
        if (step is None or self.is_timeless) and self._is_header(cells):
            self._read_header(line)
            return None
        if line.startswith(COMMENT) and len(cells) != len(self._header):
            return None
        return self._row(cells, name, step, ended=ended)

    def _row(
        self, cells: list[str], name: str, step: int | None, *, ended: bool
    ) -> LoggedStep | None:
        """Return the step of a line of cells; None, and count it, for a line that is not whole."""
        width = len(self._header)
        # A step that is cut, 12 of 123, would be another step: only whole lines have one.
        if len(cells) < width or (step is None and not ended):
            self.left_out["incomplete lines"] += 1
            return None
        if step is None:
            self._no_step(name, self._header)
            return None
        if any(cell.strip() for cell in cells[width:]):
            self.left_out["lines with more cells than the header"] += 1
            return None
        if not ended:
            # 0.5 may be all that was written of 0.55.
            cells[width - 1] = ""
            self.left_out[CUT_VALUES] += 1
        return self._logged(cells, name, step)

    def _logged(self, cells: list[str], step_name: str, step: int) -> LoggedStep:
        """Return the step of a whole line."""
        entry = {}
        for name, text in zip(self._names_of_cells, cells, strict=False):
            if name and text and not text.isspace():
                entry[name] = text.strip()
        if entry.get(INDEX, "").isdecimal() and INDEX not in self.by:
            # The lines are numbered: pandas writes its index.
            del entry[INDEX]
        self._find_tag(entry)
        step = self._step_of(step_name, step)
        if self._pair is None:
            return LoggedStep(step, self._values(self._filled(entry)))
        name, text = (cells[column].strip() for column in self._pair)
        pair = {self._header[column] for column in self._pair}
        self._keep_texts({key: value for key, value in entry.items() if key not in pair})
        return LoggedStep(step, self._numbers([(name, text)] if text else []))

    def _filled(self, entry: dict[str, str]) -> Iterator[tuple[str, str]]:
        """Yield the cells that hold something; count those that say in a text that they do not."""
        for name, text in entry.items():
            if len(text) <= _LONGEST_EMPTY and text.lower() in _EMPTY:
                self._drop(name, "that are not numbers")
            else:
                yield name, text

    def _keep_texts(self, entry: dict[str, str]) -> None:
        """Keep what is said about a value, also in numbers, as settings of the run."""
        texts = self._texts_of_run()
        self.texts = {}
        for name, text in entry.items():
            if name not in self._keys_seen:
                self.texts[name] = text[:MAX_NAME]
                texts.add(name, text, may_be_setting=True)

    def _find_step(self, cells: list[str]) -> tuple[str, int | None]:
        """Return the name of the step's column, or the text in it, and the step of a line."""
        if self.is_timeless:
            return "", 0
        text = ""
        for column, name in self._steps_by_column:
            cell = cells[column].strip() if column < len(cells) else ""
            if not cell or cell.lower() == "nan":
                continue
            step = whole_step(self._number(cell))
            if step is not None:
                return name, step
            text = text or cell
            break
        return text, None

    def _start(self, line: str, *, ended: bool) -> None:
        """Read a line above the first record."""
        if separator := separator_of(line):
            self._given_delimiter = separator
        elif line.startswith(COMMENT) and not self._steps_in(self._columns_of(line)):
            return
        elif ended:
            self._read_header(line)
        else:
            # A header that is being written is not known yet.
            self.left_out["incomplete lines"] += 1

    def _columns_of(self, line: str) -> list[str]:
        """Return the names of the columns in a header."""
        # numpy writes the header as a comment.
        line = line.lstrip(f"{COMMENT} ")
        delimiter = self._given_delimiter or find_delimiter(line)
        header = [cell.strip() for cell in split_line(line, delimiter)]
        while header and not header[-1]:
            header.pop()
        if header and not header[0]:
            header[0] = INDEX
        return header

    def _steps_in(self, header: list[str]) -> list[tuple[int, str]]:
        """Return the columns of the step with their names, in order of preference."""
        usual = {usual_name(name): column for column, name in reversed(list(enumerate(header)))}
        found: dict[int, str] = {}
        for key in self._step_names:
            column = header.index(key) if key in header else usual.get(usual_name(key))
            if column is not None:
                found.setdefault(column, key)
        if len(found) < 2:
            return list(found.items())
        # Of several the first counts, and wandb's own count where it is empty.
        first, *others = found.items()
        return [first, *((column, key) for column, key in others if key == OWN_STEP)]

    def _is_header(self, cells: list[str]) -> bool:
        """Return whether a line is a header: one of the step, or the same again."""
        names = [cell.strip() for cell in cells]
        if names[: len(self._header)] == self._header:
            return True
        return not self.is_timeless and bool(self._steps_in(names))

    def _read_header(self, line: str) -> None:
        header = self._columns_of(line)
        self._delimiter = self._given_delimiter or find_delimiter(line)
        refuse_doubled(header, where=f"{self.path}: line {self.line}")
        self._header = header
        steps = {column for column, _ in self._steps_in(header)}
        self._names_of_cells = [
            "" if column in steps else name for column, name in enumerate(header)
        ]
        self._columns |= dict.fromkeys(header)
        runs = columns_of_runs(header) if self._is_import else []
        if runs:
            raise self._wide(runs)
        self._steps_by_column = self._steps_in(header)
        if not self._steps_by_column:
            if not self._is_import or self._step_names != step_names(self.table):
                raise self._stepless()
            self.is_timeless = True
        self._pair = _pair_of(header)

    def _wide(self, runs: list[str]) -> ConfigError:
        """Return the error for a table with a column for each run."""
        shown = printable_line(first_of(runs, 3))
        what = "estimator" if set(map(usual_name, runs)) <= NAMES_OF_ESTIMATORS else "run"
        return ConfigError(
            f"{self.path}: line {self.line}: expected a column for each metric, got one for each "
            f"{what} ({shown}); write a line for each {what} and step, step,{what},METRIC, as "
            f"pandas does with df.melt('step', var_name='{what}', value_name='reward')"
        )

    def _number(self, value: Any) -> float | None:
        text = value.strip() if isinstance(value, str) else ""
        if self.decimal and "," in text:
            group = "." if self.decimal == "," else ","
            text = text.replace(group, "").replace(",", ".")
            return super()._number(text)
        if self.decimal == "," and _GROUPED.fullmatch(text):
            return super()._number(text.replace(".", ""))
        if not self.decimal and _is_unclear(text, self._delimiter):
            raise ConfigError(
                f"{self.path}: line {self.line}: expected numbers with a decimal point and no "
                f"other sign, got {printable_line(text[:40])!r}; --decimal , or --decimal . says "
                "which sign is the decimal one"
            )
        if text.endswith("%") and _PERCENT.fullmatch(text):
            number = super()._number(text[:-1].strip())
            return None if number is None else number / 100
        return super()._number(value)


def _is_unclear(text: str, delimiter: str) -> bool:
    """Return whether a comma or a point of a number may be decimal, or may separate groups."""
    if "," in text and _UNCLEAR.fullmatch(text):
        return True
    # A table separated by semicolons is often of a country with decimal commas.
    return delimiter == ";" and _GROUPED.fullmatch(text) is not None


def _pair_of(header: Sequence[str]) -> tuple[int, int] | None:
    """Return the columns of the name and the value in a table with a line per value."""
    lower = [usual_name(name) for name in header]
    names = [lower.index(name) for name in PAIR_NAMES if name in lower]
    values = [lower.index(name) for name in PAIR_VALUES if name in lower]
    return (names[0], values[0]) if names and values else None
