"""How alike two estimators are: the cosine of their advantages over all solve rates.

Groups are those of prompts of all solve rates: where the rate is anything from 0 to 1, each number
of right answers of a group is equally likely. A step has one group of each number, so that
estimators that read statistics of the batch see those of such prompts. What is compared is the mean
advantage of the right and of the wrong rollouts of each group. Other inputs than the rewards are
the same for all rollouts, and estimators with a memory are in their first step.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import torch

from advsweep.diagnostics.masses import kinds_of_group
from advsweep.errors import AdvsweepError
from advsweep.estimators.batch import NEUTRAL_INPUTS, GroupBatch, spread_input
from advsweep.estimators.varied import drawn_batch

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

    from advsweep.estimators import Estimator

    # Mean advantages of right and wrong rollouts, weighted as a cosine over rollouts has them.
    _Profile = Float[Tensor, " numbers"]

_SAME = 1e-6
_CLOSE = 1e-5
_TRIED_STEPS = 12
_TRIED_PROMPTS = 24


@dataclass(frozen=True, kw_only=True)
class Relative:
    """An estimator beside another one.

    Attributes:
        name: of the relative.
        inputs: how many inputs beside the rewards it needs.
        cosine: of the advantages of both, in [-1, 1].
        factor: the advantages are about so many times those of the relative.
        error: the largest distance from that, as a share of the largest advantage.
    """

    name: str
    inputs: int
    cosine: float
    factor: float
    error: float

    @property
    def is_multiple(self) -> bool:
        """Whether the advantages are those of the relative times a factor above 0."""
        return self.factor > 0 and self.error < _SAME

    @property
    def is_same(self) -> bool:
        """Whether the advantages are those of the relative."""
        return self.is_multiple and abs(self.factor - 1) < _SAME

    @property
    def shown_factor(self) -> str:
        """The factor, as a fraction where it is a simple one."""
        fraction = Fraction(self.factor).limit_denominator(64)
        if abs(float(fraction) - self.factor) < _SAME * abs(self.factor):
            return str(fraction)
        return f"{self.factor:.4g}"


def find_relatives(
    estimator: Estimator, others: Iterable[Estimator], group_size: int
) -> list[Relative]:
    """Return the other estimators that give this one's kind of advantages, the nearest first.

    Left out are those that read no rewards, that give all groups 0, or that do not take groups of
    this size. Of equally near ones those come first that need no factor, and then no other inputs.

    Args:
        estimator: not changed.
        others: not changed.

    Raises:
        BatchError: the estimator refuses these groups.
    """
    own = _profile(estimator, group_size)
    relatives = []
    for other in others:
        if other.verifier_free:
            continue
        try:
            theirs = _profile(other, group_size)
        except AdvsweepError:
            continue
        if own.any() and theirs.any():
            relatives.append(_compare(own, theirs, other))
    return sorted(relatives, key=_nearness)


def _nearness(relative: Relative) -> tuple[float, bool, int, str]:
    return -round(relative.cosine, 9), not relative.is_same, relative.inputs, relative.name


def _compare(own: _Profile, theirs: _Profile, other: Estimator) -> Relative:
    product = (own @ theirs).item()
    factor = product / (theirs @ theirs).item()
    error = ((own - factor * theirs).abs().max() / own.abs().max()).item()
    cosine = product / math.sqrt((own @ own).item() * (theirs @ theirs).item())
    return Relative(
        name=other.name, inputs=len(other.needs), cosine=cosine, factor=factor, error=error
    )


def _profile(estimator: Estimator, size: int) -> _Profile:
    rewards = kinds_of_group(estimator, size)
    counts = rewards.sum(dim=1).long()
    # Each number of right answers counts once, in however many orders.
    orders = torch.bincount(counts, minlength=size + 1)
    frequencies = 1 / orders[counts].double()
    inputs: dict[str, Any] = {
        name: spread_input(name, NEUTRAL_INPUTS[name], rewards) for name in estimator.needs
    }
    batch = GroupBatch(rewards=rewards, frequencies=frequencies, **inputs)
    advantages = copy.deepcopy(estimator).compute(batch).rollout_means(batch.lengths)
    halves = []
    for is_counted in (rewards == 1, rewards == 0):
        sums = torch.zeros(size + 1, dtype=torch.float64)
        sums.index_add_(0, counts, (advantages * is_counted).sum(dim=1) * frequencies)
        numbers = torch.zeros(size + 1, dtype=torch.float64)
        numbers.index_add_(0, counts, is_counted.double().sum(dim=1) * frequencies)
        halves.append(sums / numbers.clamp(min=1).sqrt())
    return torch.cat(halves)


def gives_the_same(estimator: Estimator, other: Estimator, group_size: int) -> bool:
    """Tell whether two estimators give the same advantages in batches of several steps.

    The batches have 0/1 rewards of all solve rates and other inputs that differ from rollout to
    rollout. Of estimators without memory that read the rewards alone this is a proof for groups of
    this size but for the order of rollouts; of others it is a trial. One that reads turns is
    another estimator than one that does not, though rollouts of one turn may get the same.
    """
    if estimator.reads_turns is not other.reads_turns:
        return False
    one = copy.deepcopy(estimator)
    two = copy.deepcopy(other)
    for step in range(1, _TRIED_STEPS + 1):
        batch = drawn_batch(_TRIED_PROMPTS, group_size, step, _TRIED_STEPS)
        try:
            mine = one.compute(batch).rollout_means(batch.lengths)
            theirs = two.compute(batch).rollout_means(batch.lengths)
        except AdvsweepError:
            return False
        if not torch.allclose(mine, theirs, rtol=_CLOSE, atol=_CLOSE):
            return False
    return True
