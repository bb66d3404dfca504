"""What `advsweep eval` and `select` are asked to evaluate: model, task, sampler, settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from advsweep.backends import BACKENDS, EVALUATIONS, GENERATIONS, MODELS
from advsweep.cli.output import echo_line
from advsweep.components import fields_of, option_of
from advsweep.config.compose import check_literal, patch
from advsweep.config.overrides import parse_assignments
from advsweep.config.settings import EvaluationSettings, Generation
from advsweep.errors import ConfigError
from advsweep.evaluation.standalone import (
    EvaluationSubject,
    model_subject,
)
from advsweep.sweep.planning.plan import with_fitting_k
from advsweep.sweep.registry import config_groups
from advsweep.tasks import TASKS
from advsweep.tasks.base import Task

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


def say_change(reason: str) -> None:
    """Print why an evaluation cannot go on as it was, and that another way is tried."""
    echo_line(f"{reason}; trying that", err=True)
