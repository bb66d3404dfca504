"""How the rollouts of a step are spread over updates, processes and forward passes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from advsweep.errors import ConfigError

if TYPE_CHECKING:
    from jaxtyping import Int

T = TypeVar("T")


@dataclass(frozen=True)
class Layout:
    """The shares that a step's rollouts are divided into.

    Attributes:
        rollouts: of a step.
        processes: each has an equal share of every minibatch.
        minibatches: updates per inner epoch.
        inner_epochs: how often a step trains on its rollouts.
        device_batch: rollouts of one forward pass of one process.
    """

    rollouts: int
    processes: int
    minibatches: int
    inner_epochs: int
    device_batch: int

    @property
    def passes(self) -> int:
        """Forward passes of one process per update."""
        return self.rollouts // (self.processes * self.minibatches * self.device_batch)

    @property
    def updates(self) -> int:
        """Updates per step."""
        return self.minibatches * self.inner_epochs


def lay_out(
    *,
    prompts: int,
    group_size: int,
    minibatches: int,
    inner_epochs: int,
    processes: int,
    device_batch: int | None,
) -> Layout:
    """Divides a step's rollouts.

    Args:
        prompts: of a step.
        device_batch: the most rollouts of one forward pass of one process; None: any number.
            The largest number that leaves equal passes is taken.

    Raises:
        ConfigError: the rollouts cannot be divided equally.
    """
    rollouts, parts = prompts * group_size, minibatches * processes
    if rollouts % parts:
        unit = parts // math.gcd(parts, group_size)
        below, above = prompts // unit * unit, -(-prompts // unit) * unit
        nearest = " or ".join(str(number) for number in (below, above) if number)
        raise ConfigError(
            f"prompts_per_step: expected prompts_per_step x group_size to divide by "
            f"backend.minibatches x processes = {minibatches} x {processes}, got {prompts} x "
            f"{group_size} = {rollouts} rollouts; the nearest that does is prompts_per_step="
            f"{nearest}"
        )
    share = rollouts // parts
    most = min(share, device_batch or share)
    return Layout(
        rollouts=rollouts,
        processes=processes,
        minibatches=minibatches,
        inner_epochs=inner_epochs,
        device_batch=next(size for size in range(most, 0, -1) if share % size == 0),
    )


def share_of(items: Sequence[T], process: int, processes: int, *, unit: int = 1) -> list[T]:
    """One process's part of a list, which is filled up with its first item to equal parts.

    Args:
        unit: the filled list is a multiple of it.
    """
    multiple = math.lcm(processes, unit)
    missing = -len(items) % multiple
    filled = [*items, *[items[0]] * missing]
    size = len(filled) // processes
    return filled[process * size : (process + 1) * size]


Rows = dict[str, Tensor]
"""Tensors `[rows]` or `[rows, tokens]`; prompts are padded on the left, the rest on the right."""


def split(outputs: Mapping[str, Any]) -> tuple[Rows, Rows]:
    """The tensors that have rows, and those that are one number for all of them."""
    tensors = {name: value for name, value in outputs.items() if value is not None}
    rows = {name: value for name, value in tensors.items() if value.ndim > 0}
    return rows, {name: value for name, value in tensors.items() if value.ndim == 0}


def pick(rows: Rows, index: Int[Tensor, " some"]) -> Rows:
    """Some of the rows, in the order given."""
    return {name: value[index.to(value.device)] for name, value in rows.items()}


def concatenate(parts: Sequence[Rows], pad_id: int) -> Rows:
    """All rows of some batches, each padded to the longest."""
    return {
        name: torch.cat(_padded(name, [part[name] for part in parts], pad_id)) for name in parts[0]
    }


def gather(rows: Rows, accelerator: Any, pad_id: int) -> Rows:
    """The rows of all processes, process by process; all have the same number."""
    gathered = {}
    for name, value in rows.items():
        if value.ndim > 1:
            value = accelerator.pad_across_processes(
                value, dim=1, pad_index=_filler(name, pad_id), pad_first=_is_prompt(name)
            )
        gathered[name] = accelerator.gather(value.contiguous())
    return gathered


def _padded(name: str, values: Sequence[Tensor], pad_id: int) -> list[Tensor]:
    if values[0].ndim == 1:
        return list(values)
    width = max(value.shape[1] for value in values)
    missing = [width - value.shape[1] for value in values]
    sides = [(m, 0) if _is_prompt(name) else (0, m) for m in missing]
    return [
        F.pad(value, side, value=_filler(name, pad_id))
        for value, side in zip(values, sides, strict=True)
    ]


def _is_prompt(name: str) -> bool:
    return name.startswith("prompt_")


def _filler(name: str, pad_id: int) -> int:
    return pad_id if name.endswith("_ids") else 0
