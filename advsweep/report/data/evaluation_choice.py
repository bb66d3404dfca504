"""Chooses the evaluations of a table: on each task those that all runs share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from advsweep.errors import ReportError, counted
from advsweep.names import SELECTED_STEP
from advsweep.report.data.evaluations import EvaluationsByTask, TaskEvaluations
from advsweep.report.data.protocols import EvaluatedRuns, EvaluationSelector, refusal
from advsweep.report.data.run_tasks import TaskSettings
from advsweep.store import EvaluationRecord, RunRecord, Store
from advsweep.store.imported import is_imported


def select_evaluations(
    store: Store,
    runs: Sequence[RunRecord],
    *,
    lending: Sequence[RunRecord] = (),
    along: bool = False,
    mixed: bool = False,
) -> EvaluationsByTask:
    """Select for each task the evaluations by a protocol that all evaluated runs share.

    Evaluations between the first and the last step may have another number of samples. Of several
    shared protocols the one used last counts. The main task is the task that the runs were trained
    on, or else the task that was evaluated last.

    Args:
        lending: further runs, whose evaluations by that protocol are selected too. They do not
            decide which it is.
        along: read evaluations within the training, too.
        mixed: select each run's last evaluation, whatever its protocol.

    Raises:
        ReportError: no task has a shared protocol; the message names the keys that differ.
    """
    every = [*runs, *lending]
    steps = {run.id: run.steps for run in every}
    imported = [run.id for run in every if is_imported(run.config)]
    settings = {run.id: TaskSettings.of(run) for run in every if not is_imported(run.config)}
    records = store.evaluations.select(list(settings), ends_only=not along)
    if imported:
        of_imported, last_steps = _read_imported(store, imported, along=along)
        steps |= last_steps
        records = sorted([*records, *of_imported], key=lambda r: (r.run_id or 0, r.step))
    evaluated = EvaluatedRuns(steps, settings, frozenset(run.id for run in lending), mixed)
    held_out = EvaluationSelector(evaluated, records, store.evaluations.of_models())
    tasks = held_out.tasks
    if held_out.differing and not tasks:
        raise ReportError(next(iter(held_out.differing.values())))
    on_training = store.evaluations.select(list(steps), ends_only=not along, split="train")
    if along:
        tasks = _with_selected(store, tasks, list(steps))
    return EvaluationsByTask(
        tasks,
        _find_main(runs, tasks, held_out.differing, mixed=mixed),
        held_out.differing,
        EvaluationSelector(evaluated, on_training).tasks,
    )


def _read_imported(
    store: Store, run_ids: Sequence[int], *, along: bool
) -> tuple[list[EvaluationRecord], dict[int, int]]:
    """Read the evaluations of imported runs, and the step of each run's last one.

    Other trainers may evaluate before the last step: the last evaluation counts.
    """
    records = store.evaluations.select(run_ids)
    last: dict[int, int] = {}
    for record in records:
        assert record.run_id is not None
        last[record.run_id] = max(record.step, last.get(record.run_id, 0))
    if not along:
        records = [r for r in records if r.step in (0, last.get(r.run_id or 0))]
    return records, last


def _find_main(
    runs: Sequence[RunRecord],
    tasks: Mapping[str, TaskEvaluations],
    differing: Mapping[str, str],
    *,
    mixed: bool,
) -> str | None:
    """Return the task of columns that name none.

    Raises:
        ReportError: the runs were trained on several evaluated tasks, and may not be mixed.
    """
    trained = [run.config.get("task", {}).get("name") for run in runs]
    counts = Counter(task for task in trained if task in tasks or task in differing)
    if len(counts) == 1:
        (main,) = counts
        return str(main)
    if counts and not mixed:
        some = " and ".join(f"{task} ({counted(n, 'run')})" for task, n in sorted(counts.items()))
        raise ReportError(refusal(f"task: {some}"))
    if counts or not tasks:
        return None
    return max(tasks, key=lambda name: max(r.created for r in tasks[name].final.values()))


def _with_selected(
    store: Store, tasks: Mapping[str, TaskEvaluations], run_ids: Sequence[int]
) -> dict[str, TaskEvaluations]:
    """Return the tasks with each run's evaluation at its chosen step, as large as its last one.

    The evaluation must have none of the prompts that chose the step, as one of all held-out
    problems would, made later.
    """
    summaries = store.metrics.summaries(run_ids)
    steps = {
        run_id: values[SELECTED_STEP]
        for run_id, values in summaries.items()
        if SELECTED_STEP in values
    }
    validated: dict[int | None, set[str]] = {}
    for record in store.evaluations.select(list(steps), ends_only=True, split="validation"):
        validated.setdefault(record.run_id, set()).update(record.prompts)
    chosen = {}
    for name, task in tasks.items():
        selected = {}
        for run_id, step in steps.items():
            for record in task.along.get(run_id, ()):
                is_as_large = record.settings.get("n") == task.final[run_id].settings.get("n")
                is_new = validated.get(run_id, set()).isdisjoint(record.prompts)
                if record.step == step and is_as_large and is_new:
                    selected[run_id] = record
        chosen[name] = replace(task, selected=selected)
    return chosen
