"""Delimited tables of strangers: CSV, TSV and what spreadsheets make of them.

    table = read_table(Path("table.csv"), most_bytes=2**24)
    table.check_columns(known=("name", "value"), needed=("value",))
    for line, row in table.rows(): ...

One reader for every table that advsweep takes: printed tables, problems and logs. It knows the
forms in which tables come: commas, semicolons, tabs or bars; a line `sep=;` of Excel; comments;
texts in quotes with line ends in them; a delimiter at the end of each line; UTF-8 and UTF-16. What
cannot be right is refused with the file and the line: a cut line, a cell too many, a column that
comes twice or that nobody knows. All cells are texts.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from advsweep.errors import ConfigError, nearest
from advsweep.printable import printable_line
from advsweep.text_files import read_text

DELIMITERS = (",", ";", "\t", "|")

COMMENT = "#"

# The first line with which Excel names the delimiter.
_SEPARATOR = re.compile(r"\s*sep=(.)\s*", re.IGNORECASE)

_NUMBER = re.compile(r"\s*[-+]?(?:\d|\.\d)[\d.,eE+-]*%?\s*", re.ASCII)
_QUOTED = re.compile(r'"[^"]*"')

# Characters of what is shown of a line.
_SHOWN = 80


@dataclass(frozen=True)
class DelimitedTable:
    """A table with a header.

    Attributes:
        header_line: the number of the header's line, from 1.
        records: the number of each record's first line, and its cells, as many as columns.
    """

    path: Path
    delimiter: str
    columns: tuple[str, ...]
    header_line: int
    records: list[tuple[int, tuple[str, ...]]]

    def rows(self) -> Iterator[tuple[int, dict[str, str]]]:
        """Yield the line and the cells of each record by the names of the columns."""
        for line, cells in self.records:
            yield line, dict(zip(self.columns, cells, strict=True))

    def check_columns(
        self,
        *,
        known: Sequence[str],
        needed: Iterable[str] = (),
        others: Mapping[str, str] | None = None,
    ) -> None:
        """Refuse columns that nobody reads, and a table without those that are needed.

        Args:
            known: the columns that are read.
            needed: those without which nothing can be read.
            others: what else columns are called, with their names here.

        Raises:
            ConfigError: a column is unknown, or is missing.
        """
        place = f"{printable_line(str(self.path))}: line {self.header_line}"
        for column in self.columns:
            if column in known:
                continue
            name = (others or {}).get(column.lower())
            hint = f"did you mean '{name}'?" if name else nearest(column, known)
            raise ConfigError(
                f"{place}: expected columns of {', '.join(known)}, got "
                f"'{printable_line(column)[:_SHOWN]}'; {hint}"
            )
        missing = [name for name in needed if name not in self.columns]
        if missing:
            raise ConfigError(
                f"{place}: expected columns of {', '.join(known)}, got none called "
                f"{', '.join(missing)}"
            )


def read_table(path: Path, *, most_bytes: int) -> DelimitedTable:
    """Read a table with a header.

    Args:
        most_bytes: the largest size of the file, unpacked.

    Raises:
        ConfigError: the file cannot be read, is no text, is empty, or a line does not fit the
            header; the message has the line.
    """
    return parse_table(read_text(path, most_bytes=most_bytes), path)


def parse_table(text: str, path: Path) -> DelimitedTable:
    """Return the table that a text holds; `path` is for messages.

    Raises:
        ConfigError: as `read_table`.
    """
    name = printable_line(str(path))
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    first, delimiter = _start(lines)
    # The lines above the header count, so that errors name the file's own.
    source = (f"{line}\n" for line in lines[first:])
    reader = csv.reader(source, delimiter=delimiter, strict=True)
    header: list[str] = []
    header_line = 0
    records: list[tuple[int, tuple[str, ...]]] = []
    line = first + 1
    try:
        for cells in reader:
            is_empty = not any(cell.strip() for cell in cells)
            if not header and not is_empty:
                # numpy writes the header as a comment.
                header = [cell.strip() for cell in cells]
                header[0] = header[0].lstrip(f"{COMMENT} ")
                header_line = line
                refuse_doubled(header, where=f"{name}: line {line}")
            elif not is_empty and not _is_comment(cells, header):
                records.append((line, _fitting(cells, header, where=f"{name}: line {line}")))
            line = first + 1 + reader.line_num
    except csv.Error as error:
        raise ConfigError(f"{name}: line {line}: expected a table, got: {error}") from None
    if not header:
        raise ConfigError(f"{name}: expected a table with a header, got an empty file")
    if header[-1] == "" and all(not cells[-1].strip() for _, cells in records):
        # A delimiter at the end of every line.
        header = header[:-1]
        records = [(line, cells[:-1]) for line, cells in records]
    return DelimitedTable(path, delimiter, tuple(header), header_line, records)


def _start(lines: Sequence[str]) -> tuple[int, str]:
    """Return the index of the header, and the delimiter."""
    separator = ""
    comment = -1
    for number, line in enumerate(lines):
        match = separator_of(line)
        if match:
            separator = match
        elif line.startswith(COMMENT):
            comment = number
        elif line.strip():
            delimiter = separator or find_delimiter(line)
            cells = line.strip().split(delimiter)
            is_numeric = all(_NUMBER.fullmatch(cell) for cell in cells)
            if comment >= 0 and is_numeric and lines[comment].count(delimiter) == len(cells) - 1:
                return comment, delimiter
            return number, delimiter
    return max(comment, 0), separator or DELIMITERS[0]


def separator_of(line: str) -> str:
    """Return the delimiter that a first line of Excel names; empty for another line.

    >>> separator_of("sep=;"), separator_of("step;reward")
    (';', '')
    """
    match = _SEPARATOR.fullmatch(line.strip("\ufeff\r\n"))
    return match[1] if match else ""


def _is_comment(cells: Sequence[str], header: Sequence[str]) -> bool:
    """Return whether a record is a comment: a name such as `#1` may begin with the sign, too."""
    return cells[0].startswith(COMMENT) and len(cells) != len(header)


def find_delimiter(header: str) -> str:
    """Return the delimiter that a header has most often, outside of quotes.

    >>> find_delimiter('step;"reward, mean, of all";loss'), find_delimiter("step")
    (';', ',')
    """
    bare = _QUOTED.sub("", header)
    return max(DELIMITERS, key=bare.count)


def split_line(line: str, delimiter: str) -> list[str]:
    """Return the cells of one line; none for a line that is no record."""
    try:
        return next(csv.reader([line], delimiter=delimiter, skipinitialspace=True))
    except (csv.Error, StopIteration):  # A cell of more than 128 KiB, for instance.
        return []


def is_open(line: str, delimiter: str) -> bool:
    """Return whether a line ends within quotes, so that its record goes on in the next.

    >>> is_open('1,"a text', ","), is_open('1,"a text"', ","), is_open('1,5" screen', ",")
    (True, False, False)
    """
    if '"' not in line:
        return False
    source = iter([f"{line}\n", ""])
    try:
        next(csv.reader(source, delimiter=delimiter, skipinitialspace=True))
    except (csv.Error, StopIteration):
        return False
    # The reader asked for a second line.
    return next(source, None) is None


def refuse_doubled(header: Sequence[str], *, where: str) -> None:
    """Refuse a header in which a name comes twice.

    Raises:
        ConfigError: one does; which of the columns is meant cannot be known.
    """
    for column, name in enumerate(header):
        if name and name in header[:column]:
            raise ConfigError(
                f"{where}: expected each column once, got '{printable_line(name)[:_SHOWN]}' twice; "
                "rename or remove one of them"
            )


def _fitting(cells: Sequence[str], header: Sequence[str], *, where: str) -> tuple[str, ...]:
    """Return the cells of a record, as many as the header has.

    Raises:
        ConfigError: there are fewer, or more that are not empty.
    """
    is_longer = any(cell.strip() for cell in cells[len(header) :])
    if len(cells) >= len(header) and not is_longer:
        return tuple(cells[: len(header)])
    shown = printable_line(",".join(cells))[:_SHOWN]
    why = "a text with the delimiter needs quotes" if is_longer else "the line may be cut"
    raise ConfigError(
        f"{where}: expected {len(header)} cells as in the header, got {len(cells)}: {shown}; {why}"
    )
