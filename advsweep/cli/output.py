"""Print JSON, CSV, tables and lines of text, and survive broken standard streams.

Commands print through `echo`, which escapes control characters: names, errors, prompts and logs
may come from a store, a data file or a model that the user does not control.

A daemon or cron may start a command without standard streams, and the reader of a long sweep's
messages (a terminal or `tee`) may exit before the sweep does; neither ends a command.
"""

from __future__ import annotations

import io
import math
import os
import select
import shutil
import sys
import textwrap
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import zip_longest
from typing import Any

import typer

from advsweep.cli.options import ListFormat
from advsweep.components import named_leaves
from advsweep.printable import printable, printable_line
from advsweep.writing import show_value, write, write_rows


def echo(text: object = "", *, err: bool = False, nl: bool = True) -> None:
    """Prints text; escapes all control characters except line breaks and tabs.

    Args:
        err: print on stderr.
        nl: end with a line break.
    """
    typer.echo(printable(str(text)), err=err, nl=nl)  # noqa: TID251 - the one place


def echo_line(text: str, *, err: bool = False) -> None:
    """Prints one line; escapes line breaks, so that foreign text cannot fake a line of output."""
    echo(printable_line(text), err=err)


def echo_rendered(text: str) -> None:
    """Prints the output of a renderer of `advsweep.report`, which escapes its data itself."""
    typer.echo(text, nl=False)  # noqa: TID251 - the styles' escape codes are ours


def warn(message: str) -> None:
    """Prints one line on stderr, prefixed with the program's name."""
    echo_line(f"advsweep: {message}", err=True)


@contextmanager
def progress_bar(title: str, total: int | None = None) -> Iterator[Callable[..., None]]:
    """Yields `update(done, total)`, which moves a bar on stderr if that is a terminal."""
    if not sys.stderr.isatty():
        yield lambda *_: None
        return
    # rich takes a tenth of a second to import.
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(escape(printable_line(title)), total=total)
        yield lambda done, total=total, *_: bar.update(task, completed=done, total=total)


def print_json(value: Any) -> None:
    """Prints one JSON document."""
    echo(write(value, "json"), nl=False)


def print_csv(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Prints CSV with a header line; numbers are unrounded, and no cell can act as a formula."""
    echo(write_rows(columns, rows), nl=False)


def print_listing(
    records: Sequence[Mapping[str, Any]], how: ListFormat, *, optional: Sequence[str] = ()
) -> None:
    """Prints records with the same keys in the chosen format.

    Args:
        optional: keys that a narrow terminal's table may lack, the least important first.
    """
    if how is ListFormat.JSON:
        print_json(records)
        return
    columns = list(records[0]) if records else []
    rows = [[show_value(r[c]) for c in columns] for r in records]
    if how is ListFormat.CSV:
        print_csv(columns, rows)
    elif rows and (left_out := print_columns(columns, rows, optional=optional)):
        names = ", ".join(left_out)
        echo_line(f"Left out for lack of room: {names} (--format json shows them).", err=True)


def print_columns(
    columns: Sequence[str], rows: Sequence[Sequence[str]], *, optional: Sequence[str] = ()
) -> Sequence[str]:
    """Prints left-aligned columns; fits them to a terminal, but not to a file or a pipe.

    Args:
        optional: columns that may be left out, the least important first.

    Returns:
        The columns that were left out.
    """
    table = [[printable_line(cell) for cell in row] for row in (columns, *rows)]
    left_out: Sequence[str] = ()
    if sys.stdout.isatty():
        table, left_out = fit(table, shutil.get_terminal_size().columns, optional)
    echo("\n".join(lay_out(table)))
    return left_out


def to_markdown(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Returns a table in GitHub's Markdown; the cells must already be Markdown."""
    lines = [columns, [":--"] * len(columns), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def show_number(value: float) -> str:
    """Formats a number with six digits; NaN as `-`."""
    return "-" if math.isnan(value) else f"{value:.6g}"


def flatten(config: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return dotted keys and values as text; the value of a node with a name is the name."""
    return [(key, "null" if v is None else str(v)) for key, v in named_leaves(config)]


def duration(seconds: float | None) -> str:
    """Formats a time span as 0:01:30; `-` for None."""
    from datetime import timedelta

    return "-" if seconds is None else str(timedelta(seconds=round(seconds)))


# Tables of left-aligned columns. One that is too wide for a terminal first loses the columns that
# its command calls optional, then wraps its wide columns; the first column stays whole.

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


_STREAMS = {0: ("stdin", "r"), 1: ("stdout", "w"), 2: ("stderr", "w")}


def open_closed_streams() -> None:
    """Opens the null device in place of each closed standard stream.

    Otherwise a file opened later would get descriptor 1 or 2, and messages would go into it.
    """
    for descriptor in _STREAMS:
        try:
            os.fstat(descriptor)
        except OSError:
            _discard(descriptor)
    for name, mode in _STREAMS.values():
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115


def discard_stdout() -> None:
    """Discards all further output to stdout, including the flush at process exit.

    Leaves `sys.stdout` alone if it was replaced, as in tests.
    """
    own = sys.__stdout__
    if own is not None and sys.stdout is own:
        _discard(own.fileno())


def stdout_has_no_reader() -> bool:
    """Returns whether stdout is a pipe whose other end is closed."""
    own = sys.__stdout__
    if own is None:
        return False
    poll = select.poll()
    poll.register(own.fileno(), 0)
    return any(event & select.POLLERR for _, event in poll.poll(0))


def tolerate_broken_stderr() -> None:
    """Makes the command continue without messages once writing to stderr fails.

    Leaves `sys.stderr` alone if it was replaced, as in tests.
    """
    own = sys.__stderr__
    if own is None or sys.stderr is not own:
        return
    raw = _Messages(own.fileno(), "w", closefd=False)
    sys.stderr = io.TextIOWrapper(
        io.BufferedWriter(raw), encoding=own.encoding, errors=own.errors, line_buffering=True
    )


class _Messages(io.FileIO):
    """A stream that discards everything after the first failed write."""

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except OSError:
            _discard(self.fileno())
            return super().write(data)


def _discard(descriptor: int) -> None:
    null = os.open(os.devnull, os.O_RDWR)
    if null == descriptor:
        os.set_inheritable(descriptor, True)
        return
    os.dup2(null, descriptor)
    os.close(null)
