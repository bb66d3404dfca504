"""Rewards that the model gives itself, by its own next-token distributions.

Each is standardised as `grpo` does a reward; the verifier's rewards are not read.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, ClassVar

import torch

from advsweep.components import option
from advsweep.estimators.base import Provenance
from advsweep.estimators.baselines import GRPO, Conventions, Preset
from advsweep.estimators.batch import GroupBatch
from advsweep.estimators.group_stats import Groups

if TYPE_CHECKING:
    from advsweep.estimators.batch import PerRollout


_NO_ANSWER = -7.0
"""RENT's code sets the entropy of a rollout without an answer to 7 in mathematics."""


@dataclass(kw_only=True)
class Intuitor(GRPO):
    """The model's confidence as the reward: `grpo` on the mean KL(uniform ‖ π) of a rollout.

    The authors' reward is the mean over response tokens of logsumexp(z) - mean(z), z the
    logits, which is KL(uniform ‖ π) + log V; the constant cancels. The verifier's rewards are
    not read, so their collapse rate is undefined here. Groups of equal confidence get 0.

    Released code: the authors' version on TRL has the sample σ and ε = 1e-4 (`preset=trl` is the
    same). Their version on verl has ε = 1e-6 (`preset=verl`).

    Departures: the default has the population σ without an ε, as `grpo` has it here.
    """

    name: ClassVar[str] = "intuitor"
    family: ClassVar[str] = "intrinsic rewards"
    formula: ClassVar[str] = "Aᵢ = grpo of the rollout's mean KL(uniform ‖ π)"
    paper: ClassVar[str] = "INTUITOR (arXiv:2505.19590)"
    equation: ClassVar[str] = "the authors' code; named by AVSPO (arXiv:2605.21125)"
    provenance: ClassVar[tuple[Provenance, ...]] = (Provenance.RELEASED, Provenance.OURS)
    released_options: ClassVar[tuple[str, ...]] = ("preset=released",)
    needs: ClassVar[frozenset[str]] = frozenset({"self_certainty"})
    verifier_free: ClassVar[bool] = True
    conventions: ClassVar[Mapping[Enum, Conventions]] = {
        **GRPO.conventions,
        Preset.RELEASED: GRPO.conventions[Preset.TRL],
    }

    def _advantages(self, groups: Groups, info: dict[str, float]) -> PerRollout:
        confidence = GroupBatch(rewards=groups.finite("self_certainty"), mask=groups.mask)
        return super()._advantages(Groups(confidence), info)


@dataclass(kw_only=True)
class RENT(GRPO):
    """Certainty as the reward: `grpo` on the negative mean token entropy of a rollout.

    The verifier's rewards are not read, so their collapse rate is undefined here. Groups of
    equal entropy get 0.

    A rollout in which no answer can be read is rewarded with `no_answer` where that is given.

    Released code: the sample σ and ε = 1e-6; in mathematics also `no_answer=-7`.

    Departures: the default has the population σ without an ε, as `grpo` has it here, and treats
    all rollouts alike.
    """

    name: ClassVar[str] = "rent"
    family: ClassVar[str] = "intrinsic rewards"
    formula: ClassVar[str] = "Aᵢ = grpo of the rollout's negative mean token entropy"
    paper: ClassVar[str] = "RENT (arXiv:2505.22660)"
    equation: ClassVar[str] = "the authors' code; named by AVSPO (arXiv:2605.21125)"
    provenance: ClassVar[tuple[Provenance, ...]] = (Provenance.RELEASED, Provenance.OURS)
    released_options: ClassVar[tuple[str, ...]] = ("preset=released",)
    needs: ClassVar[frozenset[str]] = frozenset({"token_entropy_exact"})
    verifier_free: ClassVar[bool] = True

    no_answer: float | None = option(
        None,
        gt=-math.inf,
        lt=math.inf,
        absent=None,
        help="reward of a rollout without an answer; null: none of its own (-7 for released)",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.preset is Preset.RELEASED and self.no_answer is None:
            self.no_answer = _NO_ANSWER
        if self.no_answer is not None:
            self._narrow(needs=self.needs | {"answered"})

    def _advantages(self, groups: Groups, info: dict[str, float]) -> PerRollout:
        certainty = -groups.finite("token_entropy_exact")
        if self.no_answer is not None:
            assert groups.batch.answered is not None
            certainty = torch.where(groups.batch.answered, certainty, self.no_answer)
        return super()._advantages(Groups(GroupBatch(rewards=certainty, mask=groups.mask)), info)
