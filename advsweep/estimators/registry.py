"""The estimators by name. Listing them imports no torch; building one imports its module."""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib import resources
from typing import TYPE_CHECKING, Any

from advsweep.registry import Registry

if TYPE_CHECKING:
    from advsweep.estimators.base import Estimator

_DECLARATION = re.compile(r'^    name: ClassVar\[str\] = "(\w+)"$', re.MULTILINE)

_ALIASES = {
    "asym_norm": "asym_re",
    "asym_rl": "asym_re",
    "lme": "log_mean_exp",
    "mean_grpo": "dr_grpo",
    "median": "mc_grpo",
    "pass_at_k_chen": "passk_analytic",
    "pass_at_k_tang": "passk_loo",
    # Whole methods, whose advantages are these; the rest of them is an objective.
    "dapo": "grpo",
    "gspo": "grpo",
    "gspo_n": "grpo_n",
}

_CAVEATS = {
    "asym_norm": "FADE gives it no formula, only the reference that it gives for asym_re",
}

_UNAVAILABLE = {
    "aem": "the papers only list it (arXiv:2605.00425): how entropy modulates is missing",
    "edge_grpo": "the papers only list it (arXiv:2507.21848): its entropy weight is missing",
    "f_grpo": "the papers only list it (arXiv:2602.06717): its formula is missing",
    "gae": "the papers only name it: it needs a learned critic, which nothing here trains",
    "ngrpo": "the papers only list it (arXiv:2509.18851): its formula and constants are missing",
    "ppo": "the papers only name it: it needs a learned critic, which nothing here trains",
    "prorl": "the papers only list it (arXiv:2505.24864): its schedule of resets is missing",
    "reinforce_pp": "the papers only list it (arXiv:2501.03262): its baseline is not given",
    "scaf_grpo": "the papers only list it (arXiv:2510.19807): its in-prompt hints are missing",
    "simko": "the papers only list it (arXiv:2510.14807): its formula and constants are missing",
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
    caveats=_CAVEATS,
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
