"""`advsweep eval` and `select`: evaluate a model or the weights of runs; levels of problems."""

from __future__ import annotations

import dataclasses
import functools
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from advsweep.cli import options
from advsweep.cli.options import RecordFormat
from advsweep.cli.output import echo_line, print_json, progress_bar
from advsweep.errors import ConfigError, UnknownNameError, counted, nearest

if TYPE_CHECKING:
    from advsweep.components import Plain
    from advsweep.config.settings import EvaluationSettings, Generation
    from advsweep.evaluation.standalone import EvaluationSubject
    from advsweep.store import EvaluationRecord
    from advsweep.tasks.base import Task

TaskName = Annotated[
    str | None,
    typer.Option("--task", metavar="NAME", help="A task, as `advsweep list tasks` lists them."),
]
Samples = Annotated[
    int | None, typer.Option("--samples", "-n", min=1, metavar="N", help="Samples per problem.")
]
Fields = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Set a field of the evaluation, task, generation or model, searched in this order "
        "(temperature=0.6, data=~/gsm8k, max_tokens=2048, dtype=bfloat16); or name its group: "
        "task.seed=1, backend.evaluation_batch=8; or choose the sampler, generation=vllm or "
        "transformers, or the protocol, evaluation=standard, greedy, avg32, sharpened_256 or "
        "plain_256; may be repeated.",
    ),
]

_CHOICES = ("generation", "backend", "evaluation")
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
        """Build the task without checking it.

        Args:
            seed: that of the run to evaluate; None for a model.
        """
        from advsweep.tasks import TASKS

        task = TASKS.build(self.nodes["task"], where="task")
        return task if seed is None else task.for_seed(seed)

    def settings(self) -> EvaluationSettings:
        """Build the sampling settings."""
        from advsweep.backends import EVALUATIONS

        return EVALUATIONS.build(self.nodes["evaluation"], where="evaluation")

    def subject(self) -> EvaluationSubject:
        """Build the model as its backend evaluates it."""
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
        """Build the generations that may sample, in order of preference."""
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
    from advsweep.backends import BACKENDS, GENERATIONS
    from advsweep.config.compose import check_literal, patch
    from advsweep.config.overrides import parse_assignments
    from advsweep.config.settings import Generation
    from advsweep.sweep.planning.plan import with_fitting_k
    from advsweep.sweep.registry import config_groups

    assigned = parse_assignments(fields)
    chosen = {key: value for key, value in assigned.items() if key in _CHOICES}
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
        values = {
            _qualified_key(key, nodes): value
            for key, value in assigned.items()
            if key not in _CHOICES
        }
        given = [key for key in (*chosen, *values) if key not in ("generation", "evaluation")]
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


def _qualified_key(key: str, nodes: Mapping[str, Any]) -> str:
    """Return the key with its group, such as evaluation.temperature."""
    from advsweep.sweep.registry import GROUPS

    groups = ("evaluation", "task", *_OF_MODELS)
    head, *rest = key.split(".")
    if head in groups:
        if not rest or rest == ["name"]:
            raise ConfigError(
                f"{key}: expected {head}.FIELD=VALUE; select the {head} with --{head}"
            )
        return key
    known: set[str] = set()
    for group in groups:
        fields = dataclasses.fields(GROUPS[group].get(nodes[group]["name"]))
        names = [field.name for field in fields if field.init]
        if head in names:
            return f"{group}.{key}"
        known.update(names)
    raise UnknownNameError(
        f"{key}: the evaluation, task, generation, model and backend have no field "
        f"'{head}'; {nearest(head, known)}"
    )


def _belongs_to_run(key: str, samples_with: Sequence[type[Generation]]) -> bool:
    """Return whether the run's config fixes a field.

    Fields of a generation that cannot change its results, such as memory limits, stay free.
    """
    from advsweep.components import option_of

    group, *rest = key.split(".")
    if group == "generation" and samples_with:
        fields = {field.name: field for field in dataclasses.fields(samples_with[0])}
        return rest[0] not in fields or option_of(fields[rest[0]]).identity
    return group in _OF_MODELS


def print_change(reason: str) -> None:
    """Report that the evaluation changes to another sampler."""
    echo_line(f"{reason}; trying that", err=True)


