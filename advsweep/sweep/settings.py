"""Settings of a sweep that never enter a run's identity."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from advsweep.components import Component, option
from advsweep.errors import ConfigError


@dataclass(kw_only=True)
class Resources(Component):
    """What each run of a sweep occupies of the machine that it runs on."""

    name: ClassVar[str] = "default"

    cpus: int = option(
        1, ge=1, identity=False, help="cores of its own, and threads that it may compute with"
    )
    gpus: float = option(
        0.0, ge=0, identity=False, help="whole GPUs, or a share of one and of its memory; 0: none"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.gpus > 1 and not self.gpus.is_integer():
            raise ConfigError(
                f"gpus: expected whole GPUs or a share of one below 1, got {self.gpus:g}"
            )


@dataclass(kw_only=True)
class Off(Component):
    """The choice of those who want no search."""

    name: ClassVar[str] = "none"
