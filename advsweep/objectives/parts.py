"""Minibatches that are computed in several parts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from advsweep.objectives.base import Choice, LossInputs, Objective

# The fields of `LossInputs` that have a row for each rollout.
OF_ROLLOUTS = (
    "log_probs",
    "old_log_probs",
    "completion_mask",
    "advantages",
    "reference_log_probs",
    "sampler_log_probs",
    "weights",
    "entropies",
)


def join(parts: Sequence[LossInputs]) -> LossInputs:
    """Return the minibatch of which these are all parts, padded to the width of the widest.

    Its `parts` still say in how many parts the loss is computed.
    """
    first = parts[0]
    joined: dict[str, Any] = {}
    for name in OF_ROLLOUTS:
        if getattr(first, name) is not None:
            joined[name] = _concatenate([getattr(part, name) for part in parts])
    return replace(
        first,
        **joined,
        rollouts=sum(part.rollouts for part in parts),
        tokens=sum(part.tokens for part in parts),
    )


def _concatenate(parts: Sequence[Tensor]) -> Tensor:
    """Concatenate rows of rollouts, those of tokens padded on the right."""
    if parts[0].ndim == 1:
        return torch.cat([*parts])
    width = max(part.shape[1] for part in parts)
    return torch.cat([F.pad(part, (0, width - part.shape[1])) for part in parts])


def choose_for_parts(objective: Objective, parts: Sequence[LossInputs]) -> list[Choice]:
    """Return what the loss of each part takes from the whole minibatch."""
    choice = objective.choose(join(parts))
    choices = []
    first = 0
    for part in parts:
        rollouts, width = part.completion_mask.shape
        choices.append(choice.of_rows(slice(first, first + rollouts), width))
        first += rollouts
    return choices


def inputs_on(inputs: LossInputs, device: torch.device | str) -> LossInputs:
    """Return inputs of a part with their tensors on a device."""
    moved: dict[str, Any] = {}
    for name in OF_ROLLOUTS:
        values = getattr(inputs, name)
        moved[name] = None if values is None else values.to(device)
    return replace(inputs, **moved)


def choice_on(choice: Choice, device: torch.device | str) -> Choice:
    """Return a choice with its tensors on a device."""
    tokens = {name: flags.to(device) for name, flags in choice.tokens.items()}
    numbers = {name: values.to(device) for name, values in choice.numbers.items()}
    return Choice(tokens=tokens, numbers=numbers)
