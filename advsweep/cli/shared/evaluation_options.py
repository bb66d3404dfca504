"""What `eval` and `select` share: their options, and the parts that these come to."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from advsweep.cli.shared.output import echo_line

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
    typer.Option("--task", metavar="NAME", help="A task, as `advsweep tasks` lists them."),
]
Samples = Annotated[int | None, typer.Option("--samples", "-n", min=1, help="Samples per problem.")]
Protocol = Annotated[
    str | None,
    typer.Option(
        "--protocol",
        metavar="NAME",
        help="How samples are drawn: standard, greedy, avg32, sharpened_256 or plain_256.",
    ),
]
Fields = Annotated[
    list[str] | None,
    typer.Option(
        "-o",
        "--option",
        metavar="KEY=VALUE",
        help="A field of the evaluation, the task, the generation or the model, looked for in "
        "this order (temperature=0.6, data=~/gsm8k, max_tokens=2048, dtype=bfloat16), or with "
        "its group: task.seed=1, backend.evaluation_batch=8; or what samples, generation=vllm or "
        "transformers; may be repeated.",
    ),
]

_CHOICES = ("generation", "backend")
_OF_MODELS = ("generation", "model", "backend")


@dataclass(frozen=True)
class Asked:
    """What the options come to.

    Attributes:
        nodes: the config of each part.
        samples_with: the generations that may sample, the first choice first; none: as the run
            itself does.
    """

    nodes: Plain
    samples_with: tuple[type[Generation], ...]

    def task(self) -> Task:
        """The task; not checked yet."""
        from advsweep.tasks import TASKS

        return TASKS.build(self.nodes["task"], where="task")

    def settings(self) -> EvaluationSettings:
        """How samples are drawn."""
        from advsweep.backends import EVALUATIONS

        return EVALUATIONS.build(self.nodes["evaluation"], where="evaluation")

    def weights(self) -> EvaluationSubject:
        """The model, as its backend evaluates it."""
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
        """What may sample, the first choice first; each with what is given of its fields."""
        node = self.nodes["generation"]
        return [
            generation.build(
                {f.name: node[f.name] for f in dataclasses.fields(generation) if f.name in node},
                where="generation",
            )
            for generation in self.samples_with
        ]


def asked(
    *,
    model: str | None,
    task: str | None,
    protocol: str | None,
    samples: int | None,
    fields: Sequence[str],
    config_dirs: Sequence[Path],
    own: Mapping[str, Any] | None = None,
) -> Asked:
    """The parts that the options name; what they leave out is as a run's, or a default.

    Where the largest k of pass@k is not given and above the samples, it is their number.

    Args:
        own: the config of the run whose weights are meant; None for a model.

    Raises:
        ConfigError: an option means nothing, or has several values.
    """
    from advsweep.backends import BACKENDS, GENERATIONS
    from advsweep.config.compose import check_literal, patch
    from advsweep.config.settings import Generation
    from advsweep.errors import ConfigError
    from advsweep.sweep.planning.plan import with_fitting_k
    from advsweep.sweep.registry import config_groups

    overrides = _one_value_each(fields)
    chosen = {o.key: o.values[0] for o in overrides if o.key in _CHOICES}
    backend = BACKENDS.get(own["backend"]["name"] if own else chosen.get("backend", "trl"))
    samples_with = backend.samples_with()
    if "generation" in chosen:
        if own is not None and not samples_with:
            raise ConfigError(
                f"generation={chosen['generation']}: backend '{backend.name}' has one way to "
                f"sample from its weights; leave it out"
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
        kept = {g: (own or {})[g] for g in ("task", "evaluation") if own and g not in choices}
        for group, node in kept.items():
            check_literal(node, f"{group} of the run")
        nodes = {**composition.config, **kept}
        values = {_placed(o, nodes): o.values[0] for o in overrides if o.key not in _CHOICES}
        given = [key for key in (*chosen, *values) if key != "generation"]
        if own is not None and (foreign := [k for k in given if _is_of_run(k, samples_with)]):
            raise ConfigError(
                f"{foreign[0]}: expected a field of the evaluation or the task, as a run has its "
                f"own model and generation"
            )
        if model is not None:
            values["model.path"] = model
        if samples is not None:
            values["evaluation.n"] = samples
        nodes = patch(groups, dataclasses.replace(composition, config=nodes), values)
    if "evaluation.n" in values and "evaluation.k" not in values:
        nodes["evaluation"], _ = with_fitting_k(nodes["evaluation"])
    return Asked(nodes, samples_with)


def _one_value_each(texts: Sequence[str]) -> list[Override]:
    from advsweep.config.overrides import parse_overrides
    from advsweep.errors import ConfigError

    overrides = parse_overrides(texts)
    for override in overrides:
        if override.swept or override.deleted:
            raise ConfigError(f"{override.text}: expected KEY=VALUE with one value")
    return overrides


def _placed(override: Override, nodes: Mapping[str, Any]) -> str:
    """The key with its group."""
    from advsweep.errors import ConfigError, UnknownNameError, nearest
    from advsweep.sweep.registry import GROUPS

    groups = ("evaluation", "task", *_OF_MODELS)
    head, *rest = override.key.split(".")
    if head in groups:
        if not rest or rest == ["name"]:
            raise ConfigError(f"{override.text}: expected {head}.FIELD=VALUE; choose by --{head}")
        return override.key
    known: set[str] = set()
    for group in groups:
        fields = dataclasses.fields(GROUPS[group].get(nodes[group]["name"]))
        names = [field.name for field in fields if field.init]
        if head in names:
            return f"{group}.{override.key}"
        known.update(names)
    raise UnknownNameError(
        f"{override.text}: neither the evaluation nor the task, the generation, the model or the "
        f"backend has a field '{head}'; {nearest(head, known)}"
    )


def _is_of_run(key: str, samples_with: Sequence[type[Generation]]) -> bool:
    """Whether a run has it already; how a generation computes may be another each time."""
    from advsweep.components import option_of

    group, *rest = key.split(".")
    if group == "generation" and samples_with:
        fields = {field.name: field for field in dataclasses.fields(samples_with[0])}
        return rest[0] not in fields or option_of(fields[rest[0]]).identity
    return group in _OF_MODELS


def say_change(why: str) -> None:
    """Says that another way of sampling is tried, and why."""
    echo_line(f"{why}; trying that", err=True)


@contextmanager
def shown_progress(what: str) -> Iterator[Callable[[int, int], None]]:
    """How far an evaluation is, on stderr: a bar on a terminal, otherwise a line per piece."""
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import Progress

    from advsweep.printable import printable_line

    console = Console(stderr=True)
    if not sys.stderr.isatty():
        yield lambda done, total: echo_line(f"{what}: {done}/{total} problems", err=True)
        return
    with Progress(console=console, transient=True) as bar:
        task = bar.add_task(escape(printable_line(what)))
        yield lambda done, total: bar.update(task, completed=done, total=total)
