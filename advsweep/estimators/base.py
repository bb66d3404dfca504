"""The base classes of estimators: rewards of a batch in, advantages out."""

from __future__ import annotations

import math
import sys
import traceback
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar, final

import torch

from advsweep.components import Component
from advsweep.errors import AdvsweepError, BatchError, CheckpointError, PluginError
from advsweep.estimators import CATALOGUE
from advsweep.estimators.batch import (
    COUNTERS,
    PER_PART,
    PER_PROMPT,
    PER_TOKEN,
    PER_TURN,
    Advantages,
    GroupBatch,
    Groups,
)
from advsweep.estimators.given import hint_for_missing
from advsweep.estimators.turns import check_turns

if TYPE_CHECKING:
    from _typeshed import DataclassInstance
    from torch import Tensor

    from advsweep.estimators.batch import FlagPerRollout, PerRollout, PerToken


class Provenance(Enum):
    """The source that the defaults of an estimator follow.

    PAPER: the formula of a paper. RELEASED: the code that the method's authors published.
    OURS: our own choice where no source decides, such as a constant that a formula lacks.
    """

    PAPER = "paper"
    RELEASED = "released code"
    OURS = "ours"


# What the catalogue says of the source of an estimator.
_SOURCES = (
    "family",
    "formula",
    "paper",
    "equation",
    "provenance",
    "released_options",
    "released_code",
    "departures",
)


