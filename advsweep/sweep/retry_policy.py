"""What an execution puts up with: retries by class of failure, and limits of time and memory.

None of it can change a run's result, so it is no part of the configuration.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass

from advsweep.errors import ConfigError, nearest
from advsweep.store import Failure

STORE_PATIENCE = "10m"
STORE_PATIENCE_VARIABLE = "ADVSWEEP_STORE_PATIENCE"

BACKOFF_SECONDS = 1.0
"""How long the first retry of a run waits; each further one waits twice as long, until the run
gets further than before."""
LONGEST_BACKOFF_SECONDS = 300.0

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_DURATION = re.compile(r"(?:\d+(?:\.\d+)?[smhd])+")
_SIZE = re.compile(r"(\d+(?:\.\d+)?)([KMGT])(?:i?B)?", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class Policy:
    """How an execution treats runs that fail, or that take too much.

    Attributes:
        retries: how often a run is tried again, from its last checkpoint, before it counts
            as failed.
        retry_on: the classes of failure after which it is.
        max_failures: starts nothing more once so many runs have failed; None: goes on.
        fail_fast: stops all other runs, with a checkpoint, at the first failed one.
        time_limit: seconds that one try may take, evaluations included; None: any.
        memory_limit: bytes that a run's process and its descendants may hold; None: any.
    """

    retries: int = 2
    retry_on: frozenset[Failure] = frozenset({Failure.OOM, Failure.TIMEOUT, Failure.KILLED})
    max_failures: int | None = None
    fail_fast: bool = False
    time_limit: float | None = None
    memory_limit: int | None = None

    @property
    def counts_failures(self) -> bool:
        """Whether the failures of some runs are to keep others from going on."""
        return self.fail_fast or self.max_failures is not None

    @property
    def limits(self) -> frozenset[str]:
        """The names of the limits that are set, as executors name those they can hold to."""
        names = {"time": self.time_limit, "memory": self.memory_limit}
        return frozenset(name for name, limit in names.items() if limit is not None)

    def backoff(self, in_vain: int) -> float:
        """Seconds to wait after a run's first (1), second, ... failure at no later step."""
        doubled = BACKOFF_SECONDS * 2.0 ** min(in_vain - 1, 64)
        return min(LONGEST_BACKOFF_SECONDS, doubled)


def parse_failures(text: str) -> frozenset[Failure]:
    """Classes of failure from their names with commas between; nothing means none.

    Raises:
        ConfigError: there is no such class; the message offers the nearest.
    """
    known = {failure.value: failure for failure in Failure}
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in known:
            raise ConfigError(
                f"--retry-on: expected {', '.join(known)} with commas between, got {name!r}; "
                f"{nearest(name, known)}"
            )
    return frozenset(known[name] for name in names)


def store_patience() -> float:
    """For how many seconds a store that is away is waited for, by the environment.

    Raises:
        ConfigError: the variable holds no duration.
    """
    text = os.environ.get(STORE_PATIENCE_VARIABLE, STORE_PATIENCE)
    return parse_duration(text, STORE_PATIENCE_VARIABLE)


def parse_duration(text: str, option: str = "--time-limit") -> float:
    """Seconds from `90s`, `15m`, `1h30m`, `2d` or a number of seconds.

    Args:
        option: what gave the text, for the message.

    Raises:
        ConfigError: it is none, or nothing.
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


def parse_size(text: str) -> int:
    """Bytes from `512M`, `8G` or `1.5GiB`, in powers of 1024.

    Raises:
        ConfigError: it is none, or nothing.
    """
    match = _SIZE.fullmatch(text.strip())
    size = int(float(match[1]) * 1024 ** (" KMGT".index(match[2].upper()))) if match else 0
    if size <= 0:
        raise ConfigError(
            f"--memory-limit: expected a size above 0, such as 512M or 8G, got {text!r}"
        )
    return size


def spell_duration(seconds: float) -> str:
    """A duration as `parse_duration` reads it, such as `1h30m`."""
    if seconds < 60 or seconds % 1:
        return f"{seconds:g}s"
    parts, left = [], int(seconds)
    for unit in "dhms":
        count, left = divmod(left, _SECONDS[unit])
        parts += [f"{count}{unit}"] if count else []
    return "".join(parts)


def spell_size(size: float) -> str:
    """A size as `parse_size` reads it, such as `1.5G`."""
    power = min(4, max(1, (int(size).bit_length() - 1) // 10))
    return f"{size / 1024**power:.4g}{' KMGT'[power]}"
