"""The options of the tiny backend."""

from __future__ import annotations

from dataclasses import dataclass

from advsweep.backends.options import StepOptions
from advsweep.components import option
from advsweep.errors import ConfigError


@dataclass(kw_only=True)
class TinyOptions(StepOptions):
    """How the tiny model is trained; `TinyBackend` says what resetting layers is for."""

    minibatches: int = option(2, ge=1, help="updates per inner epoch; groups are not split")
    stale_steps: int = option(
        0,
        ge=0,
        absent=0,
        help="age in steps of the weights that sample, as with asynchronous samplers; 0: none",
    )
    skip_zero_advantages: bool = option(
        True, help="leave rollouts of advantage 0 out of the computation where that is exact"
    )
    threads: int = option(1, ge=1, help="CPU threads of the process that trains")

    reset_layers: int = option(
        0,
        ge=0,
        absent=0,
        help="last blocks that go back to the base's weights, with final norm and untied head",
    )
    reset_layers_every: int = option(0, ge=0, absent=0, help="steps after which they do; 0: never")

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.reset_layers > 0) != (self.reset_layers_every > 0):
            raise ConfigError(
                f"reset_layers: expected both reset_layers and reset_layers_every above 0, or "
                f"neither, got {self.reset_layers} and {self.reset_layers_every}"
            )
