"""Reports in the layout of a paper's table: methods below their models, benchmarks as columns.

Rows are the store's runs that follow a method of the paper, under the paper's name of that method,
and the base models; other runs come last, under their own names. Columns are the paper's columns
for the tasks that were evaluated, and the same quantities for other tasks. The numbers that the
paper reports can stand beside ours.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import ClassVar

import numpy as np

from advsweep.errors import ConfigError, ReportError, nearest
from advsweep.report.data.bases import group_bases
from advsweep.report.data.columns import Column, MetricDirection, parse_column
from advsweep.report.data.evaluations import OWN_TASKS, EvaluationsByTask
from advsweep.report.data.filters import MISSING
from advsweep.report.data.grouping import Group, refuse_mixtures, value_of
from advsweep.report.papers.published import (
    BASE_METHOD,
    PrintedNumber,
    PrintedTable,
    methods,
    paper_names,
    printed_table,
    table_names,
    task_titles,
)
from advsweep.report.tables.comparison import rank
from advsweep.report.tables.layout import show_interval
from advsweep.report.tables.types import (
    Cell,
    Entry,
    Heading,
    Layout,
    Line,
    Mark,
    Row,
    RowKind,
    Table,
)
from advsweep.report.tables.untrained import (
    UntrainedModels,
    base_evaluations,
    short_name,
    untrained_rows,
)
from advsweep.store import RunRecord

MODEL = "model"
METHOD = "method"
SOURCE = "source"
REPORTED = "reported"
OURS = "ours"
_PERCENT = 100.0
_MISSING_CELL = Cell(math.nan, math.nan, math.nan, 0, ())
# These tables print standard deviations after their ±.
_WITH_DEVIATION = frozenset({"fade-table3"})


def choose_layout(style: str | None, paper: str | None) -> PaperLayout | None:
    """Returns the layout for the options --style and --paper; None without either.

    A paper without a style has the layout of its first table.

    Raises:
        ConfigError: there is no such table or paper, or the table is of another paper.
        ReportError: the package does not have the paper's numbers.
    """
    if paper is not None and paper not in paper_names():
        raise ConfigError(
            f"--paper: expected a paper with tables, got '{paper}'; {nearest(paper, paper_names())}"
        )
    if style is None:
        if paper is None:
            return None
        style = next(name for name in table_names() if name.startswith(f"{paper}-"))
    table = printed_table(style)
    if paper is not None and table.paper != paper:
        raise ConfigError(f"--paper {paper}: expected a style of that paper, got '{style}'")
    if paper is not None and not table.rows:
        raise ReportError(f"--paper {paper}: the numbers of {style} are not in the text we have")
    return PaperLayout(table, paper is not None)


@dataclass(frozen=True)
class PaperLayout(Layout):
    """The layout of a paper's table.

    Attributes:
        reported: show the numbers that the paper reports, too.
    """

    method_key: ClassVar[str] = METHOD
    apart: ClassVar[tuple[str, ...]] = (MODEL,)

    table: PrintedTable
    reported: bool = False

    def columns(self, evaluated: EvaluationsByTask) -> list[str]:
        """Names the columns, for the tasks that were evaluated or are reported."""
        columns = [column for name in self.table.columns if (column := parse_column(name))]
        of_tasks = [column for column in columns if column.task is not None]
        if self.table.by_task:
            printed = dict.fromkeys(row.task for row in self.table.rows if row.task)
        else:
            printed = dict.fromkeys(column.task for column in of_tasks if column.task)
        own = [task for task in evaluated.tasks if task != OWN_TASKS]
        tasks = [task for task in printed if self.reported or task in own]
        tasks += [task for task in own if task not in printed]
        if self.table.by_task:
            return [f"{name}[{task}]" for task in tasks for name in self.table.columns]
        quantities = dict.fromkeys(column.quantity for column in of_tasks)
        return [
            *(c.name for c in columns if not c.is_evaluated),
            *(f"{quantity}[{task}]" for quantity in quantities for task in tasks),
            *(c.name for c in columns if c.over is not None and len(tasks) > 1),
        ]

    def group(
        self, runs: Sequence[RunRecord], *, pool: bool
    ) -> list[tuple[Group, list[RunRecord]]]:
        """Groups runs by model and method, in the paper's order."""
        groups: dict[tuple[str, str], list[RunRecord]] = {}
        for run in runs:
            groups.setdefault((_model(run), self._method(run)), []).append(run)
        models = [*(row.model for row in self.table.rows), *(model for model, _ in groups)]
        order = [*methods(self.table.paper), *(method for _, method in groups)]
        named: list[tuple[Group, list[RunRecord]]] = [
            ({MODEL: model, METHOD: method}, groups[model, method])
            for model in dict.fromkeys(models)
            for method in dict.fromkeys(order)
            if (model, method) in groups
        ]
        if not pool:
            refuse_mixtures(named)
        return named

    def _method(self, run: RunRecord) -> str:
        for method, filters in methods(self.table.paper).items():
            if all(filter.holds(value_of(run, filter.key)) for filter in filters):
                return method
        return run.estimator

    def base_rows(
        self,
        groups: Sequence[tuple[Group, Sequence[RunRecord]]],
        evaluated: EvaluationsByTask,
        columns: Sequence[Column],
    ) -> list[Row]:
        """Makes a row for each base model, and for each model evaluated without a run."""
        users = {run.id: str(group[MODEL]) for group, members in groups for run in members}
        listed: dict[str, UntrainedModels] = {}
        for family in group_bases((run for _, members in groups for run in members), evaluated):
            group = {MODEL: users[min(family.run_ids)], METHOD: BASE_METHOD}
            listed[family.members[0]] = UntrainedModels.of_family(family, group)
        for task in evaluated.tasks.values():
            for record in task.models:
                group = {MODEL: _last_part(str(record.settings["model"])), METHOD: BASE_METHOD}
                model = UntrainedModels(group, RowKind.MODEL, [record.subject])
                listed.setdefault(record.subject, model)
        counts = Counter(model.group[MODEL] for model in listed.values())
        for subject, model in listed.items():
            if counts[model.group[MODEL]] > 1:
                model.group[METHOD] = f"{BASE_METHOD} {short_name(subject)}"
        return untrained_rows(
            list(listed.values()),
            evaluated,
            columns,
            lambda task: {r.subject: r for r in task.models} | base_evaluations(task),
        )

    def reported_rows(self, rows: Sequence[Row], columns: Sequence[Column]) -> list[Row]:
        """Makes rows of the paper's numbers on the models of `rows`.

        If the paper has none of these models, the rows are on all of the paper's models.
        """
        if not self.reported:
            return []
        models = {row.group[MODEL] for row in rows}
        shared = models & {row.model for row in self.table.rows}
        found: dict[tuple[str, str], dict[str, Cell]] = {}
        for printed in self.table.rows:
            if not shared or printed.model in shared:
                cells = found.setdefault((printed.model, printed.method), {})
                cells |= {
                    column.name: Cell(number.value / _scale(column), math.nan, math.nan, 0, ())
                    for column in columns
                    if (number := printed.number(column)) is not None
                }
        return [
            Row(
                group={MODEL: model, METHOD: method, SOURCE: REPORTED},
                n=0,
                seeds=(),
                kind=RowKind.PRINTED,
                cells={column.name: cells.get(column.name, _MISSING_CELL) for column in columns},
            )
            for (model, method), cells in found.items()
        ]

    def lay_out(
        self,
        rows: Sequence[Row],
        columns: Sequence[Column],
        marked: Mapping[tuple[int, str], Mark],
    ) -> Table:
        """Lays out a section for each model, or for each model and task."""
        most = max(row.n for row in rows)
        marks = {**marked, **_reported_marks(rows, columns)}
        keys = [MODEL, METHOD, *([SOURCE] if self.reported else [])]
        parts = [(None, list(columns))]
        if self.table.by_task:
            parts = [(t, list(own)) for t, own in groupby(columns, key=lambda column: column.task)]
            keys.insert(1, "task")
        models = [row.model for row in self.table.rows]
        models += [row.group[MODEL] for row in rows]
        ordered = sorted(enumerate(rows), key=lambda pair: self._order(pair[1]))
        sections = []
        for model in dict.fromkeys(models):
            for task, own in parts:
                lines = []
                for i, row in ordered:
                    entries = tuple(self._entry(row, c, marks.get((i, c.name)), most) for c in own)
                    if row.group[MODEL] == model and any(e.value is not None for e in entries):
                        named = {SOURCE: OURS, "task": _title(task), **row.group}
                        lines.append(Line(tuple(str(named[key]) for key in keys), entries))
                sections += [tuple(lines)] if lines else []
        return Table(
            names=tuple(keys),
            columns=tuple(self._heading(column, parts[0][1]) for column in parts[0][1]),
            sections=tuple(sections),
        )

    def _order(self, row: Row) -> tuple[bool, int, bool]:
        """Sorts base models first, then the paper's methods, ours before the reported ones."""
        method = row.group[METHOD]
        known = [row.method for row in self.table.rows]
        known = list(dict.fromkeys([*known, *methods(self.table.paper)]))
        place = known.index(method) if method in known else len(known)
        return not method.startswith(BASE_METHOD), place, row.group.get(SOURCE) == REPORTED

    def _entry(self, row: Row, column: Column, mark: Mark | None, most: int) -> Entry:
        cell, scale = row.cells[column.name], _scale(column)
        if math.isnan(cell.mean):
            return Entry()
        if row.group.get(SOURCE) == REPORTED:
            printed = self._printed_number(row, column)
            return Entry(printed.text, printed.spread, mark=mark, value=cell.mean)
        spread = cell.half_width
        if self.table.name in _WITH_DEVIATION:
            known = [value for value in cell.values if not math.isnan(value)]
            spread = float(np.std(known, ddof=1)) if len(known) > 1 else math.nan
        mean, half_width = show_interval(scale * cell.mean, scale * spread)
        if half_width in ("", "0") and scale == _PERCENT:
            mean = f"{scale * cell.mean:.1f}"
        asides = [f"(n={cell.n})"] if row.seeds and cell.n != most else []
        if not math.isnan(cell.over_problems):
            mean, half = show_interval(scale * cell.mean, scale * cell.over_problems)
            asides.insert(0, f"(±{half})")
        return Entry(mean, half_width, mark, " ".join(asides), cell.mean)

    def _printed_number(self, row: Row, column: Column) -> PrintedNumber:
        names = row.group[MODEL], row.group[METHOD]
        found = (p.number(column) for p in self.table.rows if (p.model, p.method) == names)
        return next(number for number in found if number is not None)

    def _heading(self, column: Column, columns: Sequence[Column]) -> Heading:
        if self.table.by_task:
            return Heading(("pass@k", str(column.k)))
        title = "Avg" if column.over is not None else _title(column.task) or column.header
        if len({c.quantity for c in columns if c.is_evaluated}) == 1:
            return Heading((title,))
        return Heading((column.quantity if column.is_evaluated else "", title), column.quantity)

    def notes(self) -> list[str]:
        """Describes what is particular to a table in this layout."""
        lines = [f"laid out as {self.table.name}; accuracies in percent"]
        if self.table.name in _WITH_DEVIATION:
            lines.append(
                "± is the standard deviation over seeds here, as in print, not an interval"
            )
        if not self.reported:
            return lines
        lines.append(
            "reported: as printed; its marks are the best and second of the model's numbers, which "
            "come without seeds to test them; the paper trained and evaluated otherwise than here"
        )
        if any(number.spread for row in self.table.rows for number in row.numbers.values()):
            lines.append(
                "reported: ± is that of the paper's latest version, which does not say what it is "
                "or over how many runs"
            )
        return lines


