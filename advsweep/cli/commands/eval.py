"""`advsweep eval`: evaluate a model or the weights of runs on a task."""

from __future__ import annotations

import functools
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from advsweep.cli import evaluation_options, options
from advsweep.cli.options import RecordFormat

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
        typer.Option("--step", min=0, help="Use a run's weights after this step (default: last)."),
    ] = None,
    config_dirs: options.ConfigDir = None,
    run_code: options.RunCode = False,
    store: options.Store = None,
    output: options.Record = RecordFormat.TEXT,
) -> None:
    """Samples answers to the held-out problems of the task and prints pass@k. The store keeps the
    counts. An evaluation that exists is printed and not repeated; an interrupted one resumes. The
    task and settings of a run default to those of its training.

    Examples:
        advsweep eval last
        advsweep eval demo --task routes -n 64
        advsweep eval --model Qwen/Qwen2.5-0.5B --task gsm8k -n 8
    """
    from advsweep.backends.build import build_run
    from advsweep.cli import runs
    from advsweep.cli.output import print_json
    from advsweep.cli.runs import find_targets
    from advsweep.errors import ConfigError
    from advsweep.evaluation.standalone import evaluate_subject, run_subject
    from advsweep.store import open_store

    options.give_consent(run_code)
    if (model is None) == (not targets):
        raise ConfigError("expected either a run or a sweep, or --model PATH_OR_ID")
    if model is not None and task is None:
        raise ConfigError("expected --task NAME with --model; `advsweep list tasks` lists them")
    if model is not None and step is not None:
        raise ConfigError("--step: valid only with a run; a model has no steps")
    parse = functools.partial(
        evaluation_options.parse_request,
        task=task,
        protocol=protocol,
        samples=samples,
        fields=fields or [],
        config_dirs=config_dirs or [],
    )
    todo: list[tuple[str, EvaluationSubject, Task, EvaluationSettings]] = []
    if model is not None:  # check the model before creating a store
        request = parse(model=model)
        todo.append((model, request.subject(), request.task(), request.settings()))
    with closing(open_store(store, create=model is not None)) as opened:
        for record in find_targets(opened, targets or []).runs:
            request = parse(model=None, run_config=record.config)
            last = record.step if step is None else step
            run = build_run(record.config)
            weights = run_subject(run, record, last, request.generations())
            title = f"run {record.id} after step {last}"
            problems = request.task(run.seed)
            # The validation problems of the run, on which its step may be chosen, stay out.
            is_own = problems.identity() == run.task.identity()
            kept = run.evaluation.select_on if is_own else None
            todo.append((title, weights, problems, replace(request.settings(), select_on=kept)))
        done = []
        for title, weights, task_, settings in todo:
            with evaluation_options.evaluation_progress(title) as on_progress:
                evaluation = evaluate_subject(
                    opened,
                    weights,
                    task_,
                    settings,
                    on_progress=on_progress,
                    on_change=evaluation_options.print_change,
                )
            done.append(evaluation)
            if output is RecordFormat.TEXT:
                runs.print_evaluation(evaluation, f"{title}: ", settings.k)
    if output is RecordFormat.JSON:
        print_json([runs.evaluation_record(evaluation) for evaluation in done])
