"""A report of the models that were evaluated without a run.

A model has one evaluation by each protocol and no seeds. Its intervals are over problems like
those of the evaluation, by the bootstrap; they say nothing about another training.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace

from advsweep.errors import NotFoundError, ReportError, nearest
from advsweep.report.data.columns import Column
from advsweep.report.data.evaluations import (
    TASK_SETTINGS,
    EvaluationsByTask,
    Protocol,
    TaskEvaluations,
    model_evaluations,
    unjudged_problems,
)
from advsweep.report.data.measure import by_problem, over_tasks
from advsweep.report.data.selection import select_columns
from advsweep.report.tables.rows import make_cell
from advsweep.report.tables.types import Cell, Provenance, Report, Row, Subject
from advsweep.statistics import all_or_none_interval, bootstrap_over_problems
from advsweep.store import EvaluationRecord, Store
from advsweep.store.evaluation_records import unscorable_share

_PROMPTS = "prompts"


def build_model_report(store: Store, columns: Sequence[str] | None = None) -> Report:
    """Report every model that was evaluated without a run, with a column for each task and k.

    Args:
        columns: columns of evaluations; by default pass@k of each task for the k in its
            settings, and answer entropies.

    Raises:
        NotFoundError: a column does not exist.
        ReportError: no model was evaluated, or a column is not of evaluations.
    """
    made = model_evaluations(store)
    if not made:
        raise ReportError(
            f"{store.name} has no models that were evaluated without a run; "
            "`advsweep eval --model` evaluates some"
        )
    records = [record for _, record in made]
    tasks = list(dict.fromkeys(record.task for record in records))
    chosen = _choose_columns(tasks, records, columns)
    protocols = [protocol for protocol, _ in made]
    return Report(
        columns=tuple(chosen),
        rows=tuple(
            Row(
                group=group,
                n=1,
                seeds=(),
                cells={column.name: _cell(by_task, column, tasks) for column in chosen},
                subject=Subject.MODEL,
            )
            for group, by_task in _group_by_model(made)
        ),
        left_out={},
        pruned={},
        unscorable=unscorable_share(records),
        unjudged=unjudged_problems(records),
        provenance=Provenance(
            store=store.name,
            evaluations=[p for i, p in enumerate(protocols) if p not in protocols[:i]],
            first=min(record.created for record in records),
            last=max(record.created for record in records),
        ),
        over="problems",
    )


def _group_by_model(
    made: Sequence[tuple[Protocol, EvaluationRecord]],
) -> list[tuple[dict[str, object], dict[str, EvaluationRecord]]]:
    """Return the evaluations of each model that were made alike, by task, with the row's name.

    Rows are named by the model and by what differs in sampling, or on one task.
    """
    listed = [({**p, _PROMPTS: _digest(record)}, record) for p, record in made]

    def varies(key: str) -> bool:
        values = {(protocol["task"], protocol.get(key)) for protocol, _ in listed}
        return len(values) > len({task for task, _ in values})

    names = [key for key in TASK_SETTINGS if varies(key)]
    if "problems" not in names and varies(_PROMPTS):
        names.append(_PROMPTS)
    rows: dict[str, tuple[str, Protocol, dict[str, EvaluationRecord]]] = {}
    for protocol, record in listed:
        of_task = (*TASK_SETTINGS, _PROMPTS)
        own = {k: v for k, v in protocol.items() if k not in of_task or k in names}
        model = str(record.settings["model"])
        key = json.dumps([model, own], sort_keys=True)
        rows.setdefault(key, (model, own, {}))[2][record.task] = record
    protocols = [own for _, own, _ in rows.values()]
    varying = [
        key
        for key in dict.fromkeys(key for own in protocols for key in own)
        if len({json.dumps(own.get(key)) for own in protocols}) > 1
    ]
    return [
        ({"model": model, **{key: own[key] for key in varying if key in own}}, by_task)
        for model, own, by_task in rows.values()
    ]


def _digest(record: EvaluationRecord) -> str:
    return hashlib.sha256("\n".join(record.prompts).encode()).hexdigest()[:8]


def _choose_columns(
    tasks: Sequence[str], records: Sequence[EvaluationRecord], names: Sequence[str] | None
) -> list[Column]:
    by_task = {
        task: TaskEvaluations({}, dict(enumerate(r for r in records if r.task == task)))
        for task in tasks
    }
    if names is None:
        names = []
        for task in tasks:
            of = "" if len(tasks) == 1 else f"[{task}]"
            ks = sorted({k for r in records if r.task == task for k in r.settings.get("k", ())})
            names += [*(f"pass@{k}{of}" for k in ks), f"entropy/answer{of}"]
    chosen = select_columns(names, EvaluationsByTask(by_task, tasks[0]))
    if wrong := [c.name for c in chosen if not c.is_single or c.needs_runs]:
        raise ReportError(f"--models: expected columns of evaluations, got {', '.join(wrong)}")
    for column in chosen:
        if column.task is not None and column.task not in tasks:
            raise NotFoundError(
                f"{column.name}: no model was evaluated on '{column.task}'; "
                f"{nearest(column.task, tasks)}"
            )
    return chosen


def _cell(by_task: Mapping[str, EvaluationRecord], column: Column, tasks: Sequence[str]) -> Cell:
    if column.over is not None and column.select is not None:
        parts = [
            _cell(by_task, replace(column, select=replace(column.select, over=None, task=t)), tasks)
            for t in tasks
        ]
        # The mean over all tasks needs every task.
        whole = all(part.n for part in parts)
        return make_cell([over_tasks(column, [p.mean for p in parts])] if whole else [])
    record = by_task.get(column.task or tasks[0])
    if record is None:
        return make_cell([])
    mean, low, high, n = bootstrap_over_problems(by_problem([record], column)[0])
    if column.k is not None and n and mean in (0.0, 1.0):
        low, high = all_or_none_interval(mean, n)
    return Cell(mean, low, high, 1, (mean,)) if n else make_cell([])
