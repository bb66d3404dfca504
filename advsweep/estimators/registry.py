"""The registry of estimators: building one by its name imports its module."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from advsweep.registry import Registry

if TYPE_CHECKING:
    from advsweep.estimators.base import Estimator

# The modules of this package, and the names of the estimators that each defines. Names stand here
# so that listing them imports no torch.
_MODULES = {
    "avspo": "avspo",
    "baselines": "dr_grpo gpg grpo min_baseline reinforce relu rloo",
    "fade": "fade",
    "grpo_variants": "aapo grpo_lead intuitor rent t2t",
    "passk": "passk_analytic passk_loo passk_mix",
    "reshaped": "asym_grpo asym_power_alpha asym_re binary_contrastive easy_power log_mean_exp "
    "maxrl mc_grpo nsr power_alpha power_norm psr quantile skew_r softmax w_reinforce",
    "visits": "dcpo ha_dw",
    "wrappers": "a_grae easy_focused entropy_shaped filter_drop grpo_n hard_focused "
    "negative_dominant positive_dominant",
}

_ALIASES = {
    "asym_norm": "asym_re",
    "asym_rl": "asym_re",
    "lme": "log_mean_exp",
    "mean_grpo": "dr_grpo",
    "median": "mc_grpo",
    "pass_at_k_chen": "passk_analytic",
    "pass_at_k_tang": "passk_loo",
    # Names of whole methods: these are their advantages, the rest of each is an objective.
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


ESTIMATORS: Registry[Estimator] = Registry(
    "estimator",
    {
        name: f"advsweep.estimators.{module}"
        for module, names in _MODULES.items()
        for name in names.split()
    },
    aliases=_ALIASES,
    caveats=_CAVEATS,
    unavailable=_UNAVAILABLE,
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
