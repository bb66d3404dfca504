"""Sentences on runs and numbers that say less than they seem to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from advsweep.errors import counted, first_of
from advsweep.report.data.columns import MOST_OF_SAMPLES, Column, logged_metric
from advsweep.report.data.evaluation_sources import PassAtK
from advsweep.report.data.evaluations import EvaluationsByTask, TaskEvaluations
from advsweep.report.data.groups import Group
from advsweep.report.data.labels import name_group
from advsweep.store import RunRecord, Store
from advsweep.store.imported import IMPORTED, is_imported
from advsweep.store.sanity import find_no_signal

_NAMED = 6  # of what is listed at most
_FEW = 4  # rows of a caution
_LONGEST = 300  # characters of a note


def describe_large_k(evaluated: EvaluationsByTask, columns: Sequence[Column]) -> list[str]:
    """Describe the columns whose k is large for the number of samples.

    The unbiased estimate of pass@k has its largest variance at k = n, where it tells only
    whether any sample was right.
    """
    headers_by_samples: dict[int, list[str]] = {}
    for column in columns:
        source = column.source
        # pass@1 is a share of all samples, however few.
        if not isinstance(source, PassAtK) or source.k == 1:
            continue
        samples = _fewest_samples(source, evaluated)
        if source.k > MOST_OF_SAMPLES * samples:
            headers_by_samples.setdefault(samples, []).append(column.header)
    return [
        f"{', '.join(headers)}: k is above a quarter of the {samples} samples of a problem, where "
        "the estimate varies most; a smaller k, or more samples, compares better"
        for samples, headers in headers_by_samples.items()
    ]


def _fewest_samples(source: PassAtK, evaluated: EvaluationsByTask) -> int:
    """Return the samples of a problem in the evaluation that has the fewest; 0 without any."""
    tasks = source.problems.tasks_of(evaluated)
    if not source.problems.is_mean:
        measured = source.problems.task or evaluated.main
        tasks = {name: task for name, task in tasks.items() if name == measured}
    records = [record for task in tasks.values() for record in task.final.values()]
    return min((int(record.n.max(initial=0)) for record in records), default=0)


def describe_denominators(evaluated: EvaluationsByTask, columns: Sequence[Column]) -> list[str]:
    """Describe the columns of pass@k that leave out problems with fewer than k samples."""
    texts = []
    for column in columns:
        source = column.source
        if not isinstance(source, PassAtK) or source.problems.is_mean:
            continue
        tasks = source.problems.tasks_of(evaluated)
        task = tasks.get(source.problems.task or evaluated.main or "")
        counts = set() if task is None else _count_problems(task, source.k)
        if any(enough < scored for enough, scored in counts):
            texts.append(f"{column.header} over {_show_counts(counts)}")
    if not texts:
        return []
    return [
        f"means over fewer problems, as the others have fewer than k samples: {'; '.join(texts)}: "
        "columns of other problems are no curve over k"
    ]


def _count_problems(task: TaskEvaluations, k: int) -> set[tuple[int, int]]:
    """Return how many problems have k samples, and how many are scored, of each evaluation."""
    # Most evaluations have the same number of samples of each problem.
    distinct = {record.n.tobytes(): record.n for record in task.final.values()}
    counts = set()
    for samples in distinct.values():
        scored = samples[samples > 0]
        counts.add((int((scored >= k).sum()), len(scored)))
    return counts


def _show_counts(counts: Collection[tuple[int, int]]) -> str:
    """Write the counts of `_count_problems`: `10 of 12`, or `8 to 10 of 12`."""
    least = min(enough for enough, _ in counts)
    most = max(enough for enough, _ in counts)
    scored = max(scored for _, scored in counts)
    enough = str(least) if least == most else f"{least} to {most}"
    return f"{enough} of {scored}"


def describe_logged_pass(columns: Sequence[Column], evaluated: EvaluationsByTask) -> list[str]:
    """Describe the columns of pass@k whose numbers are those that a trainer logged."""
    headers = [column.header for column in columns if logged_metric(column, evaluated) is not None]
    if not headers:
        return []
    return [f"{', '.join(headers)}: the last number that the logs have, of problems unknown here"]


def describe_no_signal(
    store: Store, groups: Sequence[tuple[Group, Sequence[RunRecord]]]
) -> list[str]:
    """Describe the rows with runs that learned nothing, or hardly anything, from their rewards."""
    reasons = find_no_signal(store, [run.id for _, members in groups for run in members])
    rows_by_reason: dict[str, list[str]] = {}
    for group, members in groups:
        counts = Counter(reasons[run.id] for run in members if run.id in reasons)
        for reason, count in counts.items():
            some = "" if count == len(members) else f" ({count} of {len(members)} runs)"
            rows_by_reason.setdefault(reason, []).append(f"{name_group(group)}{some}")
    return [f"{first_of(rows, _FEW)}: {reason}" for reason, rows in rows_by_reason.items()]


def describe_capabilities(store: Store, runs: Sequence[RunRecord]) -> list[str]:
    """Describe the vector instructions that torch used, if runs differ in them.

    Runs that recorded none, as those of older versions, say nothing.
    """
    counts = Counter(store.runs.vector_capabilities([run.id for run in runs]).values())
    if len(counts) < 2:
        return []
    listed = [f"{name}: {counted(count, 'run')}" for name, count in sorted(counts.items())]
    return [
        f"runs used different vector instructions of torch ({first_of(listed, _NAMED)}), which "
        "round otherwise: what is computed from one seed, such as a base model that a run "
        "pretrains, is not the same in all of them"
    ]


def describe_imported(store: Store, runs: Sequence[RunRecord]) -> list[str]:
    """Return a sentence for each format of which runs were imported; none without any."""
    imported = [run for run in runs if is_imported(run.config)]
    environments = store.runs.environments([run.id for run in imported]) if imported else {}
    by_format: dict[str, list[RunRecord]] = {}
    for run in imported:
        name = str(run.config["backend"].get("format", "unknown"))
        by_format.setdefault(name, []).append(run)
    sentences = []
    for name, members in sorted(by_format.items()):
        text = f"imported from {name}: {len(members)} of {len(runs)} runs, by another trainer"
        notes: dict[str, None] = {}
        for run in members:
            notes |= dict.fromkeys(_notes_of_import(environments.get(run.id, {})))
        if notes:
            text += f"; {first_of(notes, _NAMED, '; ')}"
        sentences.append(text)
    return sentences


def _notes_of_import(environment: Mapping[str, Any]) -> list[str]:
    """Return what the reader of a log noted on it."""
    described = environment.get(IMPORTED)
    notes = described.get("notes") if isinstance(described, Mapping) else None
    return [str(note)[:_LONGEST] for note in notes] if isinstance(notes, list) else []
