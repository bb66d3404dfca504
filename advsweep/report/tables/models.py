"""A report of the models that were evaluated without a run.

A model has one evaluation by each protocol and no seeds. Its intervals are over problems like
those of the evaluation, by the bootstrap; they say nothing about another training.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from advsweep.errors import NotFoundError, ReportError, nearest
from advsweep.report.data.columns import Column, parse_column
from advsweep.report.data.evaluations import (
    RECORDED_LATER,
    EvaluationsByTask,
    Protocol,
    TaskEvaluations,
    model_evaluations,
    unjudged_problems,
)
from advsweep.report.data.grouping import Group
from advsweep.report.data.measure import by_problem, over_tasks
from advsweep.report.data.selection import select_columns
from advsweep.report.tables.rows import make_cell
from advsweep.report.tables.types import Cell, Provenance, Report, Row, RowKind
from advsweep.statistics import all_or_none_interval, bootstrap_over_problems
from advsweep.store import EvaluationRecord, Store
from advsweep.store.evaluation_records import unscorable_share

_OF_TASK = ("task", "problems", *RECORDED_LATER)
_PROMPTS = "prompts"


def build_model_report(store: Store, columns: Sequence[str] | None = None) -> Report:
    """Reports every model that was evaluated without a run, with a column for each task and k.

    Args:
        columns: columns of evaluations; by default pass@k of each task for the k in its
            settings, and answer entropies.

    Raises:
        NotFoundError: a column does not exist.
        ReportError: no model was evaluated, or a column is not of evaluations.
    """
    made = [
        (protocol, record)
        for protocol, records in model_evaluations(store).values()
        for record in records
    ]
    if not made:
        raise ReportError(
            f"{store.name} has no models that were evaluated without a run; "
            "`advsweep eval --model` evaluates some"
        )
    rows = _rows(made)
    tasks = list(dict.fromkeys(record.task for _, record in made))
    chosen = _columns(tasks, [record for _, record in made], columns)
    newest = max(record.created for _, record in made)
    return Report(
        columns=tuple(chosen),
        rows=tuple(_row(group, by_task, chosen, tasks) for group, by_task in rows),
        left_out={},
        pruned={},
        unscorable=unscorable_share([record for _, record in made]),
        unjudged=unjudged_problems(record for _, record in made),
        provenance=Provenance(
            store=store.name,
            sweep=None,
            runs=0,
            evaluations=_distinct([protocol for protocol, _ in made]),
            learning_rates=[],
            commits=[],
            dirty=False,
            versions={},
            hardware=[],
            first=min(record.created for _, record in made),
            last=newest,
        ),
        over="problems",
    )


def _rows(
    made: Sequence[tuple[Protocol, EvaluationRecord]],
) -> list[tuple[Group, dict[str, EvaluationRecord]]]:
    """Groups the evaluations of each model that were sampled alike, by task."""
    names = _differing_keys(made)
    found: dict[tuple[str, ...], tuple[Protocol, dict[str, EvaluationRecord]]] = {}
    for protocol, record in made:
        own = {k: v for k, v in protocol.items() if k not in _OF_TASK or k in names}
        if _PROMPTS in names:
            own[_PROMPTS] = _digest_of_prompts(record)
        key = str(record.settings["model"]), _sampling(protocol), *(str(own.get(n)) for n in names)
        found.setdefault(key, (own, {}))[1][record.task] = record
    protocols = [protocol for protocol, _ in found.values()]
    varying = [
        key
        for key in dict.fromkeys(key for protocol in protocols for key in protocol)
        if len({json.dumps(protocol.get(key)) for protocol in protocols}) > 1
    ]
    return [
        ({"model": model, **{key: own[key] for key in varying if key in own}}, by_task)
        for (model, *_), (own, by_task) in found.items()
    ]


def _differing_keys(made: Sequence[tuple[Protocol, EvaluationRecord]]) -> list[str]:
    """Returns the keys of a task in which evaluations on one task differ: they name rows."""
    places: dict[tuple[str, str, str], list[tuple[Protocol, EvaluationRecord]]] = {}
    for protocol, record in made:
        place = record.task, _sampling(protocol), str(record.settings["model"])
        places.setdefault(place, []).append((protocol, record))
    several = [listed for listed in places.values() if len(listed) > 1]
    names = ["problems"] if several else []
    for name in RECORDED_LATER:
        values = {(protocol["task"], protocol.get(name)) for protocol, _ in made}
        if len(values) > len({task for task, _ in values}):
            names.append(name)
    for listed in several:
        alike = Counter(tuple(p.get(name) for name in names) for p, _ in listed)
        if max(alike.values()) > 1 and len({_digest_of_prompts(r) for _, r in listed}) > 1:
            return [*names, _PROMPTS]
    return names


def _digest_of_prompts(record: EvaluationRecord) -> str:
    return hashlib.sha256("\n".join(record.prompts).encode()).hexdigest()[:8]


def _sampling(protocol: Protocol) -> str:
    return json.dumps({k: v for k, v in protocol.items() if k not in _OF_TASK}, sort_keys=True)


def _columns(
    tasks: Sequence[str], records: Sequence[EvaluationRecord], names: Sequence[str] | None
) -> list[Column]:
    own = {
        task: TaskEvaluations(
            protocol={},
            final=dict(enumerate(record for record in records if record.task == task)),
            base={},
            along={},
            models=[],
        )
        for task in tasks
    }
    evaluated = EvaluationsByTask(own, tasks[0])
    if names is not None:
        chosen = select_columns(names, evaluated, pivoted=False)
        if wrong := [c.name for c in chosen if not c.is_single or c.needs_runs]:
            raise ReportError(f"--models: expected columns of evaluations, got {', '.join(wrong)}")
        for column in chosen:
            if column.task is not None and column.task not in tasks:
                raise NotFoundError(
                    f"{column.name}: no model was evaluated on '{column.task}'; "
                    f"{nearest(column.task, tasks)}"
                )
        return chosen
    listed: list[str] = []
    for task in tasks:
        of = "" if len(tasks) == 1 else f"[{task}]"
        ks = sorted({k for e in records if e.task == task for k in e.settings.get("k", ())})
        listed += [*(f"pass@{k}{of}" for k in ks), f"entropy/answer{of}"]
    parsed = [parse_column(name) for name in listed]
    return [column for column in parsed if column is not None]


def _row(
    group: Group,
    by_task: dict[str, EvaluationRecord],
    columns: Sequence[Column],
    tasks: Sequence[str],
) -> Row:
    cells = {column.name: _cell(by_task, column, tasks) for column in columns}
    return Row(group=group, n=1, seeds=(), cells=cells, kind=RowKind.MODEL)


def _cell(by_task: dict[str, EvaluationRecord], column: Column, tasks: Sequence[str]) -> Cell:
    if column.over is not None:
        parts = [_cell(by_task, replace(column, over=None, task=task), tasks) for task in tasks]
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


def _distinct(protocols: Sequence[Protocol]) -> list[Protocol]:
    return [p for i, p in enumerate(protocols) if p not in protocols[:i]]
