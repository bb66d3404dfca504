"""`advsweep weights`: analyse how training changed a model's weights."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from advsweep.cli.shared import options
from advsweep.cli.shared.output import progress_bar

if TYPE_CHECKING:
    from advsweep.cli.shared.weight_tables import AnalysedRun
    from advsweep.diagnostics.weight_changes import Values, WeightChange
    from advsweep.evaluation.analyses import StepChange
    from advsweep.store import RunRecord, Store

    OnMatrix = Callable[[int, int, str], None]


class WeightFormat(Enum):
    """Output format of an analysis of weights."""

    TABLE = "table"
    MARKDOWN = "markdown"
    CSV = "csv"
    JSON = "json"


class WeightTable(Enum):
    """Tables of an analysis of weights."""

    TOTAL = "total"
    MATRICES = "matrices"
    ALIGNMENT = "alignment"


class SingularValues(Enum):
    """Singular values to compute; see `diagnostics.weight_changes.Values`."""

    AUTO = "auto"
    ALL = "all"
    LEADING = "leading"


def weights(
    targets: options.OptionalTargets = None,
    base: Annotated[
        Path | None,
        typer.Option("--base", metavar="DIR", help="The model before training, instead of a run."),
    ] = None,
    tuned: Annotated[
        Path | None,
        typer.Option("--tuned", metavar="DIR", help="The trained model, or a LoRA adapter."),
    ] = None,
    step: Annotated[
        int | None,
        typer.Option(
            "--step",
            min=1,
            help="Use a run's weights after this step (default: every checkpoint of a single run, "
            "the last one of several).",
        ),
    ] = None,
    values: Annotated[
        SingularValues,
        typer.Option(
            "--values",
            help="Compute all singular values, the leading ones with error bounds, or (auto) all "
            "of the head and of matrices up to 2048 wide.",
        ),
    ] = SingularValues.AUTO,
    delta: Annotated[
        float,
        typer.Option("--delta", help="Count in srank the values that sum to 1 - delta of all."),
    ] = 0.01,
    table: Annotated[
        WeightTable | None,
        typer.Option(
            "--table",
            help="Print only this table (default of csv: matrices; for several runs: total).",
        ),
    ] = None,
    threads: Annotated[
        int, typer.Option("--threads", min=1, help="Use this many CPU threads.")
    ] = 1,
    store: options.Store = None,
    output: Annotated[
        WeightFormat, typer.Option("--format", help="Choose the output format.")
    ] = WeightFormat.TABLE,
) -> None:
    """Compare trained weights with those of the base model.

    For each matrix: the norm of its change and its share of the total, s1/s2, the share r1 of rank
    1, and the number of singular values that make up nearly all of it (srank). The store keeps the
    analyses of runs. Only one matrix is in memory at a time.

    Examples:
        advsweep weights last
        advsweep weights demo --format csv
    """
    import torch

    from advsweep.cli.shared.weight_tables import TableChoice, print_pair, print_run, print_runs
    from advsweep.diagnostics.weight_changes import Values
    from advsweep.errors import ConfigError

    if not 0 < delta < 1:
        raise ConfigError(f"--delta: expected a number above 0 and below 1, got {delta:g}")
    given = base is not None or tuned is not None
    if given == bool(targets) or (given and (base is None or tuned is None)):
        raise ConfigError("expected either a run or a sweep, or both --base DIR and --tuned DIR")
    if given and step is not None:
        raise ConfigError("--step: valid only with a run; a folder has no steps")
    torch.set_num_threads(threads)
    shown = TableChoice(output.value, None if table is None else table.value)
    if base is not None and tuned is not None:
        if table is WeightTable.ALIGNMENT:
            raise ConfigError("--table: expected total or matrices; a pair has no alignment")
        change = _compare(base, tuned, Values(values.value), delta)
        print_pair(change, base, tuned, shown)
        return
    analysed = _analyse(targets or [], store, step, Values(values.value), delta)
    if len(analysed) == 1 and len(analysed[0].steps) == 1 and table is WeightTable.ALIGNMENT:
        raise ConfigError(
            "--table: expected total or matrices, or a run with several checkpoints "
            "(backend.keep_every=50 keeps them), or several runs"
        )
    if len(analysed) == 1:
        print_run(analysed[0], shown)
    else:
        print_runs(analysed, shown)


def _compare(base: Path, tuned: Path, values: Values, delta: float) -> WeightChange:
    from advsweep.diagnostics.weight_changes import weight_changes
    from advsweep.diagnostics.weight_files import StoredWeights, open_tuned

    before, after = StoredWeights(base.expanduser()), open_tuned(tuned.expanduser())
    with progress_bar(str(tuned)) as on_matrix:
        return weight_changes(before, after, values=values, delta=delta, on_matrix=on_matrix)


def _analyse(
    targets: list[str], url: str | None, step: int | None, values: Values, delta: float
) -> list[AnalysedRun]:
    from contextlib import closing

    from advsweep.cli.shared.output import warn
    from advsweep.cli.shared.runs import find_targets
    from advsweep.cli.shared.weight_tables import AnalysedRun
    from advsweep.errors import CheckpointError, ConfigError
    from advsweep.store import open_store

    found = []
    with closing(open_store(url, create=False)) as opened:
        runs = find_targets(opened, targets).runs
        if not runs:
            raise ConfigError(f"expected a sweep with runs, got {targets[0]}, which has no runs")
        for record in runs:
            try:
                steps = _steps(opened, record, step, len(runs) > 1)
                changes = [_one(opened, record, at, values, delta) for at in steps]
            except (CheckpointError, ConfigError) as error:
                if len(runs) == 1:
                    raise
                warn(f"skipping run {record.id}: {error}")
                continue
            found.append(AnalysedRun(record, changes))
    if not found:
        raise ConfigError("expected at least one run with comparable weights, got none")
    return found


def _steps(store: Store, record: RunRecord, step: int | None, last: bool) -> list[int]:
    from advsweep.evaluation.analyses import steps_to_analyse

    if step is not None:
        return [step]
    steps = steps_to_analyse(store, record)
    return steps[-1:] if last else steps


def _one(store: Store, record: RunRecord, step: int, values: Values, delta: float) -> StepChange:
    from advsweep.backends.build import build_run
    from advsweep.evaluation.analyses import ensure_analysis

    run = build_run(record.config)
    with progress_bar(f"run {record.id}, step {step}") as on_matrix:
        return ensure_analysis(
            store, record, run, step, values=values, delta=delta, on_matrix=on_matrix
        )
