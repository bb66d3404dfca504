"""Sentences about numbers that say less than they seem to."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from advsweep.errors import first_of
from advsweep.report.data.columns import RAREFIED_SHARE, Column
from advsweep.report.data.evaluations import OWN_TASKS, EvaluationsByTask
from advsweep.report.data.grouping import Group
from advsweep.report.data.outcomes import MOST_OF_SAMPLES
from advsweep.report.tables.comparison import name_group
from advsweep.store import EvaluationRecord, RunRecord, Store
from advsweep.store.sanity import find_no_signal

START = 10
"""The training steps that count as the start."""

_DOMINANT = 3.0
"""How many times the mass of one sign is that of the other where it dominates."""

_MAJORITY = 0.6
"""The share of the start's rollouts that have the dominant sign's outcome."""

_NAMED = 4
_OUTCOMES = ("success", "failure")


def describe_large_k(evaluated: EvaluationsByTask, columns: Sequence[Column]) -> list[str]:
    """Describes the columns whose k is large for the number of samples.

    The unbiased estimate of pass@k has its largest variance at k = n, where it tells only
    whether any sample was right.
    """
    found: dict[int, list[str]] = {}
    for column in columns:
        # pass@1 is a share of all samples, however few.
        if column.k is None or column.k == 1:
            continue
        samples = min((int(r.n.max(initial=0)) for r in _records(evaluated, column)), default=0)
        if column.k > MOST_OF_SAMPLES * samples:
            found.setdefault(samples, []).append(column.header)
    return [
        f"{', '.join(headers)}: k is above a quarter of the {samples} samples of a problem, where "
        "the estimate varies most; a smaller k, or more samples, compares better"
        for samples, headers in found.items()
    ]


def describe_rarefied(evaluated: EvaluationsByTask, columns: Sequence[Column]) -> list[str]:
    """Describe over how many problems columns of rarefied entropies are, where runs differ in it.

    A problem needs so many right answers, so that weak runs leave out their hard problems.
    """
    found = []
    for column in columns:
        records = _records(evaluated, column)
        if column.m is None or column.curve.startswith(RAREFIED_SHARE) or not records:
            continue
        counts = [int((record.c >= column.m).sum()) for record in records]
        low, high = min(counts), max(counts)
        if low < high:
            problems = max(len(record.c) for record in records)
            found.append(
                f"{column.header}: of the problems with at least {column.m} right answers, which "
                f"are {low} to {high} of {problems} in the runs; runs with fewer leave out harder "
                "problems"
            )
    return found


def _records(evaluated: EvaluationsByTask, column: Column) -> list[EvaluationRecord]:
    """Return the evaluations of runs that a column rests on."""
    if column.over is not None:
        known = evaluated.train if column.is_train else evaluated.tasks
        tasks = [task for name, task in known.items() if name != OWN_TASKS]
    else:
        task = evaluated.of(column.task, train=column.is_train)
        tasks = [] if task is None else [task]
    records = [record for task in tasks for record in task.final.values()]
    if column.is_made_of_curve and not column.is_selected:
        records += [record for task in tasks for along in task.along.values() for record in along]
    return records


def describe_dominance(
    store: Store, groups: Sequence[tuple[Group, Sequence[RunRecord]]]
) -> list[str]:
    """Describes the rows whose start lets advantages of one sign dominate.

    Where nearly all advantages have the sign of the more frequent outcome, most of the gradient
    is of making the model's own answers likelier, or less likely, whatever they are.
    """
    ids = [run.id for _, members in groups for run in members]
    masses = [store.metrics.means(ids, f"mass/{name}", first=START) for name in _OUTCOMES]
    rows: dict[str, list[str]] = {name: [] for name in _OUTCOMES}
    for group, members in groups:
        success, failure = (
            _mean(found[r.id] for r in members if r.id in found) for found in masses
        )
        outcome = _dominant(success, failure)
        if outcome is None:
            continue
        rate = _success_rate(store, members)
        share = rate if outcome == _OUTCOMES[0] else 1 - rate
        if share >= _MAJORITY:
            rows[outcome].append(f"{name_group(group)} ({share:.0%})")
    return [_sentence(outcome, named) for outcome, named in rows.items() if named]


def describe_no_signal(
    store: Store, groups: Sequence[tuple[Group, Sequence[RunRecord]]]
) -> list[str]:
    """Describes the rows with runs that learned nothing, or hardly anything, from their rewards."""
    found = find_no_signal(store, [run.id for _, members in groups for run in members])
    rows: dict[str, list[str]] = {}
    for group, members in groups:
        counts = Counter(found[run.id].text for run in members if run.id in found)
        for text, count in counts.items():
            some = "" if count == len(members) else f" ({count} of {len(members)} runs)"
            rows.setdefault(text, []).append(f"{name_group(group)}{some}")
    return [f"{first_of(named, _NAMED)}: {text}" for text, named in rows.items()]


def _dominant(success: float, failure: float) -> str | None:
    """Returns the outcome whose advantages are nearly all of a step's; None if neither is."""
    if max(success, failure) <= 0:
        return None
    if success >= _DOMINANT * max(failure, 0.0):
        return _OUTCOMES[0]
    return _OUTCOMES[1] if failure >= _DOMINANT * max(success, 0.0) else None


def _success_rate(store: Store, members: Sequence[RunRecord]) -> float:
    """Returns the share of right rollouts at the start, from the shares of groups with K right.

    NaN if the runs did not record them.
    """
    by_size: dict[int, list[int]] = {}
    for run in members:
        by_size.setdefault(int(run.config.get("group_size", 0)), []).append(run.id)
    rates: list[float] = []
    for size, ids in by_size.items():
        sums: dict[int, float] = {}
        for solved in range(1, size + 1):
            found: Mapping[int, float] = store.metrics.means(ids, f"solved/{solved}", first=START)
            for run_id, share in found.items():
                sums[run_id] = sums.get(run_id, 0.0) + share * solved / size
        rates += sums.values()
    return _mean(rates)


def _mean(values: Iterable[float]) -> float:
    known = [value for value in values if math.isfinite(value)]
    return math.fsum(known) / len(known) if known else math.nan


def _sentence(outcome: str, rows: Sequence[str]) -> str:
    what, effect = {
        _OUTCOMES[0]: ("right", "likelier"),
        _OUTCOMES[1]: ("wrong", "less likely"),
    }[outcome]
    return (
        f"{first_of(rows, _NAMED)}: so many rollouts of the first {START} steps are {what}, and "
        f"nearly all advantages are theirs, so that training mostly makes the model's own answers "
        f"{effect}; compare such rows where right and wrong answers are about as frequent"
    )
