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
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import typer

from advsweep.cli.options import ListFormat
from advsweep.printable import printable, printable_line, redacted_message
from advsweep.writing import Document, Line, Table, show_value, write, write_table


def echo(text: object = "", *, err: bool = False, nl: bool = True) -> None:
    """Print text; escape all control characters except line breaks and tabs.

    Args:
        err: print on stderr, without the secrets of the command line that the text may quote.
        nl: end with a line break.
    """
    shown = redacted_message(str(text), given_texts()) if err else str(text)
    typer.echo(printable(shown), err=err, nl=nl)  # noqa: TID251 - the one place


def given_texts() -> list[str]:
    """Return what may hold a secret: the command line, and the store that the environment names."""
    return [*sys.argv[1:], os.environ.get("ADVSWEEP_STORE", "")]


def stderr_line(text: str) -> str:
    """Return a text as `echo_line` prints it on stderr."""
    return printable_line(redacted_message(text, given_texts()))


def echo_line(text: str, *, err: bool = False) -> None:
    """Print one line; escape line breaks, so that foreign text cannot fake a line of output."""
    echo(printable_line(text), err=err)


def print_code(title: str, text: str) -> None:
    """Print the text of a file, indented below a line that says what it is."""
    echo()
    echo_line(title)
    echo(textwrap.indent(text.rstrip(), "  "))


def echo_rendered(text: str) -> None:
    """Print the output of `advsweep.writing` or a report, which escapes its data itself."""
    typer.echo(text, nl=False)  # noqa: TID251 - the styles' escape codes are ours


def warn(message: str) -> None:
    """Print one line on stderr, prefixed with the program's name."""
    echo_line(f"advsweep: {message}", err=True)


@contextmanager
def progress_bar(
    title: str, total: int | None = None, *, lines: str = ""
) -> Iterator[Callable[..., None]]:
    """Yield `update(done, total)`, which moves a bar on stderr if that is a terminal.

    Args:
        lines: what is counted, for a line at each update where there is no terminal.
    """
    if not sys.stderr.isatty():

        def show(done: int, total: int | None = total, *_: object) -> None:
            if lines:
                echo_line(f"{title}: {done}/{total} {lines}", err=True)

        yield show
        return
    # rich takes a tenth of a second to import.
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(escape(printable_line(title)), total=total)
        yield lambda done, total=total, *_: bar.update(task, completed=done, total=total)


def print_json(value: Any) -> None:
    """Print one JSON document."""
    echo_rendered(write(value, "json"))


def print_listing(
    records: Sequence[Mapping[str, Any]], how: ListFormat, *, hidden: Sequence[str] = ()
) -> None:
    """Print records with the same keys in the chosen format.

    Args:
        hidden: keys that only programs get.
    """
    if how != "table":
        echo_rendered(write(records, how))
    elif records:
        columns = [column for column in records[0] if column not in hidden]
        print_columns(columns, [[show_value(r[c]) for c in columns] for r in records])


def print_columns(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print left-aligned columns; wrap them in a terminal, but not in a file or a pipe."""
    lines = tuple(Line(tuple(row)) for row in rows)
    document = Document((Table(tuple(columns), (), (lines,)),))
    echo_rendered(write_table(document, styled=False))


def print_pairs(pairs: Mapping[str, str], indent: str = "") -> None:
    """Print a line for each key with its value."""
    width = max(map(len, pairs), default=0)
    for key, value in pairs.items():
        echo_line(f"{indent}{key.ljust(width)}  {value}".rstrip())


def show_number(value: float | None) -> str:
    """Format a number with six digits; none and NaN as `-`."""
    return "-" if value is None or math.isnan(value) else f"{value:.6g}"


_STREAMS = {0: ("stdin", "r"), 1: ("stdout", "w"), 2: ("stderr", "w")}


def open_closed_streams() -> None:
    """Open the null device in place of each closed standard stream.

    Otherwise a file opened later would get descriptor 1 or 2, and messages would go into it.
    """
    # A file takes the lowest free number.
    while (null := os.open(os.devnull, os.O_RDWR)) in _STREAMS:
        os.set_inheritable(null, True)
    os.close(null)
    for name, mode in _STREAMS.values():
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115


def discard_stdout() -> None:
    """Discard all further output to stdout, including the flush at process exit.

    Leaves `sys.stdout` alone if it was replaced, as in tests.
    """
    stream = sys.__stdout__
    if stream is not None and sys.stdout is stream:
        _discard(stream.fileno())


def stdout_has_no_reader() -> bool:
    """Return whether stdout is a pipe whose other end is closed."""
    stream = sys.__stdout__
    if stream is None:
        return False
    # A write would tell as well, and would end up in a pipe that is read.
    poll = select.poll()
    poll.register(stream.fileno(), 0)
    return any(event & select.POLLERR for _, event in poll.poll(0))


def tolerate_broken_stderr() -> None:
    """Make the command continue without messages once writing to stderr fails.

    Leaves `sys.stderr` alone if it was replaced, as in tests.
    """
    stream = sys.__stderr__
    if stream is None or sys.stderr is not stream:
        return
    raw = _Messages(stream.fileno(), "w", closefd=False)
    sys.stderr = io.TextIOWrapper(
        io.BufferedWriter(raw), encoding=stream.encoding, errors=stream.errors, line_buffering=True
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
    # The number stays, which streams of Python and of libraries hold.
    os.dup2(null, descriptor)
    os.close(null)
