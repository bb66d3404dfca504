"""`advsweep eval`: counts correct answers of a model, or of a run's weights, to any task."""

from __future__ import annotations

import functools
from contextlib import closing
from typing import TYPE_CHECKING, Annotated

import typer

from advsweep.cli import evaluating, options
from advsweep.cli.options import RecordFormat

if TYPE_CHECKING:
    from advsweep.config.settings import EvaluationSettings
    from advsweep.sweep.asked import Weights
    from advsweep.tasks.base import Task


def evaluate(
    targets: options.OptionalTargets = None,
    model: evaluating.ModelPath = None,
    task: evaluating.TaskName = None,
    samples: evaluating.Samples = None,
    protocol: evaluating.Protocol = None,
    fields: evaluating.Fields = None,
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
    from advsweep.backends.run import build_run
    from advsweep.cli import records
    from advsweep.cli.output import print_json
    from advsweep.cli.targets import find_targets
    from advsweep.errors import ConfigError
    from advsweep.store import open_store
    from advsweep.sweep.asked import evaluate_weights, weights_of_run

    options.give_consent(run_code, run_code_as_root)
    if (model is None) == (not targets):
        raise ConfigError("expected a run or a sweep, or else --model PATH_OR_ID")
    if model is not None and task is None:
        raise ConfigError("expected --task NAME with --model; `advsweep tasks` lists them")
    if model is not None and step is not None:
        raise ConfigError("--step: expected it with a run; a model has no steps")
    ask = functools.partial(
        evaluating.asked,
        task=task,
        protocol=protocol,
        samples=samples,
        fields=fields or [],
        config_dirs=config_dirs or [],
    )
    todo: list[tuple[str, Weights, Task, EvaluationSettings]] = []
    if model is not None:  # which is looked at before a store is made
        asked = ask(model=model)
        todo.append((model, asked.weights(), asked.task(), asked.settings()))
    with closing(open_store(store, create=model is not None)) as opened:
        for record in find_targets(opened, targets or []).runs:
            asked = ask(model=None, own=record.config)
            last = record.step if step is None else step
            run = build_run(record.config)
            weights = weights_of_run(run, record, last, asked.generations())
            title = f"run {record.id} after step {last}"
            todo.append((title, weights, asked.task(), asked.settings()))
        done = []
        for title, weights, task_, settings in todo:
            with evaluating.shown_progress(title) as on_progress:
                evaluation = evaluate_weights(
                    opened,
                    weights,
                    task_,
                    settings,
                    on_progress=on_progress,
                    on_change=evaluating.say_change,
                )
            done.append(evaluation)
            if output is RecordFormat.TEXT:
                records.print_evaluation(evaluation, f"{title}: ", settings.k)
    if output is RecordFormat.JSON:
        print_json([records.evaluation_record(evaluation) for evaluation in done])
