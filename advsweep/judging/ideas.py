"""Ideas: the estimators that are judged, and what they are without a training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

from advsweep.config.overrides import parse_assignments
from advsweep.diagnostics import expected_masses
from advsweep.diagnostics.relatives import Relative, find_relatives, gives_the_same
from advsweep.errors import BatchError, ConfigError
from advsweep.estimators import ESTIMATORS, Estimator
from advsweep.estimators.batch import NEUTRAL_INPUTS
from advsweep.estimators.contract import (
    USUAL_SIZE,
    Property,
    fitting_size,
    list_properties,
)
from advsweep.estimators.named_checks import check_named, try_named
from advsweep.estimators.varied import drawn_batch
from advsweep.judging.leaderboard import BASELINE
from advsweep.named_code import parse_word

# What its options begin with on a command line.
PREFIX = "estimator."

# Solve rates at which masses are shown.
_RATES = (0.1, 0.3, 0.5, 0.7, 0.9)

_TRIED_STEPS = 100
_TRIED_PROMPTS = 16


@dataclass(frozen=True, kw_only=True)
class Idea:
    """An estimator to be judged.

    Attributes:
        word: what the user called it: a name, `idea.py`, `idea.py:Name` or `package.module:Name`.
        name: the name under which it is registered in this process.
        label: its name in tables.
        options: values of its options by their names, as far as they are given.
    """

    word: str
    name: str
    label: str
    estimator: Estimator
    options: Mapping[str, Any]

    @property
    def text(self) -> str:
        """The text of its file or module; empty for a registered estimator."""
        code = self.estimator.named_code
        return "" if code is None else str(code.text)

    @property
    def is_baseline(self) -> bool:
        """Whether it is RLOO itself, and no code of others that may give the same."""
        return type(self.estimator) is type(ESTIMATORS.build(BASELINE))

    @property
    def changed_line(self) -> str:
        """The file with the first line in which it no longer is what is judged; empty if it is."""
        word = parse_word(self.word)
        if word is None or not word.is_file:
            return ""
        path = Path(word.place).expanduser()
        try:
            now = path.read_text("utf-8-sig").replace("\r\n", "\n")
        except (OSError, UnicodeDecodeError):
            return f"{path.name}:1"
        if now == self.text:
            return ""
        pairs = zip_longest(self.text.splitlines(), now.splitlines())
        lines = [number for number, (one, other) in enumerate(pairs, 1) if one != other]
        return f"{path.name}:{lines[0] if lines else 1}"


@dataclass(frozen=True, kw_only=True)
class MassesAt:
    """The expected masses at a solve rate."""

    rate: float
    success: float
    failure: float


@dataclass(frozen=True, kw_only=True)
class Examination:
    """What an estimator is without a training.

    Attributes:
        properties: what the checks found.
        group_size: that of masses and relatives.
        masses: the expected masses; empty for an estimator that does not depend on rewards alone.
        relatives: the registered estimators, the nearest first.
        is_baseline: whether it gives RLOO's advantages in whatever was tried.
    """

    properties: Sequence[Property]
    group_size: int
    masses: Sequence[MassesAt]
    relatives: Sequence[Relative]
    is_baseline: bool


def read_idea(word: str, options: Sequence[str] = ()) -> Idea:
    """Load an estimator and try whether it can be used.

    Args:
        word: of the present command line, or the caller's own: what it names is run.
        options: `estimator.NAME=VALUE` each.

    Raises:
        ConfigError: it cannot be loaded or used; of a file the message begins with file and line.
    """
    values = {key.removeprefix(PREFIX): value for key, value in parse_assignments(options).items()}
    name = ESTIMATORS.resolve(word)
    estimator = ESTIMATORS.build(_nested({"name": name, **values}), where="estimator")
    check_named(estimator)
    _check_steps(estimator)
    code = estimator.named_code
    return Idea(
        word=word,
        name=name,
        label=estimator.name if code is None else code.label,
        estimator=estimator,
        options=values,
    )


def _nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a config node; `base.name` is the name of the node `base`."""
    node: dict[str, Any] = {}
    for key, value in values.items():
        *path, last = key.split(".")
        place = node
        for part in path:
            place = place.setdefault(part, {})
        place[last] = value
    return node


def _check_steps(estimator: Estimator) -> None:
    """Refuse code of others that is not usable at each step of a training.

    Raises:
        ConfigError: the message begins with file and line, and names the step.
    """
    if estimator.named_code is None:
        return
    size = fitting_size(estimator, USUAL_SIZE)
    for step in (1, _TRIED_STEPS // 2, _TRIED_STEPS):
        batch = drawn_batch(_TRIED_PROMPTS, size, step, _TRIED_STEPS)
        try:
            try_named(estimator, batch)
        except BatchError:
            continue  # it needs what its backend may give; the plan says so
        except ConfigError as error:
            raise ConfigError(f"{error} (step {step} of {_TRIED_STEPS})") from error


def examine(idea: Idea) -> Examination:
    """Return what an estimator is without a training."""
    estimator = idea.estimator
    size = fitting_size(estimator, USUAL_SIZE)
    others = [
        ESTIMATORS.build(name)
        for name in ESTIMATORS.names()
        if name != idea.name and name in ESTIMATORS.modules
    ]
    if not estimator.reads_turns:
        # Of rollouts of one turn, which are compared, the turn forms are their bases once more.
        others = [other for other in others if not other.reads_turns]
    relatives: list[Relative] = []
    masses: list[MassesAt] = []
    if not estimator.verifier_free:
        relatives = find_relatives(estimator, others, size)
        masses = _masses_of(estimator, size)
    return Examination(
        properties=list_properties(estimator),
        group_size=size,
        masses=masses,
        relatives=relatives,
        is_baseline=idea.is_baseline or gives_the_same(estimator, ESTIMATORS.build(BASELINE), size),
    )


def _masses_of(estimator: Estimator, size: int) -> list[MassesAt]:
    inputs = {name: NEUTRAL_INPUTS[name] for name in estimator.needs}
    found = []
    for rate in _RATES:
        try:
            mass = expected_masses(estimator, rate, size, **inputs)
        except BatchError:
            return []
        found.append(MassesAt(rate=rate, success=mass.success, failure=mass.failure))
    return found
