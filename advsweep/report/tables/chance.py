"""Whether pass@k is above chance: where it is not, it says nothing of a model."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from advsweep.report.data.columns import parse_column
from advsweep.report.tables.comparison import name_group
from advsweep.report.tables.layout import show
from advsweep.report.tables.types import Difference, Row, RowKind

CHANCE_MARGIN = 0.05
"""How far base and baseline must be above guessing; as far as guessing itself where that is less.

The second bound is for small chances: where a guess is right in .001, a pass@1 of .03 is none.
"""

GUESS = "guess"
"""The floor that draws uniformly among well-formed answers."""


def chance_column(name: str) -> str | None:
    """Returns the column of pass@k after training with the same k, task and level.

    None for other columns, and where guessing has no number: of problems that are chosen by a
    base's solve rates, of training problems, and of several tasks.
    """
    column = parse_column(name)
    if column is None or column.k is None or column.is_train or column.over or column.base:
        return None
    level = "" if column.level is None else f"level={column.level}"
    of = ",".join(part for part in (column.task, level) if part)
    return f"pass@{column.k}" + (f"[{of}]" if of else "")


def guess(rows: Sequence[Row], column: str) -> float:
    """Return the chance of a guess; NaN where the task cannot compute it."""
    for row in rows:
        if row.kind is RowKind.FLOOR and GUESS in row.group.values():
            return row.cells[column].mean
    return math.nan


def describe_chance(column: str, guessed: float, values: Mapping[str, float]) -> str:
    """Say which values are at chance; empty if none is."""
    margin = min(CHANCE_MARGIN, guessed)
    if not any(value <= guessed + margin for value in values.values()):
        return ""
    shown = ", ".join(f"{n} {show(v)}" for n, v in {GUESS: guessed, **values}.items())
    return f"{column} must be more than {show(margin)} above {GUESS}: {shown}"


def caution_of_chance(rows: Sequence[Row], differences: Sequence[Difference]) -> list[str]:
    """Describe the primary outcomes on which a base or the baseline is at chance."""
    baselines: dict[str, set[int]] = {}
    for difference in differences:
        plain = chance_column(difference.column.name) if difference.is_primary else None
        if plain is not None:
            baselines.setdefault(plain, set()).add(difference.baseline)
    found = []
    for plain, places in baselines.items():
        named = [row for i, row in enumerate(rows) if row.kind is RowKind.BASE or i in places]
        values = {name_group(row.group): row.cells[plain].mean for row in named}
        if text := describe_chance(plain, guess(rows, plain), values):
            found.append(f"at chance, so that claims on it are not judged: {text}")
    return found
