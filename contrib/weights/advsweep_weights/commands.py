"""The commands `advsweep weights` and `advsweep hidden-states`."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from enum import Enum
from itertools import combinations, pairwise
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from advsweep.backends.base import Run
from advsweep.backends.build import build_run
from advsweep.cli import options
from advsweep.cli.consent import allow_programs
from advsweep.cli.output import echo_line, print_listing, progress_bar, warn
from advsweep.cli.runs import find_targets
from advsweep.errors import BatchError, CheckpointError, ConfigError
from advsweep.store import RunRecord, Store, open_store
from advsweep_weights.analyses import (
    StepChange,
    ensure_hidden_states,
    ensure_weights,
    steps_to_analyse,
)
from advsweep_weights.changes import DELTA, WeightChange, align, weight_changes
from advsweep_weights.hidden_states import Direction
from advsweep_weights.model_files import StoredWeights
from advsweep_weights.run_weights import RunWeights

Row = dict[str, Any]
Found = TypeVar("Found")


class WeightTable(Enum):
    """Tables of an analysis of weights."""

    TOTAL = "total"
    MATRICES = "matrices"
    ALIGNMENT = "alignment"


def weights(
    targets: options.OptionalTargets = None,
    base: Annotated[
        Path | None,
        typer.Option("--base", metavar="DIR", help="The model before training, instead of a run."),
    ] = None,
    tuned: Annotated[
        Path | None, typer.Option("--tuned", metavar="DIR", help="The trained model.")
    ] = None,
    step: Annotated[
        int | None,
        typer.Option(
            "--step",
            metavar="N",
            min=1,
            help="Use the weights after this step (default: every checkpoint of a single run, the "
            "last one of several).",
        ),
    ] = None,
    delta: Annotated[
        float,
        typer.Option(
            "--delta",
            metavar="NUMBER",
            help="Count in srank the values that sum to 1 - delta of all.",
        ),
    ] = DELTA,
    table: Annotated[
        WeightTable,
        typer.Option(
            "--table",
            metavar="|".join(table.value for table in WeightTable),
            help="Print parts of the model (of several runs a row each), single matrices, or how "
            "the leading directions of checkpoints or runs align.",
        ),
    ] = WeightTable.TOTAL,
    store: options.Store = None,
    output_format: options.ListFormat = "table",
) -> None:
    """Compare trained weights with those of the base model.

    For each matrix: the norm of its change and its share of the total, s1/s2, the share r1 of rank
    1, and the number of singular values that make up nearly all of it (srank). The store keeps the
    analyses of runs.

    \b
    Examples:
      advsweep weights last
      advsweep weights demo --format csv
    """
    if not 0 < delta < 1:
        raise ConfigError(f"--delta: expected a number above 0 and below 1, got {delta:g}")
    if base is not None and tuned is not None and not targets:
        before, after = StoredWeights(base.expanduser()), StoredWeights(tuned.expanduser())
        with progress_bar(str(tuned)) as on_matrix:
            change = weight_changes(before, after, delta=delta, on_matrix=on_matrix)
        if table is WeightTable.ALIGNMENT:
            raise ConfigError("--table: expected total or matrices; a pair has no alignment")
        rows = [dataclasses.asdict(row) for row in _rows_of(change, table)]
        _print(rows, output_format, [change])
        return
    if base is not None or tuned is not None or not targets:
        raise ConfigError("expected either a run or a sweep, or both --base DIR and --tuned DIR")

    def changes_of(opened: Store, record: RunRecord, run: Run) -> list[StepChange]:
        steps = [step] if step is not None else steps_to_analyse(opened, record)
        found = []
        for at in steps if alone else steps[-1:]:
            with progress_bar(f"run {record.id}, step {at}") as on_matrix:
                after = RunWeights(record, run, at)
                found.append(ensure_weights(opened, after, delta=delta, on_matrix=on_matrix))
        return found

    with closing(open_store(store, create=False)) as opened:
        alone = len(find_targets(opened, targets).runs) == 1
        analysed = list(_each(opened, targets, changes_of))
    changes = [each for steps in analysed for each in steps]
    if table is WeightTable.ALIGNMENT:
        rows = list(_over_steps(changes) if len(analysed) == 1 else _between(changes))
        if not rows:
            raise ConfigError(
                "--table: expected total or matrices, or a run with several checkpoints "
                "(backend.keep_every=50 keeps them), or several runs of one base model"
            )
    elif len(analysed) > 1 and table is WeightTable.TOTAL:
        rows = [_run_row(each) for each in changes]
    else:
        shown = changes[-1:] if alone and output_format == "table" else changes
        rows = [
            {"run": each.run.id, "step": each.step, **dataclasses.asdict(row)}
            for each in shown
            for row in _rows_of(each.change, table)
        ]
    _print(rows, output_format, [each.change for each in changes])


def hidden_states(
    targets: options.Targets,
    prompts: Annotated[
        int | None,
        typer.Option(
            "--prompts",
            metavar="N",
            min=1,
            help="Sample this many training problems, each with the run's group size (default: "
            "the number of a training step).",
        ),
    ] = None,
    step: Annotated[
        int | None,
        typer.Option(
            "--step",
            metavar="N",
            min=0,
            help="Use the weights after this step (default: last; 0: base model).",
        ),
    ] = None,
    direction: Annotated[
        Direction,
        typer.Option(
            "--direction",
            metavar="|".join(direction.value for direction in Direction),
            help="Project out this direction: the mean hidden state, the batch gradient at the "
            "output head, or the head's change in weights.",
        ),
    ] = Direction.HIDDEN,
    run_code: options.RunCode = False,
    store: options.Store = None,
    output_format: options.ListFormat = "table",
) -> None:
    """Compare hidden states of correct and failed rollouts.

    Removes a direction that all hidden states share. rho is then the mean cosine between tokens of
    a group. residual is the norm of the group's mean gradient at the output head, without
    advantages. ratio is the residual of failed rollouts over that of correct ones; clt is its value
    if tokens were identically distributed and independent. The store keeps the analyses.

    \b
    Examples:
      advsweep hidden-states last
    """
    allow_programs(run_code)

    def row_of(opened: Store, record: RunRecord, run: Run) -> Row:
        at = record.step if step is None else step
        count = run.prompts_per_step if prompts is None else prompts
        after = RunWeights(record, run, at)
        found = ensure_hidden_states(opened, after, direction=direction, prompts=count)
        groups = {"correct": found.correct, "failed": found.failed}
        return {
            "run": record.id,
            "estimator": record.estimator,
            "seed": record.seed,
            "step": at,
            **{
                f"{name}_{side}": getattr(group, name)
                for name in ("rollouts", "tokens", "rho", "residual")
                for side, group in groups.items()
            },
            "unscorable": found.unscorable,
            "along": found.along,
            "ratio": found.residual_ratio,
            "clt": found.clt_baseline,
        }

    with closing(open_store(store, create=False)) as opened:
        rows = list(_each(opened, targets, row_of))
    _print(rows, output_format, [])


def _each(
    store: Store, targets: Sequence[str], make: Callable[[Store, RunRecord, Run], Found]
) -> Iterator[Found]:
    """Yield what `make` returns of each run; of several, those that it refuses are skipped.

    Raises:
        ConfigError: there are no runs, or all are refused.
    """
    runs = find_targets(store, targets).runs
    done = 0
    for record in runs:
        try:
            found = make(store, record, build_run(record.config))
        except (BatchError, CheckpointError, ConfigError) as error:
            if len(runs) == 1:
                raise
            warn(f"skipping run {record.id}: {error}")
            continue
        done += 1
        yield found
    if not done:
        raise ConfigError("expected at least one run that can be analysed, got none")


def _rows_of(change: WeightChange, table: WeightTable) -> Sequence[Any]:
    return change.parts if table is WeightTable.TOTAL else change.matrices


def _run_row(each: StepChange) -> Row:
    parts = {part.part: part for part in each.change.parts}
    row = {
        "run": each.run.id,
        "estimator": each.run.estimator,
        "seed": each.run.seed,
        "step": each.step,
        "norm": parts["all"].norm,
    }
    for part, field in (
        *(("head", name) for name in ("share", "s1_over_s2", "r1", "srank")),
        *(("layers", name) for name in ("s1_over_s2", "r1", "srank")),
    ):
        row[f"{part}_{field}"] = getattr(parts[part], field) if part in parts else math.nan
    return row


def _over_steps(steps: Sequence[StepChange]) -> Iterator[Row]:
    """Compare each checkpoint with the previous one and with the last one."""
    pairs = [(after, before, "previous") for before, after in pairwise(steps)]
    pairs += [(each, steps[-1], "last") for each in steps[:-1]]
    for step, other, to in pairs:
        cosines = dataclasses.asdict(align(other.change, step.change))
        yield {"step": step.step, "other": other.step, "to": to, **cosines}


def _between(changes: Sequence[StepChange]) -> Iterator[Row]:
    for a, b in combinations(changes, 2):
        if a.base == b.base:
            yield {
                "run": a.run.id,
                "estimator": a.run.estimator,
                "other": b.run.id,
                "other_estimator": b.run.estimator,
                **dataclasses.asdict(align(a.change, b.change)),
            }


def _print(
    rows: Sequence[Row], output_format: options.ListFormat, changes: Sequence[WeightChange]
) -> None:
    """Print a table, and below it on stderr what was left out of the changes."""
    if output_format == "table":
        rows = [
            {
                name: ("-" if math.isnan(value) else f"{value:.4g}")
                if isinstance(value, float)
                else value
                for name, value in row.items()
            }
            for row in rows
        ]
    print_listing(rows, output_format)
    if changes and not any(matrix.norm for change in changes for matrix in change.matrices):
        echo_line("The weights are equal: no matrix differs.", err=True)
    left_out = {name: why for change in changes for name, why in change.left_out.items()}
    if left_out:
        some = [f"{name} ({why})" for name, why in list(left_out.items())[:3]]
        more = f" and {len(left_out) - 3} more" if len(left_out) > 3 else ""
        echo_line(f"Skipped matrices: {', '.join(some)}{more}", err=True)
