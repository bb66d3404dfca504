"""`advsweep hidden-states`: compare hidden states of correct and failed rollouts."""

from __future__ import annotations

import dataclasses
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from advsweep.cli.shared import options
from advsweep.cli.shared.options import ListFormat

if TYPE_CHECKING:
    from advsweep.diagnostics.hidden_states import HiddenStates
    from advsweep.store import RunRecord


class DirectionName(Enum):
    """Direction to project out; see `diagnostics.hidden_states.Direction`."""

    HIDDEN = "hidden"
    GRADIENT = "gradient"
    WEIGHTS = "weights"


def hidden_states(
    targets: options.Targets,
    prompts: Annotated[
        int | None,
        typer.Option(
            "--prompts",
            min=1,
            help="Sample this many training problems, each with the run's group size (default: "
            "the number of a training step).",
        ),
    ] = None,
    step: Annotated[
        int | None,
        typer.Option(
            "--step", min=0, help="Use the weights after this step (default: last; 0: base model)."
        ),
    ] = None,
    direction: Annotated[
        DirectionName,
        typer.Option(
            "--direction",
            help="Project out this direction: the mean hidden state, the batch gradient at the "
            "output head, or the head's change in weights.",
        ),
    ] = DirectionName.HIDDEN,
    run_code: options.RunCode = False,
    run_code_as_root: options.RunCodeAsRoot = False,
    store: options.Store = None,
    output: options.Listing = ListFormat.TABLE,
) -> None:
    """Compare hidden states of correct and failed rollouts.

    Removes a direction that all hidden states share. rho is then the mean cosine between tokens of
    a group. residual is the norm of the group's mean gradient at the output head, without
    advantages. ratio is the residual of failed rollouts over that of correct ones; clt is its value
    if tokens were identically distributed and independent. The store keeps the analyses.

    Examples:
        advsweep hidden-states last
    """
    from contextlib import closing

    from advsweep.backends.build import build_run
    from advsweep.cli.shared.output import print_listing, warn
    from advsweep.cli.shared.runs import find_targets
    from advsweep.diagnostics.hidden_states import Direction
    from advsweep.errors import BatchError, CheckpointError, ConfigError
    from advsweep.evaluation.analyses import ensure_hidden_states
    from advsweep.store import open_store

    options.give_consent(run_code, run_code_as_root)
    rows = []
    with closing(open_store(store, create=False)) as opened:
        runs = find_targets(opened, targets).runs
        for record in runs:
            try:
                run = build_run(record.config)
                found = ensure_hidden_states(
                    opened,
                    record,
                    run,
                    record.step if step is None else step,
                    direction=Direction(direction.value),
                    prompts=run.prompts_per_step if prompts is None else prompts,
                )
            except (BatchError, CheckpointError, ConfigError) as error:
                if len(runs) == 1:
                    raise
                warn(f"skipping run {record.id}: {error}")
                continue
            rows.append(_row(record, record.step if step is None else step, found))
    if not rows:
        raise ConfigError("expected at least one run with hidden states, got none")
    if output is ListFormat.TABLE:
        rows = [{name: _shown(value) for name, value in row.items()} for row in rows]
    print_listing(rows, output)


def _row(record: RunRecord, step: int, found: HiddenStates) -> dict[str, Any]:
    both = {"correct": found.correct, "failed": found.failed}
    fields = [field.name for field in dataclasses.fields(found.correct)]
    return {
        "run": record.id,
        "estimator": record.estimator,
        "seed": record.seed,
        "step": step,
        **{f"{name}_{side}": getattr(both[side], name) for name in fields for side in both},
        "unscorable": found.unscorable,
        "along": found.along,
        "ratio": found.residual_ratio,
        "clt": found.clt_baseline,
    }


def _shown(value: Any) -> Any:
    return ("-" if value != value else f"{value:.3g}") if isinstance(value, float) else value
