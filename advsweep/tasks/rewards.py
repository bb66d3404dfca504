"""Rewards of completions in training: a weighted sum of parts, by default accuracy alone."""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from advsweep.components import Component, Plain, identity_of, option
from advsweep.errors import ConfigError
from advsweep.registry import Registry
from advsweep.tasks.base import Task

if TYPE_CHECKING:
    from jaxtyping import Bool, Float

    from advsweep.tasks.base import PerCompletion

    Flags = Bool[np.ndarray, " completions"]


@dataclass(kw_only=True)
class RewardPart(Component):
    """One term of a reward; `task.reward` names several parts with their weights.

    A subclass implements `values`, and `range` if it is not 0 to 1. It sees texts alone, no
    problems: what depends on the reference answer is in the flags of correct completions.

    Attributes:
        is_binary: whether its values are 0 and 1 alone.
        reads_verdicts: whether they depend on which completions are correct.
    """

    is_binary: ClassVar[bool] = False
    reads_verdicts: ClassVar[bool] = True

    weight: float = option(1.0, help="what the part is multiplied by in the sum")

    @property
    def range(self) -> tuple[float, float]:
        """The least and greatest value of the part, before its weight."""
        return 0.0, 1.0

    @property
    def delimiters(self) -> tuple[str, ...]:
        """Texts that the part looks for in completions."""
        return ()

    def for_completions(self, max_tokens: int) -> Self:
        """Return this part for completions of at most `max_tokens` tokens.

        Runs call it before anything else reads their reward, so that what depends on the length
        becomes part of their config.

        Raises:
            ConfigError: its options do not fit that length.
        """
        return self

    @abstractmethod
    def values(
        self, completions: Sequence[str], correct: Flags, lengths: PerCompletion
    ) -> PerCompletion:
        """Return the part's values, before its weight.

        Args:
            completions: texts, in any order, of any problems.
            correct: whether each was judged correct; false for those that could not be judged.
            lengths: in tokens, the end mark included.

        Returns:
            A finite number per completion, within `range`. Completions that could not be judged
            get NaN later.
        """


@dataclass(kw_only=True)
class Accuracy(RewardPart):
    """1 if the answer is correct, else 0.

    If a delimiter is set, correct answers without it get 0 too: format and answer are both
    required (FADE, arXiv:2607.01490).
    """

    name: ClassVar[str] = "accuracy"
    is_binary: ClassVar[bool] = True

    delimiter: str = option("", help="text that a correct answer must contain to count")

    @property
    def delimiters(self) -> tuple[str, ...]:
        return (self.delimiter,) if self.delimiter else ()

    def values(
        self, completions: Sequence[str], correct: Flags, lengths: PerCompletion
    ) -> PerCompletion:
        formed = np.array([self.delimiter in text for text in completions], dtype=bool)
        return np.where(correct & formed, 1.0, 0.0)


@dataclass(kw_only=True)
class Format(RewardPart):
    r"""1 if the completion contains a delimiter, else 0 (AAPO, arXiv:2505.14264, App. C.1).

    Departures: the paper's released code requires exactly one occurrence, which is an option.
    """

    name: ClassVar[str] = "format"
    is_binary: ClassVar[bool] = True
    reads_verdicts: ClassVar[bool] = False

    delimiter: str = option("\n</think>\n", help="text that a completion must contain")
    exactly_once: bool = option(False, help="whether several occurrences are as bad as none")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.delimiter:
            raise ConfigError("delimiter: expected a text that completions must contain, got ''")

    @property
    def delimiters(self) -> tuple[str, ...]:
        return (self.delimiter,)

    def values(
        self, completions: Sequence[str], correct: Flags, lengths: PerCompletion
    ) -> PerCompletion:
        counts = np.array([text.count(self.delimiter) for text in completions])
        return np.where((counts == 1) if self.exactly_once else (counts > 0), 1.0, 0.0)


@dataclass(kw_only=True)
class Cosine(RewardPart):
    """Accuracy that falls with the length of correct answers and rises with that of wrong ones.

    With u = length/L, at most 1: correct c_min + (c_max - c_min)(1 + cos πu)/2, wrong
    w_max + (w_min - w_max)(1 + cos πu)/2, so that u = 0 gives c_max and w_min, u = 1 c_min and
    w_max (AAPO, arXiv:2505.14264, Eq. 9-10).

    Departures: the paper gives no constants; these are the defaults of its released code. That
    code counts characters and lets the cosine turn back beyond L; here lengths are in tokens,
    and those beyond L count as L.
    """

    name: ClassVar[str] = "cosine"

    length: float = option(1000.0, gt=0, help="L, in tokens")
    correct_min: float = option(0.5, help="c_min, for a correct answer of L tokens")
    correct_max: float = option(1.0, help="c_max, for the shortest correct answer")
    wrong_min: float = option(-1.0, help="w_min, for the shortest wrong answer")
    wrong_max: float = option(-0.5, help="w_max, for a wrong answer of L tokens")

    @property
    def range(self) -> tuple[float, float]:
        ends = (self.correct_min, self.correct_max, self.wrong_min, self.wrong_max)
        return min(ends), max(ends)

    def values(
        self, completions: Sequence[str], correct: Flags, lengths: PerCompletion
    ) -> PerCompletion:
        share = (1 + np.cos(np.pi * np.clip(lengths / self.length, 0, 1))) / 2
        right = self.correct_min + (self.correct_max - self.correct_min) * share
        wrong = self.wrong_max + (self.wrong_min - self.wrong_max) * share
        return np.where(correct, right, wrong)


