"""`advsweep samples`: answers that evaluations kept."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import typer

from advsweep.cli import options
from advsweep.cli.completion import complete_run
from advsweep.cli.output import echo, echo_line, print_json
from advsweep.errors import ConfigError, NotFoundError
from advsweep.store import AnswerSample, EvaluationRecord, Store, open_store

EXAMPLES = (
    "advsweep samples last",
    "advsweep samples last --step 0",
    "advsweep samples last --format json",
)


def samples(
    run: Annotated[
        str | None,
        typer.Argument(
            show_default=False,
            metavar="[RUN]",
            autocompletion=complete_run,
            help="A run's id, the start of its identity, or 'last'.",
        ),
    ] = None,
    step: Annotated[
        int | None,
        typer.Option(
            "--step",
            metavar="N",
            min=0,
            help="Show the evaluation after this step; 0 is the base model (default: the last).",
        ),
    ] = None,
    models: Annotated[
        bool,
        typer.Option(
            "--models",
            help="Show those of models evaluated by `advsweep eval --model` instead.",
        ),
    ] = False,
    store: options.Store = None,
    output_format: options.RecordFormat = "text",
) -> None:
    """Show what a model wrote: prompts, answers and verdicts.

    Each evaluation keeps the first answers to at most 8 problems, spread over the levels; a long
    answer loses its middle. Evaluations of the same problems keep answers to the same ones, so
    that the answers before and after training can be compared.
    """
    if models == (run is not None):
        raise ConfigError("expected either a run or --models")
    if models and step is not None:
        raise ConfigError("--step: valid only with a run; a model has no steps")
    opened = open_store(store, create=False)
    other_steps: list[int] = []
    if run is None:
        evaluations: Sequence[EvaluationRecord] = opened.evaluations.of_models()
    else:
        evaluations, other_steps = _evaluations_of(opened, opened.runs.find(run).id, step)
    kept = opened.evaluations.samples([e.identity for e in evaluations])
    if output_format == "json":
        print_json([_record(e, kept.get(e.identity, [])) for e in evaluations])
        return
    for evaluation in evaluations:
        _print_samples(evaluation, kept.get(evaluation.identity, []))
    if other_steps:
        echo(f"--step shows other evaluations: {', '.join(map(str, other_steps))}", err=True)


def _evaluations_of(
    store: Store, run_id: int, step: int | None
) -> tuple[list[EvaluationRecord], list[int]]:
    """Return the evaluations after a step (default: the last), and the steps that have others.

    Raises:
        NotFoundError: there is none.
    """
    evaluations = store.evaluations.select([run_id], split=None)
    if not evaluations:
        raise NotFoundError(
            f"run {run_id} has no evaluation yet; `advsweep eval {run_id}` makes one"
        )
    steps = sorted({e.step for e in evaluations if e.step is not None})
    chosen = steps[-1] if step is None else step
    if chosen not in steps:
        raise NotFoundError(
            f"--step: expected a step with an evaluation of run {run_id} "
            f"({', '.join(map(str, steps))}), got {step}"
        )
    steps.remove(chosen)
    return [e for e in evaluations if e.step == chosen], steps


def _record(evaluation: EvaluationRecord, kept: Sequence[AnswerSample]) -> dict[str, Any]:
    keys = ("problem_id", "level", "prompt", "answer", "length", "read", "verdict", "reward")
    return {
        "run": evaluation.run_id,
        "step": evaluation.step,
        "task": evaluation.task,
        "settings": evaluation.settings,
        "samples": [{key: getattr(sample, key) for key in keys} for sample in kept],
    }


def _print_samples(evaluation: EvaluationRecord, kept: Sequence[AnswerSample]) -> None:
    settings = evaluation.settings
    whose = f"model {settings.get('model')}"
    if evaluation.run_id is not None:
        weights = f"after step {evaluation.step}" if evaluation.step else "before training"
        whose = f"run {evaluation.run_id} {weights}"
    problems = len(evaluation.problem_ids)
    split = {"train": " training", "validation": " validation"}.get(settings.get("split", ""), "")
    echo_line(f"{whose}, {evaluation.task}: {len(kept)} of {problems}{split} problems")
    if not kept:
        echo("  no answers were kept: another program made the evaluation")
    for number, sample in enumerate(kept, 1):
        reward = "none" if sample.reward is None else f"{sample.reward:g}"
        read = "" if sample.read in (None, sample.answer) else f", read as {sample.read}"
        echo()
        echo_line(f"{number}. {sample.problem_id} (level {sample.level})")
        for title, text in (("prompt", sample.prompt), ("answer", sample.answer)):
            # Every line has a mark that the text cannot remove.
            for row, line in enumerate(text.split("\n")):
                echo_line(f"  {'' if row else title:<7} | {line}")
        echo_line(f"  verdict {sample.verdict}, reward {reward}{read}")
    echo()
