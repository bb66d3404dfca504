"""`advsweep eval`: evaluate a model or the weights of runs."""

from __future__ import annotations

import dataclasses
from contextlib import closing
from typing import Annotated, NamedTuple

import typer

from advsweep.cli import consent, options, runs
from advsweep.cli.evaluation import EvaluationOptions, EvaluationRequest, parse_request, say_change
from advsweep.cli.output import print_json, progress_bar
from advsweep.components import identity_of
from advsweep.config.settings import EvaluationSettings
from advsweep.errors import ConfigError
from advsweep.evaluation.standalone import EvaluationSubject, evaluate_subject, run_subject
from advsweep.store import RunRecord, Store, open_store
from advsweep.sweep.planning.resume import trained_run
from advsweep.tasks.base import Task

EXAMPLES = (
    "advsweep eval last",
    "advsweep eval demo --task routes -n 64",
    "advsweep eval --model Qwen/Qwen2.5-0.5B --task gsm8k -n 8",
)


def eval_(
    targets: options.OptionalTargets = None,
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            metavar="PATH_OR_ID",
            help="A folder that transformers loads, or a hub's name, in place of runs.",
        ),
    ] = None,
    task: Annotated[
        str | None,
        typer.Option(
            "--task",
            metavar="NAME",
            help="A task, as `advsweep list tasks` lists them.",
        ),
    ] = None,
    samples: options.Samples = None,
    fields: options.EvaluationFields = None,
    step: Annotated[
        int | None,
        typer.Option(
            "--step",
            metavar="N",
            min=0,
            help="Use a run's weights after this step (default: last).",
        ),
    ] = None,
    config_dirs: options.ConfigDirs = None,
    run_code: options.RunCode = False,
    store: options.Store = None,
    output_format: options.RecordFormat = "text",
) -> None:
    """Evaluate a model, or the weights of runs, on a task.

    Samples answers to the held-out problems of the task and prints pass@k. The store keeps the
    counts. An evaluation that exists is printed and not repeated; an interrupted one resumes. The
    task and settings of a run default to those of its training.
    """
    consent.allow_programs(run_code)
    if (model is None) == (not targets):
        raise ConfigError("expected either a run or a sweep, or --model PATH_OR_ID")
    if model is not None and task is None:
        raise ConfigError("expected --task NAME with --model; `advsweep list tasks` lists them")
    if model is not None and step is not None:
        raise ConfigError("--step: valid only with a run; a model has no steps")
    described = EvaluationOptions(task, samples, fields or [], config_dirs or [])
    todo: list[_Evaluation] = []
    if model is not None:  # check the model before creating a store
        request = parse_request(described, model=model)
        assert request.subject is not None
        todo.append(_Evaluation(model, request.subject, request.task, request.settings))
    with closing(open_store(store, create=model is not None)) as opened:
        for record in runs.find_targets(opened, targets or []).runs:
            request = parse_request(described, run_config=record.config)
            todo.append(_of_run(opened, record, request, step))
        done = []
        for each in todo:
            with progress_bar(each.title, lines="problems") as show:
                evaluation = evaluate_subject(
                    opened,
                    each.subject,
                    each.task,
                    each.settings,
                    on_progress=show,
                    on_change=say_change,
                )
            done.append(evaluation)
            if output_format == "text":
                runs.print_evaluation(evaluation, f"{each.title}: ", each.settings.k)
    if output_format == "json":
        print_json([runs.evaluation_record(evaluation) for evaluation in done])


class _Evaluation(NamedTuple):
    """Weights, the problems that they answer, and how."""

    title: str
    subject: EvaluationSubject
    task: Task
    settings: EvaluationSettings


def _of_run(
    store: Store, record: RunRecord, request: EvaluationRequest, step: int | None
) -> _Evaluation:
    """Return the evaluation of a run's weights after a step (default: the last)."""
    last = record.step if step is None else step
    run = trained_run(record, store)
    problems = request.task.for_seed(run.seed)
    # The validation problems of the run, on which its step may be chosen, stay out.
    is_of_training = identity_of(problems) == identity_of(run.task)
    select_on = run.evaluation.select_on if is_of_training else None
    return _Evaluation(
        title=f"run {record.id} after step {last}",
        subject=run_subject(run, record, last, request.generations),
        task=problems,
        settings=dataclasses.replace(request.settings, select_on=select_on),
    )
