"""Rewards that the model gives itself, by its own next-token distributions.

Each is standardised as `grpo` does a reward; the verifier's rewards are not read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, ClassVar

from advsweep.estimators.base import GroupBatch
from advsweep.estimators.baselines import GRPO, Conventions, Preset
from advsweep.estimators.groups import Groups

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor


@dataclass(kw_only=True)
class Intuitor(GRPO):
    """The model's confidence as the reward: `grpo` on the mean KL(uniform ‖ π) of a rollout.

    The authors' reward is the mean over response tokens of logsumexp(z) - mean(z), z the
    logits, which is KL(uniform ‖ π) + log V; the constant cancels. The verifier's rewards are
    not read, so their collapse rate is undefined here. Groups of equal confidence get 0.

    Departures: none but the population σ of the default. `preset=released` and `trl` are the
    authors' version on TRL (sample σ, ε = 1e-4), `verl` the one on verl (ε = 1e-6).
    """

    name: ClassVar[str] = "intuitor"
    family: ClassVar[str] = "intrinsic rewards"
    formula: ClassVar[str] = "Aᵢ = grpo of the rollout's mean KL(uniform ‖ π)"
    paper: ClassVar[str] = "INTUITOR (arXiv:2505.19590)"
    equation: ClassVar[str] = "the authors' code; named by AVSPO (arXiv:2605.21125)"
    needs: ClassVar[frozenset[str]] = frozenset({"self_certainty"})
    verifier_free: ClassVar[bool] = True
    conventions: ClassVar[Mapping[Enum, Conventions]] = {
        **GRPO.conventions,
        Preset.RELEASED: GRPO.conventions[Preset.TRL],
    }

    def _advantages(
        self, groups: Groups, info: dict[str, float]
    ) -> Float[Tensor, "prompts rollouts"]:
        confidence = GroupBatch(rewards=groups.finite("self_certainty"), mask=groups.mask)
        return super()._advantages(Groups(confidence), info)


@dataclass(kw_only=True)
class RENT(GRPO):
    """Certainty as the reward: `grpo` on the negative mean token entropy of a rollout.

    The verifier's rewards are not read, so their collapse rate is undefined here. Groups of
    equal entropy get 0.

    Departures: none but the population σ of the default. `preset=released` and `verl` are
    the authors' code (sample σ, ε = 1e-6).
    """

    name: ClassVar[str] = "rent"
    family: ClassVar[str] = "intrinsic rewards"
    formula: ClassVar[str] = "Aᵢ = grpo of the rollout's negative mean token entropy"
    paper: ClassVar[str] = "RENT (arXiv:2505.22660)"
    equation: ClassVar[str] = "the authors' code; named by AVSPO (arXiv:2605.21125)"
    needs: ClassVar[frozenset[str]] = frozenset({"token_entropy_exact"})
    verifier_free: ClassVar[bool] = True

    def _advantages(
        self, groups: Groups, info: dict[str, float]
    ) -> Float[Tensor, "prompts rollouts"]:
        certainty = GroupBatch(rewards=-groups.finite("token_entropy_exact"), mask=groups.mask)
        return super()._advantages(Groups(certainty), info)