@dataclass(kw_only=True)
class Estimator(Component):
    """Maps the rewards of a batch to advantages: a policy weight.

    A subclass sets `name`, implements `_advantages`, and may set the attributes below. `compute`
    checks the batch, passes its statistics on and applies the mask. An instance may narrow an
    attribute that depends on its options (see `_narrow`). Estimators of advsweep have those
    up to `departures` in `catalogue.toml`.

    Attributes:
        family: the heading under which listings show it.
        formula: the advantage in one line.
        paper, equation: the source of the formula.
        provenance: the sources of the defaults. OURS after another source means that the
            defaults follow that source except as `departures` says. Empty: no source is named.
        released_options: options that reproduce the authors' released code where the defaults
            do not, as `-o` takes them; spaces separate several fields of one setting.
        released_code: what the authors' released code does otherwise than the paper, in prose.
        departures: where the defaults differ from the source, in prose.
        needs: the optional fields of `GroupBatch` that it requires.
        uses: the optional fields that it reads if they are given.
        minimum_group: the smallest group size for which it is defined.
        group_multiple: group sizes must be multiples of this number.
        exchangeable: the order of the rollouts within a group does not matter.
        binary_only: rewards other than 0 and 1 are refused.
        rates: it reads row means as solve rates, so they must lie in [0, 1].
        verifier_free: it reads another signal than the rewards, so the collapse rate of the
            rewards does not describe it.
        stateful: it has memory, which each call of `compute` advances exactly once.
        per_token: the advantages are one per token; `needs` then contains `lengths`.
        per_group: advantages and kept rollouts of a group depend on that group alone, with the
            same bits in every batch, and nothing is logged. A framework may therefore hand over
            one group at a time (`integrations.adapters`).
    """

    family: ClassVar[str] = "plug-ins"
    formula: ClassVar[str] = "no formula given"
    paper: ClassVar[str] = "no paper"
    equation: ClassVar[str] = "no equation"
    provenance: ClassVar[tuple[Provenance, ...]] = ()
    released_options: ClassVar[tuple[str, ...]] = ()
    released_code: ClassVar[str] = ""
    departures: ClassVar[str] = "none"
    needs: ClassVar[frozenset[str]] = frozenset()
    uses: ClassVar[frozenset[str]] = frozenset()
    minimum_group: ClassVar[int] = 1
    group_multiple: ClassVar[int] = 1
    exchangeable: ClassVar[bool] = True
    binary_only: ClassVar[bool] = False
    rates: ClassVar[bool] = False
    verifier_free: ClassVar[bool] = False
    stateful: ClassVar[bool] = False
    per_token: ClassVar[bool] = False
    per_group: ClassVar[bool] = False

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        row = CATALOGUE["estimators"].get(vars(cls).get("name"), {})
        if row and cls.__module__.startswith("advsweep."):
            cls.family = row["family"]
            cls.formula = row["formula"]
            cls.paper = row["paper"]
            cls.equation = row["equation"]
            cls.provenance = tuple(map(Provenance, row["defaults"]))
            cls.released_options = tuple(row.get("released", ()))
            cls.released_code = row.get("released_code", "")
            cls.departures = row.get("departures", "")
        elif not cls.__module__.startswith("advsweep."):
            cls._forget_sources()

    @classmethod
    def _forget_sources(cls) -> None:
        """Let a class of others have no source that it does not state itself.

        One that derives from an estimator of ours has another formula than its paper.
        """
        for attribute in _SOURCES:
            owner = next(each for each in cls.__mro__ if attribute in vars(each))
            if owner is not Estimator and owner.__module__.startswith("advsweep."):
                setattr(cls, attribute, getattr(Estimator, attribute))

    @property
    def reads_turns(self) -> bool:
        """Whether the turns of an episode matter to it; rollouts of one turn say little of it."""
        return "turn_of_token" in self.needs | self.uses

    @final
    def __call__(self, batch: GroupBatch) -> PerRollout | PerToken:
        """Return the advantages alone; see `compute`."""
        return self.compute(batch).values

    @final
    def compute(self, batch: GroupBatch) -> Advantages:
        """Compute the advantages of a batch without changing its inputs.

        A batch without a scorable rollout gets zeros and does not advance the memory.

        Raises:
            BatchError: the batch has the wrong shape or type, lacks an input, or holds rewards
                that are not finite or for which the formula is not defined. The memory does not
                advance.
            PluginError: the estimator is of another package, and its formula fails.
        """
        self._check_inputs(batch)
        mask = batch.mask
        # Statistics of an empty batch would be NaN, and would stay in the memory.
        if mask is not None and not mask.any():
            shape = [*batch.rewards.shape]
            if self.per_token:
                inputs = [getattr(batch, name) for name in sorted(PER_TOKEN)]
                shape += [next((values.shape[2] for values in inputs if values is not None), 1)]
            return Advantages(values=batch.rewards.new_zeros(shape), keep=mask.clone())
        groups = Groups(batch)
        self._check_rewards(groups)
        info: dict[str, float] = {}
        try:
            values = self._advantages(groups, info)
        except (AdvsweepError, torch.OutOfMemoryError):
            raise
        except Exception as error:
            # One of ours shows a defect of advsweep, with its traceback.
            if type(self).__module__.startswith("advsweep."):
                raise
            raise _failed(self, error, masked=mask is not None) from error
        if self.per_token:
            # The lengths of masked rollouts are 0 here.
            values = torch.where(groups.within(values.shape[2]), values, 0.0)
        elif mask is not None:
            values = torch.where(mask, values, 0.0)
        return Advantages(values=values, keep=self._keep(groups), info=info)

    @abstractmethod
    def _advantages(self, groups: Groups, info: dict[str, float]) -> PerRollout | PerToken:
        """Return the advantages as a new tensor.

        Values of masked rollouts, and of tokens past the end of a rollout, do not matter.

        Args:
            groups: the checked rewards with their statistics.
            info: receives the numbers to log.
        """

    def _keep(self, groups: Groups) -> FlagPerRollout:
        """Return the rollouts that take part in the update: all scorable ones."""
        if groups.mask is not None:
            return groups.mask.clone()
        return torch.ones_like(groups.rewards, dtype=torch.bool)

    def state_dict(self) -> dict[str, Any]:
        """Return the memory in JSON types; empty for an estimator without memory."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a memory that `state_dict` returned.

        Raises:
            CheckpointError: the state belongs to another estimator.
        """
        self._check_state(state, expected=())

    def reset(self) -> None:
        """Forget all earlier calls."""

    @final
    def _narrow(self, **attributes: Any) -> None:
        """Override class attributes (`needs`, `minimum_group`, ...) for this instance."""
        assert all(hasattr(type(self), name) for name in attributes)
        vars(self).update(attributes)

    @final
    def _fill(self, preset: Mapping[str, Any]) -> None:
        """Take the values of a preset for the options of these names that are not given."""
        for name, value in preset.items():
            if getattr(self, name) is None:
                setattr(self, name, value)

    @final
    def _check_state(self, state: Mapping[str, Any], *, expected: tuple[str, ...]) -> None:
        if set(state) != set(expected):
            raise CheckpointError(
                f"state of estimator '{self.name}': expected the keys {sorted(expected)}, "
                f"got {sorted(state)}; it was saved by another estimator or version"
            )

    def _check_inputs(self, batch: GroupBatch) -> None:
        """Refuse a batch of another form than the estimator reads."""
        self._check_shape_of_rewards(batch.rewards)
        if batch.mask is not None and batch.mask.dtype is not torch.bool:
            raise BatchError(f"mask: expected booleans, got {batch.mask.dtype}")
        for name in ("mask", "frequencies", "turn_of_token", *sorted(self.needs | self.uses)):
            value = getattr(batch, name)
            if value is None and name in self.needs:
                raise BatchError(
                    f"estimator '{self.name}' needs {name}, which the batch lacks"
                    f"{hint_for_missing([name])}"
                )
            if value is not None and name not in COUNTERS and name != "part_weights":
                _check_shape(name, value, batch)

    def _check_shape_of_rewards(self, rewards: Any) -> None:
        if not isinstance(rewards, torch.Tensor) or rewards.ndim != 2 or not rewards.numel():
            got = (
                list(rewards.shape) if isinstance(rewards, torch.Tensor) else type(rewards).__name__
            )
            raise BatchError(f"rewards: expected a tensor [prompts, rollouts], got {got}")
        if rewards.dtype not in (torch.float32, torch.float64):
            raise BatchError(
                f"rewards: expected float32 or float64, got {rewards.dtype}; "
                "convert them with rewards.float()"
            )
        group = rewards.shape[1]
        if group < self.minimum_group or group % self.group_multiple:
            multiple = ""
            if self.group_multiple > 1:
                multiple = f" and a multiple of {self.group_multiple}"
            raise BatchError(
                f"estimator '{self.name}' needs at least {self.minimum_group} rollouts per "
                f"prompt{multiple}, got {group}"
            )

    def _check_rewards(self, groups: Groups) -> None:
        """Refuse rewards for which the formula is not defined."""
        rewards = groups.rewards
        # Fast path: r = relu(sign(r)) holds for 0 and 1 alone, which are finite and in [0, 1].
        if self.binary_only and torch.equal(rewards.sign().relu_(), rewards):
            return
        low, high = groups.mean_range
        if not (math.isfinite(low) and math.isfinite(high)):
            raise BatchError(
                "rewards: expected finite numbers, got NaN, infinity or a sum that overflows; "
                "leave rollouts that could not be scored out with the mask"
            )
        if self.binary_only:
            other = rewards[(rewards != 0) & (rewards != 1)][0].item()
            raise BatchError(
                f"estimator '{self.name}' is defined for rewards of 0 and 1 only, got {other:g}"
            )
        if self.rates and not (low >= 0 and high <= 1):
            raise BatchError(
                f"estimator '{self.name}' reads a prompt's mean reward as its solve rate and "
                f"needs it in [0, 1], got {low if low < 0 else high:g}; rescale the rewards"
            )


