"""Objectives against the loss that TRL's own trainer computes from the same numbers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from advsweep.objectives import OBJECTIVES
from advsweep.objectives.base import LossInputs
from tests.integrations.token_inputs import differences, token_inputs, tolerance

trl = pytest.importorskip("trl", minversion="1.12")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::FutureWarning")]

MAX_TOKENS = 50


class OneProcess:
    """TRL's accelerator where there is one process."""

    num_processes, sync_gradients, device = 1, True, torch.device("cpu")

    def gather(self, values: Tensor) -> Tensor:
        return values

    def reduce(self, values: Tensor, reduction: str) -> Tensor:
        return values

    def pad_across_processes(self, values: Tensor, **_: Any) -> Tensor:
        return values


class Stock(trl.GRPOTrainer):  # type: ignore[misc]
    """A trainer without a model: `_compute_loss` and what it calls are TRL's."""

    def __init__(self, **settings: Any) -> None:
        self.args = trl.GRPOConfig(
            output_dir="unused", use_cpu=True, bf16=False, report_to="none", **settings
        )
        self.args.steps_per_generation = 1
        self.model = SimpleNamespace(training=True)
        self.accelerator = OneProcess()
        self.current_gradient_accumulation_steps = 1
        self.max_completion_length = MAX_TOKENS
        self.epsilon_low = self.args.epsilon
        high = self.args.epsilon_high
        self.epsilon_high = self.args.epsilon if high is None else high
        for name in ("beta", "loss_type", "importance_sampling_level", "entropy_coef"):
            setattr(self, name, getattr(self.args, name))
        self.top_entropy_quantile = self.args.top_entropy_quantile
        self.off_policy_mask_threshold = self.args.off_policy_mask_threshold
        self.use_vllm = self.use_adaptive_entropy = self.aux_loss_enabled = False
        self._entropy_bonus_enabled = self.entropy_coef > 0
        self._metrics = {"train": defaultdict(list)}

    def _get_per_token_logps_and_entropies(self, *_: Any, **__: Any) -> Any:
        return self.inputs.log_probs, self.inputs.entropies, None

    def __call__(self, inputs: LossInputs) -> tuple[Tensor, Mapping[str, float]]:
        """Return TRL's loss, and the share that it logs of what the clip stops."""
        self.inputs, mask = inputs, inputs.completion_mask.to(inputs.log_probs.dtype)
        loss = self._compute_loss(
            self.model,
            {
                "prompt_ids": torch.ones(len(mask), 1),
                "prompt_mask": torch.ones(len(mask), 1),
                "completion_ids": torch.ones_like(mask),
                "completion_mask": mask,
                "advantages": inputs.advantages,
                "old_per_token_logps": inputs.old_log_probs,
                "ref_per_token_logps": inputs.reference_log_probs,
                "num_items_in_batch": mask.sum(),
            },
        )
        logged = self._metrics["train"]["clip_ratio/region_mean"]
        # TRL counts whole rollouts with the ratio of a sequence, and no token beyond delta.
        is_ours = self.importance_sampling_level == "token" and self.args.delta is None
        return loss, {"loss/clip_fraction": logged[0]} if logged and is_ours else {}


SEQUENCE = {"importance_sampling_level": "sequence"}
# TRL's settings, and what to write here.
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "grpo": ({"loss_type": "grpo"}, {"name": "clipped"}),
    "bnpo": ({"loss_type": "bnpo"}, {"name": "clipped", "aggregation": "token_mean"}),
    "dapo": (
        {"loss_type": "dapo", "epsilon_high": 0.28},
        {"name": "clipped", "aggregation": "token_mean", "clip_high": 0.28},
    ),
    "dr_grpo": (
        {"loss_type": "dr_grpo"},
        {"name": "clipped", "aggregation": "constant", "max_tokens": MAX_TOKENS},
    ),
    "luspo": (
        {"loss_type": "luspo", **SEQUENCE},
        {"name": "clipped", "ratio": "sequence", "aggregation": "seq_mean_token_sum"},
    ),
    "luspo of tokens": (
        {"loss_type": "luspo"},
        {"name": "clipped", "aggregation": "seq_mean_token_sum"},
    ),
    "sequence": ({"loss_type": "grpo", **SEQUENCE}, {"name": "clipped", "ratio": "sequence"}),
    "delta": ({"loss_type": "grpo", "delta": 1.5}, {"name": "clipped", "dual_clip": 1.5}),
    # A bound below 1 + ε bounds the other clip, too.
    "small delta": (
        {"loss_type": "grpo", "delta": 1.1},
        {"name": "clipped", "clip_high": 0.1, "dual_clip": 1.2},
    ),
    "cispo": ({"loss_type": "cispo", "epsilon_high": 5.0}, {"name": "cispo"}),
    "cispo of sequences": (
        {"loss_type": "cispo", "epsilon_high": 1.1, **SEQUENCE},
        {"name": "cispo", "clip_high": 0.1, "ratio": "sequence"},
    ),
    "sapo": ({"loss_type": "sapo"}, {"name": "sapo"}),
    "sapo of sequences": (
        {"loss_type": "sapo", **SEQUENCE},
        {"name": "sapo", "ratio": "sequence"},
    ),
    "vespo": ({"loss_type": "vespo"}, {"name": "vespo"}),
    "off_policy_mask_threshold": (
        {"loss_type": "grpo", "off_policy_mask_threshold": 0.05},
        {"name": "clipped", "off_policy_mask_threshold": 0.05},
    ),
    "top_entropy_quantile": (
        {"loss_type": "dapo", "top_entropy_quantile": 0.2, "entropy_coef": 0.01},
        {
            "name": "clipped",
            "aggregation": "token_mean",
            "top_entropy_quantile": 0.2,
            "entropy_coef": 0.01,
        },
    ),
    "beta": (
        {"loss_type": "grpo", "beta": 0.1, "use_bias_correction_kl": False},
        {"name": "clipped", "kl_coef": 0.1},
    ),
    "use_bias_correction_kl": (
        {"loss_type": "dapo", "beta": 0.1},
        {
            "name": "clipped",
            "aggregation": "token_mean",
            "kl_coef": 0.1,
            "kl_gradient": "importance",
        },
    ),
    "use_bias_correction_kl of sequences": (
        {"loss_type": "grpo", "beta": 0.1, **SEQUENCE},
        {"name": "clipped", "ratio": "sequence", "kl_coef": 0.1, "kl_gradient": "importance"},
    ),
    "entropy_coef": (
        {"loss_type": "grpo", "entropy_coef": 0.02},
        {"name": "clipped", "entropy_coef": 0.02},
    ),
}


def compared(name: str, seed: int, dtype: torch.dtype) -> dict[str, float]:
    theirs, ours = CASES[name]
    # TRL makes tensors of its constants in the default precision.
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        return differences(Stock(**theirs), OBJECTIVES.build(ours), token_inputs(seed, dtype))
    finally:
        torch.set_default_dtype(before)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_loss_gradient_and_share_are_those_of_trl(name: str, dtype: torch.dtype) -> None:
    for seed in range(3):
        for what, difference in compared(name, seed, dtype).items():
            assert difference <= tolerance(what, dtype), (seed, what)
