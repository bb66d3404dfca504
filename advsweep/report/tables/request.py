"""What a report is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from advsweep.report.data.columns import Column
from advsweep.report.data.cutoffs import Cutoff
from advsweep.report.data.early_ends import KEEP
from advsweep.report.data.filters import Filter

NO_BASELINE = "none"


@dataclass(frozen=True)
class ReportRequest:
    """Which runs a report compares, in which columns and rows.

    Attributes:
        sweep: a sweep's name; None for every run of the store.
        run_ids: only these runs.
        columns: names as `report.data.columns` describes them; by default collapse, pass@k for
            the k of the runs' evaluations, entropies and cost.
        rows: config keys that name the rows; by default the estimator and every key that varies.
        where: filters that runs must match; without one on `status` they must be done.
        at: where in the training runs are compared; by default at its end.
        sort: a column or a key.
        baseline: the rows that others are compared with, as in `parse_baseline`; `none`
            for no comparison. By default the first arm of the sweep that is shown, however rows
            are sorted, in tables of at most 30 rows.
        target: the difference that seeds needed are counted for; by default the observed one.
        margins: those within which a row is tested for equivalence, as in `parse_margins`.
        rank: a column; rows are sorted by the intervals of their ranks in it.
        outcomes: the primary outcomes; by default those that the sweep declares, or else those of
            `outcome_choices`.
        described: whether differences in other columns are described.
        declared_by: what declares `outcomes`.
        ended_early: what becomes of runs whose outcomes are of an earlier step than the others':
            they stay (`keep`), count as `failed`, or have this number in the outcomes.
    """

    sweep: str | None = None
    run_ids: Sequence[int] | None = None
    columns: Sequence[str] | None = None
    rows: Sequence[str] | None = None
    where: Sequence[Filter] = ()
    at: Cutoff | None = None
    sort: str | None = None
    baseline: str | None = None
    target: float | None = None
    margins: Sequence[str] = ()
    rank: str | None = None
    outcomes: Sequence[Column] = ()
    described: bool = True
    declared_by: str = "the list of claims"
    ended_early: str | float = KEEP
