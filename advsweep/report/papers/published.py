"""The numbers that five papers print, and the layout of their tables.

Each file `PAPER-tableN.csv` beside this module is a table as printed: rows and columns in their
order, under our names of metrics and tasks. `*` follows a bold number, `_` an underlined one, and
a spread follows a `±`. Where the columns are the k of pass@k, each task has rows of its own.
`methods.csv` tells which of our runs follow a paper's method. Numbers that are missing from our
sources are left out.
"""

from __future__ import annotations

import csv
import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files

from advsweep.errors import ConfigError, nearest
from advsweep.report.data.columns import Column
from advsweep.report.data.filters import Filter, parse_where
from advsweep.report.tables.types import Mark

BASE_METHOD = "Base"
_FOLDER = files("advsweep.report") / "papers"
_MARKS = {"*": Mark.BEST, "_": Mark.SECOND, "": None}
_KEYS = ("model", "task", "method")


@dataclass(frozen=True)
class PrintedNumber:
    """A number as printed, such as `40.0`; accuracies are in percent.

    Attributes:
        spread: the text after its ±; empty without one.
    """

    text: str
    mark: Mark | None
    spread: str = ""

    @property
    def value(self) -> float:
        return float(self.text)


@dataclass(frozen=True)
class PrintedRow:
    """A row of a paper's table.

    Attributes:
        task: the task of all its numbers; None where each column has its own task.
        numbers: by our name of the column; missing ones are left out.
    """

    model: str
    method: str
    task: str | None
    numbers: Mapping[str, PrintedNumber]

    def number(self, column: Column) -> PrintedNumber | None:
        """The number of one of our columns; None where the row has none."""
        if self.task is None:
            return self.numbers.get(column.name)
        return self.numbers.get(column.quantity) if column.task == self.task else None


@dataclass(frozen=True)
class PrintedTable:
    """A paper's table.

    Attributes:
        name: such as `avspo-table1`.
        paper: such as `avspo`.
        columns: our names of the columns; without a task where rows have one.
        by_task: each row is on one task.
    """

    name: str
    paper: str
    columns: tuple[str, ...]
    by_task: bool
    rows: tuple[PrintedRow, ...]


@functools.cache
def table_names() -> list[str]:
    """Returns the names of the tables, paper by paper."""
    found = [file.name.removesuffix(".csv") for file in _FOLDER.iterdir()]
    return sorted(name for name in found if "-table" in name)


def paper_names() -> list[str]:
    """Returns the names of the papers, sorted."""
    return sorted({name.partition("-")[0] for name in table_names()})


@functools.cache
def printed_table(name: str) -> PrintedTable:
    """Returns a paper's table.

    Raises:
        ConfigError: no table has this name; the message suggests the nearest.
    """
    if name not in table_names():
        raise ConfigError(
            f"--style: expected a table that a paper prints, got '{name}'; "
            f"{nearest(name, table_names())}"
        )
    header, *lines = _read(name)
    columns = tuple(key for key in header if key not in _KEYS)
    rows = []
    for line in lines:
        fields = dict(zip(header, line, strict=True))
        numbers = {c: _number(fields[c]) for c in columns if fields[c]}
        row = PrintedRow(fields["model"], fields["method"], fields.get("task"), numbers)
        rows.append(row)
    return PrintedTable(name, name.partition("-")[0], columns, "task" in header, tuple(rows))


@functools.cache
def methods(paper: str) -> dict[str, list[Filter]]:
    """Returns the filters that a run of each method of a paper fulfils, in the paper's order."""
    _, *lines = _read("methods")
    return {method: parse_where(where) for own, method, where in lines if own == paper}


@functools.cache
def task_titles() -> dict[str, str]:
    """Returns the title of each task in print."""
    _, *lines = _read("tasks")
    return {task: title for task, title in lines}  # noqa: C416 (mypy takes lists for no pairs)


def _number(text: str) -> PrintedNumber:
    match = re.fullmatch(r"([-+]?[\d.]+)(?:±([\d.]+))?([*_]?)", text)
    assert match is not None, text
    return PrintedNumber(match[1], _MARKS[match[3]], match[2] or "")


def _read(name: str) -> list[list[str]]:
    return list(csv.reader((_FOLDER / f"{name}.csv").read_text(encoding="utf-8").splitlines()))
