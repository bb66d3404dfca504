"""The contract of a tracker: a service, besides the store, that shows runs."""

from __future__ import annotations

import importlib.util
import math
import shlex
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from advsweep.components import Component, Plain, option
from advsweep.errors import ConfigError

if TYPE_CHECKING:
    from advsweep.store import RunRecord

TRACKING_KEY = "tracking"
"""The key of a sweep's spec with the tracking that it was last started with."""


@dataclass
class Ledger:
    """What a tracker has of a run.

    Attributes:
        steps: the last step that was sent of each metric, by name.
        end: the end of the run that was sent; None before.
    """

    steps: dict[str, int] = field(default_factory=dict)
    end: str | None = None

    @property
    def last_step(self) -> int:
        """The last step that was sent; -1 if there is none."""
        return max(self.steps.values(), default=-1)

    def rows_to_send(
        self, points: Iterable[tuple[str, int, float]]
    ) -> list[tuple[int, dict[str, float]]]:
        """Returns the points (name, step, value) that are not sent yet, grouped by step.

        A step that a resumed run repeated is not sent again: trackers do not delete rows.
        """
        rows: dict[int, dict[str, float]] = {}
        for name, step, value in points:
            if step > self.steps.get(name, -1):
                rows.setdefault(step, {})[name] = value
        return sorted(rows.items())

    def add(self, step: int, values: Iterable[str]) -> None:
        """Notes that metrics of a step were sent."""
        self.steps.update(dict.fromkeys(values, step))


class Track(ABC):
    """One run in a tracker, while it is sent. Its methods may take long and raise anything."""

    @abstractmethod
    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Sends the metrics of a training step (0: before the first).

        Steps rise, except for an evaluation that was repeated later than its step.
        """

    def flush(self) -> bool:
        """Makes logged metrics durable; returns False if only `close` can do so."""
        return False

    @abstractmethod
    def close(self, record: RunRecord, summaries: Mapping[str, float]) -> None:
        """Sends the run's state, and returns when the tracker has everything.

        Args:
            summaries: metrics of the whole run, by name.
        """


@dataclass(kw_only=True)
class Tracking(Component, ABC):
    """Base of all trackers; never a part of a run's identity.

    A subclass implements `destination` and `open`, and a `Track` that `open` returns. During
    a sweep it works in a process of its own: what it raises or how long it takes ends no training.
    What was not sent is sent later, by `advsweep sync NAME` if need be.

    Attributes:
        package: the package that it needs besides advsweep's own dependencies, if any; the extra
            of advsweep with the tracking's name installs it.
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
        """Whether it sends runs."""
        return True

    def check(self) -> None:
        """Checks that the tracking can work here.

        Raises:
            ConfigError: its package is not installed.
        """
        if self.package is None:
            return
        found = importlib.util.find_spec(self.package)
        # A plain folder of that name, such as the one that wandb makes, has no origin.
        if found is None or found.origin is None:
            raise ConfigError(
                f"tracking: expected the package {self.package} for '{self.name}', which is not "
                f"installed; pip install 'advsweep[{self.name}]'"
            )

    @abstractmethod
    def destination(self, runs: Path) -> str:
        """Returns the name of the place that runs are sent to; each place has a ledger.

        Args:
            runs: the folder of the runs' folders.
        """

    @abstractmethod
    def open(self, record: RunRecord, ledger: Ledger) -> Track:
        """Opens a run, or resumes it after the rows that were sent before.

        It may import what it needs, take long and raise anything.
        """


@dataclass(kw_only=True)
class NoTracking(Tracking):
    """No tracking: the store alone has the runs."""

    name: ClassVar[str] = "none"

    @property
    def is_on(self) -> bool:
        return False

    def destination(self, runs: Path) -> str:
        raise AssertionError("NoTracking sends no runs")

    def open(self, record: RunRecord, ledger: Ledger) -> Track:
        raise AssertionError("NoTracking sends no runs")


def tracking_spec(tracking: Tracking) -> Plain:
    """Returns what a sweep's spec keeps of its tracking, for `retry`, `worker` and `sync`."""
    return {TRACKING_KEY: tracking.plain()} if tracking.is_on else {}


def sync_command(tracking: Tracking, target: str) -> str:
    """Returns the command that sends runs to a tracker afterwards.

    Args:
        target: a sweep or a run.
    """
    defaults = type(tracking)().plain() | {"patience": tracking.patience}
    given = tracking.plain().items()
    changes = [f"{key}={value}" for key, value in given if value != defaults[key]]
    options = "".join(f" -o {shlex.quote(change)}" for change in changes)
    return f"`advsweep sync {tracking.name} {target}{options}`"


def group_of(record: RunRecord) -> str:
    """Returns a name that the replicates of a configuration share, in any sweep."""
    return f"{record.estimator}-{record.config_hash[:8]}"
