"""Reports laid out as tables of papers: methods under their models, benchmarks as columns.

The rows are the runs of a store that are a method of the paper, under the names that it has for
them, and the base models; other runs stand below, under their own names. Columns are the
paper's, of the tasks that were evaluated, and of other tasks likewise. Beside them may stand
what the paper reports.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from advsweep.errors import ConfigError, ReportError, nearest
from advsweep.report.data.columns import Column, MetricDirection, parse_column
from advsweep.report.data.evaluations import OWN_TASKS, EvaluationsByTask
from advsweep.report.data.filters import MISSING
from advsweep.report.data.grouping import Group, refuse_mixtures, value_of
from advsweep.report.papers.published import (
    BASE_METHOD,
    PrintedNumber,
    PrintedRow,
    PrintedTable,
    methods,
    paper_names,
    printed_table,
    table_names,
    task_titles,
)
from advsweep.report.tables.aggregate import untrained_rows
from advsweep.report.tables.document import Entry, Heading, Line, Mark, Table
from advsweep.report.tables.formatting import show_interval
from advsweep.report.tables.significance import rank
from advsweep.report.tables.types import Cell, Row
from advsweep.store import RunRecord

MODEL = "model"
METHOD = "method"
SOURCE = "source"
REPORTED = "reported"
OURS = "ours"
_PERCENT = 100.0
_SHORT = 8  # characters of a hash
_WITH_DEVIATION = frozenset({"fade-table3"})


@dataclass(frozen=True)
class Style:
    """A paper's table to lay a report out as; `reported`: with what the paper reports."""

    table: PrintedTable
    reported: bool = False


def choose_style(style: str | None, paper: str | None) -> Style | None:
    """The style that options ask for: a table, a paper's first table, or neither.

    Raises:
        ConfigError: there is no such table or paper, or the table is of another paper.
        ReportError: the paper's numbers are not to be had.
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
        raise ReportError(f"--paper {paper}: the numbers of {style} are not in the sources we have")
    return Style(table, paper is not None)


def style_columns(style: Style, evaluated: EvaluationsByTask) -> list[str]:
    """The names of a style's columns, of the tasks that were evaluated or are reported."""
    own = [task for task in evaluated.tasks if task != OWN_TASKS]
    if style.table.by_task:
        printed = list(dict.fromkeys(row.task for row in style.table.rows if row.task))
        tasks = [task for task in printed if style.reported or task in own]
        tasks += [task for task in own if task not in printed]
        return [f"{name}[{task}]" for task in tasks for name in style.table.columns]
    columns = [column for name in style.table.columns if (column := parse_column(name))]
    of_tasks = [column for column in columns if column.task is not None]
    quantities = dict.fromkeys(column.quantity for column in of_tasks)
    printed = list(dict.fromkeys(column.task for column in of_tasks if column.task))
    tasks = [task for task in printed if style.reported or task in own]
    tasks += [task for task in own if task not in printed]
    return [
        *(c.name for c in columns if not c.is_evaluated),
        *(f"{quantity}[{task}]" for quantity in quantities for task in tasks),
        *(c.name for c in columns if c.over is not None and len(tasks) > 1),
    ]


def group_as_printed(
    style: Style, runs: Sequence[RunRecord], *, pool: bool
) -> list[tuple[Group, list[RunRecord]]]:
    """The runs of each model and method, in the paper's order.

    Raises:
        ReportError: runs of a row differ in other keys, which the message names.
    """
    groups: dict[tuple[str, str], list[RunRecord]] = {}
    for run in runs:
        groups.setdefault((_model(run), _method(style, run)), []).append(run)
    models = list(dict.fromkeys(row.model for row in style.table.rows))
    models += [model for model, _ in groups if model not in models]
    order = [*methods(style.table.paper)]
    order += [method for _, method in groups if method not in order]
    named: list[tuple[Group, list[RunRecord]]] = [
        ({MODEL: model, METHOD: method}, groups[model, method])
        for model in dict.fromkeys(models)
        for method in dict.fromkeys(order)
        if (model, method) in groups
    ]
    if not pool:
        refuse_mixtures(named)
    return named


def _model(run: RunRecord) -> str:
    path = value_of(run, "model.path")
    return str(value_of(run, MODEL) if path is MISSING else path).rstrip("/").rpartition("/")[2]


def _method(style: Style, run: RunRecord) -> str:
    for method, filters in methods(style.table.paper).items():
        if all(filter.holds(value_of(run, filter.key)) for filter in filters):
            return method
    return run.estimator


def base_rows_as_printed(
    groups: Sequence[tuple[Group, Sequence[RunRecord]]],
    evaluated: EvaluationsByTask,
    columns: Sequence[Column],
) -> list[Row]:
    """A row for each base model of the runs, and for models that were evaluated without one."""
    users = {run.id: str(group[MODEL]) for group, members in groups for run in members}
    named: dict[str, Group] = {}
    for task in evaluated.tasks.values():
        for run_id, record in task.base.items():
            named.setdefault(record.subject, {MODEL: users[run_id], METHOD: BASE_METHOD})
        for record in task.models:
            model = str(record.settings["model"]).rstrip("/").rpartition("/")[2]
            named.setdefault(record.subject, {MODEL: model, METHOD: BASE_METHOD})
    alike = Counter(group[MODEL] for group in named.values())
    for subject, group in named.items():
        if alike[group[MODEL]] > 1:
            group[METHOD] = f"{BASE_METHOD} {subject.partition(':')[2][:_SHORT]}"
    return untrained_rows(
        named,
        evaluated,
        columns,
        lambda task: {r.subject: r for r in (*task.models, *task.base.values())},
    )


