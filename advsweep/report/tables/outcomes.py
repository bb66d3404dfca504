"""The primary outcomes of a report: those that are declared, or the default ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from advsweep.report.data.columns import (
    MOST_OF_SAMPLES,
    OUTCOMES,
    UNEVALUATED,
    Column,
    parse_column,
    parse_outcomes,
)
from advsweep.report.data.evaluation_sources import RAREFIED_ENTROPY, RIGHT_ENTROPY
from advsweep.report.data.evaluations import EvaluationsByTask
from advsweep.report.tables.chance import GUESS
from advsweep.report.tables.request import ReportRequest
from advsweep.report.tables.types import Row
from advsweep.store import Store


@dataclass(frozen=True)
class Declared:
    """The primary outcomes that are declared.

    Attributes:
        columns: the outcomes; empty without a declaration.
        by: what declares them; empty without a declaration.
    """

    columns: Sequence[Column] = ()
    by: str = ""


def declared_outcomes(store: Store, request: ReportRequest) -> Declared:
    """Return the outcomes that the request declares, or else the sweep.

    Raises:
        ConfigError: those of the sweep are no list of columns.
    """
    if request.outcomes:
        return Declared(request.outcomes, request.declared_by)
    if request.sweep is None:
        return Declared()
    spec = store.sweeps.spec(request.sweep)
    columns = parse_outcomes(spec.get(OUTCOMES), f"sweep.{OUTCOMES}")
    return Declared(columns, "the sweep") if columns else Declared()


def outcome_choices(
    evaluated: EvaluationsByTask, declared: Sequence[Column]
) -> list[Sequence[Column]]:
    """Return the primary outcomes of a table's runs: each the first of some columns that all have.

        pass@1                     accuracy
        pass@K[above=guess]        coverage above chance, at the largest k that the samples
                                   support, a quarter of them; pass@K without such a floor
        entropy/right_rarefied     diversity of the correct answers; entropy/right where a run
                                   lacks it

    Runs without an evaluation have pass@1 if they logged it, or else `reward/mean@end`. The
    differences of these outcomes to the baseline are one family: their p values are corrected
    together, whatever columns a table shows. All other differences are descriptive and have no
    test.

    Args:
        declared: the outcomes that the sweep or the list of claims declares; empty for none.
    """
    if declared:
        return [[column] for column in declared]
    main = evaluated.of(None)
    if main is None:
        # Trainers may have logged pass@1 as a number.
        return [_columns("pass@1", UNEVALUATED)]
    samples = min((int(record.n.max(initial=0)) for record in main.final.values()), default=0)
    k = int(MOST_OF_SAMPLES * samples)
    choices: list[Sequence[Column]] = [_columns("pass@1")]
    if k > 1:
        choices.append(_columns(f"pass@{k}[above={GUESS}]", f"pass@{k}"))
    choices.append(_columns(RAREFIED_ENTROPY, RIGHT_ENTROPY))
    return choices


def _columns(*names: str) -> list[Column]:
    columns = [parse_column(name) for name in names]
    return [column for column in columns if column is not None]


def choose_outcome(choice: Sequence[Column], rows: Sequence[Row]) -> Column | None:
    """Return the first column that all runs have which have the last; None if no run has any.

    Also None for the diversity of correct answers where it is 0 in all runs, as it is of problems
    with a single correct answer.
    """
    in_last = _having(choice[-1], rows)
    chosen = next(column for column in choice if _having(column, rows) >= in_last)
    means = [row.cells[chosen.name].mean for row in rows if row.cells[chosen.name].n]
    if not means:
        return None
    # An outcome that is declared stays: it is the only column of its choice.
    is_diversity = len(choice) > 1 and choice[-1].name == RIGHT_ENTROPY
    return None if is_diversity and not any(means) else chosen


def _having(column: Column, rows: Sequence[Row]) -> set[tuple[int, int]]:
    """Return the rows that have numbers in a column, by place, with how many these are."""
    counts = [row.cells[column.name].n for row in rows]
    return {(place, n) for place, n in enumerate(counts) if n}
