"""Chance: whether pass@k says more of a model than a guess would."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from advsweep.report.data.columns import Column, column_of
from advsweep.report.data.evaluation_sources import PassAtK, ProblemChoice
from advsweep.report.data.labels import name_group
from advsweep.report.tables.types import Difference, Row, Subject
from advsweep.writing import show

# How far base and baseline must be above guessing; as far as guessing itself where that is less.
#
# The second bound is for small chances: where a guess is right in .001, a pass@1 of .03 is none.
CHANCE_MARGIN = 0.05

# The floor that draws uniformly among well-formed answers.
GUESS = "guess"


def chance_column(column: Column) -> Column | None:
    """Return the column of pass@k after training with the same k, task and level.

    None for other columns, and where guessing has no number: of problems that are chosen by a
    base's solve rates, of training problems, and of several tasks.
    """
    source = column.source
    if not isinstance(source, PassAtK):
        return None
    problems = source.problems
    if problems.is_train or problems.base is not None or problems.is_mean:
        return None
    return column_of(PassAtK(source.k, problems=ProblemChoice(problems.task, level=problems.level)))


def chance_of(rows: Sequence[Row], column: str) -> float:
    """Return the chance that a guess is right; NaN where the task cannot compute it."""
    for row in rows:
        if row.subject is Subject.FLOOR and GUESS in row.group.values():
            return row.cells[column].mean
    return math.nan


def describe_chance(column: str, chance: float, values: Mapping[str, float]) -> str:
    """Say which values are at chance, where pass@k says nothing of a model; empty if none is."""
    margin = min(CHANCE_MARGIN, chance)
    if not any(value <= chance + margin for value in values.values()):
        return ""
    shown = ", ".join(f"{n} {show(v)}" for n, v in {GUESS: chance, **values}.items())
    return f"{column} must be more than {show(margin)} above {GUESS}: {shown}"


def caution_of_chance(rows: Sequence[Row], differences: Sequence[Difference]) -> list[str]:
    """Describe the primary outcomes on which a base or the baseline is at chance."""
    baselines: dict[str, set[int]] = {}
    for difference in differences:
        plain = chance_column(difference.column) if difference.is_primary else None
        if plain is not None:
            baselines.setdefault(plain.name, set()).add(difference.baseline)
    texts = []
    for name, places in baselines.items():
        tested = [row for i, row in enumerate(rows) if row.subject is Subject.BASE or i in places]
        values = {name_group(row.group): row.cells[name].mean for row in tested}
        text = describe_chance(name, chance_of(rows, name), values)
        if text:
            texts.append(f"at chance, so that claims on it are not judged: {text}")
    return texts