@contextmanager
def evaluation_progress(what: str) -> Iterator[Callable[[int, int], None]]:
    """Show the progress of an evaluation on stderr: a bar on a terminal, else lines."""
    if not sys.stderr.isatty():
        yield lambda done, total: echo_line(f"{what}: {done}/{total} problems", err=True)
        return
    with progress_bar(what) as update:
        yield update


# eval


def evaluate(
    targets: options.OptionalTargets = None,
    model: str | None = None,
    task: TaskName = None,
    samples: Samples = None,
    fields: Fields = None,
    step: int | None = None,
    config_dirs: options.ConfigDir = None,
    run_code: options.RunCode = False,
    store: options.Store = None,
    how: options.Record = RecordFormat.TEXT,
) -> None:
    """Samples answers to the held-out problems of the task and prints pass@k. The store keeps the
    counts. An evaluation that exists is printed and not repeated; an interrupted one resumes. The
    task and settings of a run default to those of its training.

    Options:
        --model PATH_OR_ID: A folder that transformers loads, or a hub's name, in place of
            runs.
        --step N >= 0: Use a run's weights after this step (default: last).

    Examples:
        advsweep eval last
        advsweep eval demo --task routes -n 64
        advsweep eval --model Qwen/Qwen2.5-0.5B --task gsm8k -n 8
    """
    from advsweep.backends.build import build_run
    from advsweep.cli import runs
    from advsweep.cli.runs import find_targets
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
        parse_request,
        task=task,
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
            todo.append(
                (title, weights, problems, dataclasses.replace(request.settings(), select_on=kept))
            )
        done = []
        for title, weights, task_, settings in todo:
            with evaluation_progress(title) as on_progress:
                evaluation = evaluate_subject(
                    opened,
                    weights,
                    task_,
                    settings,
                    on_progress=on_progress,
                    on_change=print_change,
                )
            done.append(evaluation)
            if how is RecordFormat.TEXT:
                runs.print_evaluation(evaluation, f"{title}: ", settings.k)
    if how is RecordFormat.JSON:
        print_json([runs.evaluation_record(evaluation) for evaluation in done])


# select


def select(
    model: str,
    task: str,
    output: Path,
    samples: Samples = None,
    fields: Fields = None,
    config_dirs: options.ConfigDir = None,
    run_code: options.RunCode = False,
    store: options.Store = None,
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
    from advsweep.evaluation.standalone import evaluate_subject
    from advsweep.store import open_store
    from advsweep.tasks.base import Split

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
    weights, problems, settings = request.subject(), request.task(), request.settings()
    with (
        closing(open_store(store)) as opened,
        evaluation_progress(model) as on_progress,
    ):
        evaluation = evaluate_subject(
            opened,
            weights,
            problems,
            settings,
            split=Split.TRAIN,
            on_progress=on_progress,
            on_change=print_change,
        )
    rows = _rows(evaluation)
    _write(output, rows)
    levels = Counter(row["level"] for row in rows)
    left_out = len(evaluation.problem_ids) - len(rows)
    counts = {str(level): levels[level] for level in sorted(levels)}
    echo_line(f"{output}: " + ", ".join(f"{n} of level {level}" for level, n in counts.items()))
    if left_out:
        echo_line(f"Skipped {counted(left_out, 'problem')} without a scorable answer.", err=True)


def _rows(evaluation: EvaluationRecord) -> list[dict[str, Any]]:
    """Return a row for each problem with at least one scorable answer."""
    from advsweep.evaluation.evaluate import solve_rate_levels

    scored = evaluation.n > 0
    n, c = evaluation.n[scored], evaluation.c[scored]
    ids = [name for name, use in zip(evaluation.problem_ids, scored, strict=True) if use]
    levels = solve_rate_levels(c / n)
    return [
        {"id": name, "level": level, "n": of, "c": correct}
        for name, level, of, correct in zip(
            ids, levels.tolist(), n.tolist(), c.tolist(), strict=True
        )
    ]


def _write(out: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Write the file atomically."""

    part = out.with_name(f"{out.name}.part")
    try:
        part.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
        part.replace(out)
    except OSError as error:
        raise ConfigError(
            f"--output: expected a writable file, got '{out}': {error.strerror}"
        ) from error
