"""Data on stdout: JSON without NaN, CSV, and plain aligned tables."""

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

from advsweep.cli.options import ListFormat


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
    typer.echo(json.dumps(jsonable(value), indent=2, ensure_ascii=False, allow_nan=False))


def print_csv(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Comma-separated data with one header line; nothing is rounded."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)
    typer.echo(buffer.getvalue(), nl=False)


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
    table = [list(columns), *[list(row) for row in rows]]
    widths = [max(_width(row[i]) for row in table) for i in range(len(columns))]
    lines = []
    for row in table:
        cells = (c + " " * (width - _width(c)) for c, width in zip(row, widths, strict=True))
        lines.append("  ".join(cells).rstrip())
    typer.echo("\n".join(lines))


def _width(text: str) -> int:
    """Characters that take room; the hat of p̂ takes none."""
    if text.isascii():
        return len(text)
    return sum(not unicodedata.combining(character) for character in text)


def to_markdown(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in GitHub's Markdown; bars in its cells are escaped."""
    lines = [columns, [":--"] * len(columns), *rows]
    return "".join(
        "| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines
    )


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
