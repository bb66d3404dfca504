"""Reference rollouts: a second group per prompt, of the reference model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from advsweep.components import option
from advsweep.rollouts.base import Collected, RolloutPolicy, RolloutSource


@dataclass(kw_only=True)
class Reference(RolloutPolicy):
    """Plain rollouts, and beside each group one of the reference model for the same prompt.

    The reference is the base model, or the policy as it was at the last multiple of
    `update_every` steps. Its rollouts are generated anew in every step and are not trained
    on; they count in `cost/rollouts`, which is 2. A reference rollout that the verifier could
    not judge is given the reward of the rollout it stands beside, so that there is no margin.

    Source: AAPO (arXiv:2505.14264), Alg. 1; for `update_every`, the ablation of Table 3.

    Departures: none.
    """

    name: ClassVar[str] = "reference"
    provides: ClassVar[frozenset[str]] = frozenset({"ref_rewards"})
    draws_references: ClassVar[bool] = True
    keeps_all: ClassVar[bool] = True

    update_every: int = option(
        0, ge=0, help="steps after which the policy becomes the reference; 0: never"
    )

    def collect(self, source: RolloutSource, prompts: int) -> Collected:
        rewards = source.draw(prompts)
        groups = torch.arange(len(rewards))
        references = source.draw_references(groups)
        return Collected(groups, torch.where(references.isnan(), rewards, references))

    def renews_reference(self, step: int) -> bool:
        return self.update_every > 0 and step % self.update_every == 0
