"""Tries an estimator that a command line named by its file, before anything is trained with it."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from advsweep.errors import AdvsweepError, ConfigError
from advsweep.estimators.base import Estimator
from advsweep.estimators.batch import GroupBatch
from advsweep.estimators.varied import complete_batch

if TYPE_CHECKING:
    from advsweep.estimators.batch import PerRollout
    from advsweep.named_code import NamedCode

# Up to this group size every number of right answers is tried.
_EVERY_COUNT = 32
_SIZE = 8


def check_named(estimator: Estimator, group_size: int | None = None) -> None:
    """Refuse named code that does not give usable advantages; registered estimators pass.

    It computes groups of every solve rate, batches of equal rewards and the smallest groups, twice:
    results must be finite floats of the right shape, the same both times, and leave the inputs as
    they are.

    Args:
        estimator: not changed; what it is built around, such as the base of a wrapper, is tried
            too.
        group_size: that of the run.

    Raises:
        ConfigError: it begins with the file and the line.
    """
    for part in _parts(estimator):
        code = part.named_code
        if code is None:
            continue
        try:
            for rewards in _batches(part, group_size):
                _try(part, code, complete_batch(rewards))
        except ConfigError:
            raise
        except AdvsweepError as error:
            raise ConfigError(f"{code.where}: {code.object}: {error}") from error


def _parts(estimator: Estimator) -> Iterator[Estimator]:
    yield estimator
    for field in dataclasses.fields(estimator):
        value = getattr(estimator, field.name)
        if isinstance(value, Estimator):
            yield from _parts(value)


def _batches(estimator: Estimator, group_size: int | None) -> Iterator[PerRollout]:
    multiple = estimator.group_multiple
    least = -(-estimator.minimum_group // multiple) * multiple
    usual = -(-max(_SIZE, least) // multiple) * multiple
    for size in dict.fromkeys((group_size or usual, usual, least)):
        if size < least or size % multiple:
            continue  # the run is refused for its group size
        counts = torch.arange(size + 1)
        if size > _EVERY_COUNT:
            counts = torch.linspace(0, size, _EVERY_COUNT + 1).round()
        # Right answers last, so that a result that depends on the order is seen.
        yield (torch.arange(size) >= size - counts[:, None]).float()
        yield torch.zeros(2, size)
        yield torch.ones(2, size)


def _try(estimator: Estimator, code: NamedCode, batch: GroupBatch) -> None:
    before = {name: v.clone() for name, v in vars(batch).items() if isinstance(v, Tensor)}
    first, second = (copy.deepcopy(estimator).compute(batch).values for _ in range(2))
    where = f"{code.where}: {code.object}"
    for name, value in before.items():
        if not torch.equal(value, getattr(batch, name)):
            raise ConfigError(
                f"{where}: expected a function that leaves its inputs as they are, and it changed "
                f"{name}; work on a copy, as {name}.clone()"
            )
    rewards = batch.rewards
    shape = list(rewards.shape)
    if not isinstance(first, Tensor) or list(first.shape[:2]) != shape:
        got = list(first.shape) if isinstance(first, Tensor) else type(first).__name__
        raise ConfigError(f"{where}: expected advantages of the shape {shape}, got {got}")
    if not first.is_floating_point():
        raise ConfigError(f"{where}: expected advantages as floats, got {first.dtype}")
    if not first.isfinite().all():
        row = rewards[(~first.isfinite()).flatten(1).any(dim=1)][0].tolist()
        raise ConfigError(
            f"{where}: expected finite advantages, got {first[~first.isfinite()][0].item()} in a "
            f"group with the rewards {', '.join(f'{reward:g}' for reward in row)}"
        )
    if not torch.equal(first, second):
        differing = (first != second).nonzero()[0].tolist()
        values = " and ".join(f"{each[tuple(differing)].item():g}" for each in (first, second))
        raise ConfigError(
            f"{where}: expected the same advantages for the same inputs, got {values}; use no "
            "random numbers and no clock, or draw from torch.Generator().manual_seed(step)"
        )
