"""Chooses the columns of a data set: those that a task names, or those of the data's form."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from advsweep.errors import AdvsweepWarning
from advsweep.tasks.dataset_cells import has_cell
from advsweep.tasks.dataset_forms import FormError, Given, recognise, shown_rows
from advsweep.tasks.dataset_rows import Rows

# The columns of earlier versions; a data set that is given with these alone is recognised.
QUESTION_COLUMNS = ("question", "problem", "prompt")
GOLD_COLUMNS = ("answer", "solution")
SOLUTION_COLUMNS = ("solution", "answer")
_SEEN = 100  # rows in which a column is looked for


@dataclass(frozen=True)
class Columns:
    """The names of the columns in use, empty where there is none; see `DataTask`."""

    question: str = ""
    gold: str = ""
    context: str = ""
    level: str = ""
    id: str = ""
    options: tuple[str, ...] = ()
    first_option: int | None = None
    any_answer: bool | None = None
    tests: str = ""
    setup: str = ""
    program: str = ""
    entry_point: str = ""
    solution: str = ""


def choose_columns(task: Any, rows: Rows, is_train: bool) -> Columns:
    """Return the columns of some rows: those that the task names, or those of a known form.

    Args:
        task: the options of a `DataTask`.

    Raises:
        ConfigError: the data lacks a column that the task names, or its form is not known.
    """
    columns = Columns(
        context=_first_existing(task, "context", rows),
        level=_first_existing(task, "level", rows),
        id=_first_existing(task, "id", rows),
        options=_option_columns(task, rows),
        first_option=task.first_option,
        any_answer={"any": True, "all": False}.get(task.gold_lists),
        tests=_first_existing(task, "tests", rows),
        setup=_first_existing(task, "setup", rows),
        program=_first_existing(task, "program", rows),
        entry_point=_first_existing(task, "entry_point", rows),
    )
    if is_recognised(task):
        columns = _recognised(columns, task, rows)
    else:
        gold = "" if task.tests_column else _first_existing(task, "gold", rows)
        question = _first_existing(task, "question", rows)
        columns = replace(columns, question=question, gold=gold)
    if task.shots and is_train and not columns.tests:
        columns = replace(columns, solution=_solution_column(task, rows, columns.gold))
    return columns


def _option_columns(task: Any, rows: Rows) -> tuple[str, ...]:
    if isinstance(task.options_column, str):
        column = _first_existing(task, "options", rows)
        return (column,) if column else ()
    for column in task.options_column:
        _require_column("options", (column,), rows)
    return tuple(task.options_column)


def _recognised(columns: Columns, task: Any, rows: Rows) -> Columns:
    """Add the columns of the data's form; what it leaves in doubt is a warning."""
    given = Given(
        context=columns.context or None,
        options=columns.options,
        lists=task.gold_lists,
        first_option=columns.first_option,
        part=task.gold_part,
    )
    form = recognise(rows, given)
    for doubt in form.doubts:
        warnings.warn(f"task.data: {doubt}", AdvsweepWarning, stacklevel=2)
    return replace(
        columns,
        question=form.question,
        gold=form.gold,
        context=form.context,
        options=form.options,
        first_option=form.first_option,
        any_answer=form.any_answer,
        tests=form.tests,
        setup=columns.setup or form.setup,
        program=columns.program or form.program,
        entry_point=columns.entry_point or form.entry_point,
    )


def _solution_column(task: Any, rows: Rows, gold: str) -> str:
    """Return the column of worked solutions: that of the answers where none is named or usual."""
    is_default = task.solution_column == SOLUTION_COLUMNS
    usual = [name for name in SOLUTION_COLUMNS if any(has_cell(row, name) for row in rows[:_SEEN])]
    return gold if is_default and not usual else _first_existing(task, "solution", rows)


def is_recognised(task: Any) -> bool:
    """Return whether the columns of a task are those of the data's form, as none are given."""
    defaults = (QUESTION_COLUMNS, GOLD_COLUMNS)
    return (task.question_column, task.gold_column) == defaults and not task.tests_column


def _first_existing(task: Any, field: str, rows: Rows) -> str:
    names = getattr(task, f"{field}_column")
    return _require_column(field, (names,) if isinstance(names, str) else names, rows)


def _require_column(field: str, names: Sequence[str], rows: Rows) -> str:
    """Return the first of some columns that the data has; empty if none is named."""
    wanted = [name for name in names if name]
    for name in wanted:
        if any(has_cell(row, name) for row in rows[:_SEEN]):
            return name
    if not wanted:
        return ""
    expected = " or ".join(f"'{name}'" for name in wanted)
    existing = list(dict.fromkeys(key for row in rows[:_SEEN] for key in row))
    shown = ", ".join(existing)
    raise FormError(
        f"task.{field}_column: the data has no column {expected}; it has {shown}",
        shown_rows(rows, existing),
    )
