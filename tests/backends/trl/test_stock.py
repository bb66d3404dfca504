"""GRPO through us is TRL's own, to the last bit."""

import numpy as np
import pytest
import safetensors.torch
import torch

from advsweep.backends.checkpoints import Checkpoints
from advsweep.backends.trl.trainer import EstimatorTrainer
from advsweep.tasks.rewards import build_reward

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::FutureWarning")]


@pytest.fixture
def our_training(train, tmp_path, monkeypatch):
    """Trains a run; returns the loss of every pass and the weights."""

    def trained(run):
        losses = []
        compute = EstimatorTrainer._compute_loss

        def record(*arguments):
            loss = compute(*arguments)
            losses.append(loss.item())
            return loss

        monkeypatch.setattr(EstimatorTrainer, "_compute_loss", record)
        train(run, tmp_path / "ours")
        files = Checkpoints(tmp_path / "ours", run.identity).load(run.steps).files
        return losses, safetensors.torch.load(files["model.safetensors"])

    return trained


TRL = {"name": "grpo", "preset": "trl"}


# TRL computes each rollout's prompt, and so do these, to have the same last bits.
PLAIN = {"checkpoint_every": 0, "skip_zero_advantages": False, "share_prompts": False}


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (
            {"backend": {**PLAIN, "minibatches": 2, "inner_epochs": 2, "device_batch": 12}},
            {"loss_type": "grpo"},
        ),
        # What TRL does unless it is told otherwise.
        (
            {
                "objective": {"aggregation": "token_mean"},
                "backend": {**PLAIN, "minibatches": 1, "device_batch": None},
            },
            {},
        ),
        (
            {
                "estimator": {"name": "dr_grpo"},
                "objective": {"aggregation": "constant", "max_tokens": 20},
                "generation": {"name": "transformers", "max_tokens": 20},
                "backend": {**PLAIN, "minibatches": 1, "device_batch": None},
            },
            {"loss_type": "dr_grpo", "scale_rewards": "none", "max_completion_length": 20},
        ),
    ],
    ids=["grpo, off-policy", "dapo", "dr_grpo"],
)
def test_grpo_is_stock_trl_over_20_steps(parity_run, our_training, stock_training, ours, theirs):
    changes = {"steps": 20, "group_size": 8, "estimator": TRL, "evaluation": {"every": 7}}
    run = parity_run(**{**changes, **ours})
    losses, weights = our_training(run)
    stock_losses, stock_weights = stock_training(run, **theirs)
    layout = run.backend.layout_of(run)
    assert len(losses) == 20 * layout.updates * layout.passes
    assert losses == stock_losses
    for name, weight in weights.items():
        assert torch.equal(weight, stock_weights[name]), name
    assert max(map(abs, losses)) > 0.01


def test_the_overlong_penalty_is_trls():
    from trl.rewards import get_soft_overlong_punishment

    lengths = np.arange(1, 121)
    theirs = get_soft_overlong_punishment(max_completion_len=100, soft_punish_cache=20)
    (ours,) = build_reward({"name": "overlong", "length": 100, "buffer": 20})
    found = ours.values([""] * 120, np.ones(120) == 1, lengths.astype(float)).tolist()
    assert found == theirs(completion_ids=[[1] * n for n in lengths.tolist()])


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ({"objective": {"ratio": "sequence"}}, {"importance_sampling_level": "sequence"}),
        # Our forward passes leave masked rollouts out.
        (
            {
                "rollout": {"mask_truncated": True},
                "generation": {"name": "transformers", "max_tokens": 4},
            },
            {"mask_truncated_completions": True, "max_completion_length": 4},
        ),
    ],
    ids=["gspo", "without truncated ones"],
)
def test_others_are_stock_trl_but_for_rounding(
    parity_run, our_training, stock_training, ours, theirs
):
    backend = {**PLAIN, "minibatches": 2, "inner_epochs": 2, "device_batch": None}
    run = parity_run(**{"steps": 2, "group_size": 8, "estimator": TRL, "backend": backend, **ours})
    losses, weights = our_training(run)
    stock_losses, stock_weights = stock_training(run, loss_type="grpo", **theirs)
    assert losses == pytest.approx(stock_losses, rel=1e-4, abs=1e-7)
    for name, weight in weights.items():
        torch.testing.assert_close(weight, stock_weights[name], rtol=0, atol=1e-5)
