"""The contract of a tracker: another place, besides the store, that runs are shown in."""

from __future__ import annotations

import importlib.util
import math
import shlex
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from advsweep.components import Component, Plain, option
from advsweep.errors import ConfigError

if TYPE_CHECKING:
    from advsweep.store import RunRecord
    from advsweep.sweep.tracking.ledger import Ledger

TRACKING_KEY = "tracking"
"""The key of a sweep's spec that holds the tracking it was last started with."""


class Track(ABC):
    """One run in a tracker, while it is fed. Its methods may take long and raise anything."""

    @abstractmethod
    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Takes metrics after a training step (0: before the first).

        Steps rise, but for an evaluation that was made again later than its step.
        """

    def flush(self) -> bool:
        """True if all that was logged is where it will stay; else `close` alone sees to that."""
        return False

    @abstractmethod
    def close(self, record: RunRecord, summaries: Mapping[str, float]) -> None:
        """Says where the run stands, and returns when the tracker has everything.

        Args:
            summaries: the numbers about the whole run, by name.
        """


@dataclass(kw_only=True)
class Tracking(Component, ABC):
    """Base of all trackers; never a part of what a run is.

    Attributes:
        package: what it imports beside advsweep's own dependencies, if anything; an extra of
            advsweep by the tracking's name installs it.
    """

    package: ClassVar[str | None] = None

    patience: float = option(
        30.0,
        ge=0,
        lt=math.inf,
        help="seconds that a command waits at its end for what is not sent yet",
    )

    @property
    def is_on(self) -> bool:
        """Whether anything is to be sent."""
        return True

    def check(self) -> None:
        """Refuses a tracking that cannot work here.

        Raises:
            ConfigError: its package is not installed.
        """
        if self.package is None:
            return
        found = importlib.util.find_spec(self.package)
        # A mere folder of that name, such as the one that wandb makes, has no origin.
        if found is None or found.origin is None:
            raise ConfigError(
                f"tracking: expected the package {self.package} for '{self.name}', which is not "
                f"installed; pip install 'advsweep[{self.name}]'"
            )

    @abstractmethod
    def destination(self, runs: Path) -> str:
        """Names where runs go to: what was sent there need not be sent there again.

        Args:
            runs: the folder of the runs' own folders.
        """

    @abstractmethod
    def open(self, record: RunRecord, sent: Ledger) -> Track:
        """Takes a run up, or goes on with it after what was sent before.

        Called in a process where it may import what it needs, and may take long or raise
        anything.
        """


@dataclass(kw_only=True)
class NoTracking(Tracking):
    """No tracking elsewhere: the store is the record."""

    name: ClassVar[str] = "none"

    @property
    def is_on(self) -> bool:
        return False

    def destination(self, runs: Path) -> str:
        raise AssertionError("nothing is sent anywhere")

    def open(self, record: RunRecord, sent: Ledger) -> Track:
        raise AssertionError("nothing is sent anywhere")


def tracking_spec(tracking: Tracking) -> Plain:
    """What a sweep's spec keeps of its tracking, for `retry`, `worker` and `sync` to trust."""
    return {TRACKING_KEY: tracking.plain()} if tracking.is_on else {}


def sync_command(tracking: Tracking, target: str) -> str:
    """What to type to have runs sent to a tracker afterwards.

    Args:
        target: a sweep or a run.
    """
    defaults = type(tracking)().plain() | {"patience": tracking.patience}
    given = tracking.plain().items()
    changes = [f"{key}={value}" for key, value in given if value != defaults[key]]
    options = "".join(f" -o {shlex.quote(change)}" for change in changes)
    return f"`advsweep sync {tracking.name} {target}{options}`"


def group_of(record: RunRecord) -> str:
    """A name that the replicates of a configuration share, whatever sweep they are in."""
    return f"{record.estimator}-{record.config_hash[:8]}"
