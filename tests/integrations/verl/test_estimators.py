"""Every advantage of verl's registry, against its own function on random rollouts in float64."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

verl = pytest.importorskip("verl", minversion="0.9.1", reason="verl is absent: make test-verl")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

from omegaconf import OmegaConf  # noqa: E402
from tensordict import TensorDict  # noqa: E402
from verl import DataProto  # noqa: E402
from verl.trainer.ppo import core_algos  # noqa: E402
from verl.trainer.ppo.ray_trainer import apply_kl_penalty, compute_advantage  # noqa: E402

from advsweep.estimators import GroupBatch, build_estimator  # noqa: E402

PROMPTS, GROUP, TOKENS, VOCABULARY = 6, 5, 7, 11
BETA, KINDS = 0.3, {"k1": "kl", "k2": "mse", "low_var_kl": "low_var_kl", "abs": "abs"}


def rollouts(seed: int) -> tuple[GroupBatch, DataProto]:
    """The same rollouts for us and for verl: rewards with ties, lengths, parts, distributions."""
    torch.manual_seed(seed)
    rewards = torch.randint(0, 4, (PROMPTS, GROUP)).double() / 3
    rewards[0], rewards[1], rewards[2] = 1.0, 0.0, torch.randperm(GROUP).double() / GROUP
    parts = torch.stack((rewards, torch.randn(PROMPTS, GROUP).double()), dim=-1)
    lengths = torch.randint(1, TOKENS + 1, (PROMPTS, GROUP))
    shape = (PROMPTS, GROUP, TOKENS, VOCABULARY)
    policy, reference = (torch.randn(shape).double().log_softmax(dim=-1) for _ in range(2))
    chosen = torch.randint(0, VOCABULARY, (*shape[:-1], 1))
    log_probs, of_reference = (p.gather(-1, chosen)[..., 0] for p in (policy, reference))
    squares = policy.exp().square().sum(dim=-1)
    greedy = torch.rand(PROMPTS).double()
    batch = GroupBatch(
        rewards=rewards,
        lengths=lengths.double(),
        token_grad_norms=1 - 2 * log_probs.exp() + squares,
        token_kl=log_probs - of_reference,
        reward_parts=parts,
        greedy_rewards=greedy,
    )
    places, rows = torch.arange(TOKENS), PROMPTS * GROUP
    mask = (places < lengths.view(rows, 1)).double()
    last = (places == lengths.view(rows, 1) - 1).double()
    tensors = {
        "token_level_scores": rewards.view(rows, 1) * last,
        "response_mask": mask,
        "old_log_probs": log_probs.view(rows, TOKENS),
        "ref_log_prob": of_reference.view(rows, TOKENS),
        "sum_pi_squared": squares.view(rows, TOKENS),
        "reward_baselines": greedy.repeat_interleave(GROUP),
        "prompts": torch.zeros(rows, 1),
        "attention_mask": torch.cat((torch.ones(rows, 1), mask), dim=1).long(),
    }
    tensors["token_level_rewards"] = tensors["token_level_scores"]
    columns = {
        "uid": np.repeat(np.arange(PROMPTS).astype(str), GROUP).astype(object),
        "first": parts[..., 0].flatten().numpy(),
        "second": parts[..., 1].flatten().numpy(),
    }
    return batch, DataProto(TensorDict(tensors, batch_size=rows), columns)


def theirs(name: str, data: DataProto, **settings: Any) -> Tensor:
    keys = {"gdpo_reward_keys": ["first", "second"], "gdpo_reward_weights": [1.0, 0.5]}
    by_std = settings.get("norm_adv_by_std_in_grpo", True)
    config = OmegaConf.create({"gamma": 1.0, **keys, **settings})
    if name != "remax":  # verl hands them to every function, and not every one takes them
        kept = {*data.batch.keys()} - {"reward_baselines"}
        data = data.select(batch_keys=[*kept])
    found = compute_advantage(data, name, config=config, norm_adv_by_std_in_grpo=by_std)
    advantages: Tensor = found.batch["advantages"]
    return advantages.view(PROMPTS, GROUP, TOKENS)


def ours(spec: Any, batch: GroupBatch) -> Tensor:
    assert batch.lengths is not None
    values = build_estimator(spec)(batch)
    values = values if values.ndim == 3 else values[..., None]
    return values.where(torch.arange(TOKENS) < batch.lengths[..., None], 0.0)


UNSCALED = {"norm_adv_by_std_in_grpo": False}
# verl's name and settings, and what to write here.
SAME: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("grpo", {}, {"name": "grpo", "preset": "verl"}),
    ("grpo", UNSCALED, {"name": "dr_grpo"}),
    ("grpo_vectorized", {}, {"name": "grpo", "preset": "verl"}),
    ("grpo_passk", {}, {"name": "passk_loo", "scale": "std"}),
    ("grpo_passk", UNSCALED, {"name": "passk_loo"}),
    ("reinforce_plus_plus", {}, {"name": "reinforce_pp"}),
    ("reinforce_plus_plus", {"gamma": 0.9}, {"name": "reinforce_pp", "gamma": 0.9}),
    ("reinforce_plus_plus_baseline", {}, {"name": "reinforce_pp_baseline"}),
    ("rloo", {}, {"name": "rloo"}),
    ("rloo_vectorized", {}, {"name": "rloo"}),
    ("opo", {}, {"name": "opo"}),
    ("remax", {}, {"name": "remax"}),
    ("gpg", {}, {"name": "gpg", "alpha": "nonzero"}),
    ("gdpo", {}, {"name": "gdpo", "preset": "verl", "weights": (1.0, 0.5)}),
    ("optimal_token_baseline", {}, {"name": "optimal_token_baseline"}),
    ("tir_optimal_token_baseline", {}, {"name": "optimal_token_baseline"}),
]

# These compute in float32: the quotient α, the statistics of groups, and all of gdpo.
SINGLE = {"gpg": 1e-6, "grpo_vectorized": 1e-5, "gdpo": 1e-5}


def test_every_name_of_the_registry_is_answered() -> None:
    answered = {name for name, *_ in SAME} | {"gae", "advsweep"}
    assert set(core_algos.ADV_ESTIMATOR_REGISTRY) <= answered
    assert {name.value for name in core_algos.AdvantageEstimator} <= answered


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("name", "settings", "spec"), SAME, ids=str)
def test_advantages_are_verls(
    name: str, settings: dict[str, Any], spec: dict[str, Any], seed: int
) -> None:
    batch, data = rollouts(seed)
    expected = theirs(name, data, **settings)
    assert expected.any()
    atol = SINGLE.get(name, 1e-9)
    torch.testing.assert_close(ours(spec, batch).to(expected), expected, rtol=0, atol=atol)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["reinforce_plus_plus", "reinforce_plus_plus_baseline", "rloo"])
def test_the_kl_in_the_reward_is_verls(name: str, kind: str) -> None:
    batch, data = rollouts(0)
    data, _ = apply_kl_penalty(data, core_algos.FixedKLController(BETA), KINDS[kind])
    spec = {"name": name, "beta": BETA, "kl": kind}
    if name == "rloo":
        spec |= {"name": "kl_in_reward", "base": name}
    expected = theirs(name, data)
    torch.testing.assert_close(ours(spec, batch), expected, rtol=0, atol=1e-9)


def test_float32_differs_by_rounding_alone() -> None:
    batch, data = rollouts(1)
    single = data.select()
    for key, values in data.batch.items():
        single.batch[key] = values.float() if values.is_floating_point() else values
    rewards = batch.rewards.float()
    for name, settings, spec in SAME:
        found = ours(spec, replace(batch, rewards=rewards))
        expected = theirs(name, single, **settings)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-5, msg=name)
