"""Verifiers and rewards that are plain functions in a file that the command line names.

    def verify(answer, gold):               # task.verifier=check.py
        return answer.strip().lower() == gold.lower()

    def reward(completion, correct):        # task.reward={accuracy: 1, style.py: 0.5}
        return 1.0 if completion.endswith(".") else 0.0

Parameters are given by name. Others need a default, and are options.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from advsweep.components import option
from advsweep.errors import ConfigError, TrainingError
from advsweep.function_options import (
    call_function,
    line_of,
    make_class,
    read_parameters,
    where_of,
)
from advsweep.tasks.rewards import RewardPart
from advsweep.tasks.verifiers.base import ReferenceAnswer, Verdict, Verifier, verdict
from advsweep.tasks.verifiers.boxes import boxed_answer

if TYPE_CHECKING:
    from advsweep.named_code import NamedCode
    from advsweep.tasks.base import PerCompletion
    from advsweep.tasks.rewards import Flags

# References that a verifier is tried with before anything starts.
_TRIED = 20

# Completions that a reward is tried with.
_TEXTS = ("", "x", r"The answer is \boxed{7}.", "word " * 200)


def _try_function(component: Any, inputs: Mapping[str, Any]) -> Any:
    """Return what a component's function returns, before anything is trained.

    Raises:
        ConfigError: it raises an error, or returns something else the second time.
    """
    try:
        first, second = (call_function(component, inputs) for _ in range(2))
    except Exception as error:  # The user's code may raise anything.
        shown = {name: str(inputs[name])[-40:] for name in component.given}
        raise ConfigError(
            f"{line_of(component, error)}: it raised {type(error).__name__}: {error} for {shown}"
        ) from error
    are_nan = first != first and second != second
    if first != second and not are_nan:
        raise ConfigError(
            f"{where_of(component)}: expected the same result for the same inputs, got {first} and "
            f"{second}"
        )
    return first


@dataclass(kw_only=True)
class FunctionVerifier(Verifier):
    r"""A verifier whose verdict is what a plain function returns, True or False.

    Its inputs are `answer`, what the last `\boxed{...}` of the completion holds, without which the
    completion is wrong; `completion`, the whole text; `gold`, the text of the reference answer; and
    `reference`, all that the data has of it. An error that it raises in training makes the
    completion wrong, as with every verifier.

    Attributes:
        function: the function.
        given: which of these it takes.
        options: its other parameters.
    """

    inputs: ClassVar[tuple[str, ...]] = ("answer", "completion", "gold", "reference")
    function: ClassVar[Callable[..., Any]]
    given: ClassVar[frozenset[str]]
    options: ClassVar[tuple[str, ...]]

    def check_references(self, references: Mapping[str, ReferenceAnswer]) -> None:
        """Try the function on reference answers, each as the answer to itself."""
        for reference in [*references.values()][:_TRIED]:
            gold = str(reference.get("answer", ""))
            self._check(_try_function(self, self._inputs(reference, gold, gold)))

    def reads(self, reference: ReferenceAnswer) -> bool:
        return bool(reference.get("answer")) or "gold" not in self.given

    def judge(self, reference: ReferenceAnswer, completion: str) -> Verdict:
        answer = boxed_answer(completion)
        if "answer" in self.given and not answer:
            return verdict(False, None)
        right = call_function(self, self._inputs(reference, completion, answer or ""))
        self._check(right)
        return verdict(bool(right), answer)

    def _inputs(self, reference: ReferenceAnswer, completion: str, answer: str) -> dict[str, Any]:
        return {
            "answer": answer,
            "completion": completion,
            "gold": str(reference.get("answer", "")),
            "reference": reference,
        }

    def _check(self, right: Any) -> None:
        if not isinstance(right, (bool, np.bool_)):
            raise ConfigError(
                f"{where_of(self)}: expected True or False, got {right!r:.40} of type "
                f"{type(right).__name__}"
            )


@dataclass(kw_only=True)
class FunctionReward(RewardPart):
    """A part of a reward that a plain function gives to each completion.

    Its inputs are `completion`, the text; `correct`, whether it was judged correct; and `length`,
    in tokens. It returns a finite number between `low` and `high`.

    Attributes:
        function: the function.
        given: which of these it takes.
        options: its other parameters.
    """

    inputs: ClassVar[tuple[str, ...]] = ("completion", "correct", "length")
    function: ClassVar[Callable[..., Any]]
    given: ClassVar[frozenset[str]]
    options: ClassVar[tuple[str, ...]]

    low: float = option(0.0, identity=False, help="the least value of the function")
    high: float = option(1.0, identity=False, help="the greatest value of the function")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.low > self.high:
            raise ConfigError(f"low: expected at most high = {self.high:g}, got {self.low:g}")
        for text in _TEXTS:
            for correct in (False, True):
                inputs = {"completion": text, "correct": correct, "length": len(text) // 4 + 1}
                self._number(_try_function(self, inputs), text)

    @property
    def range(self) -> tuple[float, float]:
        return self.low, self.high

    def values(
        self, completions: Sequence[str], correct: Flags, lengths: PerCompletion
    ) -> PerCompletion:
        columns = zip(completions, correct.tolist(), lengths.tolist(), strict=True)
        return np.array([self._value(*row) for row in columns], dtype=float)

    def _value(self, completion: str, correct: bool, length: float) -> float:
        inputs = {"completion": completion, "correct": correct, "length": int(length)}
        try:
            value = call_function(self, inputs)
        except Exception as error:
            raise TrainingError(
                f"{line_of(self, error)}: it raised {type(error).__name__}: {error} for the "
                f"completion {completion[-60:]!r}"
            ) from error
        return self._number(value, completion)

    def _number(self, value: Any, completion: str) -> float:
        is_number = isinstance(value, (bool, int, float, np.number, np.bool_))
        # NaN is outside of every range.
        if is_number and self.low <= float(value) <= self.high:
            return float(value)
        key = f"{{{self.name}: {{low: ..., high: ...}}}}"
        raise ConfigError(
            f"{where_of(self)}: expected a number from {self.low:g} to {self.high:g}, got "
            f"{value!r:.40} for the completion {completion[-40:]!r}; task.reward={key} sets the "
            "range"
        )


def verifier_class(function: Callable[..., Any], code: NamedCode) -> type[FunctionVerifier]:
    """Make a verifier's class of a function.

    Raises:
        ConfigError: a parameter is neither an input nor an option.
    """
    parameters = read_parameters(function, code, FunctionVerifier.inputs, "gold")
    return make_class(function, code, FunctionVerifier, parameters)


def reward_class(function: Callable[..., Any], code: NamedCode) -> type[FunctionReward]:
    """Make a reward's class of a function.

    Raises:
        ConfigError: a parameter is neither an input nor an option.
    """
    parameters = read_parameters(function, code, FunctionReward.inputs, "completion")
    return make_class(
        function, code, FunctionReward, parameters, reads_verdicts="correct" in parameters.given
    )
