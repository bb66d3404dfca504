"""T2T: GRPO on a reward that grows or falls with a response's length."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch

from advsweep.components import option
from advsweep.errors import BatchError
from advsweep.estimators.base import GroupBatch, Provenance
from advsweep.estimators.baselines import GRPO
from advsweep.estimators.group_stats import Groups, standardise

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor


@dataclass(kw_only=True)
class T2T(GRPO):
    """Thickening to thinning: longer tries while a prompt is hard, shorter ones once solved.

    `grpo` on the reward Rᵢ = 1 - α p Lᵢ of a success and Rᵢ = α (1-p) Lᵢ of a failure, with
    Lᵢ the response's length over the longest of its group (or over `max_len`). With
    K = 1 - α p L̄_S - α q L̄_F, the group masses are p q K / σ_R on both sides; α = 0 is `grpo`.
    An all-wrong group is pushed towards its longer responses and an all-correct one towards
    its shorter ones; a group of equal rewards and equal lengths gets 0.

    Departures: the paper gives neither the scale of the lengths nor α. Ours are the longest
    response of the group and 0.1.
    """

    name: ClassVar[str] = "t2t"
    family: ClassVar[str] = "reshaped"
    formula: ClassVar[str] = "Aᵢ = grpo of Rᵢ,  Rᵢ = 1 - α p Lᵢ if rᵢ = 1 else α (1-p) Lᵢ"
    paper: ClassVar[str] = "FADE (arXiv:2607.01490)"
    equation: ClassVar[str] = "sec. 8.2, Eq. 12-14"
    provenance: ClassVar[tuple[Provenance, ...]] = (Provenance.PAPER, Provenance.OURS)
    needs: ClassVar[frozenset[str]] = frozenset({"lengths"})
    binary_only: ClassVar[bool] = True

    alpha: float = option(0.1, ge=0, lt=1, help="α: how much of the reward hangs on length")
    max_len: float | None = option(
        None, gt=0, help="tokens that count as length 1; null: the longest response of the group"
    )

    def _advantages(
        self, groups: Groups, info: dict[str, float]
    ) -> Float[Tensor, "prompts rollouts"]:
        rewards = groups.rewards
        lengths = self._relative_lengths(groups)
        # R = r + α L (1 - r - p): the factor is -p for a success and 1-p for a failure.
        shaped = torch.add(rewards, lengths, alpha=self.alpha)
        shaped = torch.addcmul(shaped, lengths, rewards + groups.mean, value=-self.alpha)
        return super()._advantages(Groups(GroupBatch(rewards=shaped, mask=groups.mask)), info)

    def _relative_lengths(self, groups: Groups) -> Float[Tensor, "prompts rollouts"]:
        """Lᵢ in [0, 1]."""
        lengths = groups.given("lengths")
        low, high = (limit.item() for limit in torch.aminmax(lengths))
        limit = math.inf if self.max_len is None else self.max_len
        if not (low >= 0 and high <= limit and math.isfinite(high)):
            raise BatchError(
                f"lengths: expected tokens from 0 to max_len = {limit:g}, got {low:g} to {high:g}"
            )
        if self.max_len is not None:
            return lengths / self.max_len
        # Where no response of a group has a token, 0/0 reads as 0.
        return standardise(lengths, lengths.amax(dim=1, keepdim=True))
