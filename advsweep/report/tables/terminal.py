"""Writes tables for the terminal; a table that is too wide becomes several."""

from __future__ import annotations

import io
import shutil
import sys
import textwrap
from collections.abc import Sequence
from itertools import groupby
from typing import Literal

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from advsweep.printable import printable_line
from advsweep.report.tables.types import Document, Entry, Mark, Table

_STYLES = {Mark.BEST: "bold", Mark.SECOND: "underline"}
_WORDS = {Mark.BEST: "bold", Mark.SECOND: "underlined"}
_SIGNS = {Mark.BEST: "*", Mark.SECOND: "†"}
_GAP = 2  # spaces between columns


def to_table(
    document: Document,
    *,
    width: int | None = None,
    styled: bool | None = None,
    wrapped: bool | None = None,
) -> str:
    """Writes best means bold and second ones underlined, or with signs where nothing can be styled.

    Control characters of texts are escaped; the remaining ones are styles. Columns that do not
    fit go to a table of their own; families stay together where they can.

    Args:
        width: characters per line; by default the terminal's, 120 without a terminal.
        styled: use escape codes; by default if stdout is a terminal that knows them.
        wrapped: break the sentences below the tables at words; by default if stdout is a terminal.
    """
    if wrapped is None:
        wrapped = sys.stdout.isatty()
    if styled is None:
        screen = Console(file=sys.stdout)
        styled = screen.is_terminal and not screen.is_dumb_terminal
    if width is None:
        width = shutil.get_terminal_size((120, 24)).columns
    wide = Console(
        file=io.StringIO(),
        width=10_000,
        force_terminal=styled,
        force_jupyter=False,  # which would also show an empty output in a notebook
        color_system="standard" if styled else None,
        highlight=False,
        legacy_windows=False,
    )
    document = document.map_texts(printable_line)
    names = _WORDS if styled else _SIGNS
    legend = [f"{names[mark]}: {text}" for mark, text in document.legend.items()]
    with wide.capture() as captured:
        for table in document.tables:
            if table.title:
                wide.print(table.title, markup=False, style="bold" if styled else None)
                wide.print()
            cells = _Cells(table, styled)
            for columns in cells.fitting(width):
                wide.print(cells.drawn(columns))
                wide.print()
        for line in (*document.notes, *legend, *document.provenance):
            for part in _wrap(line, width) if wrapped else [line]:
                wide.print(part, markup=False, soft_wrap=True)
    return "\n".join(line.rstrip() for line in captured.get().splitlines()) + "\n"


def _wrap(line: str, width: int) -> list[str]:
    """Breaks a sentence at words; what follows its first line is indented."""
    return textwrap.wrap(
        line, width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
    )


class _Cells:
    """The texts of a table and their widths."""

    def __init__(self, table: Table, styled: bool) -> None:
        self._table = table
        self._styled = styled
        lines = table.lines
        self._names = [[line.names[i] for line in lines] for i in range(len(table.names))]
        marked = [
            any(line.entries[i].mark is not None for line in lines)
            for i in range(len(table.columns))
        ]
        self._columns = [
            [self._text(line.entries[i], signed=marked[i]) for line in lines]
            for i in range(len(table.columns))
        ]
        self._headers = [self._header(i) for i in range(len(table.columns))]

    def _header(self, column: int) -> Text:
        """Makes a line for each level; one that equals its left neighbour's is empty."""
        levels = self._table.columns[column].levels
        before = self._table.columns[column - 1].levels if column else ()
        return Text(
            "\n".join(
                "" if levels[: i + 1] == before[: i + 1] and i < len(levels) - 1 else level
                for i, level in enumerate(levels)
            )
        )

    def _text(self, entry: Entry, *, signed: bool) -> Text:
        text = Text(entry.text, style="")
        if entry.mark is not None and self._styled:
            text.stylize(_STYLES[entry.mark])
        if entry.half_width:
            text.append(f" ±{entry.half_width}")
        if entry.aside:
            text.append(f" {entry.aside}")
        if not self._styled and signed:
            text.append(_SIGNS[entry.mark] if entry.mark is not None else " ")
        return text

    def fitting(self, width: int) -> list[list[int]]:
        """Splits the columns into as few tables as fit; families stay together where they can."""
        named = zip(self._table.names, self._names, strict=True)
        room = width - sum(_width(name, texts) + _GAP for name, texts in named) + _GAP
        widths = [
            _width(header.plain, texts) + _GAP
            for header, texts in zip(self._headers, self._columns, strict=True)
        ]
        tables: list[list[int]] = []
        left = 0
        places = range(len(widths))
        for _, members in groupby(places, key=lambda i: self._table.columns[i].family):
            family = list(members)
            if tables and sum(widths[i] for i in family) <= left:
                tables[-1] += family
                left -= sum(widths[i] for i in family)
                continue
            left = -1
            for i in family:
                if widths[i] > left:
                    tables.append([])
                    left = room
                tables[-1].append(i)
                left -= widths[i]
        return tables or [[]]

    def drawn(self, columns: Sequence[int]) -> RichTable:
        # The box itself puts one space between columns.
        padding = (0, _GAP - 1, 0, 0)
        table = RichTable(box=SIMPLE_HEAD, padding=padding, pad_edge=False, show_edge=False)
        left = len(self._table.names) - self._table.numbers
        blank = "\n" * (self._table.levels - 1)
        for i, name in enumerate(self._table.names):
            side: Literal["left", "right"] = "left" if i < left else "right"
            table.add_column(Text(blank + name), justify=side, no_wrap=True)
        for i in columns:
            table.add_column(self._headers[i], justify="right", no_wrap=True)
        place = 0
        for section in self._table.sections:
            for number, _ in enumerate(section, start=1):
                texts = [Text(texts[place]) for texts in self._names]
                texts += [self._columns[i][place] for i in columns]
                last = number == len(section) and section is not self._table.sections[-1]
                table.add_row(*texts, end_section=last)
                place += 1
        return table


def _width(header: str, texts: Sequence[str | Text]) -> int:
    return max(len(text) for text in [*header.split("\n"), *texts])
