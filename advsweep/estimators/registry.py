"""The registry of estimators: building one by its name imports its module."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from advsweep.registry import Registry

if TYPE_CHECKING:
    from advsweep.estimators.base import Estimator

# A file and not the classes, so that listing estimators imports no torch.
CATALOGUE = tomllib.loads(Path(__file__).with_name("catalogue.toml").read_text("utf-8"))
"""What `catalogue.toml` says of each estimator, of aliases, and of names without a definition."""

_ROWS = CATALOGUE["estimators"]

ESTIMATORS: Registry[Estimator] = Registry(
    "estimator",
    {name: f"advsweep.estimators.{row['module']}" for name, row in _ROWS.items()},
    aliases={alias: name for name, row in _ROWS.items() for alias in row.get("aliases", [])},
    caveats=CATALOGUE["caveats"],
    unavailable=CATALOGUE["unavailable"],
    group="advsweep.estimators",
    base="advsweep.estimators.base:Estimator",
)


def build_estimator(spec: str | Mapping[str, Any], **fields: Any) -> Estimator:
    """Build an estimator from its name, or from a mapping with a `name`.

    >>> build_estimator("asym_grpo", delta=0.5)
    AsymGRPO(delta=0.5, scale=<Scale.MEAN: 'mean'>)

    Raises:
        ConfigError: the name, a field or a value does not fit; the message names the key,
            what it expected and what it got.
    """
    return ESTIMATORS.build(spec, **fields)


def estimator_names() -> list[str]:
    """Return the sorted names of all estimators, those of installed plugins included."""
    return ESTIMATORS.names()
