"""What `advsweep eval` and `select` are asked to evaluate: model, task, sampler, settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from advsweep.backends import BACKENDS, EVALUATIONS, GENERATIONS, MODELS
from advsweep.backends.base import Backend
from advsweep.cli.output import echo_line
from advsweep.components import fields_of, option_of
from advsweep.config.compose import check_literal, patch
from advsweep.config.overrides import parse_assignments
from advsweep.config.settings import EvaluationSettings, Generation
from advsweep.errors import ConfigError
from advsweep.evaluation.standalone import EvaluationSubject, model_subject
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


@dataclass(frozen=True)
class EvaluationOptions:
    """What the options say about an evaluation, of whichever weights.

    Attributes:
        task: None: that of the run.
        samples: of each problem; None: as many as the run or the defaults have.
        fields: assignments such as `evaluation.temperature=0.5`.
    """

    task: str | None
    samples: int | None
    fields: Sequence[str]
    config_dirs: Sequence[Path]


def parse_request(
    options: EvaluationOptions,
    *,
    model: str | None = None,
    run_config: Mapping[str, Any] | None = None,
) -> EvaluationRequest:
    """Build the request; omitted options come from the run's config or from defaults.

    If k of pass@k is not given, values above the number of samples are lowered to it.

    Args:
        model: a folder, or a name on the hub; None for a run.
        run_config: the config of the run to evaluate; None for a model.

    Raises:
        ConfigError: an option is unknown, does not apply, or has several values.
    """
    assignments = parse_assignments(options.fields)
    backend = _backend(
        run_config["backend"]["name"] if run_config else assignments.get("backend", "trl")
    )
    samplers = _samplers(backend, assignments.get("generation"), is_run=run_config is not None)
    for key in assignments:
        _check_key(key, samplers, is_run=run_config is not None)
    values = {"task": options.task, "model.path": model, "evaluation.n": options.samples}
    assignments |= {key: value for key, value in values.items() if value is not None}
    assignments["generation"] = samplers[0].name if samplers else Generation.name
    nodes = _compose(assignments, options.config_dirs, run_config)
    generations = [
        sampler.build(
            {key: v for key, v in nodes["generation"].items() if key in fields_of(sampler)},
            where="generation",
        )
        for sampler in samplers
    ]
    subject = None
    if run_config is None:
        subject = model_subject(
            BACKENDS.build(nodes["backend"], where="backend"),
            MODELS.build(nodes["model"], where="model"),
            generations,
            nodes["model"]["path"],
        )
    built_task = TASKS.build(nodes["task"], where="task")
    if subject is not None and not built_task.is_text:
        raise ConfigError(
            f"--task: expected problems that a language model can read, got '{built_task.name}', "
            "a table of rewards; `advsweep list tasks` has others"
        )
    return EvaluationRequest(
        task=built_task,
        settings=EVALUATIONS.build(nodes["evaluation"], where="evaluation"),
        generations=generations,
        subject=subject,
    )


def _backend(name: str) -> type[Backend]:
    """Return the backend of this name, of whose weights advsweep can sample."""
    backend = BACKENDS.get(name)
    if backend.external:
        raise ConfigError(
            f"backend: advsweep cannot sample from the weights of a run of '{backend.name}', which "
            f"belong to its program; evaluate them with it, or a folder that transformers loads "
            f"with --model"
        )
    return backend


def _samplers(
    backend: type[Backend], chosen: str | None, *, is_run: bool
) -> tuple[type[Generation], ...]:
    """Return the samplers that the backend may use; only the chosen one if there is one."""
    samplers = backend.samples_with()
    if not chosen:
        return samplers
    if is_run and not samplers:
        raise ConfigError(
            f"generation={chosen}: backend '{backend.name}' has a single sampler; omit it"
        )
    return (GENERATIONS.get(chosen),)


def _check_key(key: str, samplers: Sequence[type[Generation]], *, is_run: bool) -> None:
    """Refuse a key that says nothing about the evaluation, or that a run has fixed."""
    group, _, field = key.partition(".")
    if group not in ("evaluation", "task", *_OF_MODELS) or key == "task":
        raise ConfigError(
            f"{key}: expected a key of evaluation, task, generation, model or backend, such as "
            "evaluation.temperature; --task selects the task"
        )
    if is_run and _is_fixed(group, field, samplers):
        raise ConfigError(
            f"{key}: expected a field of the evaluation or the task; the model and the "
            "generation of a run are fixed"
        )


def _is_fixed(group: str, field: str, samplers: Sequence[type[Generation]]) -> bool:
    """Return whether the training of a run has decided a key.

    The choice of a sampler, and fields that cannot change its results, such as memory limits,
    stay free.
    """
    if group != "generation" or not samplers:
        return group in _OF_MODELS
    if not field:
        return False
    fields = fields_of(samplers[0])
    return field not in fields or option_of(fields[field]).identity


def _compose(
    assignments: Mapping[str, Any],
    config_dirs: Sequence[Path],
    run_config: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """Return the config nodes of an evaluation; a run gives its task and settings."""
    values = {key: value for key, value in assignments.items() if "." in key}
    with config_groups(config_dirs) as groups:
        choices = {"model": "hf", "backend": "trl"}
        for key, value in assignments.items():
            if "." not in key:
                choices[key] = groups.member(key, value)
        for key, value in values.items():
            groups.check_key(key)
            values[key] = groups.value(key, value)
        config = dict(groups.compose(choices))
        if run_config is not None:
            for group in ("task", "evaluation"):
                if group not in choices:
                    check_literal(run_config[group], f"{group} of the run")
                    config[group] = run_config[group]
        nodes = patch(groups, config, values)
    if "evaluation.n" in values and "evaluation.k" not in values:
        nodes["evaluation"], _ = with_fitting_k(nodes["evaluation"])
    return nodes


def say_change(reason: str) -> None:
    """Print why an evaluation cannot go on as it was, and that another way is tried."""
    echo_line(f"{reason}; trying that", err=True)
