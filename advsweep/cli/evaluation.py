"""`advsweep eval` and `select`: evaluate a model or the weights of runs; levels of problems."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

from advsweep.backends import BACKENDS, EVALUATIONS, GENERATIONS, MODELS
from advsweep.cli import options, runs
from advsweep.cli.output import echo_line, print_json, progress_bar
from advsweep.components import fields_of, identity_of, option_of
from advsweep.config.compose import check_literal, patch
from advsweep.config.overrides import parse_assignments
from advsweep.config.settings import EvaluationSettings, Generation
from advsweep.errors import ConfigError, counted
from advsweep.evaluation.evaluate import solve_rate_levels
from advsweep.evaluation.standalone import (
    EvaluationSubject,
    evaluate_subject,
    model_subject,
    run_subject,
)
from advsweep.local_files import replace_file
from advsweep.store import open_store
from advsweep.sweep.planning.plan import with_fitting_k
from advsweep.sweep.planning.resume import trained_run
from advsweep.sweep.registry import config_groups
from advsweep.tasks import TASKS
from advsweep.tasks.base import Split, Task
from advsweep.writing import plain_value

_OF_MODELS = ("generation", "model", "backend")


class EvaluationRequest(NamedTuple):
    """The evaluation that the options describe.

    Attributes:
        task: not checked.
        generations: those that may sample, in order of preference; empty if the backend samples
            by itself.
        subject: the model as its backend evaluates it; None for a run.
    """

    task: Task
    settings: EvaluationSettings
    generations: list[Generation]
    subject: EvaluationSubject | None


def parse_request(
    *,
    model: str | None,
    task: str | None,
    samples: int | None,
    fields: Sequence[str],
    config_dirs: Sequence[Path],
    run_config: Mapping[str, Any] | None = None,
) -> EvaluationRequest:
    """Build the request; omitted options come from the run's config or from defaults.

    If k of pass@k is not given, values above the number of samples are lowered to it.

    Args:
        run_config: the config of the run to evaluate; None for a model.

    Raises:
        ConfigError: an option is unknown, does not apply, or has several values.
    """

    given = parse_assignments(fields)
    name = run_config["backend"]["name"] if run_config else given.get("backend", "trl")
    backend = BACKENDS.get(name)
    if backend.external:
        raise ConfigError(
            f"backend: advsweep cannot sample from the weights of a run of '{backend.name}', which "
            f"belong to its program; evaluate them with it, or a folder that transformers loads "
            f"with --model"
        )
    samples_with = backend.samples_with()
    if chosen := given.get("generation"):
        if run_config is not None and not samples_with:
            raise ConfigError(
                f"generation={chosen}: backend '{backend.name}' has a single sampler; omit it"
            )
        samples_with = (GENERATIONS.get(chosen),)
    for key in given:
        group = key.partition(".")[0]
        if group not in ("evaluation", "task", *_OF_MODELS) or key == "task":
            raise ConfigError(
                f"{key}: expected a key of evaluation, task, generation, model or backend, such as "
                "evaluation.temperature; --task selects the task"
            )
        is_fixed = group in _OF_MODELS
        if group == "generation" and samples_with:
            # The choice of a sampler, and fields that cannot change its results, such as memory
            # limits, stay free.
            known, field = fields_of(samples_with[0]), key.partition(".")[2]
            is_fixed = bool(field) and (field not in known or option_of(known[field]).identity)
        if run_config is not None and is_fixed:
            raise ConfigError(
                f"{key}: expected a field of the evaluation or the task; the model and the "
                "generation of a run are fixed"
            )
    options_given = {"task": task, "model.path": model, "evaluation.n": samples}
    given |= {key: value for key, value in options_given.items() if value is not None}
    given["generation"] = samples_with[0].name if samples_with else Generation.name
    with config_groups(config_dirs) as groups:
        choices = {"model": "hf", "backend": "trl"}
        choices |= {k: groups.member(k, value) for k, value in given.items() if "." not in k}
        values = {key: value for key, value in given.items() if "." in key}
        for key in values:
            groups.check_key(key)
        config = dict(groups.compose(choices))
        for group in ("task", "evaluation"):
            if run_config is not None and group not in choices:
                check_literal(run_config[group], f"{group} of the run")
                config[group] = run_config[group]
        nodes = patch(groups, config, values)
    if "evaluation.n" in values and "evaluation.k" not in values:
        nodes["evaluation"], _ = with_fitting_k(nodes["evaluation"])
    generations = [
        cls.build(
            {k: v for k, v in nodes["generation"].items() if k in fields_of(cls)},
            where="generation",
        )
        for cls in samples_with
    ]
    subject = None
    if run_config is None:
        built = BACKENDS.build(nodes["backend"], where="backend")
        path_or_id = nodes["model"]["path"]
        subject = model_subject(
            built, MODELS.build(nodes["model"], where="model"), generations, path_or_id
        )
    task_built = TASKS.build(nodes["task"], where="task")
    if subject is not None and not task_built.is_text:
        raise ConfigError(
            f"--task: expected problems that a language model can read, got '{task_built.name}', "
            "a table of rewards; `advsweep list tasks` has others"
        )
    return EvaluationRequest(
        task=task_built,
        settings=EVALUATIONS.build(nodes["evaluation"], where="evaluation"),
        generations=generations,
        subject=subject,
    )


def _say_change(reason: str) -> None:
    echo_line(f"{reason}; trying that", err=True)


# eval


def evaluate(
    targets: list[str] | None = None,
    model: str | None = None,
    task: str | None = None,
    samples: int | None = None,
    fields: list[str] | None = None,
    step: int | None = None,
    config_dirs: list[Path] | None = None,
    run_code: bool = False,
    store: str | None = None,
    how: options.RecordFormat = "text",
) -> None:
    """Samples answers to the held-out problems of the task and prints pass@k. The store keeps the
    counts. An evaluation that exists is printed and not repeated; an interrupted one resumes. The
    task and settings of a run default to those of its training.

    Arguments:
        [RUN...|SWEEP] (targets): Runs (ids, starts of identities, 'last'), or a sweep for all its
            runs.

    Options:
        --model PATH_OR_ID: A folder that transformers loads, or a hub's name, in place of
            runs.
        --task NAME: A task, as `advsweep list tasks` lists them.
        --step N >= 0: Use a run's weights after this step (default: last).

    Examples:
        advsweep eval last
        advsweep eval demo --task routes -n 64
        advsweep eval --model Qwen/Qwen2.5-0.5B --task gsm8k -n 8
    """

    options.give_consent(run_code)
    if (model is None) == (not targets):
        raise ConfigError("expected either a run or a sweep, or --model PATH_OR_ID")
    if model is not None and task is None:
        raise ConfigError("expected --task NAME with --model; `advsweep list tasks` lists them")
    if model is not None and step is not None:
        raise ConfigError("--step: valid only with a run; a model has no steps")
    parse = functools.partial(
        parse_request,
        task=task,
        samples=samples,
        fields=fields or [],
        config_dirs=config_dirs or [],
    )
    todo: list[tuple[str, EvaluationSubject, Task, EvaluationSettings]] = []
    if model is not None:  # check the model before creating a store
        request = parse(model=model)
        assert request.subject is not None
        todo.append((model, request.subject, request.task, request.settings))
    with closing(open_store(store, create=model is not None)) as opened:
        for record in runs.find_targets(opened, targets or []).runs:
            request = parse(model=None, run_config=record.config)
            last = record.step if step is None else step
            run = trained_run(record, opened)
            problems = request.task.for_seed(run.seed)
            # The validation problems of the run, on which its step may be chosen, stay out.
            is_own = identity_of(problems) == identity_of(run.task)
            kept = run.evaluation.select_on if is_own else None
            settings = dataclasses.replace(request.settings, select_on=kept)
            weights = run_subject(run, record, last, request.generations)
            todo.append((f"run {record.id} after step {last}", weights, problems, settings))
        done = []
        for title, weights, problems, settings in todo:
            with progress_bar(title, lines="problems") as show:
                evaluation = evaluate_subject(
                    opened, weights, problems, settings, on_progress=show, on_change=_say_change
                )
            done.append(evaluation)
            if how == "text":
                runs.print_evaluation(evaluation, f"{title}: ", settings.k)
    if how == "json":
        print_json([runs.evaluation_record(evaluation) for evaluation in done])


# select


def select(
    model: str,
    task: str,
    output: Path,
    samples: int | None = None,
    fields: list[str] | None = None,
    config_dirs: list[Path] | None = None,
    run_code: bool = False,
    store: str | None = None,
) -> None:
    """Assigns the levels 0 to 6 of AVSPO to the problems of a task: level 0 is solved in at least
    95 % of the samples, level 6 in less than 1 %. The counts are an evaluation, which the store
    keeps and resumes as for `eval`.

    Options:
        --model PATH_OR_ID: The selector: a folder, or a hub's name.
        --task NAME: A task, as `advsweep list tasks` lists them.
        --output, -o FILE: Write JSON lines for task.level_file=FILE.

    Examples:
        advsweep select --model Qwen/Qwen2.5-0.5B --task gsm8k --output levels.jsonl
    """

    options.give_consent(run_code)
    if output.is_dir() or not output.absolute().parent.is_dir():
        raise ConfigError(f"--output: expected a file in an existing folder, got '{output}'")
    request = parse_request(
        model=model,
        task=task,
        samples=samples,
        fields=fields or [],
        config_dirs=config_dirs or [],
    )
    assert request.subject is not None
    with closing(open_store(store)) as opened, progress_bar(model, lines="problems") as show:
        evaluation = evaluate_subject(
            opened,
            request.subject,
            request.task,
            request.settings,
            split=Split.TRAIN,
            on_progress=show,
            on_change=_say_change,
        )
    scored = evaluation.n > 0
    n, c = evaluation.n[scored], evaluation.c[scored]
    ids = [name for name, use in zip(evaluation.problem_ids, scored, strict=True) if use]
    columns = {"id": ids, "level": solve_rate_levels(c / n), "n": n, "c": c}
    table = zip(*(plain_value(column) for column in columns.values()), strict=True)
    rows = [dict(zip(columns, row, strict=True)) for row in table]
    replace_file(output, "".join(f"{json.dumps(row)}\n" for row in rows))
    levels = Counter(row["level"] for row in rows)
    counts = ", ".join(f"{levels[level]} of level {level}" for level in sorted(levels))
    echo_line(f"{output}: {counts}")
    if left_out := len(evaluation.problem_ids) - len(rows):
        echo_line(f"Skipped {counted(left_out, 'problem')} without a scorable answer.", err=True)
