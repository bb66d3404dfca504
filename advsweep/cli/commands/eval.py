"""`advsweep eval`: counts correct answers of a model, or of a run's weights, to any task."""

from __future__ import annotations

import functools
from contextlib import closing
from typing import TYPE_CHECKING, Annotated

import typer

from advsweep.cli.shared import evaluation_options, options
from advsweep.cli.shared.options import RecordFormat

if TYPE_CHECKING:
    from advsweep.config.settings import EvaluationSettings
    from advsweep.evaluation.standalone import EvaluationSubject
    from advsweep.tasks.base import Task


def evaluate(
    targets: options.OptionalTargets = None,
    model: evaluation_options.ModelPath = None,
    task: evaluation_options.TaskName = None,
    samples: evaluation_options.Samples = None,
    protocol: evaluation_options.Protocol = None,
    fields: evaluation_options.Fields = None,
    step: Annotated[
        int | None,
        typer.Option("--step", min=0, help="A run's weights after this step (default: last)."),
    ] = None,
    config_dirs: options.ConfigDir = None,
    run_code: options.RunCode = False,
    run_code_as_root: options.RunCodeAsRoot = False,
    store: options.Store = None,
    output: options.Record = RecordFormat.TEXT,
) -> None:
    """Evaluate a model, or the weights of runs, on the held-out problems of a task.

    Counts go into the store, each evaluation once: one that is there is printed. One that was
    interrupted goes on where it was. A run's task and settings are its own unless others are
    given; nothing is trained.
    """
    from advsweep.backends.build import build_run
    from advsweep.cli.shared import run_record
    from advsweep.cli.shared.output import print_json
    from advsweep.cli.shared.targets import find_targets
    from advsweep.errors import ConfigError
    from advsweep.evaluation.standalone import evaluate_subject, run_subject
    from advsweep.store import open_store

    options.give_consent(run_code, run_code_as_root)
    if (model is None) == (not targets):
        raise ConfigError("expected a run or a sweep, or else --model PATH_OR_ID")
    if model is not None and task is None:
        raise ConfigError("expected --task NAME with --model; `advsweep tasks` lists them")
    if model is not None and step is not None:
        raise ConfigError("--step: expected it with a run; a model has no steps")
    ask = functools.partial(
        evaluation_options.asked,
        task=task,
        protocol=protocol,
        samples=samples,
        fields=fields or [],
        config_dirs=config_dirs or [],
    )
    todo: list[tuple[str, EvaluationSubject, Task, EvaluationSettings]] = []
    if model is not None:  # which is looked at before a store is made
        asked = ask(model=model)
        todo.append((model, asked.weights(), asked.task(), asked.settings()))
    with closing(open_store(store, create=model is not None)) as opened:
        for record in find_targets(opened, targets or []).runs:
            asked = ask(model=None, own=record.config)
            last = record.step if step is None else step
            run = build_run(record.config)
            weights = run_subject(run, record, last, asked.generations())
            title = f"run {record.id} after step {last}"
            todo.append((title, weights, asked.task(), asked.settings()))
        done = []
        for title, weights, task_, settings in todo:
            with evaluation_options.shown_progress(title) as on_progress:
                evaluation = evaluate_subject(
                    opened,
                    weights,
                    task_,
                    settings,
                    on_progress=on_progress,
                    on_change=evaluation_options.say_change,
                )
            done.append(evaluation)
            if output is RecordFormat.TEXT:
                run_record.print_evaluation(evaluation, f"{title}: ", settings.k)
    if output is RecordFormat.JSON:
        print_json([run_record.evaluation_record(evaluation) for evaluation in done])
