"""The contract of a tracker: a service, besides the store, that shows runs."""

from __future__ import annotations

import importlib.util
import math
import shlex
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Self

from advsweep.components import Component, Plain, option
from advsweep.errors import ConfigError
from advsweep.packages import extra_command

if TYPE_CHECKING:
    from advsweep.store import RunRecord

PROJECT = "advsweep"

Rows = Sequence[tuple[int, Mapping[str, float]]]
"""Training steps (0: before the first) with their metrics, in rising order."""


class Track(ABC):
    """One run in a tracker, while it is sent. Its methods may take long and raise anything.

    They are called from one thread, beside that of the scheduler. Texts of records and names of
    metrics come without control characters, whatever the store holds.
    """

    last_step: int = -1
    """The last step that the tracker has, if it can tell: rows up to there are not sent again."""

    @abstractmethod
    def log(self, rows: Rows) -> None:
        """Send the metrics of some steps."""

    @abstractmethod
    def close(self, record: RunRecord, summaries: Mapping[str, float]) -> None:
        """Send the run's state, and return when the tracker has everything.

        Args:
            summaries: metrics of the whole run, by name.
        """


@dataclass(kw_only=True)
class Tracking(Component, ABC):
    """Base of all trackers; never a part of a run's identity.

    A subclass implements `open`, and a `Track` that `open` returns. During a sweep it works in
    a thread: what it raises or how long it takes ends no training. What was not sent then,
    `advsweep export --to NAME` sends.

    Attributes:
        package: the package that it needs besides advsweep's own dependencies, if any. An extra of
            advsweep with the tracking's name, if there is one, says which release.
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
        """Check that the tracking can work here.

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
                f"installed; install it with `{extra_command(self.name, self.package)}`"
            )

    def in_folder(self, folder: Path) -> Self:
        """Return the same tracking that keeps everything in a local folder, without an account.

        `advsweep export` calls it; the folder may not exist yet.

        Raises:
            ConfigError: the tracker cannot write to a folder.
        """
        raise ConfigError(
            f"tracking: '{self.name}' cannot write to a folder; omit DIR to send runs to it"
        )

    @abstractmethod
    def open(self, record: RunRecord) -> Track:
        """Open a run, or resume it if the tracker has it."""


@dataclass(kw_only=True)
class NoTracking(Tracking):
    """No tracking: the store alone has the runs."""

    name: ClassVar[str] = "none"

    @property
    def is_on(self) -> bool:
        return False

    def open(self, record: RunRecord) -> Track:
        raise AssertionError("NoTracking sends no runs")


def sync_command(tracking: Tracking, target: str) -> str:
    """Return the command that sends runs to a tracker afterwards.

    Args:
        target: a sweep or a run.
    """
    defaults = type(tracking)().plain()
    options = "".join(
        f" --set {shlex.quote(f'{key}={value}')}"
        for key, value in tracking.plain().items()
        if value != defaults[key] and key != "patience"
    )
    return f"`advsweep export {target} --to {tracking.name}{options}`"


def group_of(record: RunRecord) -> str:
    """Return a name that the replicates of a configuration share, in any sweep."""
    return f"{record.estimator}-{record.config_hash[:8]}"


def run_key(record: RunRecord) -> str:
    """Return the id of a run in every tracker: the same for the same run of any store."""
    return f"{record.identity[:32]}-{record.attempt}"


def identifiers(record: RunRecord) -> Plain:
    """Return what identifies a run, for trackers that show it beside the config."""
    return {
        "identity": record.identity,
        "config_hash": record.config_hash,
        "attempt": record.attempt,
    }


def run_tags(record: RunRecord, tags: Iterable[str]) -> list[str]:
    """Return the tags of a run, sorted: the names of its sweeps, and those given."""
    return sorted({*tags, *record.sweeps})
