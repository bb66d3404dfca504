"""`advsweep estimators apply`: compute advantages from rewards on the command line."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from advsweep.cli.shared import options
from advsweep.cli.shared.options import ListFormat
from advsweep.cli.shared.output import echo, print_columns, print_csv, print_json, show_number
from advsweep.errors import BatchError

# Processors round the last digits of a float differently.
_DIGITS = {"float32": 6, "float64": 12}

if TYPE_CHECKING:
    from torch import Tensor

    from advsweep.cli.commands.estimators.inputs import Rows
    from advsweep.diagnostics import Masses
    from advsweep.estimators.batch import Advantages, GroupBatch


class Precision(Enum):
    """Data type of the rewards."""

    FLOAT32 = "float32"
    FLOAT64 = "float64"


def apply(
    name: options.EstimatorName,
    rewards: Annotated[
        str,
        typer.Option(
            metavar="ROWS",
            help="Rewards of a group: 1,0,0,1. Separate groups with ; and write - for a missing "
            "or unscorable rollout.",
        ),
    ],
    fields: options.EstimatorOptions = None,
    inputs: Annotated[
        list[str] | None,
        typer.Option(
            "--input",
            metavar="NAME=ROWS",
            help="Give another input: lengths=3,5,2,2, or one number for all rollouts, "
            "token_entropy=0.3. All tokens of a rollout get its number of token_entropies. May be "
            "repeated.",
        ),
    ] = None,
    precision: Annotated[
        Precision,
        typer.Option(help="Data type of the rewards; trainers use float32, which rounds 0.9."),
    ] = Precision.FLOAT64,
    repeat: Annotated[
        int,
        typer.Option(min=1, help="Call the estimator N times with this batch; print the last."),
    ] = 1,
    output: options.Listing = ListFormat.TABLE,
) -> None:
    """Print the advantages that an estimator computes.

    Of an estimator with an advantage per token, these are the means over each rollout's tokens.
    Also prints the masses of each group and the values that the estimator logs. A success is a
    reward of 1; among graded rewards, a reward at or above the group's mean.

    Examples:
        advsweep estimators apply asym_grpo --rewards '1,0,0,1;0,0,0,1' -o delta=0.5
    """
    from advsweep.cli.commands.estimators.inputs import (
        build_from_options,
        check_inputs,
        parse_inputs,
        parse_rows,
    )

    rows = parse_rows(rewards, "--rewards")
    given = parse_inputs(inputs or [])
    estimator = build_from_options(name, fields or [])
    check_inputs([estimator], given)
    batch = _batch(rows, given, precision)
    for _ in range(repeat):
        advantages = estimator.compute(batch)
    found = _masses(batch, advantages)
    digits = _DIGITS[precision.value]
    if output is ListFormat.JSON:
        rounded = _rounded(
            {
                "rewards": batch.rewards.tolist(),
                "advantages": advantages.rollout_means(batch.lengths).tolist(),
                "keep": advantages.keep.tolist(),
                "masses": [{"success": m.success, "failure": m.failure} for m in found],
                "info": advantages.info,
            },
            digits,
        )
        print_json({"estimator": estimator.plain(), **rounded})
    elif output is ListFormat.CSV:
        _print_csv(_rounded(list(_rollouts(batch, advantages)), digits))
    else:
        _print_tables(batch, advantages, found)


def _batch(rows: Rows, given: dict[str, Rows | int], precision: Precision) -> GroupBatch:
    import torch

    from advsweep.estimators.batch import PER_TOKEN, GroupBatch

    rewards = _tensor(rows).to(getattr(torch, precision.value))
    mask = None
    if any(reward is None for row in rows for reward in row):
        mask = rewards.new_tensor([[reward is not None for reward in row] for row in rows]).bool()
    inputs: dict[str, Any] = {
        name: values if isinstance(values, int) else _input(name, _tensor(values), rewards)
        for name, values in given.items()
    }
    for name in PER_TOKEN & inputs.keys():
        tokens = math.ceil(inputs["lengths"].nan_to_num().max()) if "lengths" in inputs else 1
        inputs[name] = inputs[name][..., None].expand(-1, -1, tokens)
    return GroupBatch(rewards=rewards, mask=mask, **inputs)


def _tensor(rows: Rows) -> Tensor:
    import torch

    return torch.tensor(
        [[math.nan if cell is None else cell for cell in row] for row in rows],
        dtype=torch.float64,
    )


def _input(name: str, values: Tensor, rewards: Tensor) -> Tensor | tuple[str, ...]:
    """Converts an input to the shape that the batch expects; a single number is repeated."""
    from advsweep.estimators.batch import PER_PROMPT

    if name in PER_PROMPT:
        if values.shape[1] != 1:
            raise BatchError(
                f"--input {name}: expected one number per group, separated by ;, got "
                f"{values.shape[1]} for a group"
            )
        column = values[:, 0].expand(len(rewards)) if len(values) == 1 else values[:, 0]
        return tuple(f"{i:g}" for i in column.tolist()) if name == "prompt_ids" else column
    whole = values.expand_as(rewards) if values.numel() == 1 else values
    if name != "answered":
        return whole
    if (invalid := whole[(whole != 0) & (whole != 1)]).numel():
        raise BatchError(f"--input answered: expected 1 or 0, got {invalid[0].item():g}")
    return whole == 1


def _masses(batch: GroupBatch, advantages: Advantages) -> list[Masses]:
    """Returns the masses of each group."""
    from advsweep.diagnostics import masses
    from advsweep.estimators.group_stats import Groups

    groups = Groups(batch)
    rewards, values = groups.rewards, advantages.rollout_means(batch.lengths)
    binary = ((rewards == 0) | (rewards == 1)).all()
    successes = rewards == 1 if binary else rewards >= groups.mean
    return [
        masses(
            values[row : row + 1],
            successes[row : row + 1],
            None if batch.mask is None else batch.mask[row : row + 1],
        )
        for row in range(len(rewards))
    ]


def _rollouts(batch: GroupBatch, advantages: Advantages) -> Iterator[tuple[Any, ...]]:
    """Yields group, rollout, reward (None if missing), advantage and keep of each rollout."""
    rewards = batch.rewards.tolist()
    values = advantages.rollout_means(batch.lengths).tolist()
    keep = advantages.keep.tolist()
    for i, row in enumerate(rewards):
        for j, reward in enumerate(row):
            missing = batch.mask is not None and not batch.mask[i, j]
            yield i + 1, j + 1, None if missing else reward, values[i][j], keep[i][j]


def _rounded(value: Any, digits: int) -> Any:
    """Rounds every float in nested lists and mappings to significant digits."""
    if isinstance(value, float):
        return float(f"{value:.{digits}g}")
    if isinstance(value, Mapping):
        return {key: _rounded(item, digits) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_rounded(item, digits) for item in value]
    return value


def _print_csv(rows: Iterable[Sequence[Any]]) -> None:
    print_csv(
        ("group", "rollout", "reward", "advantage", "keep"),
        ((*row[:-1], str(row[-1]).lower()) for row in rows),
    )


def _print_tables(batch: GroupBatch, advantages: Advantages, found: list[Masses]) -> None:
    scorable = advantages.keep if batch.mask is None else advantages.keep[batch.mask]
    dropped = not bool(scorable.all())
    columns = ["group", "rollout", "reward", "advantage", *(["keep"] if dropped else [])]
    rows = [
        [
            str(group),
            str(rollout),
            "-" if reward is None else show_number(reward),
            show_number(value),
            *(["yes" if keep else "no"] if dropped else []),
        ]
        for group, rollout, reward, value, keep in _rollouts(batch, advantages)
    ]
    print_columns(columns, rows)
    echo("")
    print_columns(
        ("group", "m_S", "m_F"),
        [[str(i), *map(show_number, mass)] for i, mass in enumerate(found, start=1)],
    )
    if advantages.info:
        echo("")
        print_columns(
            ("logged", "value"),
            [[key, show_number(value)] for key, value in advantages.info.items()],
        )
