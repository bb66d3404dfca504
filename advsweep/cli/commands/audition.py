"""`advsweep audition`: what a few updates by each estimator do to a model, without a training."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
import typer

from advsweep.cli import options
from advsweep.cli.completion import complete_run
from advsweep.cli.output import (
    echo,
    echo_line,
    print_columns,
    print_json,
    print_listing,
    progress_bar,
    warn,
)
from advsweep.errors import AdvsweepError, ConfigError, counted, first_of
from advsweep.estimators import ESTIMATORS
from advsweep.logs.rollout_records import RolloutGroup, RolloutNotes
from advsweep.logs.rollouts import read_rollouts
from advsweep.objectives import OBJECTIVES
from advsweep.packages import import_extra
from advsweep.statistics.intervals import student_t_interval
from advsweep.store import RunRecord, open_store
from advsweep.sweep.planning.resume import trained_run
from advsweep.sweep.registry import config_groups

if TYPE_CHECKING:
    from jaxtyping import Float

    from advsweep.backends.trl.audition import Audition, Auditioned
    from advsweep.estimators import Estimator
    from advsweep.objectives.base import Objective

# What a run samples: prompts, and the fewest rollouts of each.
_PROMPTS = 128
_ROLLOUTS = 32

# By name, the held-out prompts with these solve rates.
DIFFICULTIES = {"hard": (0.0, 1 / 3), "middle": (1 / 3, 2 / 3), "easy": (2 / 3, 1.0)}

# A model's own rollouts have about equal surprisal and entropy, in nats per token.
_FOREIGN = 0.2

EXAMPLES = (
    "advsweep audition last --step 0",
    "advsweep audition last -e grpo --objectives clipped,gspo -o audition.svg",
    "advsweep audition --model Qwen/Qwen2.5-0.5B --rollouts outputs -e grpo,rloo",
)


def audition(
    source: Annotated[
        str | None,
        typer.Argument(
            show_default=False,
            metavar="[RUN]",
            autocompletion=complete_run,
            help="A run: its weights, and rollouts that they sample for its training problems.",
        ),
    ] = None,
    step: Annotated[
        int | None,
        typer.Option(
            "--step",
            metavar="N",
            min=0,
            help="Weights after this step (default: last).",
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            metavar="PATH_OR_ID",
            help="In place of a run, a folder or a hub's name.",
        ),
    ] = None,
    rollouts: Annotated[
        Path | None,
        typer.Option(
            "--rollouts",
            metavar="PATH",
            help="What the model sampled: dumps of TRL or verl, or JSON lines {step, prompt, "
            "completions, rewards}.",
        ),
    ] = None,
    names: Annotated[
        list[str] | None,
        typer.Option(
            "--estimators",
            "-e",
            metavar="NAME,...",
            help="Try these; the first is the baseline.",
        ),
    ] = None,
    objectives: Annotated[
        list[str] | None,
        typer.Option(
            "--objectives",
            metavar="NAME,...",
            help="Try each with these losses (default: clipped).",
        ),
    ] = None,
    updates: Annotated[
        int,
        typer.Option(
            "--updates",
            metavar="N",
            min=2,
            help="Updates of each estimator.",
        ),
    ] = 8,
    kl: Annotated[
        float,
        typer.Option(
            "--kl",
            metavar="NATS",
            help="Sets the step size: the KL of an answer after RLOO's updates.",
        ),
    ] = 0.05,
    group_size: Annotated[
        int | None,
        typer.Option(
            "--group-size",
            metavar="N",
            min=2,
            help="Cut groups to this size.",
        ),
    ] = None,
    lora_rank: Annotated[
        int,
        typer.Option(
            "--lora-rank",
            metavar="N",
            min=0,
            help="Update a LoRA adapter of this rank; 0: all weights.",
        ),
    ] = 0,
    temperature: Annotated[
        float | None,
        typer.Option(
            "--temperature",
            metavar="T",
            help="Of the sampling (default: the run's; 1).",
        ),
    ] = None,
    success_at: Annotated[
        float | None,
        typer.Option(
            "--success-at",
            metavar="REWARD",
            help="Rollouts with at least this reward are right.",
        ),
    ] = None,
    output: options.Drawing = None,
    output_format: Annotated[
        Literal["table", "csv", "json"] | None,
        typer.Option(
            "--format",
            metavar="table|csv|json",
            help="Print all numbers in this format.",
        ),
    ] = None,
    store: options.Store = None,
) -> None:
    """Show what a few updates by each estimator do to a model.

    Each estimator updates the same weights a few times with the same rollouts, in steps of the
    same length; rollouts of other prompts show what has changed. No weights are kept. How far this
    predicts trainings: docs/audition.md.
    """
    if (model is None) is not (rollouts is None) or (source is None) is (model is None):
        raise ConfigError("expected RUN, or --model with --rollouts")
    for option, value in (("--kl", kl), ("--temperature", temperature)):
        if value is not None and not 0 < value < math.inf:
            raise ConfigError(f"{option}: expected a number above 0, got {value:g}")
    # What needs no model comes first: a mistyped name is answered at once.
    groups = [] if rollouts is None else _read_groups(rollouts)
    if output is not None:
        from advsweep.report.figures.draw import check_path

        check_path(output)
    candidates = _candidates(names, objectives or ["clipped"])
    record = None if source is None else _find_run(source, store)
    import_extra("transformers", "hf", "an audition")
    from advsweep.backends.trl.audition import Audition, open_model

    with tempfile.TemporaryDirectory() as folder:
        if record is None:
            assert model is not None
            weights, tokenizer = open_model(model, lora_rank)
            subject = _Subject(model, weights, tokenizer, groups, group_size, temperature or 1.0)
        else:
            subject = _open_run(
                record,
                store,
                Path(folder),
                step=step,
                lora_rank=lora_rank,
                group_size=group_size,
                temperature=temperature,
            )
        audition = Audition(
            subject.weights,
            subject.tokenizer,
            subject.groups,
            updates=updates,
            kl=kl,
            group_size=subject.group_size,
            temperature=subject.temperature,
            success_at=success_at,
        )
    auditioned, refused = _try_all(audition, candidates)
    baseline = next(iter(auditioned), "")
    records = _records(auditioned, audition.solve_rates)
    for line in _cautions(audition, records):
        warn(line)
    heading = _heading(subject.title, audition)
    if output is not None:
        from advsweep.report.figures.advantages import draw_audition
        from advsweep.report.figures.draw import write

        chart = draw_audition(f"Audition of {subject.title}", heading, records, baseline)
        write([chart], output)
        echo_line(f"Wrote {output}.", err=True)
    if output_format == "json":
        print_json({"about": heading, "candidates": records, "refused": refused})
    elif output_format is not None:
        print_listing(records, output_format)
    else:
        _print(heading, records, refused, baseline)


@dataclass(frozen=True)
class _Subject:
    """Opened weights, and rollouts that they sampled.

    Attributes:
        group_size: rollouts of a group that are used; None for all.
        temperature: that of the sampling.
    """

    title: str
    weights: Any
    tokenizer: Any
    groups: Sequence[RolloutGroup]
    group_size: int | None
    temperature: float


def _open_run(
    record: RunRecord,
    store: str | None,
    folder: Path,
    *,
    step: int | None,
    lora_rank: int,
    group_size: int | None,
    temperature: float | None,
) -> _Subject:
    """Export the weights of a run to a folder, and sample its training problems with them."""
    from advsweep.backends.trl.audition import open_model, sample_rollouts

    with open_store(store, create=False) as opened:
        run = trained_run(record, opened)
    last = record.step if step is None else step
    run.backend.export(run, record.directory, last, folder)
    weights, tokenizer = open_model(str(folder), lora_rank)
    size = group_size or run.group_size
    groups = sample_rollouts(
        run,
        run.backend.sampler(run, record.directory, last),
        tokenizer,
        prompts=_PROMPTS,
        rollouts=size * math.ceil(_ROLLOUTS / size),
    )
    title = f"run {record.id} after step {last}"
    sampled_at = temperature or run.generation.temperature or 1.0
    return _Subject(title, weights, tokenizer, groups, size, sampled_at)


def _try_all(
    audition: Audition, candidates: Mapping[str, tuple[Estimator, Objective]]
) -> tuple[dict[str, Auditioned], dict[str, str]]:
    """Audition the candidates that can be; return them, and the reasons of the others."""
    auditioned: dict[str, Auditioned] = {}
    refused: dict[str, str] = {}
    with progress_bar("Auditions", len(candidates)) as progress:
        for done, (label, (estimator, objective)) in enumerate(candidates.items()):
            progress(done)
            if lacking := audition.lacking(estimator):
                refused[label] = f"needs {', '.join(lacking)}"
                continue
            try:
                auditioned[label] = audition.audition(estimator, objective)
            except AdvsweepError as error:
                refused[label] = str(error)
    return auditioned, refused


def _records(
    auditioned: Mapping[str, Auditioned], rates: Float[np.ndarray, " prompts"]
) -> list[dict[str, Any]]:
    """Return a record per candidate, best first; differences are to the first candidate."""
    measures = {label: _measures(each, rates) for label, each in auditioned.items()}
    baseline = next(iter(measures.values()), {})
    records = []
    for label, each in auditioned.items():
        record = _record(label, measures[label], baseline)
        record["half_cosine"] = each.half_cosine
        record["sample_share"] = float(each.answers.sample_share.mean())
        records.append(record)
    return sorted(records, key=lambda record: -record["log_odds"])


def _heading(title: str, audition: Audition) -> str:
    return (
        f"{title}: {counted(audition.groups, 'group')} for updates of length "
        f"{audition.step_norm:.3g}; held out: {counted(len(audition.solve_rates), 'prompt')} with "
        f"{counted(audition.rollouts, 'rollout')}, solve rate {audition.solve_rates.mean():.3g}"
    )


def _read_groups(rollouts: Path) -> list[RolloutGroup]:
    """Return the groups of all steps of recorded rollouts; say what was left out."""
    notes = RolloutNotes()
    steps = read_rollouts(rollouts, completions=True, notes=notes)
    groups = [group for read in steps for group in read.groups]
    for line in (notes.message(), *notes.remarks):
        if line:
            warn(line)
    return groups


def _find_run(source: str, store: str | None) -> RunRecord:
    with open_store(store, create=False) as opened:
        return opened.runs.find(source)


def _candidates(
    names: list[str] | None, objectives: list[str]
) -> dict[str, tuple[Estimator, Objective]]:
    """Return every estimator with every loss, by label."""
    from advsweep.cli.estimators import build_named  # imports torch
    from advsweep.estimators.baselines import GRPO

    every = names or [GRPO.name, *sorted(cls.name for cls in ESTIMATORS.classes())]
    with config_groups() as groups:
        losses = build_named(
            OBJECTIVES, objectives, preset=lambda name: groups.member_values("objective", name)
        )
    return {
        label if len(losses) == 1 else f"{label}, {loss}": (estimator, objective)
        for label, estimator in build_named(ESTIMATORS, every).items()
        for loss, objective in losses.items()
    }


def _measures(
    auditioned: Auditioned, rates: Float[np.ndarray, " prompts"]
) -> dict[str, Float[np.ndarray, " prompts"]]:
    """Return the changes of each held-out prompt by the names of columns."""
    answers = auditioned.answers
    return {
        "log_odds": answers.log_odds,
        **{
            f"log_odds_{name}": np.where((rates > low) & (rates <= high), answers.log_odds, np.nan)
            for name, (low, high) in DIFFICULTIES.items()
        },
        "pass@1": answers.pass_at_1,
        "pass@8": answers.pass_at_k,
        "token_entropy": auditioned.token_entropy,
        "kl": answers.kl,
    }


def _record(
    label: str,
    measures: dict[str, Float[np.ndarray, " prompts"]],
    baseline: dict[str, Float[np.ndarray, " prompts"]],
) -> dict[str, Any]:
    """Return means over the prompts, and differences to the baseline paired by prompt."""
    record: dict[str, Any] = {"candidate": label}
    for name, values in measures.items():
        columns = {name: values, f"{name}_difference": values - baseline[name]}
        for column, changes in columns.items():
            mean, low, high, _ = student_t_interval(changes[~np.isnan(changes)])
            record |= {column: mean, f"{column}_low": low, f"{column}_high": high}
    return record


def _cautions(audition: Audition, records: list[dict[str, Any]]) -> Iterator[str]:
    if audition.left_out:
        yield f"{counted(audition.left_out, 'group')} left out: completions or rewards are missing"
    if abs(audition.surprisal - audition.entropy) > _FOREIGN:
        yield (
            f"the rollouts' surprisal is {audition.surprisal:.2f} nats per token, the model's "
            f"entropy {audition.entropy:.2f}: other weights or another --temperature or template "
            "sampled them, or a limit of tokens cut them off (each gets an end mark)"
        )
    # With a smaller effective sample the weights of rollouts say little.
    if few := [record["candidate"] for record in records if record["sample_share"] < 0.5]:
        yield (
            f"importance sampling is unreliable for {first_of(few, 3)}, as the policy changes too "
            "much; try a smaller --kl"
        )


def _print(
    heading: str, records: list[dict[str, Any]], refused: dict[str, str], baseline: str
) -> None:
    echo_line(heading)
    if records:
        columns = {
            "log_odds": "log-odds",
            "pass@1": "pass@1",
            "pass@8": "pass@8",
            "token_entropy": "entropy",
        }
        rows = [
            [
                record["candidate"],
                *(_cell(record, name, record["candidate"] == baseline) for name in columns),
                f"{record['half_cosine']:.2f}",
            ]
            for record in records
        ]
        echo()
        print_columns(["candidate", *columns.values(), "cos"], rows)
        echo()
        echo_line(
            f"{baseline}: change; other rows: difference to it; ±: 95 % over held-out prompts"
        )
    if refused:
        echo()
        print_columns(("not tried", "why"), list(refused.items()))


def _cell(record: dict[str, Any], name: str, is_baseline: bool) -> str:
    column = name if is_baseline else f"{name}_difference"
    digits = 2 if name == "log_odds" else 3
    half = record[f"{column}_high"] - record[column]
    return f"{record[column]:+.{digits}f} ±{half:.{digits}f}"
