"""What a report is made of, before it is written in some format."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from itertools import groupby
from typing import ClassVar

from advsweep.report.data.columns import Column
from advsweep.report.data.evaluations import EvaluationsByTask
from advsweep.report.data.grouping import Group, key_order
from advsweep.report.data.provenance import Provenance
from advsweep.statistics import Comparison, Interval
from advsweep.store import RunRecord, Status


class Layout(ABC):
    """A layout of a report that has its own rows and columns, such as that of a paper's table.

    Attributes:
        method_key: the key whose values baselines are named by.
        apart: keys that separate rows which are not compared with each other.
    """

    method_key: ClassVar[str]
    apart: ClassVar[tuple[str, ...]]

    @abstractmethod
    def columns(self, evaluated: EvaluationsByTask) -> list[str]:
        """Names the columns."""

    @abstractmethod
    def group(
        self, runs: Sequence[RunRecord], *, pool: bool
    ) -> list[tuple[Group, list[RunRecord]]]:
        """Groups runs into rows.

        Raises:
            ReportError: without `pool`, runs of a row differ in other keys.
        """

    @abstractmethod
    def base_rows(
        self,
        groups: Sequence[tuple[Group, Sequence[RunRecord]]],
        evaluated: EvaluationsByTask,
        columns: Sequence[Column],
    ) -> list[Row]:
        """Makes the rows of models that were not trained."""

    @abstractmethod
    def reported_rows(self, rows: Sequence[Row], columns: Sequence[Column]) -> list[Row]:
        """Makes rows of numbers from elsewhere that stand beside the given rows."""

    @abstractmethod
    def lay_out(
        self,
        rows: Sequence[Row],
        columns: Sequence[Column],
        marked: Mapping[tuple[int, str], Mark],
    ) -> Table:
        """Lays out the table; `marked` has marks by row index and column name."""

    @abstractmethod
    def notes(self) -> list[str]:
        """Describes what is particular to the layout."""


@dataclass(frozen=True)
class Cell:
    """One column of one row.

    Attributes:
        low, high: ends of the 95 % interval of the mean; NaN for one value.
        n: how many values there are; NaN does not count.
        values: one for each seed of the row, NaN where it has none; of a base model, its one.
        over_problems: of one value, half the 95 % interval over problems like those that it was
            evaluated on; NaN for several, and for what is not evaluated.
    """

    mean: float
    low: float
    high: float
    n: int
    values: tuple[float, ...]
    over_problems: float = math.nan

    @property
    def half_width(self) -> float:
        return (self.high - self.low) / 2

    @property
    def is_one_sided(self) -> bool:
        """Whether the mean is one end of an interval that has a width."""
        return self.low < self.high and self.mean in (self.low, self.high)


@dataclass(frozen=True)
class Row:
    """Replicates of one configuration, a base model, or a model without a run.

    Attributes:
        group: what names the row: config keys and their values.
        n: how many seeds (of a base model's row: base models) stand behind it.
        seeds: of the runs, rising; empty for a model that none of them trained.
        cells: by column name.
        pruned: how many more replicates were stopped early; the cells are without them.
        runs: how many runs; more than n where those of several configurations are averaged.
    """

    group: Group
    n: int
    seeds: tuple[int, ...]
    cells: Mapping[str, Cell]
    pruned: int = 0
    runs: int = 0

    @property
    def is_base(self) -> bool:
        return not self.seeds

    def by_seed(self, column: str) -> dict[int, float]:
        """The value of each seed."""
        return dict(zip(self.seeds, self.cells[column].values, strict=True))


@dataclass(frozen=True)
class Difference:
    """A row compared with its baseline in one column.

    Attributes:
        row, baseline: their places in the report.
        p_adjusted: the t-test's p after Benjamini and Hochberg, over all of the report's
            differences; NaN where nothing varies.
        improvement: how probable it is that a run of the row beats one of the baseline; None
            in a column that has no better way.
        seeds: that would show `target` with a power of 80 %; None where nothing varies or
            there is nothing to see.
        target: the difference that is to be seen: the one given, or else the one found.
    """

    row: int
    baseline: int
    column: str
    comparison: Comparison
    p_adjusted: float
    improvement: Interval | None
    seeds: int | None
    target: float


@dataclass(frozen=True)
class Report:
    """A table, before it is written in some format.

    Attributes:
        rows: base models and models without a run first, then the rows in the order of the
            sweep's plan, or as they were sorted.
        left_out: how many runs are not in the table, by their state.
        pruned: how many of these were stopped early, by the name of the rule.
        unscorable: share of the evaluations' samples that the verifier failed on.
        unjudged: how many problems have no scores, as none of their samples could be scored.
        pivot: config keys whose values are columns of the written table, beside the metrics.
        apart: keys whose values are not compared with each other.
        remarks: sentences on how runs were chosen and put together.
        over: what the intervals are over: `seeds`, or `problems` of models that were not trained.
        layout: the layout of a paper's table; None for our own.
        baseline: which rows others are compared with, in words; None if nothing is compared.
        differences: to the baseline, by column and row.
        run_ids: the runs in the table.
    """

    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    left_out: Mapping[Status, int]
    pruned: Mapping[str, int]
    unscorable: float
    provenance: Provenance
    unjudged: int = 0
    pivot: tuple[str, ...] = ()
    apart: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    over: str = "seeds"
    layout: Layout | None = None
    baseline: str | None = None
    differences: Sequence[Difference] = ()
    run_ids: frozenset[int] = frozenset()

    @property
    def keys(self) -> list[str]:
        """Every config key that names a row, in their fixed order."""
        return sorted({key for row in self.rows for key in row.group}, key=key_order)


def count_states(counts: Mapping[Status, int]) -> str:
    """How many runs are in which state, in words."""
    return ", ".join(f"{n} {status.value}" for status, n in counts.items())


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
