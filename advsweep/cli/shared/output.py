"""What is printed: JSON without NaN, CSV, plain aligned tables, and lines of text.

Everything that a command prints goes through `echo`, which escapes control characters: names,
errors, prompts and logs may come from somebody else's store, data file or model.
"""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import math
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from enum import Enum
from pathlib import Path
from typing import Any

import typer

from advsweep.cli.shared.options import ListFormat
from advsweep.printable import printable, printable_json, printable_line, spreadsheet_cell


def echo(text: object = "", *, err: bool = False, nl: bool = True) -> None:
    """Prints a text of any number of lines, whose other control characters are escaped.

    Args:
        err: print on stderr.
        nl: end with a line break.
    """
    typer.echo(printable(str(text)), err=err, nl=nl)  # noqa: TID251 - the one place


def echo_line(text: str, *, err: bool = False) -> None:
    """Prints one line: a line break in a name or an error must not look like a line of ours."""
    echo(printable_line(text), err=err)


def echo_rendered(text: str) -> None:
    """Prints what a renderer of `advsweep.report` made: it escapes its data and may style it."""
    typer.echo(text, nl=False)  # noqa: TID251 - the styles' escape codes are ours


def jsonable(value: Any) -> Any:
    """A value in JSON types: NaN and infinity are null, enums and times are texts."""
    if type(value) in (str, int, bool, type(None)):
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: jsonable(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Enum):
        return jsonable(value.value)
    if isinstance(value, Mapping):
        return {str(k): jsonable(v) for k, v in value.items()}
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, Path):
        return str(value)
    if hasattr(value, "tolist"):
        return jsonable(value.tolist())
    if isinstance(value, (list, tuple)):
        return [jsonable(v) for v in value]
    return value


def print_json(value: Any) -> None:
    """One JSON document, and nothing else, on stdout."""
    text = json.dumps(jsonable(value), indent=2, ensure_ascii=False, allow_nan=False)
    echo(printable_json(text))


def print_csv(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Comma-separated data with one header line; nothing is rounded, and no text a formula."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerows([spreadsheet_cell(value) for value in row] for row in (columns, *rows))
    echo(buffer.getvalue(), nl=False)


def print_listing(records: Sequence[Mapping[str, Any]], how: ListFormat) -> None:
    """A list of records with the same keys, as the user asked for it."""
    if how is ListFormat.JSON:
        print_json(records)
        return
    columns = list(records[0]) if records else []
    rows = [[_cell(r[c]) for c in columns] for r in records]
    if how is ListFormat.CSV:
        print_csv(columns, rows)
    elif rows:
        print_columns(columns, rows)


def print_columns(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Columns wide enough for what is in them; the last one is left ragged."""
    table = [[printable_line(cell) for cell in row] for row in (columns, *rows)]
    widths = [max(_width(row[i]) for row in table) for i in range(len(columns))]
    lines = []
    for row in table:
        cells = (c + " " * (width - _width(c)) for c, width in zip(row, widths, strict=True))
        lines.append("  ".join(cells).rstrip())
    echo("\n".join(lines))


def _width(text: str) -> int:
    """Characters that take room; the hat of p̂ takes none."""
    if text.isascii():
        return len(text)
    return sum(not unicodedata.combining(character) for character in text)


def to_markdown(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in GitHub's Markdown, of cells in Markdown."""
    lines = [columns, [":--"] * len(columns), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def show_number(value: float) -> str:
    """A number for people, in six digits; `-` where there is none."""
    return "-" if math.isnan(value) else f"{value:.6g}"


def _cell(value: Any) -> str:
    plain = jsonable(value)
    if plain is None:
        return ""
    if isinstance(plain, (list, tuple)):
        return " ".join(str(v) for v in plain)
    return str(plain)


def duration(seconds: float | None) -> str:
    """Formats a time span as 0:01:30; `-` for None."""
    from datetime import timedelta

    return "-" if seconds is None else str(timedelta(seconds=round(seconds)))
