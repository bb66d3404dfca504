"""Estimators that are plain functions: parameters by the names of the fields of `GroupBatch`.

    def advantages(rewards, scale=1.0):  # [prompts, rollouts], 1 for a right answer
        return scale * (rewards - rewards.mean(dim=1, keepdim=True))

`rewards` is a field of the batch, `scale` an option. `estimator_class` makes an estimator of it.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import inspect
import typing
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from advsweep.errors import PluginError
from advsweep.estimators.base import Estimator
from advsweep.estimators.batch import GroupBatch, Groups
from advsweep.estimators.contract import not_finite
from advsweep.estimators.varied import complete_batch
from advsweep.function_options import call_function, make_class, read_parameters, where_of

if TYPE_CHECKING:
    from advsweep.estimators.batch import FlagPerRollout, PerRollout, PerToken
    from advsweep.named_code import NamedCode

FIELDS = tuple(field.name for field in dataclasses.fields(GroupBatch))

# What every batch has, or may leave out without harm.
_ALWAYS = frozenset({"rewards", "mask", "part_weights"})

# Fields that depend on rewards; an estimator that reads none of them reads another signal.
_REWARDS = frozenset(
    {"rewards", "ref_rewards", "reward_parts", "greedy_rewards", "solve_rates", "answered"}
)

# Groups of this size are tried to see what a function's results are like.
_TRIED_SIZE = 6


@dataclasses.dataclass(kw_only=True)
class FunctionEstimator(Estimator):
    """An estimator whose formula is a plain function.

    Its results say whether it gives an advantage per token, whether the order of rollouts matters
    and whether it is defined for a single rollout: `_narrow` sets these for each instance.

    Rollouts that are missing are left out, unless the function has a parameter `mask`. Groups are
    then computed without them, groups of equally many rollouts together. Where groups depend on one
    another, as by a statistic of the batch, missing rollouts have the mean reward of their group.

    Attributes:
        function: the function.
        given: the fields of the batch that are its parameters.
        options: its other parameters.
    """

    function: ClassVar[Callable[..., Any]]
    given: ClassVar[frozenset[str]]
    options: ClassVar[tuple[str, ...]]

    def __post_init__(self) -> None:
        super().__post_init__()
        self._narrow(per_token=False)
        rewards = _mixed_rewards(_TRIED_SIZE)
        batch = complete_batch(rewards)
        values = self._tried(batch)
        if values is None:
            return  # what is wrong with it is said where it is checked
        is_per_token = values.ndim == 3
        self._narrow(per_token=is_per_token)
        if is_per_token:
            self._narrow(needs=self.needs | {"lengths"})
        single = self._tried(complete_batch(torch.tensor([[0.0], [1.0]])))
        if single is None or not single.isfinite().all():
            self._narrow(minimum_group=2)
        order = torch.arange(_TRIED_SIZE - 1, -1, -1).expand_as(rewards)
        reversed_values = self._tried(batch.select(slice(None), order))
        if reversed_values is None or not _are_close(reversed_values.flip(1), values):
            self._narrow(exchangeable=False)

    def _advantages(self, groups: Groups, info: dict[str, float]) -> PerRollout | PerToken:
        batch = groups.batch
        mask = batch.mask
        if mask is None or mask.all():
            values = self._call(batch)
        elif "mask" in self.given:
            values = self._call(dataclasses.replace(batch, rewards=groups.rewards))
        elif self._is_per_group:
            values = self._without_missing(batch, mask)
        else:
            filled = torch.where(mask, groups.rewards, groups.mean)
            values = self._call(dataclasses.replace(batch, rewards=filled))
        if (values.ndim == 3) is not self.per_token:
            raise PluginError(
                f"{where_of(self)}: expected one advantage per rollout for every batch, or one per "
                f"token for every batch, got the shape {list(values.shape)}"
            )
        return values

    def _call(self, batch: GroupBatch) -> PerRollout | PerToken:
        """Return what the function gives, in the rewards' type.

        Raises:
            PluginError: it is no tensor of one finite number per rollout or token.
        """
        values = self._result(batch)
        self._check_form(values, batch)
        self._check_finite(values, batch)
        return typing.cast("Tensor", values).to(batch.rewards)

    def _result(self, batch: GroupBatch) -> Any:
        """Return what the function returns, unchecked."""
        return call_function(self, vars(batch))

    def _check_form(self, values: Any, batch: GroupBatch) -> None:
        shape = list(batch.rewards.shape)
        if not isinstance(values, Tensor):
            raise PluginError(
                f"{where_of(self)}: expected a tensor of the shape {shape}, one advantage per "
                f"rollout, got {type(values).__name__}"
            )
        if not values.is_floating_point():
            kind = str(values.dtype).removeprefix("torch.")
            raise PluginError(
                f"{where_of(self)}: expected advantages as floats, got {kind}; return "
                "values.float()"
            )
        if list(values.shape[:2]) != shape or values.ndim > 3:
            raise PluginError(
                f"{where_of(self)}: expected advantages of the shape {shape}, one per rollout, got "
                f"{list(values.shape)}"
            )

    def _check_finite(self, values: Tensor, batch: GroupBatch) -> None:
        problem = not_finite(values, batch.rewards)
        if problem:
            raise PluginError(f"{where_of(self)}: {problem}")

    @functools.cached_property
    def _is_per_group(self) -> bool:
        """Whether the advantages of a group depend on that group alone, by trying it."""
        batch = complete_batch(_mixed_rewards(_TRIED_SIZE))
        together = self._tried(batch)
        if together is None:
            return False
        for number in range(len(batch.rewards)):
            alone = self._tried(batch.select(slice(number, number + 1)))
            if alone is None or not _are_close(alone[0], together[number]):
                return False
        return True

    def _without_missing(self, batch: GroupBatch, mask: FlagPerRollout) -> PerRollout | PerToken:
        """Compute each group without its missing rollouts, groups of one size together."""
        counts = mask.sum(dim=1)
        # Rollouts that are there come first, in their order.
        order = mask.to(torch.uint8).argsort(dim=1, descending=True, stable=True)
        values: Tensor | None = None
        for size in sorted(set(counts.tolist())):
            if size < self.minimum_group:
                continue
            rows = (counts == size).nonzero()[:, 0]
            places = order[rows][:, :size]
            packed = dataclasses.replace(batch.select(rows, places), mask=None)
            computed = self._call(packed)
            if values is None:
                values = computed.new_zeros(*batch.rewards.shape, *computed.shape[2:])
            index = places if computed.ndim == 2 else places[..., None].expand_as(computed)
            values[rows] = values[rows].scatter(1, index, computed)
        if values is None:
            tokens = (1,) if self.per_token else ()
            return batch.rewards.new_zeros(*batch.rewards.shape, *tokens)
        return values

    def _tried(self, batch: GroupBatch) -> Tensor | None:
        """Return what the function gives to a copy of a batch; None where it fails."""
        copied = copy.deepcopy(batch)
        try:
            # The check before a training shows what this hides.
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                values = self._result(copied)
            self._check_form(values, copied)
        except Exception:  # noqa: BLE001 - the user's code may raise anything; the check says what
            return None
        return typing.cast("Tensor", values)


def _mixed_rewards(size: int) -> PerRollout:
    """Return a group for each number of right answers, these first."""
    counts = torch.arange(size + 1)[:, None]
    return (torch.arange(size) < counts).float()


def _are_close(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and torch.allclose(one, other, equal_nan=True)


def estimator_class(function: Callable[..., Any], code: NamedCode) -> type[FunctionEstimator]:
    """Make an estimator's class of a function.

    Parameters that are fields of `GroupBatch` are given by name; one with a default is given where
    the batch has it. Other parameters need a default and are options.

    Raises:
        ConfigError: a parameter is neither; the message names file and line.
    """
    parameters = read_parameters(function, code, FIELDS, "rewards")
    needs = parameters.required - _ALWAYS
    signature = ", ".join(inspect.signature(function).parameters)
    return make_class(
        function,
        code,
        FunctionEstimator,
        parameters,
        family="files",
        departures="no source is stated",
        formula=f"A = {code.object}({signature})",
        needs=needs,
        uses=parameters.given - needs - _ALWAYS,
        verifier_free=not parameters.given & _REWARDS,
    )
