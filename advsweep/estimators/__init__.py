"""Advantage estimators: rewards of a batch of rollouts in, advantages out.

    from advsweep.estimators import GroupBatch, build_estimator

    estimator = build_estimator("asym_grpo", delta=0.5)
    advantages = estimator(GroupBatch(rewards=rewards))    # [prompts, rollouts]

The package needs no library but torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from advsweep.estimators.registry import ESTIMATORS, build_estimator, estimator_names

if TYPE_CHECKING:
    from advsweep.estimators.base import Estimator, Provenance, StatefulEstimator
    from advsweep.estimators.batch import Advantages, GroupBatch, Groups, Std, standardise

__all__ = [
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


def __getattr__(name: str) -> Any:
    # Other names need torch, which takes a second to import. They are loaded on first use, so that
    # listing the estimators stays quick.
    if name in __all__:
        for module in ("base", "batch"):
            found = vars(importlib.import_module(f"{__name__}.{module}"))
            if name in found:
                return found[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
