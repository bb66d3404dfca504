"""Options that `eval` and `select` share, and the evaluation that they describe."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from advsweep.cli.output import echo_line, progress_bar

if TYPE_CHECKING:
    from advsweep.components import Plain
    from advsweep.config.overrides import Override
    from advsweep.config.settings import EvaluationSettings, Generation
    from advsweep.evaluation.standalone import EvaluationSubject
    from advsweep.tasks.base import Task

ModelPath = Annotated[
    str | None,
    typer.Option(
        "--model", metavar="PATH_OR_ID", help="A folder that transformers loads, or a hub's name."
    ),
]
TaskName = Annotated[
    str | None,
    typer.Option("--task", metavar="NAME", help="A task, as `advsweep list tasks` lists them."),
]
Samples = Annotated[int | None, typer.Option("--samples", "-n", min=1, help="Samples per problem.")]
Protocol = Annotated[
    str | None,
    typer.Option(
        "--protocol",
        metavar="NAME",
        help="Sample with this protocol: standard, greedy, avg32, sharpened_256 or plain_256.",
    ),
]
Fields = Annotated[
    list[str] | None,
    typer.Option(
        "-o",
        "--option",
        metavar="KEY=VALUE",
        help="Set a field of the evaluation, task, generation or model, searched in this order "
        "(temperature=0.6, data=~/gsm8k, max_tokens=2048, dtype=bfloat16); or name its group: "
        "task.seed=1, backend.evaluation_batch=8; or choose the sampler: generation=vllm or "
        "transformers; may be repeated.",
    ),
]

_CHOICES = ("generation", "backend")
_OF_MODELS = ("generation", "model", "backend")


@dataclass(frozen=True)
class EvaluationRequest:
    """The evaluation that the options describe.

    Attributes:
        nodes: the config of each part: task, evaluation, generation, model, backend.
        samples_with: generations that may sample, in order of preference; empty if the backend
            samples by itself.
    """

    nodes: Plain
    samples_with: tuple[type[Generation], ...]

    def task(self, seed: int | None = None) -> Task:
        """Builds the task without checking it.

        Args:
            seed: that of the run to evaluate; None for a model.
        """
        from advsweep.tasks import TASKS

        task = TASKS.build(self.nodes["task"], where="task")
        return task if seed is None else task.for_seed(seed)

    def settings(self) -> EvaluationSettings:
        """Builds the sampling settings."""
        from advsweep.backends import EVALUATIONS

        return EVALUATIONS.build(self.nodes["evaluation"], where="evaluation")

    def subject(self) -> EvaluationSubject:
        """Builds the model as its backend evaluates it."""
        from advsweep.backends import BACKENDS, MODELS
        from advsweep.evaluation.standalone import model_subject

        model = MODELS.build(self.nodes["model"], where="model")
        return model_subject(
            BACKENDS.build(self.nodes["backend"], where="backend"),
            model,
            self.generations(),
            self.nodes["model"]["path"],
        )

    def generations(self) -> list[Generation]:
        """Builds the generations that may sample, in order of preference."""
        node = self.nodes["generation"]
        return [
            generation.build(
                {f.name: node[f.name] for f in dataclasses.fields(generation) if f.name in node},
                where="generation",
            )
            for generation in self.samples_with
        ]


def parse_request(
    *,
    model: str | None,
    task: str | None,
    protocol: str | None,
    samples: int | None,
    fields: Sequence[str],
    config_dirs: Sequence[Path],
    run_config: Mapping[str, Any] | None = None,
) -> EvaluationRequest:
    """Builds the request; omitted options come from the run's config or from defaults.

    If k of pass@k is not given, values above the number of samples are lowered to it.

    Args:
        run_config: the config of the run to evaluate; None for a model.

    Raises:
        ConfigError: an option is unknown, does not apply, or has several values.
    """
    from advsweep.backends import BACKENDS, GENERATIONS
    from advsweep.config.compose import check_literal, patch
    from advsweep.config.settings import Generation
    from advsweep.errors import ConfigError
    from advsweep.sweep.planning.plan import with_fitting_k
    from advsweep.sweep.registry import config_groups

    overrides = _one_value_each(fields)
    chosen = {o.key: o.values[0] for o in overrides if o.key in _CHOICES}
    backend = BACKENDS.get(
        run_config["backend"]["name"] if run_config else chosen.get("backend", "trl")
    )
    if backend.external:
        raise ConfigError(
            f"backend: advsweep cannot sample from the weights of a run of '{backend.name}', which "
            f"belong to its program; evaluate them with it, or a folder that transformers loads "
            f"with --model"
        )
    samples_with = backend.samples_with()
    if "generation" in chosen:
        if run_config is not None and not samples_with:
            raise ConfigError(
                f"generation={chosen['generation']}: backend '{backend.name}' has a single "
                "sampler; omit the option"
            )
        samples_with = (GENERATIONS.get(chosen["generation"]),)
    first = samples_with[0].name if samples_with else Generation.name
    choices: Plain = {"model": "hf", "backend": "trl", **chosen, "generation": first}
    if task is not None:
        choices["task"] = task
    if protocol is not None:
        choices["evaluation"] = protocol
    with config_groups(config_dirs) as groups:
        composition = groups.compose({g: groups.member(g, name) for g, name in choices.items()})
        kept = {
            g: (run_config or {})[g]
            for g in ("task", "evaluation")
            if run_config and g not in choices
        }
        for group, node in kept.items():
            check_literal(node, f"{group} of the run")
        nodes = {**composition.config, **kept}
        values = {_qualified_key(o, nodes): o.values[0] for o in overrides if o.key not in _CHOICES}
        given = [key for key in (*chosen, *values) if key != "generation"]
        if run_config is not None and (
            foreign := [k for k in given if _belongs_to_run(k, samples_with)]
        ):
            raise ConfigError(
                f"{foreign[0]}: expected a field of the evaluation or the task; the model and the "
                "generation of a run are fixed"
            )
        if model is not None:
            values["model.path"] = model
        if samples is not None:
            values["evaluation.n"] = samples
        nodes = patch(groups, dataclasses.replace(composition, config=nodes), values)
    if "evaluation.n" in values and "evaluation.k" not in values:
        nodes["evaluation"], _ = with_fitting_k(nodes["evaluation"])
    return EvaluationRequest(nodes, samples_with)


def _one_value_each(texts: Sequence[str]) -> list[Override]:
    from advsweep.config.overrides import parse_overrides
    from advsweep.errors import ConfigError

    overrides = parse_overrides(texts)
    for override in overrides:
        if override.swept or override.deleted:
            raise ConfigError(f"{override.text}: expected KEY=VALUE with one value")
    return overrides


def _qualified_key(override: Override, nodes: Mapping[str, Any]) -> str:
    """Returns the key with its group, such as evaluation.temperature."""
    from advsweep.errors import ConfigError, UnknownNameError, nearest
    from advsweep.sweep.registry import GROUPS

    groups = ("evaluation", "task", *_OF_MODELS)
    head, *rest = override.key.split(".")
    if head in groups:
        if not rest or rest == ["name"]:
            raise ConfigError(
                f"{override.text}: expected {head}.FIELD=VALUE; select the {head} with --{head}"
            )
        return override.key
    known: set[str] = set()
    for group in groups:
        fields = dataclasses.fields(GROUPS[group].get(nodes[group]["name"]))
        names = [field.name for field in fields if field.init]
        if head in names:
            return f"{group}.{override.key}"
        known.update(names)
    raise UnknownNameError(
        f"{override.text}: the evaluation, task, generation, model and backend have no field "
        f"'{head}'; {nearest(head, known)}"
    )


def _belongs_to_run(key: str, samples_with: Sequence[type[Generation]]) -> bool:
    """Returns whether the run's config fixes a field.

    Fields of a generation that cannot change its results, such as memory limits, stay free.
    """
    from advsweep.components import option_of

    group, *rest = key.split(".")
    if group == "generation" and samples_with:
        fields = {field.name: field for field in dataclasses.fields(samples_with[0])}
        return rest[0] not in fields or option_of(fields[rest[0]]).identity
    return group in _OF_MODELS


def print_change(reason: str) -> None:
    """Reports that the evaluation changes to another sampler."""
    echo_line(f"{reason}; trying that", err=True)


@contextmanager
def evaluation_progress(what: str) -> Iterator[Callable[[int, int], None]]:
    """Shows the progress of an evaluation on stderr: a bar on a terminal, else lines."""
    if not sys.stderr.isatty():
        yield lambda done, total: echo_line(f"{what}: {done}/{total} problems", err=True)
        return
    with progress_bar(what) as update:
        yield update
