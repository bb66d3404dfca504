"""Corrections of the sampler's mismatch agree with verl's rollout correction."""

import dataclasses

import pytest
import torch

from advsweep.objectives import OBJECTIVES
from advsweep.objectives.base import LossInputs
from advsweep.objectives.corrections import PRESETS, STATISTICS

pytest.importorskip("verl")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

AGGREGATIONS = {
    "token_mean": "token-mean",
    "seq_mean_token_mean": "seq-mean-token-mean",
    "seq_mean_token_sum": "seq-mean-token-sum",
}
VERL = [name for name in PRESETS if name.startswith(("decoupled", "bypass", "disabled"))]
REJECTIONS = {
    "token_k1": [0.9, 1.1],
    "token_k2": [0.005],
    "token_k3": [0.005],
    "seq_sum_k1": [0.8, 1.3],
    "seq_sum_k2": [0.03],
    "seq_sum_k3": [0.03],
    "seq_mean_k1": [0.95, 1.05],
    "seq_mean_k2": [0.005],
    "seq_mean_k3": [0.005],
    "seq_max_k2": [0.02],
    "seq_max_k3": [0.02],
}


def make_inputs(seed, dtype=torch.float64, rows=32, width=9):
    generator = torch.Generator().manual_seed(seed)

    def noise(scale):
        return scale * torch.randn(rows, width, generator=generator, dtype=torch.float64).to(dtype)

    mask = torch.arange(width) < torch.randint(1, width + 1, (rows, 1), generator=generator)
    old = -1.5 + noise(0.4)
    return LossInputs(
        log_probs=(old + noise(0.2)).requires_grad_(),
        old_log_probs=old,
        completion_mask=mask,
        advantages=noise(1.0)[:, 0],
        rollouts=rows,
        tokens=int(mask.sum()),
        sampler_log_probs=old + noise(0.15) * (1 + 4 * (torch.arange(rows) % 3 == 0))[:, None],
    )


def verl_settings(preset):
    from verl.trainer.config.algorithm import RolloutCorrectionConfig

    return getattr(RolloutCorrectionConfig, preset)()


def verl_loss(inputs, settings, aggregation, loss="vanilla"):
    """What verl's V1 trainer computes, which counts tokens before it rejects some."""
    from verl.trainer.ppo import core_algos, rollout_corr_helper
    from verl.workers.config import FSDPActorConfig, PolicyLossConfig

    config = FSDPActorConfig(
        strategy="fsdp",
        rollout_n=1,
        ppo_micro_batch_size_per_gpu=1,
        clip_ratio_c=1e9,
        policy_loss=PolicyLossConfig(rollout_correction=settings),
    )
    config.global_batch_info.update(
        dp_size=1, batch_num_tokens=inputs.tokens, global_batch_size=inputs.rollouts
    )
    mask = inputs.completion_mask
    given = {
        "log_prob": inputs.log_probs,
        "advantages": inputs.advantages[:, None].expand_as(mask),
        "loss_agg_mode": AGGREGATIONS[aggregation],
        "config": config,
    }
    if settings.bypass_mode:
        loss, _ = core_algos.compute_policy_loss_bypass_mode(
            old_log_prob=inputs.sampler_log_probs, response_mask=mask, **given
        )
        return loss
    proto, kept, _ = rollout_corr_helper.compute_rollout_correction_and_rejection_mask(
        inputs.old_log_probs,
        inputs.sampler_log_probs,
        mask.long(),
        settings.rollout_is,
        settings.rollout_is_threshold,
        settings.rollout_is_batch_normalize,
        settings.rollout_rs,
        settings.rollout_rs_threshold,
    )
    weights = proto.batch["rollout_is_weights"] if proto else None
    loss, _ = core_algos.get_policy_loss_fn(loss)(
        old_log_prob=inputs.old_log_probs,
        response_mask=kept.bool(),
        rollout_is_weights=weights,
        **given,
    )
    return loss


def check(objective, inputs, settings, tolerance, loss="vanilla"):
    ours = objective.loss(inputs).loss
    theirs = verl_loss(inputs, settings, objective.aggregation, loss)
    gradients = [torch.autograd.grad(each, inputs.log_probs)[0] for each in (ours, theirs)]
    torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(*gradients, rtol=tolerance, atol=tolerance)


def test_every_preset_of_verl_is_here():
    from verl.trainer.config.algorithm import RolloutCorrectionConfig

    named = vars(RolloutCorrectionConfig).items()
    assert {name for name, value in named if isinstance(value, classmethod)} == {*VERL}
    assert len(VERL) == len(PRESETS) - 4


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@pytest.mark.parametrize("preset", VERL)
def test_presets_agree_with_verl(preset, aggregation):
    settings = verl_settings(preset)
    name = "cross_entropy" if settings.loss_type == "reinforce" else "clipped"
    objective = OBJECTIVES.build(name, correction=preset, aggregation=aggregation)
    for seed in range(5):
        check(objective, make_inputs(seed), settings, 1e-9)
    check(objective, make_inputs(9, torch.float32), settings, 1e-6)


@pytest.mark.parametrize("statistic", STATISTICS)
def test_statistics_of_rejection_agree_with_verl(statistic):
    reject = {"token_k2": [0.05], statistic: REJECTIONS[statistic]}
    settings = dataclasses.replace(
        verl_settings("decoupled_token_is"),
        rollout_rs=",".join(reject),
        rollout_rs_threshold=",".join("_".join(map(str, bounds)) for bounds in reject.values()),
    )
    objective = OBJECTIVES.build(
        "clipped", correction="decoupled_token_is", correction_reject=reject
    )
    rejected = 0.0
    for seed in range(5):
        inputs = make_inputs(seed)
        check(objective, inputs, settings, 1e-9)
        rejected += objective.loss(inputs).metrics["sampler/masked"].item() / 5
    assert 0.02 < rejected < 0.98


@pytest.mark.parametrize("preset", ["decoupled_token_is", "decoupled_token_icepop"])
def test_weights_of_a_geometric_mean_agree_with_verl(preset):
    objective = OBJECTIVES.build("gmpo", correction=preset, clip_low=0.2, clip_high=0.2)
    # verl's mean adds 1e-8 to the number of tokens.
    check(objective, make_inputs(0), verl_settings(preset), 1e-7, "geo_mean")
