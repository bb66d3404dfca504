"""Selects the runs of a table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from advsweep.errors import NotFoundError, nearest
from advsweep.report.data.filters import Filter, describe_filters
from advsweep.report.data.keys import is_key, known_keys, value_of
from advsweep.report.data.runs import collapsed_runs
from advsweep.store import RunRecord, Status, Store
from advsweep.synonyms import KEYS, WHERE, hint

_STATUS = "status"


@dataclass(frozen=True)
class SelectedRuns:
    """The selected runs.

    Attributes:
        runs: the runs.
        left_out: how many other runs match all filters but that of the status, by status.
        pruned: those of them that were stopped early.
        remarks: sentences on how the runs were selected.
    """

    runs: list[RunRecord]
    left_out: Mapping[Status, int]
    pruned: Sequence[RunRecord]
    remarks: tuple[str, ...]


def select_runs(
    store: Store,
    runs: Sequence[RunRecord],
    where: Sequence[Filter],
    *,
    finished_only: bool = True,
) -> SelectedRuns:
    """Select the runs that match some filters.

    Args:
        finished_only: without a filter on the status, select runs that are done.

    Raises:
        NotFoundError: no run has the key of a filter.
    """
    of_status = [f for f in where if f.key == _STATUS]
    of_config = [f for f in where if f.key != _STATUS]
    _refuse_unknown_keys(of_config, runs)

    def is_in_state(run: RunRecord) -> bool:
        if of_status:
            return all(f.holds(run.status.value) for f in of_status)
        return run.status is Status.DONE or not finished_only

    chosen: list[RunRecord] = []
    others: list[RunRecord] = []
    for run in runs:
        if all(f.holds(value_of(run, f.key)) for f in of_config):
            (chosen if is_in_state(run) else others).append(run)
    states = Counter(run.status for run in others)
    left_out = {state: states[state] for state in Status if states[state]}
    left_out.pop(Status.DONE, None)
    remarks = [f"chosen by {describe_filters(where)}"] if where else []
    remarks += _describe_collapsed(store, chosen)
    pruned = [run for run in others if run.status is Status.PRUNED]
    return SelectedRuns(chosen, left_out, pruned, tuple(remarks))


def _refuse_unknown_keys(filters: Sequence[Filter], runs: Sequence[RunRecord]) -> None:
    """Refuse a filter whose key no run has; without any runs nothing is refused."""
    for filter in filters:
        if runs and not is_key(runs, filter.key):
            near = hint(WHERE, filter.key) or nearest(filter.key, known_keys(runs), KEYS)
            raise NotFoundError(f"--where: no run has a key '{filter.key}'; {near}")


def _describe_collapsed(store: Store, runs: Sequence[RunRecord]) -> list[str]:
    """Return a sentence on the runs whose policy collapsed; none without any."""
    collapsed = collapsed_runs(store, runs)
    if not collapsed:
        return []
    total = Counter(run.estimator for run in runs)
    counts = Counter(run.estimator for run in runs if run.id in collapsed)
    listed = ", ".join(f"{n} of {total[name]} runs of {name}" for name, n in sorted(counts.items()))
    return [f"the policy collapsed in training (collapse/detected=1): {listed}"]
