"""`advsweep samples`: print some of the answers that evaluations got."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from advsweep.cli import options
from advsweep.cli.completion import complete_run
from advsweep.cli.options import RecordFormat

if TYPE_CHECKING:
    from collections.abc import Sequence

    from advsweep.store import AnswerSample, EvaluationRecord, Store


def samples(
    run: Annotated[
        str | None,
        typer.Argument(
            metavar="[RUN]",
            help="A run's id, the start of its identity, or 'last'.",
            autocompletion=complete_run,
            show_default=False,
        ),
    ] = None,
    step: Annotated[
        int | None,
        typer.Option(
            "--step",
            min=0,
            help="Show the evaluation after this step; 0 is the base model (default: the last).",
        ),
    ] = None,
    models: Annotated[
        bool,
        typer.Option(
            "--models", help="Show those of models evaluated by `advsweep eval --model` instead."
        ),
    ] = False,
    store: options.Store = None,
    output: options.Record = RecordFormat.TEXT,
) -> None:
    """Each evaluation keeps the first answers to at most 8 problems, spread over the levels; a long
    answer loses its middle. Evaluations of the same problems keep answers to the same ones, so
    that the answers before and after training can be compared.

    Examples:
        advsweep samples last
        advsweep samples last --step 0
        advsweep samples last --format json
    """
    from advsweep.cli.output import echo, print_json
    from advsweep.errors import ConfigError
    from advsweep.store import open_store

    if models == (run is not None):
        raise ConfigError("expected either a run or --models")
    if models and step is not None:
        raise ConfigError("--step: valid only with a run; a model has no steps")
    opened = open_store(store, create=False)
    evaluations: Sequence[EvaluationRecord] = []
    steps: Sequence[int] = []
    if run is None:
        evaluations = opened.evaluations.of_models()
    else:
        evaluations, steps = _of_run(opened, run, step)
    kept = opened.samples.select([e.identity for e in evaluations])
    if output is RecordFormat.JSON:
        print_json([_record(e, kept.get(e.identity, [])) for e in evaluations])
        return
    for evaluation in evaluations:
        _print(evaluation, kept.get(evaluation.identity, []))
    if others := [str(s) for s in steps if s not in {e.step for e in evaluations}]:
        echo(f"--step shows other evaluations: {', '.join(others)}", err=True)


def _of_run(
    store: Store, key: str, step: int | None
) -> tuple[Sequence[EvaluationRecord], Sequence[int]]:
    """Returns the evaluations of a run after a step, and all its steps with evaluations."""
    from advsweep.errors import NotFoundError

    record = store.runs.find(key)
    evaluations = store.evaluations.select([record.id], split=None)
    if not evaluations:
        raise NotFoundError(
            f"run {record.id} has no evaluation yet; `advsweep eval {record.id}` makes one"
        )
    steps = sorted({e.step for e in evaluations})
    chosen = steps[-1] if step is None else step
    if chosen not in steps:
        listed = ", ".join(map(str, steps))
        raise NotFoundError(
            f"--step: expected a step with an evaluation of run {record.id} ({listed}), got {step}"
        )
    return [e for e in evaluations if e.step == chosen], steps


def _record(evaluation: EvaluationRecord, kept: Sequence[AnswerSample]) -> dict[str, Any]:
    return {
        "run": evaluation.run_id,
        "step": evaluation.step,
        "task": evaluation.task,
        "settings": evaluation.settings,
        "samples": [
            {
                "problem_id": sample.problem_id,
                "level": sample.level,
                "prompt": sample.prompt,
                "answer": sample.answer,
                "length": sample.length,
                "read": sample.read,
                "verdict": sample.verdict,
                "reward": sample.reward,
            }
            for sample in kept
        ],
    }


def _print(evaluation: EvaluationRecord, kept: Sequence[AnswerSample]) -> None:
    from advsweep.cli.output import echo, echo_line

    settings = evaluation.settings
    whose = f"model {settings.get('model')}"
    if evaluation.run_id is not None:
        weights = f"after step {evaluation.step}" if evaluation.step else "before training"
        whose = f"run {evaluation.run_id} {weights}"
    problems = len(evaluation.problem_ids)
    split = {"train": " training", "validation": " validation"}.get(settings.get("split", ""), "")
    echo_line(f"{whose}, {evaluation.task}: {len(kept)} of {problems}{split} problems")
    if not kept:
        echo(
            "  no answers were kept: the evaluation was made by an older version, "
            "or by another program"
        )
    for number, sample in enumerate(kept, 1):
        reward = "none" if sample.reward is None else f"{sample.reward:g}"
        read = "" if sample.read in (None, sample.answer) else f", read as {sample.read}"
        echo()
        echo_line(f"{number}. {sample.problem_id} (level {sample.level})")
        _print_text("prompt", sample.prompt)
        _print_text("answer", sample.answer)
        echo_line(f"  verdict {sample.verdict}, reward {reward}{read}")
    echo()


def _print_text(title: str, text: str) -> None:
    """Prints a text below its title, every line with a mark that the text cannot remove."""
    from advsweep.cli.output import echo_line

    for number, line in enumerate(text.split("\n")):
        echo_line(f"  {title if number == 0 else '':<7} | {line}")
