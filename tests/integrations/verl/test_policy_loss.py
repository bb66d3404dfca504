"""The policy loss `advsweep` in verl's own call, against verl's losses."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("verl", minversion="0.9.1", reason="verl is absent: make test-verl")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

from hydra.errors import InstantiationException  # noqa: E402
from verl.trainer.ppo.core_algos import get_policy_loss_fn  # noqa: E402
from verl.utils.config import omega_conf_to_dataclass  # noqa: E402

from tests.integrations.verl.conftest import Compose  # noqa: E402

ACTOR = "actor_rollout_ref.actor"


def actor(compose: Compose, *overrides: str) -> Any:
    """verl's settings of the actor, as its workers build them."""
    given = [f"{ACTOR}.ppo_micro_batch_size_per_gpu=8", "actor_rollout_ref.rollout.n=4"]
    config = compose(
        *given, *(f"{'+' * o.startswith('+')}{ACTOR}.{o.lstrip('+')}" for o in overrides)
    )
    return omega_conf_to_dataclass(config.actor_rollout_ref.actor)


# verl's name and settings, and ours.
SAME = {
    "vanilla": (
        ["clip_ratio_high=0.28"],
        ["name=clipped", "clip_high=0.28", "dual_clip=3.0", "aggregation=token_mean"],
    ),
    "vanilla, mean of rollouts": (
        ["loss_agg_mode=seq-mean-token-mean"],
        ["name=clipped", "dual_clip=3.0", "aggregation=seq_mean_token_mean"],
    ),
    "gspo": (
        ["policy_loss.loss_mode=gspo", "clip_ratio_low=3e-4", "clip_ratio_high=4e-4"],
        ["name=gspo", "aggregation=token_mean"],
    ),
    "cispo": (
        ["policy_loss.loss_mode=cispo"],
        ["name=cispo", "clip_low=0.2", "clip_high=0.2"],
    ),
    "dro": (["policy_loss.loss_mode=dro", "+policy_loss.dro_beta=1.0"], ["name=dro"]),
    "kl_cov": (["policy_loss.loss_mode=kl_cov"], ["name=kl_cov"]),
    "clip_cov": (
        # All candidates are dropped, as verl draws at random.
        ["policy_loss.loss_mode=clip_cov", "policy_loss.clip_cov_ratio=1.0"],
        ["name=clip_cov", "fraction=1.0"],
    ),
}


def inputs(seed: int = 5) -> dict[str, Tensor]:
    """Eight rows, one of them without tokens."""
    generator = torch.Generator().manual_seed(seed)
    log_prob, advantages, moved = torch.randn(3, 8, 5, generator=generator, dtype=torch.float64)
    log_prob = -log_prob.abs() - 0.1
    mask = torch.arange(5) < torch.tensor([5, 1, 3, 0, 4, 5, 2, 5])[:, None]
    old = log_prob + 0.4 * moved
    return {
        "old_log_prob": old,
        "log_prob": log_prob,
        "advantages": advantages,
        "response_mask": mask,
    }


def computed(config: Any, given: dict[str, Tensor], **info: Any) -> tuple[Tensor, Tensor, Any]:
    """Loss, gradient and metrics, as verl's workers compute them."""
    numbers = {"dp_size": 1, "batch_num_tokens": None, "global_batch_size": None}
    config.global_batch_info.update({**numbers, "loss_scale_factor": None, **info})
    leaf = given["log_prob"].clone().requires_grad_()
    loss, metrics = get_policy_loss_fn(config.policy_loss.loss_mode)(
        **{**given, "log_prob": leaf}, loss_agg_mode=config.loss_agg_mode, config=config
    )
    return loss.detach(), torch.autograd.grad(loss, leaf)[0], metrics


def ours(compose: Compose, *options: str) -> Any:
    named = [f"+policy_loss.advsweep.{option}" for option in options]
    return actor(compose, "policy_loss.loss_mode=advsweep", *named)


@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
@pytest.mark.parametrize("case", SAME)
def test_losses_are_those_of_verl(compose: Compose, case: str, weighted: bool) -> None:
    settings, objective = SAME[case]
    given = inputs()
    if weighted:
        given["rollout_is_weights"] = inputs(6)["advantages"].exp()
    # As micro-batches without and with numbers of the whole batch: that of one of two processes.
    for info in ({}, {"dp_size": 2, "batch_num_tokens": 71, "global_batch_size": 16}):
        loss, gradient, _ = computed(actor(compose, *settings), given, **info)
        own_loss, own_gradient, _ = computed(ours(compose, *objective), given, **info)
        assert gradient.abs().max() > 1e-3
        assert torch.allclose(own_loss, loss, rtol=0, atol=1e-9)
        assert torch.allclose(own_gradient, gradient, rtol=0, atol=1e-9)


def test_micro_batches_add_up(compose: Compose) -> None:
    config, given = ours(compose, "name=clipped", "aggregation=seq_sum_token_mean"), inputs()
    whole = {"batch_num_tokens": 25, "global_batch_size": 8}
    loss, gradient, metrics = computed(config, given, **whole)
    parts = [
        computed(config, {name: value[rows] for name, value in given.items()}, **whole)
        for rows in (slice(4), slice(4, 8))
    ]
    assert torch.allclose(sum(part[0] for part in parts), loss)
    assert torch.allclose(torch.cat([part[1] for part in parts]), gradient)
    assert metrics.keys() == {"loss/policy", "loss/clip_fraction"}


MISTAKES = {
    "none": ([], "policy_loss.advsweep: expected an objective, got None"),
    "unknown": (["name=cisp"], "no objective is called 'cisp'"),
    "kl": (["name=clipped", "kl_coef=0.1"], "the reference's log-probabilities.*use_kl_loss"),
    "entropy": (["name=clipped", "entropy_coef=0.1"], "needs entropies.*actor.entropy_coeff"),
    "length": (["name=dr_grpo"], "max_tokens: expected a number with aggregation=constant"),
    "top entropies": (["name=clipped", "top_entropy_quantile=0.2"], "has no equivalent"),
    "sampler": (["name=clipped", "correction=token_truncate"], "algorithm.rollout_correction"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_what_does_not_fit_is_refused_before_a_model_is_loaded(
    compose: Compose, mistake: str
) -> None:
    options, message = MISTAKES[mistake]
    with pytest.raises(InstantiationException, match=message):
        ours(compose, *options)