def _model(run: RunRecord) -> str:
    path = value_of(run, "model.path")
    return _last_part(str(value_of(run, MODEL) if path is MISSING else path))


def _last_part(path: str) -> str:
    """The name of a model, without its organisation or folder."""
    return path.rstrip("/").rpartition("/")[2]


def _reported_marks(rows: Sequence[Row], columns: Sequence[Column]) -> dict[tuple[int, str], Mark]:
    """Marks the best and second of a model's reported numbers, which have no seeds to test."""
    found: dict[tuple[int, str], Mark] = {}
    places = [i for i, row in enumerate(rows) if row.group.get(SOURCE) == REPORTED]
    for model in {rows[i].group[MODEL] for i in places}:
        for column in columns:
            values = {
                i: rows[i].cells[column.name].mean
                for i in places
                if rows[i].group[MODEL] == model and rows[i].cells[column.name].mean >= 0
            }
            if column.direction is not MetricDirection.NEITHER:
                ranked = rank(values, column.direction)
                found |= {(i, column.name): mark for i, mark in ranked.items()}
    return found


def _scale(column: Column) -> float:
    """Papers print accuracies in percent."""
    return _PERCENT if column.k is not None else 1.0


def _title(task: str | None) -> str:
    return "" if task is None else task_titles().get(task, task)
