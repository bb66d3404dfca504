"""A table for people: as wide as the terminal, or several below each other."""

from __future__ import annotations

import io
import shutil
import sys
from collections.abc import Sequence
from itertools import groupby

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from advsweep.report.columns import Column
from advsweep.report.marks import Mark, marks
from advsweep.report.markup import MISSING, half_width, own_n
from advsweep.report.notes import notes, provenance
from advsweep.report.numbers import show, show_key
from advsweep.report.report import Report, Row

_STYLES = {Mark.BEST: "bold", Mark.SECOND: "underline"}
_SIGNS = {Mark.BEST: "*", Mark.SECOND: "†"}
_GAP = 2  # spaces between columns


def to_table(report: Report, *, width: int | None = None, styled: bool | None = None) -> str:
    """Best means bold and second ones underlined, or with signs where nothing can be styled.

    Columns that do not fit go to a table of their own, by families where that is possible.

    Args:
        width: in characters; by default the terminal's, 120 without one.
        styled: with escape codes; by default if stdout is a terminal that knows them.
    """
    if styled is None:
        screen = Console(file=sys.stdout)
        styled = screen.is_terminal and not screen.is_dumb_terminal
    if width is None:
        width = shutil.get_terminal_size((120, 24)).columns
    cells = _Cells(report, styled)
    tables = [cells.table(columns) for columns in cells.fitting(width)]
    wide = Console(
        file=io.StringIO(),
        width=10_000,
        force_terminal=styled,
        color_system="standard" if styled else None,
        highlight=False,
        legacy_windows=False,
    )
    best, second = ("bold", "underlined") if styled else _SIGNS.values()
    with wide.capture() as captured:
        for table in tables:
            wide.print(table)
            wide.print()
        for line in [*notes(report, best, second), *provenance(report)]:
            wide.print(line, markup=False, soft_wrap=True)
    return "\n".join(line.rstrip() for line in captured.get().splitlines()) + "\n"


class _Cells:
    """The texts of a table, and how wide they are."""

    def __init__(self, report: Report, styled: bool) -> None:
        self._report = report
        self._styled = styled
        self._marks = marks(report)
        self._groups = [
            (key, [self._group(row, key) for row in report.rows]) for key in report.keys
        ]
        self._n = [str(row.n) for row in report.rows]
        self._columns = {
            column: [self._cell(i, row, column) for i, row in enumerate(report.rows)]
            for column in report.columns
        }

    @staticmethod
    def _group(row: Row, key: str) -> str:
        return show_key(row.group[key]) if key in row.group else ""

    def _cell(self, i: int, row: Row, column: Column) -> Text:
        cell = row.cells[column.name]
        if cell.n == 0:
            return Text(MISSING)
        mark = self._marks.get((i, column.name))
        text = Text(show(cell.mean), style="")
        if mark is not None and self._styled:
            text.stylize(_STYLES[mark])
        text.append(half_width(cell, " ±{}") + own_n(cell, row.n))
        if not self._styled and any(name == column.name for _, name in self._marks):
            text.append(_SIGNS[mark] if mark is not None else " ")
        return text

    def fitting(self, width: int) -> list[list[Column]]:
        """The columns in as few tables as fit; families stay together where they can."""
        fixed = sum(_width(key, texts) + _GAP for key, texts in self._groups)
        room = width - fixed - _width("n", self._n)
        widths = {c: _width(c.header, texts) + _GAP for c, texts in self._columns.items()}
        tables: list[list[Column]] = []
        left = 0
        for _, members in groupby(self._columns, key=lambda column: column.family):
            family = list(members)
            if tables and sum(widths[c] for c in family) <= left:
                tables[-1] += family
                left -= sum(widths[c] for c in family)
                continue
            left = -1
            for column in family:
                if widths[column] > left:
                    tables.append([])
                    left = room
                tables[-1].append(column)
                left -= widths[column]
        return tables or [[]]

    def table(self, columns: Sequence[Column]) -> Table:
        # The box puts one space between columns itself.
        padding = (0, _GAP - 1, 0, 0)
        table = Table(box=SIMPLE_HEAD, padding=padding, pad_edge=False, show_edge=False)
        for key, _ in self._groups:
            table.add_column(Text(key), no_wrap=True)
        table.add_column("n", justify="right", no_wrap=True)
        for column in columns:
            table.add_column(Text(column.header), justify="right", no_wrap=True)
        for i, row in enumerate(self._report.rows):
            texts: list[str | Text] = [Text(texts[i]) for _, texts in self._groups]
            texts += [self._n[i], *(self._columns[column][i] for column in columns)]
            last_base = row.is_base and not self._report.rows[i + 1].is_base
            table.add_row(*texts, end_section=last_base)
        return table


def _width(header: str, texts: Sequence[str | Text]) -> int:
    return max(len(text) for text in [header, *texts])
