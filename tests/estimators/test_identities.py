"""The identity of every estimator's defaults: with another one, runs of a store are other runs."""

from __future__ import annotations

import hashlib
import json

import pytest

from advsweep.estimators import build_estimator, estimator_names

# The first digits of the sha256 of the identity, in JSON. A change of a default or of a name needs
# `absent`, a change of results another `revision`.
IDENTITIES = {
    "a_grae": "4e5b2fdb",
    "aapo": "29549514",
    "asym_grpo": "30c249b8",
    "asym_power_alpha": "14c3d3af",
    "asym_re": "6969fb1f",
    "avspo": "a39ab3c1",
    "binary_contrastive": "ea8c806f",
    "by_turn": "9068cb83",
    "dcpo": "4e7afd93",
    "dr_grpo": "3bc6e555",
    "easy_focused": "86dfa2ac",
    "easy_power": "9839a978",
    "entropy_shaped": "74dc8c63",
    "fade": "432efe55",
    "filter_drop": "d6421c13",
    "gdpo": "91df6d43",
    "gigpo": "27f10442",
    "gpg": "08f8058c",
    "grpo": "d3275b43",
    "grpo_lead": "e822b9b2",
    "grpo_n": "5ce70eda",
    "ha_dw": "fe752fcf",
    "hard_focused": "336e4b5c",
    "intuitor": "f03dbc10",
    "kl_in_reward": "c7606ff4",
    "log_mean_exp": "1a3674ce",
    "maxrl": "c08ad4fb",
    "mc_grpo": "3932a0bd",
    "min_baseline": "2b4f6ccd",
    "multi_step_grpo": "9837451c",
    "negative_dominant": "ff382b1b",
    "nsr": "cbd6e529",
    "opo": "69595a23",
    "optimal_token_baseline": "8b545a76",
    "passk_analytic": "971ac4e1",
    "passk_loo": "fac09780",
    "passk_mix": "be4e3b47",
    "positive_dominant": "f4195e0f",
    "power_alpha": "cf277ea9",
    "power_norm": "83e5bda6",
    "psr": "2594168a",
    "quantile": "30b2d1ee",
    "reinforce": "25600f51",
    "reinforce_pp": "23c3f974",
    "reinforce_pp_baseline": "880bf81a",
    "relu": "0a6859b6",
    "remax": "250df34e",
    "rent": "440ae218",
    "rloo": "8986ca7d",
    "skew_r": "a6f9f954",
    "softmax": "83162f28",
    "t2t": "7f36dda5",
    "turn_grpo": "161291a7",
    "turn_return": "8186b96c",
    "vine": "e21f2c06",
    "w_reinforce": "9d7fdb05",
    "whitened": "cb3d5949",
}


@pytest.mark.parametrize("name", sorted({*estimator_names(), *IDENTITIES}))
def test_defaults_keep_their_identity(name: str) -> None:
    text = json.dumps(build_estimator(name).identity(), sort_keys=True)
    digits = hashlib.sha256(text.encode()).hexdigest()[:8]
    assert name in IDENTITIES, (
        f'add to IDENTITIES in tests/estimators/test_identities.py\n    "{name}": "{digits}",'
    )
    assert digits == IDENTITIES[name]
