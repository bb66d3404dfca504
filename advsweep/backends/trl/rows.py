"""Rollouts as TRL keeps them: a dictionary of tensors with one row per rollout."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

if TYPE_CHECKING:
    from jaxtyping import Int

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
