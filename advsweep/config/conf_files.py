"""Where the config groups lie."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar

from advsweep.components import Component, option
from advsweep.errors import ConfigError


def conf_directory() -> Path:
    """Our own config groups: `advsweep/conf` of an installed wheel, `conf` of a checkout.

    Raises:
        ConfigError: the installation lacks them.
    """
    package = Path(__file__).resolve().parents[1]
    for candidate in (package / "conf", package.parent / "conf"):
        if (candidate / "config.yaml").is_file():
            return candidate
    raise ConfigError(
        f"expected config groups in {package / 'conf'}, got none; install advsweep again"
    )


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


def first_comment(group: str, name: str, folders: Sequence[Path]) -> str:
    """The first comment of a member's file in the first folder that has it; none: empty."""
    paths = (folder / group / f"{name}.yaml" for folder in folders)
    path = next((path for path in paths if path.is_file()), None)
    text = path.read_text(encoding="utf-8") if path else ""
    comments = (line.removeprefix("#").strip() for line in text.splitlines() if line[:1] == "#")
    return next((c for c in comments if not c.startswith("@package")), "")
