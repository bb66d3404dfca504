"""What is checked of an estimator by trying it: the one place for judges, files and tests.

Those that return a problem say what was expected and what was got; it is empty where all is well.
An estimator with a problem is not usable. Those that return a `Property` say what an estimator does
in a sentence, and none of these is wrong: PSR gives groups of equal rewards an advantage, and means
to.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from advsweep.errors import AdvsweepError, BatchError, counted
from advsweep.estimators.varied import complete_batch

if TYPE_CHECKING:
    from advsweep.estimators.base import Estimator
    from advsweep.estimators.batch import GroupBatch, PerRollout

# Up to this group size every number of right answers is tried.
_EVERY_COUNT = 32

USUAL_SIZE = 8

_CLOSE = 1e-6


@dataclass(frozen=True, kw_only=True)
class Property:
    """What an estimator does.

    Attributes:
        name: of what was tried, such as `shift`.
        sentence: what came out.
        is_usual: whether most estimators do so.
    """

    name: str
    sentence: str
    is_usual: bool


# Problems


def changed_inputs(before: Mapping[str, Tensor], batch: GroupBatch) -> str:
    """Return the problem of a batch whose inputs are no longer what they were."""
    for name, value in before.items():
        if not torch.equal(value, getattr(batch, name)):
            return (
                f"expected a function that leaves its inputs as they are, and it changed {name}; "
                f"work on a copy, as {name}.clone()"
            )
    return ""


def wrong_form(values: Any, rewards: PerRollout) -> str:
    """Return the problem of advantages that are no floats of the rewards' shape."""
    shape = list(rewards.shape)
    if not isinstance(values, Tensor) or list(values.shape[:2]) != shape:
        got = list(values.shape) if isinstance(values, Tensor) else type(values).__name__
        return f"expected advantages of the shape {shape}, got {got}"
    if not values.is_floating_point():
        return f"expected advantages as floats, got {values.dtype}"
    return ""


def not_finite(values: Tensor, rewards: PerRollout) -> str:
    """Return the problem of advantages that are NaN or infinite."""
    is_bad = ~values.isfinite()
    if not is_bad.any():
        return ""
    row = rewards[is_bad.flatten(1).any(dim=1)][0].tolist()
    return (
        f"expected finite advantages, got {values[is_bad][0].item()} in a group with the rewards "
        f"{_shown(row)}"
    )


def _shown(row: list[float]) -> str:
    """Return the rewards of a group, in words where they are equal."""
    if len(set(row)) == 1:
        return f"{row[0]:g} ({counted(len(row), 'rollout')})"
    return ", ".join(f"{reward:g}" for reward in row)


def not_repeated(first: Tensor, second: Tensor) -> str:
    """Return the problem of two results for the same inputs that differ."""
    if torch.equal(first, second):
        return ""
    differing = tuple((first != second).nonzero()[0].tolist())
    return (
        f"expected the same advantages for the same inputs, got {first[differing].item():g} and "
        f"{second[differing].item():g}; use no random numbers and no clock, or draw from "
        "torch.Generator().manual_seed(step)"
    )


def find_problem(estimator: Estimator, batch: GroupBatch) -> str:
    """Return the first problem of an estimator with a batch, which it computes twice.

    Args:
        estimator: not changed.
    """
    before = {name: v.clone() for name, v in vars(batch).items() if isinstance(v, Tensor)}
    first, second = (copy.deepcopy(estimator).compute(batch).values for _ in range(2))
    return (
        changed_inputs(before, batch)
        or wrong_form(first, batch.rewards)
        or not_finite(first, batch.rewards)
        or not_repeated(first, second)
    )


