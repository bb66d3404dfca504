"""The primary outcomes of a sweep: its verdicts are about these columns, and are declared here.

    pass@1                     accuracy
    pass@K[above=guess]        coverage above chance, at the largest k that the samples support,
                               a quarter of them; pass@K for a task without a chance baseline
    entropy/right_rarefied     diversity of the correct answers; entropy/right where a run lacks it

Runs without an evaluation have `reward/mean@end`. A sweep file (`sweep.outcomes`) or a list of
claims (`outcomes`) may declare other columns. The differences of these outcomes to the baseline
are one family: their p values are corrected together, whatever columns a table shows. All other
differences are descriptive and have no test.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from advsweep.errors import ConfigError, first_of, nearest
from advsweep.report.data.columns import (
    RAREFIED_ENTROPY,
    RIGHT_ENTROPY,
    UNEVALUATED,
    Column,
    parse_column,
)
from advsweep.report.data.evaluations import EvaluationsByTask

MOST_OF_SAMPLES = 1 / 4
"""The largest k of pass@k as a share of the samples per problem; the estimate varies most above."""

KEY = "outcomes"
"""The key of a sweep file and of a list of claims."""

_GUESS = "guess"
_NAMED = 3

Choice = Sequence[Column]
"""An outcome: the first of these columns that all runs have."""


def outcome_choices(evaluated: EvaluationsByTask, declared: Sequence[Column]) -> list[Choice]:
    """Return the primary outcomes of a table's runs.

    Args:
        declared: the outcomes that the sweep or the list of claims declares; empty for none.
    """
    if declared:
        return [[column] for column in declared]
    main = evaluated.of(None)
    if main is None:
        return [_columns(UNEVALUATED)]
    records = main.final.values()
    samples = min((int(record.n.max(initial=0)) for record in records), default=0)
    k = int(MOST_OF_SAMPLES * samples)
    choices = [_columns("pass@1")]
    if k > 1:
        choices.append(_columns(f"pass@{k}[above={_GUESS}]", f"pass@{k}"))
    return [*choices, _columns(RAREFIED_ENTROPY, RIGHT_ENTROPY)]


def _columns(*names: str) -> Choice:
    return [column for name in names if (column := parse_column(name)) is not None]


def choose_outcomes(
    choices: Sequence[Choice], runs_with: Callable[[str], set[tuple[int, int]]]
) -> tuple[Column, ...]:
    """Return the column of each outcome; none for an outcome that no run has.

    Args:
        runs_with: returns the rows that have a column, with the number of runs that have it.
    """
    chosen = []
    for choice in choices:
        *preferred, last = choice
        having = {column.name: runs_with(column.name) for column in choice}
        found = next((c for c in preferred if having[c.name] >= having[last.name]), last)
        if not having[found.name]:
            continue
        chosen.append(found)
    return tuple(chosen)


def find_outcome(column: Column, outcomes: Sequence[Column]) -> Column | None:
    """Return the outcome whose differences between rows a column has; None if it is of none.

    A chance baseline that is subtracted from both rows cancels.
    """
    return next((outcome for outcome in outcomes if _plain(outcome) == _plain(column)), None)


def _plain(column: Column) -> Column:
    return replace(column, name=column.quantity, header="", above=None)


def parse_outcomes(names: Any, where: str) -> list[Column]:
    """Parse declared outcomes; none if nothing is declared.

    Args:
        where: the key that has them, for messages.

    Raises:
        ConfigError: they are no list of columns.
    """
    if names is None:
        return []
    if not isinstance(names, list) or not names or not all(isinstance(n, str) for n in names):
        raise ConfigError(f"{where}: expected a list of columns, such as [pass@1], got {names!r}")
    columns = [parse_column(name) for name in names]
    for name, column in zip(names, columns, strict=True):
        if column is None or "*" in name or column.is_reached:
            known = ["pass@1", "pass@8[above=guess]", RIGHT_ENTROPY, UNEVALUATED]
            raise ConfigError(f"{where}: no column is called '{name}'; {nearest(name, known)}")
    found = [column for column in columns if column is not None]
    if any(find_outcome(column, found[:place]) for place, column in enumerate(found)):
        raise ConfigError(
            f"{where}: expected each outcome once, got {first_of(names, _NAMED)}: a chance "
            "baseline changes no difference"
        )
    return found
