"""Advantage estimators: rewards of a batch of rollouts in, advantages out.

    from advsweep.estimators import GroupBatch, build_estimator

    estimator = build_estimator("asym_grpo", delta=0.5)
    advantages = estimator(GroupBatch(rewards=rewards))    # [prompts, rollouts]

Needs torch alone, and only once an estimator is built: names can be listed without.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from advsweep.estimators.registry import ESTIMATORS, build_estimator, estimator_names

if TYPE_CHECKING:
    from advsweep.estimators.base import Advantages, Estimator, GroupBatch

__all__ = [
    "ESTIMATORS",
    "Advantages",
    "Estimator",
    "GroupBatch",
    "build_estimator",
    "estimator_names",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from advsweep.estimators import base

    return getattr(base, name)
