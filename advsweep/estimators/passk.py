"""Weights whose objective is pass@k."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from advsweep.components import option
from advsweep.estimators.base import Estimator
from advsweep.estimators.groups import Groups

if TYPE_CHECKING:
    from jaxtyping import Float


@dataclass(kw_only=True)
class PassKAnalytic(Estimator):
    """GRPO on the reward of a random k-subset, averaged over subsets (Chen et al., 2025).

    With F failures in a group of G, R = 1 - C(F,k)/C(G,k) and s = √(R(1-R)):
    A_s = (1-R)/s for successes and A_f = (1 - R - C(F-1,k-1)/C(G-1,k-1))/s for failures.
    Group masses are p √((1-R)/R) on both sides; k = 1 is `grpo`. A group is all 0 when it
    is homogeneous, when F < k (every subset succeeds), or when its mask leaves fewer than
    k rollouts.
    """

    name: ClassVar[str] = "passk_analytic"
    family: ClassVar[str] = "pass@k"
    formula: ClassVar[str] = "Aᵢ = (rᵢ - p)/q · √((1-R)/R),  R = 1 - C(F,k)/C(G,k)"
    paper: ClassVar[str] = "FADE (arXiv:2607.01490)"
    equation: ClassVar[str] = "sec. 8.4"
    binary_only: ClassVar[bool] = True

    k: int = option(4, ge=1, help="samples of which the best counts, at most the group size")

    def __post_init__(self) -> None:
        super().__post_init__()
        self._narrow(minimum_group=self.k)

    def _advantages(
        self, groups: Groups, info: dict[str, float]
    ) -> Float[Tensor, "prompts rollouts"]:
        failures = (groups.count - groups.rewards.sum(dim=1, keepdim=True)).long()
        size = groups.rewards.shape[1]
        kind = (groups.rewards.dtype, groups.rewards.device)
        if isinstance(groups.count, int):
            return groups.centred * _weights(size, self.k, size, *kind)[failures]
        tables = [_weights(count, self.k, size, *kind) for count in range(size + 1)]
        return groups.centred * torch.stack(tables)[groups.count.long(), failures]


@functools.lru_cache(maxsize=1024)
def _weights(
    count: int, k: int, size: int, dtype: torch.dtype, device: torch.device
) -> Float[Tensor, " failures"]:
    """√((1-R)/R) / q for 0 to `size` failures among `count` rollouts.

    As 1-R = (F/G) C(F-1,k-1)/C(G-1,k-1), both cases of the definition are this times rᵢ - p.
    """
    subsets = math.comb(count, k)
    weights = [0.0] * (size + 1)
    for failures in range(k, count):
        missed = math.comb(failures, k)
        weights[failures] = math.sqrt(missed / (subsets - missed)) * count / failures
    return torch.tensor(weights, dtype=dtype, device=device)
