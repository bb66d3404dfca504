"""Checks of the levels that a generated task uses and trains."""

from __future__ import annotations

from collections.abc import Sequence

from advsweep.errors import ConfigError


def choose_levels(levels: Sequence[int], known: int) -> tuple[int, ...]:
    """Return the levels in use, in order.

    Args:
        known: how many levels the task has.

    Raises:
        ConfigError: there are none.
    """
    if not levels:
        raise ConfigError(f"levels: expected some of 0 to {known - 1}, got none")
    return tuple(sorted(set(levels)))


def choose_train_levels(
    train_levels: Sequence[int] | None, levels: Sequence[int]
) -> tuple[int, ...] | None:
    """Return the trained levels in order; None if all levels in use are trained.

    Raises:
        ConfigError: there are none, or some are not in use.
    """
    if train_levels is None:
        return None
    chosen = tuple(sorted(set(train_levels)))
    in_use = ", ".join(map(str, levels))
    if not chosen:
        raise ConfigError(f"train_levels: expected null or some of {in_use}, got none")
    for level in chosen:
        if level not in levels:
            raise ConfigError(f"train_levels: expected some of levels = {in_use}, got {level}")
    return None if chosen == tuple(levels) else chosen
