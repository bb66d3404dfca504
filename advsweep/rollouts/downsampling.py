"""Rollout policies that draw more rollouts of a prompt than they train on."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import torch

from advsweep.components import option
from advsweep.errors import ConfigError
from advsweep.estimators.batch import share_correct
from advsweep.rollouts.base import Collected, RolloutPolicy, RolloutSource

if TYPE_CHECKING:
    from jaxtyping import Int
    from torch import Tensor

    from advsweep.estimators.batch import PerRollout

    Chosen = Int[Tensor, "prompts size"]


@dataclass(kw_only=True)
class Downsampling(RolloutPolicy):
    """Draws n rollouts per prompt and trains on G = `group_size` of them.

    The estimator sees the G rollouts alone, so that means and σ are theirs. Metrics of rewards and
    collapse are of all n, which is what `cost/rollouts` counts: n / G. Rollouts that could not be
    scored are chosen last. A subclass implements `_choose`.
    """

    provides: ClassVar[frozenset[str]] = frozenset({"solve_rates"})
    selects: ClassVar[bool] = True

    drawn: int | None = option(
        None, ge=1, help="n, rollouts drawn per prompt; null: twice group_size"
    )

    def drawn_size(self, group_size: int) -> int:
        if self.drawn is not None and self.drawn < group_size:
            raise ConfigError(
                f"rollout.drawn: expected at least group_size = {group_size}, the rollouts that "
                f"are trained on, got {self.drawn}"
            )
        return self.drawn or 2 * group_size

    def collect(self, source: RolloutSource, prompts: int) -> Collected:
        rewards = source.draw(prompts)
        chosen = self._choose(rewards, source.lengths, source.group_size).sort(dim=1).values
        verdicts = source.verdicts.gather(1, chosen)
        return Collected(
            torch.arange(len(rewards)),
            solve_rates=share_correct(verdicts == 1, ~verdicts.isnan()),
            rollouts=chosen,
        )

    @abstractmethod
    def _choose(self, rewards: PerRollout, lengths: PerRollout, size: int) -> Chosen:
        """Return the rollouts of each group to train on, in any order.

        Args:
            rewards: NaN where the verifier could not judge.
            lengths: in tokens.
        """


@dataclass(kw_only=True)
class Gfpo(Downsampling):
    """Trains on the rollouts of each group that are best by a metric of length; GFPO.

        length      the fewest tokens
        efficiency  the largest reward per token

    Among equals the first drawn are kept.

    Source: GFPO (Shrivastava et al. 2025, arXiv:2508.09726), sec. 3, with n = 16 and G = 8 of
    many; TRL's experimental `GFPOTrainer`, which TRL 1.16 no longer has.

    Departures: rejected rollouts are in no denominator of the loss, as in TRL's trainer. G does not
    depend on the difficulty.
    """

    name: ClassVar[str] = "gfpo"

    metric: Literal["length", "efficiency"] = option("length", help="by what rollouts are kept")

    def _choose(self, rewards: PerRollout, lengths: PerRollout, size: int) -> Chosen:
        scores = rewards / lengths if self.metric == "efficiency" else -lengths
        scores = scores.masked_fill(rewards.isnan(), -torch.inf)
        return scores.argsort(dim=1, descending=True, stable=True)[:, :size]


@dataclass(kw_only=True)
class Pods(Downsampling):
    """Trains on the rollouts of each group whose rewards have the largest variance; PODS.

    These are the k largest and the G - k smallest rewards, with the k of the largest variance.

    Source: PODS (Xu et al. 2025, arXiv:2504.13818), max-variance down-sampling, with advantages
    that are normalised after it.

    Departures: none.
    """

    name: ClassVar[str] = "pods"

    def _choose(self, rewards: PerRollout, lengths: PerRollout, size: int) -> Chosen:
        # NaN comes last, and so counts among the largest only if the others do not suffice.
        order = rewards.argsort(dim=1, stable=True)
        scored = (~rewards.isnan()).sum(dim=1, keepdim=True).clamp(min=size)
        places = torch.arange(size)
        choices = [
            order.gather(1, torch.where(places < size - k, places, scored - size + places))
            for k in range(size + 1)
        ]
        variances = [rewards.gather(1, one).var(dim=1, correction=0) for one in choices]
        best = torch.stack(variances).argmax(dim=0)
        return torch.stack(choices)[best, torch.arange(len(rewards))]
