"""Advantage estimators: rewards of a batch of rollouts in, advantages out.

    from advsweep.estimators import GroupBatch, build_estimator

    estimator = build_estimator("asym_grpo", delta=0.5)
    advantages = estimator(GroupBatch(rewards=rewards))    # [prompts, rollouts]

The package needs no library but torch.
"""

from __future__ import annotations

import importlib
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from advsweep.registry import Registry

if TYPE_CHECKING:
    from advsweep.estimators.base import Estimator, Provenance, StatefulEstimator
    from advsweep.estimators.batch import Advantages, GroupBatch, Groups, Std, standardise

__all__ = [
    "CATALOGUE",
    "ESTIMATORS",
    "Advantages",
    "Estimator",
    "GroupBatch",
    "Groups",
    "Provenance",
    "StatefulEstimator",
    "Std",
    "build_estimator",
    "estimator_names",
    "standardise",
]


# What `catalogue.toml` says of each estimator, of aliases, and of names without a definition.
# A file and not the classes, so that listing estimators imports no torch.
CATALOGUE = tomllib.loads(Path(__file__).with_name("catalogue.toml").read_text("utf-8"))

_ROWS = CATALOGUE["estimators"]

ESTIMATORS: Registry[Estimator] = Registry(
    "estimator",
    {name: f"advsweep.estimators.{row['module']}" for name, row in _ROWS.items()},
    aliases={alias: name for name, row in _ROWS.items() for alias in row.get("aliases", [])},
    caveats=CATALOGUE["caveats"],
    unavailable=CATALOGUE["unavailable"],
    group="advsweep.estimators",
    base="advsweep.estimators.base:Estimator",
    function="advantages",
    adapter="advsweep.estimators.functions:estimator_class",
    takes_code=True,
)


def build_estimator(spec: str | Mapping[str, Any], **fields: Any) -> Estimator:
    """Build an estimator from its name, or from a mapping with a `name`.

    >>> build_estimator("asym_grpo", delta=0.5)
    AsymGRPO(delta=0.5, scale='mean')

    Raises:
        ConfigError: the name, a field or a value does not fit; the message names the key,
            what it expected and what it got.
    """
    return ESTIMATORS.build(spec, **fields)


def estimator_names() -> list[str]:
    """Return the sorted names of all estimators, those of installed plugins included."""
    return ESTIMATORS.names()


def __getattr__(name: str) -> Any:
    # Other names need torch, which takes a second to import. They are loaded on first use, so that
    # listing the estimators stays quick.
    if name in __all__:
        for module in ("base", "batch"):
            attributes = vars(importlib.import_module(f"{__name__}.{module}"))
            if name in attributes:
                return attributes[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
