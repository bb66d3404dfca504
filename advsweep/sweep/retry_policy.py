"""The policy of a sweep: retries by class of failure, and a limit of time.

It cannot change a run's result, so it is not part of the configuration.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass

from advsweep.errors import ConfigError
from advsweep.store import Failure

STORE_PATIENCE = "10m"
STORE_PATIENCE_VARIABLE = "ADVSWEEP_STORE_PATIENCE"

# The classes of failure that are retried: another try may succeed.
RETRIED = frozenset({Failure.OOM, Failure.TIMEOUT, Failure.KILLED})

# Pause before the first retry of a run. It doubles with each retry until the run makes progress.
BACKOFF_SECONDS = 1.0
LONGEST_BACKOFF_SECONDS = 300.0

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_DURATION = re.compile(r"(?:\d+(?:\.\d+)?[smhd])+")


@dataclass(frozen=True, kw_only=True)
class Policy:
    """How a scheduler treats runs that fail or exceed limits.

    Attributes:
        retries: number of retries, from the last checkpoint, before a run counts as failed.
        max_failures: number of failed runs after which no more are started; None: no limit.
        time_limit: seconds per try, evaluations included; None: no limit.
    """

    retries: int = 2
    max_failures: int | None = None
    time_limit: float | None = None

    def backoff(self, stalled: int) -> float:
        """Return the pause in seconds after a number of failures without progress."""
        doubled = BACKOFF_SECONDS * 2.0 ** min(stalled - 1, 64)
        return min(LONGEST_BACKOFF_SECONDS, doubled)


def store_patience() -> float:
    """Return the time in seconds to wait for an unavailable store, by the environment.

    Raises:
        ConfigError: the variable is not a duration.
    """
    text = os.environ.get(STORE_PATIENCE_VARIABLE, STORE_PATIENCE)
    return parse_duration(text, STORE_PATIENCE_VARIABLE)


def parse_duration(text: str, option: str = "--time-limit") -> float:
    """Parse `90s`, `15m`, `1h30m`, `2d` or a number of seconds; returns seconds.

    Args:
        option: the source of the text, for the message.

    Raises:
        ConfigError: the text is not a duration above 0.
    """
    lowered = text.strip().lower()
    if lowered.isdecimal():
        lowered += "s"
    seconds = 0.0
    if _DURATION.fullmatch(lowered):
        parts: Sequence[tuple[str, str]] = re.findall(r"([\d.]+)([smhd])", lowered)
        seconds = sum(float(number) * _SECONDS[unit] for number, unit in parts)
    if seconds <= 0:
        raise ConfigError(
            f"{option}: expected a duration above 0, such as 90s, 15m, 1h30m or 2d, got {text!r}"
        )
    return seconds
