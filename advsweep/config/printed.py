"""How long a run took those who report it, for estimates before there are runs of one's own.

sweep:
  common:
    printed: {gpu_hours: 31.1, steps: 500, source: "AVSPO, Table 7: 13,987 s on 8 GPUs"}
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar

from advsweep.components import Component, option
from advsweep.errors import ConfigError

PACE = frozenset(
    {
        *("backend", "model", "model.path", "task", "method", "rollout"),
        *("group_size", "prompts_per_step", "generation", "generation.max_tokens"),
    }
)
"""Keys of which another value makes a printed time that of another run."""


@dataclass(kw_only=True)
class Printed(Component):
    """What one run took, as its source prints it."""

    name: ClassVar[str] = "printed"

    gpu_hours: float = option(gt=0, help="hours of all its GPUs together")
    steps: int = option(ge=1, help="training steps of that run")
    source: str = option(help="where that stands")


def read_printed(node: Any, where: str) -> Printed:
    """What stands under `printed` in a sweep file.

    Raises:
        ConfigError: a key is missing or unknown, or a value does not fit.
    """
    known = [field.name for field in fields(Printed)]
    if not isinstance(node, Mapping) or (missing := [key for key in known if key not in node]):
        lacking = f", which lacks {', '.join(missing)}" if isinstance(node, Mapping) else ""
        raise ConfigError(
            f"{where}: expected a mapping of {', '.join(known)}, got {node!r}{lacking}"
        )
    return Printed.build(node, where=where)