def tried_rewards(estimator: Estimator, group_size: int | None = None) -> Iterator[PerRollout]:
    """Yield groups of every solve rate and of equal rewards, and the smallest groups.

    Args:
        group_size: that of a run, which is tried as well.
    """
    multiple = estimator.group_multiple
    least = fitting_size(estimator, 1)
    usual = fitting_size(estimator, USUAL_SIZE)
    for size in dict.fromkeys((group_size or usual, usual, least)):
        if size < least or size % multiple:
            continue  # the run is refused for its group size
        counts = torch.arange(size + 1)
        if size > _EVERY_COUNT:
            counts = torch.linspace(0, size, _EVERY_COUNT + 1).round()
        # Right answers last, so that a result that depends on the order is seen.
        yield (torch.arange(size) >= size - counts[:, None]).float()
        yield torch.zeros(2, size)
        yield torch.ones(2, size)


def fitting_size(estimator: Estimator, least: int) -> int:
    """Return the smallest group size of at least `least` that an estimator takes."""
    smallest = max(least, estimator.minimum_group)
    return math.ceil(smallest / estimator.group_multiple) * estimator.group_multiple


# Properties


def list_properties(estimator: Estimator) -> list[Property]:
    """Return what an estimator does with groups of 0/1 rewards, in a sentence for each check.

    Args:
        estimator: without a problem; not changed.
    """
    return [describe(estimator) for describe in PROPERTIES]


def describe_form(estimator: Estimator) -> Property:
    """Say what the advantages are, and that they are usable."""
    per = "token" if estimator.per_token else "rollout"
    size = fitting_size(estimator, USUAL_SIZE)
    sentence = (
        f"one finite float per {per}, the same each time, its inputs left as they are: groups of "
        f"{size} and of {fitting_size(estimator, 1)} of every solve rate"
    )
    return Property(name="shape and numbers", sentence=sentence, is_usual=True)


def describe_equal_rewards(estimator: Estimator) -> Property:
    """Say what groups get that are all wrong or all right."""
    size = fitting_size(estimator, USUAL_SIZE)
    wrong, right = (
        _means(estimator, complete_batch(torch.full((4, size), reward))) for reward in (0.0, 1.0)
    )
    is_zero = not wrong.any() and not right.any()
    sentence = "groups of equal rewards get 0"
    if not is_zero:
        sentence = (
            f"groups of equal rewards take part in the update: all wrong {_range_of(wrong)}, all "
            f"right {_range_of(right)}"
        )
    return Property(name="equal rewards", sentence=sentence, is_usual=is_zero)


def describe_order(estimator: Estimator) -> Property:
    """Say whether the order of the rollouts of a group matters."""
    batch = complete_batch(_mixed(estimator))
    size = batch.rewards.shape[1]
    order = torch.arange(size - 1, -1, -1).expand_as(batch.rewards)
    reversed_means = _means(estimator, batch.select(slice(None), order)).flip(1)
    is_same = torch.allclose(reversed_means, _means(estimator, batch), atol=_CLOSE)
    sentence = "the order of the rollouts of a group does not matter"
    if not is_same:
        sentence = "the order of the rollouts of a group matters"
    return Property(name="order", sentence=sentence, is_usual=is_same)


def describe_groups(estimator: Estimator) -> Property:
    """Say whether the advantages of a group depend on the other groups of the batch."""
    batch = complete_batch(_mixed(estimator))
    together = _means(estimator, batch)
    is_same = True
    for number in range(len(batch.rewards)):
        alone = _means(estimator, batch.select(slice(number, number + 1)))
        is_same = is_same and torch.allclose(alone[0], together[number], atol=_CLOSE)
    sentence = "each group stands for itself"
    if not is_same:
        sentence = "the advantages of a group depend on the other groups of the step"
    return Property(name="groups", sentence=sentence, is_usual=is_same)


