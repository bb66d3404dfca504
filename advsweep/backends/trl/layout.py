"""How the rollouts of a step are spread over updates, processes and forward passes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from advsweep.errors import ConfigError

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
