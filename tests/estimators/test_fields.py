"""The parameters of every estimator: names, defaults, ranges and choices, as specified."""

from __future__ import annotations

from typing import Any

import pytest

from advsweep.components import parameters
from advsweep.estimators import ESTIMATORS

SCALE = ("mean", "one of mean, std")
CONVENTIONS = {
    "preset": ("paper", "one of paper, trl, verl, released"),
    "std": (None, "one of population, sample or null"),
    "eps": (None, ">= 0"),
    "zero_variance": (None, "one of exact, formula or null"),
    "tolerance": (0.0, ">= 0"),
}
BASE = {"base": ("grpo", "a text or a mapping")}
ALPHA = {"alpha": (2.0, ">= 1 and < inf"), "normalize": (False, "true or false")}
DROP = {"drop_zero_rows": (False, "true or false")}

# By name the default, and the range of numbers or the choices of anything else.
FIELDS: dict[str, dict[str, tuple[Any, str]]] = {
    "reinforce": {},
    "dr_grpo": {},
    "min_baseline": {},
    "relu": {},
    "rloo": {},
    "grpo": CONVENTIONS,
    "gpg": {"f_norm": ("1", "one of 1, sigma")},
    "skew_r": {},
    "power_norm": {"gamma": (0.5, "<= 1")},
    "power_alpha": ALPHA,
    "easy_power": ALPHA,
    "asym_power_alpha": {"alpha_s": (2.0, ">= 1"), "alpha_f": (1.0, ">= 1")},
    "asym_grpo": {"delta": (0.5, "> 0"), "scale": SCALE},
    "maxrl": {},
    "binary_contrastive": {},
    "t2t": {**CONVENTIONS, "alpha": (0.1, ">= 0 and < 1"), "max_len": (None, "> 0")},
    "passk_loo": {"k": (None, ">= 1")},
    "passk_analytic": {"k": (4, ">= 1")},
    "passk_mix": {"k": (4, ">= 1")},
    "asym_re": {
        "delta": (0.01, "> -inf and < inf"),
        "baseline": ("mean", "one of mean, none, min"),
    },
    "quantile": {
        "tau": (0.5, "> 0 and < 1"),
        "convention": ("printed", "one of printed, standard"),
        "interpolate": (False, "true or false"),
        "scale": SCALE,
        "std": ("population", "one of population, sample"),
        "eps": (0.0, ">= 0"),
    },
    "mc_grpo": {"median": ("lower", "one of lower, midpoint")},
    "softmax": {"beta": (1.0, "> 0 and < inf"), "normalise": ("share", "one of share, rs")},
    "log_mean_exp": {
        "beta": (1.0, "> 0 and < inf"),
        "variant": ("loo", "one of loo, loo_same_count, signed_softmax"),
    },
    "ha_dw": {
        "preset": ("paper", "one of paper, released"),
        "rule": (None, "one of ema, paper, window or null"),
        "lam": (None, "> 0 and < inf"),
        "scale": ("std", "one of mean, std"),
        "std": (None, "one of population, sample or null"),
        "eps": (None, ">= 0"),
        "c0": (None, "> -inf and < inf"),
        "rate": (0.1, ">= 0 and <= 1"),
        "eta": (1.0, ">= 0 and < inf"),
        "window": (10, ">= 1"),
        "moves": ("after", "one of after, before"),
    },
    "psr": DROP,
    "nsr": DROP,
    "w_reinforce": {"lam": (0.1, "> 0 and <= 1")},
    "positive_dominant": {**BASE, "beta": (10.0, "> 1 and < inf")},
    "negative_dominant": {**BASE, "beta": (10.0, "> 1")},
    "hard_focused": {**BASE, "gamma": (0.5, "> 0 and < inf")},
    "easy_focused": {**BASE, "gamma": (0.5, "> 0 and < inf")},
    "a_grae": {
        **BASE,
        "alpha": (1.0, "> 0 and <= 1"),
        "parts": ("full", "one of full, sample, group"),
        "released": (False, "true or false"),
    },
    "aapo": {
        **CONVENTIONS,
        "preset": (
            "paper",
            "one of paper, trl, verl, released, released_1_5b, released_7b",
        ),
        "scale": (None, "one of mean, std or null"),
        "delta_low": (-0.2, "<= 0"),
        "delta_high": (0.28, ">= 0"),
    },
    "grpo_n": BASE,
    "entropy_shaped": {**BASE, "alpha": (0.4, ">= 0 and < inf"), "kappa": (2.0, "> 1")},
    "avspo": {
        "preset": ("paper", "one of paper, released"),
        "count": ("power", "one of power, scaled"),
        "alpha": (0.5, "> 0 and <= 1"),
        "lam": (0.5, "> 0 and <= 1"),
        "rounding": (None, "one of floor, ceil, nearest or null"),
        "anchor": (0.1, "> 0 and < inf"),
        "all_wrong": ("ramp", "one of ramp, constant"),
        "tau0": (0.5, ">= 0 and <= 1"),
        "eta": (0.01, ">= 0 and <= 1"),
        "threshold_rule": ("sign", "one of sign, piecewise"),
        "fixed_tau": (None, ">= 0 and <= 1"),
        "strategy": (
            "stratified",
            "one of stratified, random_uniform, fixed_partial, exponential_decay",
        ),
        "cases": ("both", "one of both, error_only, correct_only"),
        "eps_acr": (1e-6, "> 0"),
        "eps": (None, ">= 0"),
        "seed": (0, ">= 0"),
    },
    "filter_drop": {**BASE, "eps_acr": (1e-6, "> 0"), "on": ("verdict", "one of verdict, reward")},
    "fade": {
        "h_star": (None, ">= 0"),
        "h0": (None, ">= 0 and < inf"),
        "alpha_max": (3.0, ">= 1"),
        "delta_min": (0.3, "> 0 and <= 1"),
        "beta": (0.02, ">= 0 and <= 1"),
        "ema": ("printed", "one of printed, slow"),
        "scope": ("group", "one of group, batch"),
        "mode": ("full", "one of full, alpha_only, delta_only, entropy_only, log_schedule"),
    },
    "dcpo": {},
    "grpo_lead": {
        "alpha": (0.05, ">= 0 and < inf"),
        "wrong": (-1.0, "> -inf and < 1"),
        "long_from": (4000.0, ">= 0"),
        "std": ("sample", "one of population, sample"),
        "eps": (1e-6, ">= 0"),
        "w_min": (0.4, ">= 0 and < inf"),
        "w_max": (1.5, ">= 0 and < inf"),
        "w_mid": (0.75, ">= 0 and <= 1"),
        "w_slope": (10.0, ">= 0 and < inf"),
    },
    "intuitor": CONVENTIONS,
    "rent": {**CONVENTIONS, "no_answer": (None, "> -inf and < inf")},
}


@pytest.mark.parametrize("name", FIELDS)
def test_fields(name: str) -> None:
    found = {
        row["name"]: (row["default"], row["range"] or row["type"])
        for row in parameters(ESTIMATORS.get(name))
    }
    assert found == FIELDS[name]
