"""Stand-ins for methods that the papers compare with but do not define.

The formulas are ours, after the methods' one-line descriptions. Both score rollouts by the
model's own distributions and standardise that score as `grpo` does a reward.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from advsweep.estimators.base import GroupBatch
from advsweep.estimators.baselines import GRPO
from advsweep.estimators.groups import Groups

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor


@dataclass(kw_only=True)
class Intuitor(GRPO):
    """The model's confidence as the reward: `grpo` on the mean KL(uniform ‖ π) of a rollout.

    The verifier's rewards are not read, so their collapse rate is undefined here. Groups of
    equal confidence get 0.

    Departures: a stand-in. The papers name the method and say that the model's own confidence
    is its reward; the formula is ours.
    """

    name: ClassVar[str] = "intuitor"
    family: ClassVar[str] = "stand-ins"
    formula: ClassVar[str] = "Aᵢ = grpo of the rollout's mean KL(uniform ‖ π)"
    paper: ClassVar[str] = "AVSPO (Advantage Collapse in GRPO)"
    equation: ClassVar[str] = "by name; the formula is ours; Zhao et al. (arXiv:2505.19590)"
    needs: ClassVar[frozenset[str]] = frozenset({"self_certainty"})
    verifier_free: ClassVar[bool] = True

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

    Departures: a stand-in. The papers name the method and say that it minimises the entropy
    of the output; the formula is ours.
    """

    name: ClassVar[str] = "rent"
    family: ClassVar[str] = "stand-ins"
    formula: ClassVar[str] = "Aᵢ = grpo of the rollout's negative mean token entropy"
    paper: ClassVar[str] = "AVSPO (Advantage Collapse in GRPO)"
    equation: ClassVar[str] = "by name; the formula is ours; Prabhudesai et al. (arXiv:2505.22660)"
    needs: ClassVar[frozenset[str]] = frozenset({"token_entropy_exact"})
    verifier_free: ClassVar[bool] = True

    def _advantages(
        self, groups: Groups, info: dict[str, float]
    ) -> Float[Tensor, "prompts rollouts"]:
        certainty = GroupBatch(rewards=-groups.finite("token_entropy_exact"), mask=groups.mask)
        return super()._advantages(Groups(certainty), info)
