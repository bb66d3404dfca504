"""The runs of a table, as they are read from the store."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from advsweep.names import COLLAPSED
from advsweep.report.data.labels import show_key
from advsweep.store import RunRecord, Status, Store
from advsweep.store.imported import is_calibration, is_imported, setting_leaves


def read_runs(
    store: Store, sweep: str | None, run_ids: Sequence[int] | None = None
) -> list[RunRecord]:
    """Read the runs of a sweep, of all sweeps, or of some ids; one attempt of each identity.

    Of several attempts it is the newest that is done, or else the newest. Calibrations of
    learning rates are read only by their ids. Runs have the methods by which the sweep named them.

    Raises:
        NotFoundError: the sweep or an id does not exist.
    """
    listed = store.runs.select(sweep=sweep, ids=run_ids, newest_first=False)
    if run_ids is None:
        listed = _ordered(listed)
    latest: dict[str, RunRecord] = {}
    for run in listed:
        if sweep is None and run_ids is None and is_calibration(run.config):
            continue
        latest[run.identity] = max(latest.get(run.identity, run), run, key=_attempt_order)
    methods = store.sweeps.methods(sweep)
    runs = latest.values()
    return [dataclasses.replace(run, method=methods.get(run.config_hash)) for run in runs]


def _attempt_order(run: RunRecord) -> tuple[bool, int]:
    """Return the sort key of the attempts of a run: done ones last, and then by number."""
    return run.status is Status.DONE, run.attempt


def _ordered(runs: Sequence[RunRecord]) -> list[RunRecord]:
    """Return runs with the imported ones, at their places, in an order that no file name decides.

    Runs of one folder were added at the same time; their settings order them.
    """
    imported = iter(sorted(filter(_is_imported, runs), key=_import_order))
    return [next(imported) if _is_imported(run) else run for run in runs]


def _is_imported(run: RunRecord) -> bool:
    return is_imported(run.config)


def _import_order(run: RunRecord) -> tuple[Any, ...]:
    return run.created, run.estimator, [*map(_setting_order, setting_leaves(run.config))]


def _setting_order(setting: tuple[str, Any]) -> tuple[str, bool, float, str]:
    """Return the sort key of a config key and its value: numbers first, ascending."""
    key, value = setting
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return key, not is_number, value if is_number else 0.0, "" if is_number else show_key(value)


def metric_names(store: Store, runs: Sequence[RunRecord]) -> list[str]:
    """Return the metrics of some runs, sorted."""
    # The run of each configuration that came furthest: its other runs record the same.
    furthest = {run.config_hash: run for run in sorted(runs, key=lambda run: run.step)}
    return sorted({name for run in furthest.values() for name in store.metrics.names(run.id)})


def collapsed_runs(store: Store, runs: Sequence[RunRecord]) -> set[int]:
    """Return the ids of the runs whose policy collapsed in training."""
    summaries = store.metrics.summaries([run.id for run in runs])
    return {run_id for run_id, values in summaries.items() if values.get(COLLAPSED)}
