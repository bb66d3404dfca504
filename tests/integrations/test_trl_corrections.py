"""Corrections of the sampler's mismatch against TRL's ratio for vLLM, and its loss with it."""

from __future__ import annotations

import inspect
import math
import textwrap
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from advsweep.objectives import OBJECTIVES
from advsweep.objectives.base import LossInputs
from tests.integrations.test_trl_losses import CASES, Stock, trl
from tests.integrations.token_inputs import differences, token_inputs

pytestmark = pytest.mark.slow

LOSSES = ["grpo", "dapo", "sequence", "cispo", "sapo", "luspo", "vespo"]
MODES = ["token_truncate", "token_mask", "sequence_truncate", "sequence_mask"]


class StockOfVllm(Stock):
    """One whose rollouts vLLM has sampled."""

    def __init__(self, mode: str, low: float | None, high: float | None, **theirs: Any) -> None:
        super().__init__(**theirs)
        self.use_vllm = self.vllm_importance_sampling_correction = True
        self.vllm_importance_sampling_mode = mode
        self.vllm_importance_sampling_clip_min = low
        self.vllm_importance_sampling_clip_max = high

    def _compute_loss(self, model: Any, rows: dict[str, Any]) -> Tensor:
        ratio = self._ratio(rows["completion_mask"])
        return super()._compute_loss(model, {**rows, "importance_sampling_ratio": ratio})

    def _ratio(self, mask: Tensor) -> Tensor:
        """Run the lines of TRL that make the ratio, which stand in the method that generates."""
        source = inspect.getsource(trl.GRPOTrainer._generate_and_score_completions)
        begin = source.index("            # Compute the importance sampling ratio when using vLLM")
        end = source.index(
            "            # Compute the per-token log probabilities for the reference"
        )
        names: dict[str, Any] = {
            "math": math,
            "torch": torch,
            "self": self,
            "completion_mask": mask,
            "tool_mask": None,
            "old_per_token_logps": self.inputs.old_log_probs,
            "sampling_per_token_logps": self.inputs.sampler_log_probs,
        }
        exec(textwrap.dedent(source[begin:end]), names)
        ratio: Tensor = names["vllm_importance_sampling_ratio"]
        return ratio


def sampled_inputs(seed: int) -> LossInputs:
    """Some tokens have no log-probability of the sampler."""
    inputs, other = (token_inputs(s, torch.float64) for s in (seed, seed + 9))
    sampler = inputs.old_log_probs + (0.1 * other.old_log_probs).expm1().abs() - 0.15
    sampler[::3, 1] = math.nan
    return replace(inputs, sampler_log_probs=sampler)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize(("low", "high"), [(None, 3.0), (0.8, 1.2), (0.8, None)])
@pytest.mark.parametrize("mode", MODES)
def test_loss_and_gradient_are_those_of_trl(
    loss: str, mode: str, low: float | None, high: float | None
) -> None:
    if loss == "vespo" and mode.startswith("sequence"):
        pytest.skip("TRL refuses it")
    theirs, ours = CASES[loss]
    bounds = {"correction_low": low, "correction_high": "inf" if high is None else high}
    objective = OBJECTIVES.build(ours, correction=mode, **bounds)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        for seed in range(2):
            stock = StockOfVllm(mode, low, high, **theirs)
            found = differences(stock, objective, sampled_inputs(seed))
            assert max(found.values()) < 1e-9, found
    finally:
        torch.set_default_dtype(before)
