"""The estimators by name. Listing them imports no torch; building one imports its module."""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib import resources
from typing import TYPE_CHECKING, Any

from advsweep.components import Registry

if TYPE_CHECKING:
    from advsweep.estimators.base import Estimator

_DECLARATION = re.compile(r'^    name: ClassVar\[str\] = "(\w+)"$', re.MULTILINE)

_ALIASES = {
    "mean_grpo": "dr_grpo",
    "pass_at_k_chen": "passk_analytic",
    # Whole methods, whose advantages are these; the rest of them is an objective.
    "dapo": "grpo",
    "gspo": "grpo",
    "gspo_n": "grpo_n",
}

_UNAVAILABLE = {
    "dcpo": "the papers give neither its clip bounds nor its smoothing rule",
    "grpo_lead": "the papers name it without a formula or a constant",
}


def _declared() -> dict[str, str]:
    """Maps the names declared in this package to their modules.

    The sources are read instead of imported: names are wanted without torch, and a new
    estimator should need no entry in a list elsewhere.
    """
    modules = {}
    for source in resources.files("advsweep.estimators").iterdir():
        if source.name.endswith(".py"):
            module = f"advsweep.estimators.{source.name.removesuffix('.py')}"
            for name in _DECLARATION.findall(source.read_text(encoding="utf-8")):
                modules[name] = module
    return modules


ESTIMATORS: Registry[Estimator] = Registry(
    "estimator",
    _declared(),
    aliases=_ALIASES,
    unavailable=_UNAVAILABLE,
    group="advsweep.estimators",
)


def build_estimator(spec: str | Mapping[str, Any], **fields: Any) -> Estimator:
    """Makes an estimator from its name, or from a mapping with a `name`.

    >>> build_estimator("asym_grpo", delta=0.5)
    AsymGRPO(delta=0.5, scale=<Scale.MEAN: 'mean'>)

    Raises:
        ConfigError: the name, a field or a value does not fit; the message names the key,
            what it expected and what it got.
    """
    return ESTIMATORS.build(spec, **fields)


def estimator_names() -> list[str]:
    """The names of all estimators, those of installed plugins included, sorted."""
    return ESTIMATORS.names()