def reported_rows(style: Style, rows: Sequence[Row], columns: Sequence[Column]) -> list[Row]:
    """What the paper reports of the models of some rows, or of all if it has none of them."""
    own = {row.group[MODEL] for row in rows}
    shared = own & {row.model for row in style.table.rows}
    found: dict[tuple[str, str], dict[str, Cell]] = {}
    for printed in style.table.rows:
        if not shared or printed.model in shared:
            cells = found.setdefault((printed.model, printed.method), {})
            cells |= {
                column.name: Cell(number.value / _scale(column), math.nan, math.nan, 0, ())
                for column in columns
                if (number := printed.numbers.get(_printed_name(printed, column))) is not None
            }
    missing = Cell(math.nan, math.nan, math.nan, 0, ())
    return [
        Row(
            group={MODEL: model, METHOD: method, SOURCE: REPORTED},
            n=0,
            seeds=(),
            cells={column.name: cells.get(column.name, missing) for column in columns},
        )
        for (model, method), cells in found.items()
    ]


def _printed_name(row: PrintedRow, column: Column) -> str:
    if row.task is None:
        return column.name
    return column.quantity if column.task == row.task else ""


def _scale(column: Column) -> float:
    """Papers print accuracies in percent."""
    return _PERCENT if column.k is not None else 1.0


def lay_out_as_printed(
    style: Style,
    rows: Sequence[Row],
    columns: Sequence[Column],
    marked: Mapping[tuple[int, str], Mark],
) -> Table:
    """The paper's table: a section for each model, and for each task where it has them."""
    most = max(row.n for row in rows)
    marks = dict(marked) | _reported_marks(rows, columns)
    keys = [MODEL, METHOD, *([SOURCE] if style.reported else [])]
    parts = [(None, list(columns))]
    if style.table.by_task:
        parts = [(t, list(own)) for t, own in groupby(columns, key=lambda column: column.task)]
        keys.insert(1, "task")
    shown = {row.group[MODEL] for row in rows}
    models = [row.model for row in style.table.rows]
    models += dict.fromkeys(row.group[MODEL] for row in rows)
    sections = []
    for model in dict.fromkeys(model for model in models if model in shown):
        for task, own in parts:
            lines = []
            for i, row in sorted(enumerate(rows), key=lambda pair: _order(style, pair[1])):
                entries = tuple(_entry(style, row, c, marks.get((i, c.name)), most) for c in own)
                if row.group[MODEL] == model and any(entry.value is not None for entry in entries):
                    named = {SOURCE: OURS, "task": _title(task), **row.group}
                    lines.append(Line(tuple(str(named[key]) for key in keys), entries))
            sections += [tuple(lines)] if lines else []
    return Table(
        names=tuple(keys),
        columns=tuple(_heading(style, column, parts[0][1]) for column in parts[0][1]),
        sections=tuple(sections),
    )


def _order(style: Style, row: Row) -> tuple[int, int, int]:
    """Base models first, then methods in the paper's order, ours before what is reported."""
    method = row.group[METHOD]
    known = list(dict.fromkeys(printed.method for printed in style.table.rows))
    known += [name for name in methods(style.table.paper) if name not in known]
    place = known.index(method) if method in known else len(known)
    return int(not method.startswith(BASE_METHOD)), place, int(row.group.get(SOURCE) == REPORTED)


def _reported_marks(rows: Sequence[Row], columns: Sequence[Column]) -> dict[tuple[int, str], Mark]:
    """Best and second of the reported numbers of a model, which have no seeds to ask."""
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


def _entry(style: Style, row: Row, column: Column, mark: Mark | None, most: int) -> Entry:
    cell, scale = row.cells[column.name], _scale(column)
    if math.isnan(cell.mean):
        return Entry()
    if row.group.get(SOURCE) == REPORTED:
        printed = _printed_number(style, row, column)
        return Entry(printed.text, printed.spread, mark=mark, value=cell.mean)
    spread = cell.half_width
    if style.table.name in _WITH_DEVIATION:
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


def _printed_number(style: Style, row: Row, column: Column) -> PrintedNumber:
    for printed in style.table.rows:
        name = _printed_name(printed, column)
        own = (printed.model, printed.method) == (row.group[MODEL], row.group[METHOD])
        if own and name in printed.numbers:
            return printed.numbers[name]
    raise AssertionError(f"{row.group} has a number in {column.name} that is not printed")


def _heading(style: Style, column: Column, columns: Sequence[Column]) -> Heading:
    if style.table.by_task:
        return Heading(("pass@k", str(column.k)))
    title = "Avg" if column.over is not None else _title(column.task) or column.header
    quantities = {c.quantity for c in columns if c.is_evaluated}
    if len(quantities) == 1:
        return Heading((title,))
    return Heading((column.quantity if column.is_evaluated else "", title), column.quantity)


def _title(task: str | None) -> str:
    return "" if task is None else task_titles().get(task, task)


def style_notes(style: Style) -> list[str]:
    """What is particular to a table that is laid out as a paper's."""
    lines = [f"laid out as {style.table.name}; accuracies in percent"]
    if style.table.name in _WITH_DEVIATION:
        lines.append("± is the standard deviation over seeds here, as in print, not an interval")
    if style.reported:
        lines.append(
            "reported: as printed; its marks are the best and second of the model's numbers, which "
            "come without seeds to test them; the paper trained and evaluated otherwise than here"
        )
        if any(number.spread for row in style.table.rows for number in row.numbers.values()):
            lines.append(
                "reported: ± is that of the paper's latest version, which does not say what it is "
                "or over how many runs"
            )
    return lines
