"""Lay out tables of left-aligned columns; fit them to the width of a terminal.

A table that is too wide first loses the columns that its command calls optional, then the cells of
its wide columns are wrapped. The first column names the row and stays whole.
"""

from __future__ import annotations

import textwrap
import unicodedata
from collections.abc import Sequence
from itertools import zip_longest

GAP = 2
"""Spaces between columns."""

READABLE = 28
"""No column is wrapped to less than this width while an optional column can be left out."""

_NARROWEST = 8


def lay_out(table: Sequence[Sequence[str]]) -> list[str]:
    """Returns the lines of a table, whose first row is the header, without trailing spaces."""
    widths = [max(map(_width, column)) for column in zip(*table, strict=True)]
    lines = []
    for row in table:
        cells = (c + " " * (width - _width(c)) for c, width in zip(row, widths, strict=True))
        lines.append((" " * GAP).join(cells).rstrip())
    return lines


def fit(
    table: Sequence[Sequence[str]], width: int, optional: Sequence[str] = ()
) -> tuple[list[list[str]], list[str]]:
    """Fits a table into a width, if that can be done readably.

    Args:
        table: the header and the rows.
        width: characters of a line.
        optional: columns that may be left out, the least important first.

    Returns:
        The table, in which a wrapped row is several rows, and the columns that were left out.
    """
    columns = [list(column) for column in zip(*table, strict=True)]
    droppable = [name for name in optional if name in table[0]]
    left_out: list[str] = []
    while True:
        widths = [max(map(_width, column)) for column in columns]
        most = _widest(widths[1:], width - widths[0] - GAP * (len(widths) - 1))
        if most >= min(READABLE, max(widths[1:], default=0)) or not droppable:
            break
        left_out.append(droppable.pop(0))
        columns = [column for column in columns if column[0] != left_out[-1]]
    if most < _NARROWEST:
        return [list(row) for row in table], []
    rows = zip(*columns, strict=True)
    return [line for row in rows for line in _wrap(row, most)], left_out


def _widest(widths: Sequence[int], room: int) -> int:
    """Returns the width at which wider columns must be wrapped for all to fit into the room."""
    for place, width in enumerate(sorted(widths)):
        share = room // (len(widths) - place)
        if width > share:
            return share
        room -= width
    return max(widths, default=room)


def _wrap(row: Sequence[str], most: int) -> list[list[str]]:
    """Wraps all cells of a row but the first."""
    cells = [[row[0]], *(_wrap_cell(cell, most) for cell in row[1:])]
    return [list(line) for line in zip_longest(*cells, fillvalue="")]


def _wrap_cell(text: str, most: int) -> list[str]:
    return textwrap.wrap(text, most, break_on_hyphens=False) if _width(text) > most else [text]


def _width(text: str) -> int:
    """Returns the width on a terminal; combining characters (the hat of p̂) take no cell."""
    if text.isascii():
        return len(text)
    return sum(not unicodedata.combining(character) for character in text)
