"""Tries an estimator that a command line named by its file, before anything is trained with it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING

from advsweep.errors import AdvsweepError, BatchError, ConfigError
from advsweep.estimators.base import Estimator
from advsweep.estimators.contract import find_problem, tried_rewards
from advsweep.estimators.varied import complete_batch
from advsweep.function_options import where_of

if TYPE_CHECKING:
    from advsweep.estimators.batch import GroupBatch


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
        if part.named_code is None:
            continue
        for rewards in tried_rewards(part, group_size):
            try:
                try_named(part, complete_batch(rewards))
            except BatchError as error:
                raise ConfigError(f"{where_of(part)}: {error}") from error


def try_named(estimator: Estimator, batch: GroupBatch) -> None:
    """Refuse named code that does not give usable advantages for a batch.

    Args:
        estimator: not changed.

    Raises:
        BatchError: it does not take the batch.
        ConfigError: it begins with the file and the line.
    """
    try:
        problem = find_problem(estimator, batch)
    except (BatchError, ConfigError):
        raise
    except AdvsweepError as error:
        raise ConfigError(f"{where_of(estimator)}: {error}") from error
    if problem:
        raise ConfigError(f"{where_of(estimator)}: {problem}")


def _parts(estimator: Estimator) -> Iterator[Estimator]:
    yield estimator
    for field in dataclasses.fields(estimator):
        value = getattr(estimator, field.name)
        if isinstance(value, Estimator):
            yield from _parts(value)