def describe_shift(estimator: Estimator) -> Property:
    """Say what rewards that are all larger by the same amount do."""
    rewards = _mixed(estimator)
    plain = _means(estimator, complete_batch(rewards))
    shifted = _means_if_defined(estimator, rewards + 0.5)
    if shifted is None:
        text = "it is defined for rewards of 0 and 1, which leave no room for a shift"
        return Property(name="shift", sentence=text, is_usual=False)
    is_same = torch.allclose(shifted, plain, atol=_CLOSE)
    sentence = "1/2 added to every reward changes nothing"
    if not is_same:
        sentence = "1/2 added to every reward changes the advantages"
    return Property(name="shift", sentence=sentence, is_usual=is_same)


def describe_scale(estimator: Estimator) -> Property:
    """Say what rewards that are twice as large do."""
    rewards = _mixed(estimator)
    plain = _means(estimator, complete_batch(rewards))
    doubled = _means_if_defined(estimator, 2 * rewards)
    if doubled is None:
        text = "it is defined for rewards of 0 and 1, of which none is twice another"
        return Property(name="scale", sentence=text, is_usual=False)
    if torch.allclose(doubled, plain, atol=_CLOSE, rtol=1e-4):
        text = "rewards twice as large give the same advantages: it standardises them"
        return Property(name="scale", sentence=text, is_usual=True)
    if torch.allclose(doubled, 2 * plain, atol=_CLOSE, rtol=1e-4):
        text = "rewards twice as large give advantages twice as large"
        return Property(name="scale", sentence=text, is_usual=True)
    text = "rewards twice as large give advantages of another shape"
    return Property(name="scale", sentence=text, is_usual=False)


def describe_degenerate(estimator: Estimator) -> Property:
    """Say what single rollouts get, and how large an advantage becomes."""
    size = fitting_size(estimator, USUAL_SIZE)
    values = _means(estimator, complete_batch(_mixed(estimator))).abs()
    place = int(values.amax(dim=1).argmax())
    largest = f"the largest |A| is {values.max():.3g}, where {place} of {size} are right"
    if estimator.minimum_group > 1:
        smallest = f"groups have at least {counted(estimator.minimum_group, 'rollout')}"
        return Property(name="degenerate groups", sentence=f"{smallest}; {largest}", is_usual=True)
    try:
        single = _means(estimator, complete_batch(torch.tensor([[0.0], [1.0]])))
    except BatchError:
        fits = f"group sizes are multiples of {estimator.group_multiple}; {largest}"
        return Property(name="degenerate groups", sentence=fits, is_usual=True)
    alone = f"a single rollout gets {single[0, 0]:g} if wrong, {single[1, 0]:g} if right; {largest}"
    return Property(name="degenerate groups", sentence=alone, is_usual=not single.any())


PROPERTIES: tuple[Callable[[Estimator], Property], ...] = (
    describe_form,
    describe_equal_rewards,
    describe_order,
    describe_groups,
    describe_shift,
    describe_scale,
    describe_degenerate,
)


def _mixed(estimator: Estimator) -> PerRollout:
    """Return a group for each number of right answers, in double precision."""
    size = fitting_size(estimator, USUAL_SIZE)
    return (torch.arange(size) < torch.arange(size + 1)[:, None]).double()


def _means(estimator: Estimator, batch: GroupBatch) -> PerRollout:
    """Return advantages, or their means over tokens; the estimator keeps its memory."""
    inputs: dict[str, Any] = {
        name: value.double()
        for name, value in vars(batch).items()
        if isinstance(value, Tensor) and value.is_floating_point()
    }
    doubled = replace(batch, **inputs)
    return copy.deepcopy(estimator).compute(doubled).rollout_means(doubled.lengths)


def _means_if_defined(estimator: Estimator, rewards: PerRollout) -> PerRollout | None:
    """Return the advantages of rewards other than 0 and 1; None where these are refused."""
    try:
        return _means(estimator, complete_batch(rewards))
    except AdvsweepError:
        return None


def _range_of(values: PerRollout) -> str:
    low = f"{values.min():.3g}"
    high = f"{values.max():.3g}"
    return low if low == high else f"{low} to {high}"
