"""The advantages of a success and of a failure, by hand: 2 of 8 succeed.

`p = 1/4`, `q = 3/4`, `pq = 3/16` and `σ = √3/4 = 0.4330127019`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from advsweep.errors import BatchError
from advsweep.estimators import ESTIMATORS, GroupBatch, build_estimator, estimator_names

QAE = {"tau": 0.4, "convention": "standard", "scale": "std"}
SAMPLE = 1 / math.sqrt(3 / 14)  # 1 over the sample σ, √(8/7 · 3/16)

VALUES: list[tuple[str, dict[str, Any], float, float]] = [
    ("reinforce", {}, 1, 0),
    ("dr_grpo", {}, 0.75, -0.25),  # 1 - 1/4, 0 - 1/4
    ("min_baseline", {}, 1, 0),
    ("relu", {}, 0.75, 0),
    ("gpg", {}, 0.75, -0.25),
    ("gpg", {"f_norm": "sigma"}, 1.7320508076, -0.5773502692),
    ("rloo", {}, 0.8571428571, -0.2857142857),  # 1 - 1/7, 0 - 2/7
    ("grpo", {}, 1.7320508076, -0.5773502692),  # √(q/p) = √3, -√(p/q) = -1/√3
    ("grpo", {"std": "sample"}, 0.75 * SAMPLE, -0.25 * SAMPLE),
    ("grpo", {"eps": 1.0}, 0.5233728906, -0.1744576302),  # σ + ε = 1.4330127019
    ("grpo", {"preset": "verl"}, 0.75 / (1 / SAMPLE + 1e-6), -0.25 / (1 / SAMPLE + 1e-6)),
    ("grpo", {"preset": "trl"}, 0.75 / (1 / SAMPLE + 1e-4), -0.25 / (1 / SAMPLE + 1e-4)),
    ("grpo", {"preset": "released"}, 0.75 / (1 / SAMPLE + 1e-6), -0.25 / (1 / SAMPLE + 1e-6)),
    # d q^(α-1) with d = 3/4 and -1/4, q = 3/4.
    ("skew_r", {}, 0.3247595264, -0.1082531755),  # d √(3/16)
    ("power_norm", {}, 1.7320508076, -0.5773502692),  # d / √(3/16)
    ("power_norm", {"gamma": 0.25}, 1.1397535285, -0.3799178428),  # d / (3/16)^(1/4)
    ("power_norm", {"gamma": 1}, 4.0, -4 / 3),  # 1/p, -1/q
    ("easy_power", {}, 0.1875, -0.0625),  # d p
    ("easy_power", {"normalize": True}, 0.31640625, -0.10546875),  # times 1.6875
    ("asym_power_alpha", {}, 0.5625, -0.25),  # 0.75 · 0.75, -0.25 as it is
    ("asym_power_alpha", {"alpha_s": 2, "alpha_f": 1.5}, 0.5625, -0.125),  # -0.25 · √0.25
    ("binary_contrastive", {}, 1.0, -1 / 3),
    ("power_alpha", {}, 0.5625, -0.1875),
    ("power_alpha", {"alpha": 3}, 0.421875, -0.140625),
    ("power_alpha", {"normalize": True}, 0.94921875, -0.31640625),  # C = 3³ / (4 · 2²)
    ("power_alpha", {"alpha": 1, "normalize": True}, 0.75, -0.25),  # C = 2² / 4 = 1
    ("asym_grpo", {}, 0.75, -0.5),  # -0.25 / 0.5
    ("asym_grpo", {"delta": 2.0}, 0.75, -0.125),
    ("asym_grpo", {"scale": "std"}, 1.7320508076, -1.1547005384),  # grpo's, the failure's by 0.5
    ("maxrl", {}, 3.0, -1.0),  # d / (1/4)
    ("asym_re", {}, 0.74, -0.26),  # 1 - 1/4 - 0.01, 0 - 1/4 - 0.01
    ("asym_re", {"delta": -0.5}, 1.25, 0.25),
    ("asym_re", {"baseline": "none"}, 0.99, -0.01),
    ("asym_re", {"baseline": "min", "delta": 0.25}, 0.75, -0.25),
    # As printed Q is 0 up to τ, that is from τ = 1/4 on; the usual τ-quantile of six failures in
    # eight is 0 up to τ = 3/4.
    ("quantile", {}, 1, 0),
    ("quantile", {"tau": 0.25}, 1, 0),
    ("quantile", {"tau": 0.24}, 0, -1),
    ("quantile", {"tau": 0.75, "convention": "standard"}, 1, 0),
    ("quantile", {"tau": 0.76, "convention": "standard"}, 0, -1),
    ("quantile", {**QAE, "std": "population"}, 2.3094010768, 0),  # 1/σ
    ("quantile", {**QAE, "std": "sample"}, 2.1602468995, 0),
    # Rank 0.8 · 7 = 5.6 from 0 lies between the last failure and a success.
    ("quantile", {"tau": 0.8, "convention": "standard", "interpolate": True}, 0.4, -0.6),
    ("mc_grpo", {}, 1, 0),
    ("mc_grpo", {"median": "midpoint"}, 1, 0),
    ("psr", {}, 1, 0),
    ("nsr", {}, 0, -1),
    ("w_reinforce", {}, 0.1, -1),
    ("w_reinforce", {"lam": 0.75}, 0.75, -1),
    ("softmax", {}, 0.1126834432, -0.0375611477),  # Z = 2e + 6: e/Z - 1/8 and 1/Z - 1/8
    # mean = (2e² + 6)/8 = 2.5972640247: (e²/mean - 1)/2 and (1/mean - 1)/2
    ("softmax", {"beta": 2.0, "normalise": "rs"}, 0.9224691885, -0.3074897295),
    # Of Z/8 and (Z-e)/7 the logarithms' difference, then of Z/8 and (Z-1)/7.
    ("log_mean_exp", {}, 0.1378619881, -0.0420312081),
    # The same with 8 for 7: of Z and Z-e, of Z and Z-1.
    ("log_mean_exp", {"variant": "loo_same_count"}, 0.2713933807, 0.0915001845),
    ("log_mean_exp", {"variant": "signed_softmax"}, 0.2376834432, -0.0874388523),
    ("passk_loo", {}, 0, 0),
    ("passk_loo", {"scale": "std"}, 0, 0),
    # F = 6 of 8, k = 4: 1-R = C(6,4)/C(8,4) = 15/70, s = √(15·55)/70 = 0.4103258033,
    # Q = C(5,3)/C(7,3) = 10/35. A_s = (1-R)/s = √(15/55), A_f = (1-R-Q)/s = -(5/70)/s.
    ("passk_analytic", {}, 0.5222329679, -0.1740776560),
    ("passk_mix", {}, 1.4295963476, -0.4765321159),  # 1/4 · passk_analytic(4) + 3/4 · grpo
    # Of grpo's √3 and -1/√3, ten times and a tenth of the first.
    ("positive_dominant", {}, 17.3205080757, -0.5773502692),
    ("negative_dominant", {}, 0.1732050808, -0.5773502692),
    ("positive_dominant", {"beta": 2, "base": "dr_grpo"}, 1.5, -0.25),
    ("negative_dominant", {"beta": 2, "base": "dr_grpo"}, 0.375, -0.25),
    # 0.5/√(1/4) = 1 and 0.5/√(3/4) = 1/√3 times grpo's
    ("hard_focused", {}, 1.7320508076, -0.5773502692),
    ("easy_focused", {}, 1, -1 / 3),
    ("hard_focused", {"gamma": 2, "base": "dr_grpo"}, 3, -1),
    ("grpo_n", {}, 0, -0.5773502692),
    ("grpo_n", {"base": "dr_grpo"}, 0, -0.25),
    ("grpo_n", {"base": {"name": "asym_grpo", "delta": 0.5}}, 0, -0.5),
    ("filter_drop", {}, 1.7320508076, -0.5773502692),
]


@pytest.mark.parametrize(("name", "options", "success", "failure"), VALUES)
def test_worked_values(
    advantages: Callable[..., torch.Tensor],
    name: str,
    options: dict[str, Any],
    success: float,
    failure: float,
) -> None:
    values = advantages({"name": name, **options}, [[1.0] * 2 + [0.0] * 6])[0]
    assert (values[:2] == values[0]).all()
    assert (values[2:] == values[2]).all()
    assert values[[0, 2]].tolist() == pytest.approx([success, failure], abs=1e-9)


def test_a_lone_success_is_all_that_pass_at_k_has() -> None:
    batch = GroupBatch(rewards=torch.eye(8, dtype=torch.float64)[:1])
    for scale, expected in (("mean", 1.0), ("std", 1 / (math.sqrt(1 / 8) + 1e-6))):
        values = build_estimator("passk_loo", scale=scale)(batch)
        assert values.tolist() == [pytest.approx([expected] + [0.0] * 7)]


@pytest.mark.parametrize("name", estimator_names())
def test_every_estimator_has_worked_values(name: str) -> None:
    """Here, or in a test of its family."""
    if name in {named for named, *_ in VALUES}:
        return
    shared = {"test_contract.py", "test_identities.py", "test_registry.py", "test_worked_values.py"}
    families = [path for path in Path(__file__).parent.glob("test_*.py") if path.name not in shared]
    assert any(re.search(rf"\b{name}\b", path.read_text("utf-8")) for path in families), (
        f"no test has worked values of {name}: add to VALUES in "
        "tests/estimators/test_worked_values.py its advantages of 2 successes and 6 failures\n"
        f'    ("{name}", {{}}, SUCCESS, FAILURE),  # the arithmetic\n'
        "or write tests/estimators/test_FAMILY.py"
    )


def inputs(name: str, rewards: torch.Tensor) -> GroupBatch:
    needs = dict.fromkeys(build_estimator(name).needs, torch.ones_like(rewards))
    return GroupBatch(rewards=rewards, **needs)


@pytest.mark.parametrize("name", [n for n in estimator_names() if ESTIMATORS.get(n).binary_only])
@pytest.mark.parametrize("reward", [0.5, -1.0, 2.0])
def test_graded_rewards_are_refused(name: str, reward: float) -> None:
    rewards = torch.tensor([[1.0, reward, 0.0, 0.0]])
    with pytest.raises(BatchError, match=f"rewards of 0 and 1 only, got {reward:g}"):
        build_estimator(name)(inputs(name, rewards))


@pytest.mark.parametrize("name", [n for n in estimator_names() if ESTIMATORS.get(n).rates])
@pytest.mark.parametrize("row", [[2.0, 1.5, 1.0, 1.0], [-1.0, 0.0, 0.0, 0.5]])
def test_means_that_are_no_rates_are_refused(name: str, row: list[float]) -> None:
    rewards = torch.tensor([[0.0, 1.0, 0.0, 1.0], row])
    with pytest.raises(BatchError, match=r"needs it in \[0, 1\], got .*rescale"):
        build_estimator(name)(inputs(name, rewards))


@pytest.mark.parametrize("name", ["hard_focused", "easy_focused"])
def test_rates_of_zero_and_one_are_not_rescaled(name: str) -> None:
    rewards = torch.tensor([[1.0, 1.0], [0.0, 0.0], [1.0, -1.0], [1.5, 0.5]])
    for base in ("reinforce", "grpo"):
        values = build_estimator(name, base=base)(GroupBatch(rewards=rewards))
        assert torch.equal(values, build_estimator(base)(GroupBatch(rewards=rewards)))
