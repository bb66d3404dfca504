"""Reads the evaluations of runs, and which of them is the last of each."""

from __future__ import annotations

from collections.abc import Sequence

from advsweep.store import EvaluationRecord, RunRecord, Store
from advsweep.store.imported import is_imported


def read_evaluations(
    store: Store, runs: Sequence[RunRecord], *, along: bool
) -> tuple[list[EvaluationRecord], dict[int, int]]:
    """Returns the evaluations of some runs, and the step of each run's last one.

    Our own runs are evaluated after their last step. Other trainers may evaluate before it, so
    that the last evaluation of an imported run counts.
    """
    steps = {run.id: run.steps for run in runs}
    imported = [run.id for run in runs if is_imported(run.config)]
    own = list(steps.keys() - set(imported))
    found = store.evaluations.select(own, ends_only=not along)
    if imported:
        of_imported = store.evaluations.select(imported)
        last: dict[int, int] = {}
        for record in of_imported:
            assert record.run_id is not None
            last[record.run_id] = max(last.get(record.run_id, 0), record.step)
        steps |= last
        ends = [r for r in of_imported if along or r.step in (0, last[r.run_id or 0])]
        found = sorted([*found, *ends], key=lambda r: (r.run_id or 0, r.step))
    return found, steps


def own_runs(runs: Sequence[RunRecord]) -> list[RunRecord]:
    """Returns the runs that advsweep trained: nothing of an imported config is ever built."""
    return [run for run in runs if not is_imported(run.config)]
