"""A table as every format writes it: what stands where, and nothing of how it looks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from itertools import groupby


class Mark(Enum):
    """What a number is among its rivals."""

    BEST = "best"
    SECOND = "second"


MISSING = "–"


@dataclass(frozen=True)
class Entry:
    """One place of a table.

    Attributes:
        text: the number, or whatever stands there.
        half_width: half the interval, to stand after a ±; empty without one.
        mark: of the number.
        aside: what stands after it, such as `(n=2)`.
        value: what the text was rounded from, for sorting; None where it is no number.
    """

    text: str = MISSING
    half_width: str = ""
    mark: Mark | None = None
    aside: str = ""
    value: float | None = None


@dataclass(frozen=True)
class Heading:
    """What stands above a column.

    Attributes:
        levels: from the top to the column's own; neighbours share what is alike above.
        family: what stays together where a table is too wide; by default its own.
    """

    levels: tuple[str, ...]
    family: str = ""


@dataclass(frozen=True)
class Line:
    """A row: its names, then its entries."""

    names: tuple[str, ...]
    entries: tuple[Entry, ...]

    def map_texts(self, escape: Callable[[str], str]) -> Line:
        """The same line with another form of every text in it."""
        return Line(
            tuple(map(escape, self.names)),
            tuple(
                replace(entry, text=escape(entry.text), aside=escape(entry.aside))
                for entry in self.entries
            ),
        )


@dataclass(frozen=True)
class Table:
    """A table.

    Attributes:
        names: headings of the columns that name the rows; `numbers` of them are aligned right.
        columns: of the entries; all have as many levels.
        sections: rows, in groups that a rule stands between.
        title: what it shows, where there are several; empty for none.
    """

    names: tuple[str, ...]
    columns: tuple[Heading, ...]
    sections: tuple[tuple[Line, ...], ...]
    title: str = ""
    numbers: int = 0

    @property
    def lines(self) -> list[Line]:
        return [line for section in self.sections for line in section]

    @property
    def levels(self) -> int:
        return len(self.columns[0].levels) if self.columns else 1

    def part(self, columns: Sequence[int]) -> Table:
        """The same rows with some of the columns."""
        return Table(
            names=self.names,
            columns=tuple(self.columns[i] for i in columns),
            sections=tuple(
                tuple(Line(line.names, tuple(line.entries[i] for i in columns)) for line in lines)
                for lines in self.sections
            ),
            title=self.title,
            numbers=self.numbers,
        )

    def map_texts(self, escape: Callable[[str], str]) -> Table:
        """The same table with another form of every text in it."""
        return replace(
            self,
            names=tuple(map(escape, self.names)),
            columns=tuple(
                replace(heading, levels=tuple(map(escape, heading.levels)))
                for heading in self.columns
            ),
            sections=tuple(
                tuple(line.map_texts(escape) for line in lines) for lines in self.sections
            ),
            title=escape(self.title),
        )

    def spans(self, level: int) -> list[tuple[str, int]]:
        """The headings of a level, and over how many columns each stands."""
        above = [heading.levels[: level + 1] for heading in self.columns]
        if level == self.levels - 1:
            return [(levels[-1], 1) for levels in above]
        return [(levels[-1], len(list(same))) for levels, same in groupby(above)]


@dataclass(frozen=True)
class Document:
    """Some tables with what stands below them.

    Attributes:
        legend: what marks mean, if there are any.
        notes: sentences about the numbers.
        provenance: sentences about where they come from.
    """

    tables: tuple[Table, ...]
    notes: tuple[str, ...] = ()
    provenance: tuple[str, ...] = ()
    legend: Mapping[Mark, str] = field(default_factory=dict)

    def map_texts(self, escape: Callable[[str], str]) -> Document:
        """The same document with another form of every text in it."""
        return Document(
            tables=tuple(table.map_texts(escape) for table in self.tables),
            notes=tuple(map(escape, self.notes)),
            provenance=tuple(map(escape, self.provenance)),
            legend={mark: escape(text) for mark, text in self.legend.items()},
        )
