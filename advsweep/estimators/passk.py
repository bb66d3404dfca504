"""Weights whose objective is pass@k."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch

from advsweep.components import option
from advsweep.estimators.base import Estimator
from advsweep.estimators.batch import Groups, Std, standardise
from advsweep.estimators.reshaped import Scale

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

    from advsweep.estimators.batch import PerRollout


_Weight = Callable[[int, int, int], float]


@dataclass(kw_only=True)
class PassKLOO(Estimator):
    """What a rollout adds to the best of its block: Aᵢ = max(block) - max(block without i).

    Blocks are k rollouts in the order given. On binary rewards a lone success gets 1 and
    everything else 0, so the expected masses are p q^(k-1) and 0. The maximum of nothing is
    0, which makes k = 1 `reinforce`. Blocks that lose rollouts to the mask are smaller.

    verl's `grpo_passk` divides by the sample σ of the group + 1e-6: `scale=std`. A group without
    spread then gets 0, and so does a rollout that is alone in its block of k ≥ 2: nothing says
    how its reward compares.
    """

    name: ClassVar[str] = "passk_loo"
    per_group: ClassVar[bool] = True

    k: int | None = option(None, ge=1, help="rollouts of a block; null: the group size")
    scale: Scale = option("mean", absent="mean", help="std: divided by the group's sample σ")
    eps: float = option(1e-6, ge=0, absent=1e-6, help="ε of scale=std, added to σ")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.k is not None:
            self._narrow(minimum_group=self.k, group_multiple=self.k, exchangeable=self.k == 1)
        if self.scale == "std":
            # In 1, a rollout alone in its block was divided by the group's σ, 0 included.
            self._narrow(revision=2)

    def _advantages(self, groups: Groups, info: dict[str, float]) -> PerRollout:
        if self.scale == "mean":
            return self._gains(groups, empty=0.0)
        return standardise(self._gains(groups, empty=None), groups.std(Std.SAMPLE), self.eps)

    def _gains(self, groups: Groups, *, empty: float | None) -> PerRollout:
        """Return what each rollout adds to the best of its block.

        Args:
            empty: the best of no rollout, with which one that the mask leaves alone in its block
                is compared; None: it gains nothing.
        """
        rewards = groups.rewards
        if groups.mask is not None:
            rewards = torch.where(groups.mask, rewards, -math.inf)
        k = rewards.shape[1] if self.k is None else self.k
        if k == 1:
            return rewards.clone()
        blocks = rewards.reshape(-1, k)
        top = blocks.topk(2).values
        best = top[:, :1]
        runner_up = top[:, 1:]
        if groups.mask is not None:
            substitute = best if empty is None else torch.full_like(best, empty)
            runner_up = torch.where(runner_up == -math.inf, substitute, runner_up)
        # Where the best is tied the runner-up is as good.
        return torch.where(blocks == best, best - runner_up, 0.0).view_as(rewards)


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
    per_group: ClassVar[bool] = True
    binary_only: ClassVar[bool] = True

    k: int = option(4, ge=1, help="samples of which the best counts, at most the group size")

    def __post_init__(self) -> None:
        super().__post_init__()
        self._narrow(minimum_group=self.k)

    def _advantages(self, groups: Groups, info: dict[str, float]) -> PerRollout:
        rewards = groups.rewards
        size = groups.rewards.shape[1]
        failures = (groups.count - rewards.sum(dim=1, keepdim=True)).long()
        counts = [size] if isinstance(groups.count, int) else range(size + 1)
        like = (rewards.dtype, rewards.device)
        tables = [_table(self.weight, count, self.k, size, like) for count in counts]
        if isinstance(groups.count, int):
            return groups.centred * tables[0][failures]
        return groups.centred * torch.stack(tables)[groups.count.long(), failures]

    @staticmethod
    def weight(count: int, k: int, failures: int) -> float:
        """Return √((1-R)/R) / q for `count` rollouts; 0 where the definition has all at 0.

        As 1-R = (F/G) C(F-1,k-1)/C(G-1,k-1), both cases of the definition are this times rᵢ - p.
        """
        if not k <= failures < count:
            return 0.0
        missed = math.comb(failures, k)
        return math.sqrt(missed / (math.comb(count, k) - missed)) * count / failures


class PassKMix(PassKAnalytic):
    """Pass@k while a prompt is solved, pass@1 while it is not (Chen et al., 2025).

    Aᵢ = p A⁽ᵏ⁾ᵢ + (1-p) A⁽¹⁾ᵢ, with A⁽ᵏ⁾ of `passk_analytic`, A⁽¹⁾ of `grpo` and the group's
    own p. Group masses are p (p A_s⁽ᵏ⁾ + q A_s⁽¹⁾) on both sides; k = 1 is `grpo`.
    Homogeneous groups get 0; where A⁽ᵏ⁾ is 0 for too few failures, (1-p) `grpo` is left.
    """

    name: ClassVar[str] = "passk_mix"

    @staticmethod
    def weight(count: int, k: int, failures: int) -> float:
        q = failures / count
        best_of_k, single = (PassKAnalytic.weight(count, n, failures) for n in (k, 1))
        return (1 - q) * best_of_k + q * single


@functools.lru_cache(maxsize=1024)
def _table(
    weight: _Weight, count: int, k: int, size: int, like: tuple[torch.dtype, torch.device]
) -> Float[Tensor, " failures"]:
    """Return the weights for 0 to `size` failures of `count` rollouts; 0 beyond `count`."""
    weights = [weight(count, k, failures) for failures in range(1, count + 1)]
    padded = [0.0, *weights, *[0.0] * (size - count)]
    return torch.tensor(padded, dtype=like[0], device=like[1])