# The third axes of inputs that have one.
_LAST_AXES = {"tokens": PER_TOKEN, "turns": PER_TURN, "parts": PER_PART}


def _check_shape(name: str, value: Tensor | tuple[str, ...], batch: GroupBatch) -> None:
    """Refuse an input that does not have a value for each prompt, rollout, token or part."""
    prompts, rollouts = batch.rewards.shape
    shape = list(value.shape) if isinstance(value, torch.Tensor) else [len(value)]
    expected: list[int | str] = [prompts] if name in PER_PROMPT else [prompts, rollouts]
    for last_axis, names in _LAST_AXES.items():
        if name in names:
            # It may have any length.
            expected.append(shape[2] if len(shape) == 3 else last_axis)
    if shape != expected:
        raise BatchError(f"{name}: expected the shape {expected}, got {shape}")
    if name == "turn_of_token":
        check_turns(batch)
    elif name in PER_TOKEN:
        _check_token_axis(name, shape[2], batch)


def _check_token_axis(name: str, tokens: int, batch: GroupBatch) -> None:
    """Refuse a token axis that is shorter than the longest rollout, where lengths are known.

    Where turns are known, it has to be theirs.
    """
    turn_of_token = batch.turn_of_token
    if turn_of_token is not None and turn_of_token.shape[-1] != tokens:
        raise BatchError(
            f"{name}: expected as many tokens as turn_of_token has, {turn_of_token.shape[-1]}, got "
            f"{tokens}"
        )
    lengths = batch.lengths
    if lengths is None or lengths.shape != batch.rewards.shape:
        return
    if batch.mask is not None:
        lengths = lengths[batch.mask]
    longest = lengths.max().item() if lengths.numel() else 0
    # Also refuses a length that is not a number.
    if not longest <= tokens:
        raise BatchError(
            f"{name}: expected at least {longest:g} tokens, which the longest rollout has, got "
            f"{tokens}"
        )


def _failed(estimator: Estimator, error: Exception, *, masked: bool) -> PluginError:
    """Return what to say about the exception that an estimator of others raised."""
    hint = "" if masked else "; groups.mask is None where no rollout is missing"
    code = estimator.named_code
    if code is not None:
        raised = f"estimator '{code.label}' raised {type(error).__name__}: {error}"
        return PluginError(f"{code.line_of(error)}: {raised}{hint if 'None' in str(error) else ''}")
    module = type(estimator).__module__
    file = getattr(sys.modules.get(module), "__file__", None)
    lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == file]
    return PluginError(
        f"estimator '{estimator.name}' of another package failed ({module}, line "
        f"{lines[-1] if lines else '?'}): {type(error).__name__}: {error}{hint}"
    )


Memory = TypeVar("Memory", bound="DataclassInstance")


@dataclass(kw_only=True)
class StatefulEstimator(Estimator, Generic[Memory]):
    """An estimator with memory across steps: a frozen dataclass of plain numbers.

    The memory is the attribute `_memory` and not a dataclass field, because fields are part of
    the configuration and so of a run's identity.
    """

    stateful: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self._memory = self._fresh_memory()

    @abstractmethod
    def _fresh_memory(self) -> Memory:
        """Return the memory before the first call."""

    def state_dict(self) -> dict[str, Any]:
        return asdict(self._memory) if self.stateful else {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._check_state(state, expected=tuple(self.state_dict()))
        if self.stateful:
            self._memory = type(self._memory)(**state)

    def reset(self) -> None:
        self._memory = self._fresh_memory()