@dataclass(kw_only=True)
class Overlong(RewardPart):
    """A penalty that grows linearly over the last B tokens before the most that are allowed, L.

        0                for n ≤ L - B
        (L - B - n) / B  for L - B < n ≤ L
        -1               for n > L

    n is the length in tokens.

    Source: DAPO (arXiv:2503.14476), Eq. 13, with B = 4096 of L = 20480; TRL's
    `get_soft_overlong_punishment`. verl's `penalty_factor` is the weight.

    Departures: none.
    """

    name: ClassVar[str] = "overlong"
    reads_verdicts: ClassVar[bool] = False

    length: int | None = option(
        None, ge=1, help="L, in tokens; null: the most that a completion can have"
    )
    buffer: int | None = option(None, ge=1, help="B, in tokens; null: a fifth of length")

    @property
    def range(self) -> tuple[float, float]:
        return -1.0, 0.0

    def for_completions(self, max_tokens: int) -> Self:
        length = self.length or max_tokens
        buffer = self.buffer or max(1, length // 5)
        if buffer > length:
            raise ConfigError(f"buffer: expected at most length = {length}, got {buffer}")
        if length - buffer >= max_tokens:
            raise ConfigError(
                f"length: expected less than {max_tokens + buffer}, as a completion has at most "
                f"{max_tokens} tokens and the penalty begins {buffer} before length, got {length}"
            )
        return replace(self, length=length, buffer=buffer)

    def values(
        self, completions: Sequence[str], correct: Flags, lengths: PerCompletion
    ) -> PerCompletion:
        assert self.length is not None
        assert self.buffer is not None
        return np.clip((self.length - self.buffer - lengths) / self.buffer, -1, 0)


REWARDS: Registry[RewardPart] = Registry(
    "reward",
    dict.fromkeys(("accuracy", "cosine", "format", "overlong"), "advsweep.tasks.rewards"),
    group="advsweep.rewards",
    base="advsweep.tasks.rewards:RewardPart",
    function="reward",
    adapter="advsweep.tasks.functions:reward_class",
    takes_code=True,
)


def build_reward(spec: str | Mapping[str, Any]) -> tuple[RewardPart, ...]:
    """Build the parts of a reward: one by its name or a mapping with a `name`, or several by name.

    Each of several parts has a weight or a mapping of fields: `{format: 1, cosine: {weight: 2}}`.

    Raises:
        ConfigError: a name, a field or a value does not fit, or there is no part.
    """
    if isinstance(spec, str) or "name" in spec:
        return (REWARDS.build(spec, where="reward"),)
    if not spec:
        raise ConfigError(f"reward: expected some of {', '.join(REWARDS)}, got none")
    parts = []
    for name, value in spec.items():
        fields = value if isinstance(value, Mapping) else {"weight": value}
        parts.append(REWARDS.build({**fields, "name": name}, where=f"reward.{name}"))
    return tuple(parts)


class RewardedTask(Task):
    """A task whose option `reward` says what training rewards: the weighted sum of some parts."""

    reward: str | dict[str, Any]

    def __post_init__(self) -> None:
        super().__post_init__()
        self._set_parts(build_reward(self.reward))

    def _set_parts(self, parts: tuple[RewardPart, ...]) -> None:
        self._parts = parts
        self.reward = {}
        for part in parts:
            fields = part.plain()
            self.reward[fields.pop("name")] = fields

    def identity(self) -> Plain:
        material = super().identity()
        if "reward" in material:
            material["reward"] = [identity_of(part) for part in self._parts]
        return material

    @property
    def reward_range(self) -> tuple[float, float]:
        lowest = 0.0
        highest = 0.0
        for part in self._parts:
            ends = [end * part.weight for end in part.range]
            lowest += min(ends)
            highest += max(ends)
        return lowest, highest

    @property
    def is_binary(self) -> bool:
        first, *others = self._parts
        return not others and first.is_binary and first.weight == 1

    @property
    def is_shaped(self) -> bool:
        return self._parts != (Accuracy(),)

    @property
    def rewards_verdicts(self) -> bool:
        return any(part.reads_verdicts for part in self._parts)

    @property
    def delimiters(self) -> tuple[str, ...]:
        return tuple(text for part in self._parts for text in part.delimiters)

    @property
    def part_weights(self) -> tuple[float, ...]:
        return tuple(part.weight for part in self._parts)

    def for_completions(self, max_tokens: int) -> Self:
        parts = []
        for part in self._parts:
            try:
                parts.append(part.for_completions(max_tokens))
            except ConfigError as error:
                raise ConfigError(f"task.reward.{part.name}.{error}") from error
        if tuple(parts) == self._parts:
            return self
        # A copy keeps what is known of the problems, and what `for_seed` has set.
        filled = copy.copy(self)
        filled._set_parts(tuple(parts))
        return filled

    def rewards(
        self, completions: Sequence[str], verdicts: PerCompletion, lengths: PerCompletion
    ) -> PerCompletion:
        total = np.zeros(len(completions))
        columns = self.reward_parts(completions, verdicts, lengths).T
        for part, column in zip(self._parts, columns, strict=True):
            total += part.weight * column
        return total

    def reward_parts(
        self, completions: Sequence[str], verdicts: PerCompletion, lengths: PerCompletion
    ) -> Float[np.ndarray, "completions parts"]:
        correct = verdicts == 1
        values = [part.values(completions, correct, lengths) for part in self._parts]
        return np.where(np.isnan(verdicts), np.nan, values).T
