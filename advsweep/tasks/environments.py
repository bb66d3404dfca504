"""Tasks of the user's environments: classes in TRL's form in a file that the command line names.

    class Walk:                                  # task=walk.py task.data=rooms.jsonl
        def reset(self, start, goal, **_):       # begins an episode with a row of the data
            ...
        def step(self, word: str) -> str:        # a tool: the model reads its docstring
            ...
        def get_reward(self) -> float:           # the reward of the episode
            ...

Two properties are optional, which the model does not see: `turn_state`, what stands before the next
turn, and `reward_so_far`, the sum of what was given since `reset`.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import json
import math
import re
import warnings
from abc import ABC
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from advsweep.components import Plain, option
from advsweep.errors import AdvsweepWarning, ConfigError, TrainingError, counted
from advsweep.function_options import line_of, make_class, read_options, where_of
from advsweep.state_numbers import number_state
from advsweep.tasks.base import Problem, Split, Task
from advsweep.tasks.dataset_cells import CellError, Question, brief, cell, read_question
from advsweep.tasks.dataset_problems import Problems, divide, draw_from, read_level, read_rows
from advsweep.tasks.dataset_rows import HUB, absent_places, absolute, refuse_url

if TYPE_CHECKING:
    from jaxtyping import Float

    from advsweep.named_code import NamedCode
    from advsweep.tasks.base import PerCompletion
    from advsweep.tasks.dataset_rows import Rows

RESET = "reset"
REWARD = "get_reward"
STATE = "turn_state"
REWARD_SO_FAR = "reward_so_far"

_PROMPT = "prompt"
_ID_DIGITS = 12
# TRL takes these columns for images.
_IMAGES = ("image", "images")
# What decides which rows are read, and is no part of an identity that has the problems.
_OF_DATA = frozenset(
    {
        "data",
        "held_out_data",
        "subset",
        "train_split",
        "held_out_split",
        "prompt",
        "id_column",
        "level_column",
        "train",
        "held_out",
        "seed",
    }
)
_tried: set[str] = set()


class InEnvironmentForm(ABC):  # noqa: B024 (a form, of which nothing is derived)
    """Classes in TRL's form of an environment: those with a method `reset`."""

    @classmethod
    def __subclasshook__(cls, other: type) -> bool:
        return callable(getattr(other, RESET, None))


@dataclass(kw_only=True)
class EnvironmentTask(Task):
    """Episodes of several turns with an environment of the user's.

    Each row of the data is a problem: `reset` gets its columns. An episode's reward is that of
    `get_reward`; it is right where this is at least `success`. Parameters of the class, which all
    have defaults, are options of the task.

    Attributes:
        function: the user's class.
        options: the parameters of its constructor.
    """

    name: ClassVar[str] = "environment"
    has_environment: ClassVar[bool] = True
    function: ClassVar[Callable[..., Any]]
    options: ClassVar[tuple[str, ...]] = ()

    data: str = option("", help="a file, a folder with a file per split, or hub:OWNER/NAME[@REV]")
    held_out_data: str = option("", help="another such place for held-out problems")
    subset: str = option("", help="the hub's configuration, such as main; or a folder of data")
    train_split: str = option("train", help="split of the training problems; empty: none")
    held_out_split: str = option("test", help="split of the held-out problems; empty: cut them")
    prompt: str = option("", help="the first message to the model; empty: the column prompt")
    id_column: str = option("", help="column of the ids; empty: made of the rows")
    level_column: str = option("", help="column of the difficulty level; empty: all are level 0")
    train: int = option(0, ge=0, help="training problems, chosen by the seed; 0: all")
    held_out: int = option(0, ge=0, help="held-out problems, chosen by the seed; 0: all")
    seed: int = option(0, ge=0, help="chooses problems where not all are taken")
    tool_turns: int = option(
        8,
        ge=1,
        help="most turns whose calls are answered; one more turn may follow the last answer",
    )
    low: float = option(0.0, help="the least reward of an episode")
    high: float = option(1.0, help="the greatest reward of an episode")
    binary: bool = option(
        False, help="whether rewards are 0 and 1 alone, which some estimators are defined for"
    )
    success: float | None = option(
        None, help="reward from which on an episode is right, as pass@k counts it; null: high"
    )
    title: str = option("", identity=False, help="what reports call it; empty: the file's name")

    def __post_init__(self) -> None:
        super().__post_init__()
        for key in ("data", "held_out_data"):
            refuse_url(key, getattr(self, key))
        self.data = absolute(self.data)
        self.held_out_data = absolute(self.held_out_data)
        if self.low > self.high:
            raise ConfigError(f"low: expected at most high = {self.high:g}, got {self.low:g}")
        if self.binary and (self.low, self.high) != (0, 1):
            raise ConfigError(
                f"binary: expected false, as rewards go from {self.low:g} to {self.high:g}"
            )
        # Of this instance's class: a plan asks what the episodes give to estimators.
        provided = {"turn_of_token"}
        if self.has(STATE):
            provided.add("turn_states")
        if self.has(REWARD_SO_FAR):
            provided.add("turn_rewards")
        vars(self)["provides"] = frozenset(provided)

    @property
    def label(self) -> str:
        return self.title or self._code.label

    @property
    def _code(self) -> NamedCode:
        code: NamedCode = self.named_code
        return code

    def has(self, name: str) -> bool:
        """Return whether environments have a property or a method."""
        return inspect.getattr_static(type(self).function, name, None) is not None

    def make_environment(self) -> Any:
        """Make an environment, which can play any number of episodes, one at a time."""
        values = {name: getattr(self, name) for name in self.options}
        return type(self).function(**values)

    def identity(self) -> Plain:
        kept = {k: v for k, v in super().identity().items() if k not in _OF_DATA}
        return {**kept, "problems": self._problems.digest}

    def protocol(self) -> Plain:
        digest = hashlib.sha256(self._code.text.encode()).hexdigest()[:8]
        values = {name: getattr(self, name) for name in (*self.options, "tool_turns")}
        settings = " ".join(f"{name}={value}" for name, value in values.items())
        success = f"success={self._success:g}"
        return {"environment": f"{self._code.label}#{digest} {settings} {success}"}

    # Rewards and verdicts

    @property
    def reward_range(self) -> tuple[float, float]:
        return self.low, self.high

    @property
    def reward_remedy(self) -> str:
        return "task.low, task.high and task.binary say what the environment gives"

    @property
    def is_binary(self) -> bool:
        return self.binary

    @property
    def is_shaped(self) -> bool:
        return not self.binary

    @property
    def rewards_verdicts(self) -> bool:
        return False

    @property
    def _success(self) -> float:
        return self.high if self.success is None else self.success

    def verdicts(self, rewards: Float[np.ndarray, " episodes"]) -> PerCompletion:
        """Return the verdicts of episodes by their rewards; NaN where an environment has failed.

        Raises:
            TrainingError: a reward is outside of the range that the task states.
        """
        # TRL keeps rewards in 32 bits: 0.7 is then less than 0.7 in 64.
        rewards = rewards.astype(np.float32)
        known = rewards[~np.isnan(rewards)]
        allowed = (known >= np.float32(self.low)) & (known <= np.float32(self.high))
        if self.binary:
            allowed &= (known == 0) | (known == 1)
        if not allowed.all():
            got = known[~allowed][0]
            stated = "0 or 1, as task.binary says," if self.binary else "between task.low and high,"
            raise TrainingError(
                f"{where_of(self)}.{REWARD}: expected a reward {stated} {self.low:g} and "
                f"{self.high:g}, got {got:g}"
            )
        right = rewards >= np.float32(self._success)
        return np.where(np.isnan(rewards), np.nan, right.astype(float))

    def score(self, problems: Sequence[Problem], completions: Sequence[str]) -> PerCompletion:
        raise ConfigError(
            f"task: '{self.label}' judges the episodes that it has answered, and no texts; "
            "backend=trl plays them"
        )

    def answers(self, problems: Sequence[Problem], completions: Sequence[str]) -> list[str | None]:
        """Return the whole episodes."""
        return [text.strip() or None for text in completions]

    # Problems

    def absent(self) -> tuple[str, ...]:
        return absent_places({"data": self.data, "held_out_data": self.held_out_data})

    @property
    def can_train(self) -> bool:
        return bool(self.problems(Split.TRAIN))

    def problems(self, split: Split) -> Sequence[Problem]:
        return self._problems.splits[split]

    def draw(self, count: int, rng: np.random.Generator) -> list[Problem]:
        return draw_from(self.problems(Split.TRAIN), count, rng)

    @functools.cached_property
    def _problems(self) -> Problems:
        if not self.data:
            raise ConfigError(
                f"task.data: expected the rows that episodes of '{self.label}' begin with: a file "
                f"(.jsonl, .csv, ...), a folder with a file per split, or {HUB}OWNER/NAME"
            )
        train, held_out = read_rows(self)
        held_out_problems = self._problems_of(held_out, known=set())
        known = {problem.id for problem in held_out_problems}
        train_problems = self._problems_of(train, known)
        splits = {Split.TRAIN: tuple(train_problems), Split.HELD_OUT: tuple(held_out_problems)}
        return divide(Problems(splits), train=self.train, held_out=self.held_out, seed=self.seed)

    def _problems_of(self, rows: Rows, known: set[str]) -> list[Problem]:
        """Return a problem for each distinct row.

        Args:
            known: ids of other problems, which are left out.
        """
        # Rows of JSON may lack columns, which TRL hands over of all or of none.
        names = list(dict.fromkeys(name for row in rows for name in row))
        problems: dict[str, Problem] = {}
        left_out = 0
        for number, row in enumerate(rows, start=1):
            problem = self._problem({name: row.get(name) for name in names}, number)
            if problem.id in known or problem.id in problems:
                left_out += 1
            else:
                problems[problem.id] = problem
        if left_out:
            warnings.warn(
                f"left out {counted(left_out, 'row')} of the data, the same as others",
                AdvsweepWarning,
                stacklevel=2,
            )
        return list(problems.values())

    def _problem(self, row: Mapping[str, Any], number: int) -> Problem:
        question = Question(self.prompt)
        if not self.prompt:
            question = self._question(row, number)
        level = read_level(row, self.level_column)
        if level is None:
            raise ConfigError(
                f"task.level_column: expected a whole number in '{self.level_column}' of row "
                f"{number}, got {brief(cell(row, self.level_column))}"
            )
        text = json.dumps(row, sort_keys=True, default=str)
        own_id = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:_ID_DIGITS]
        if self.id_column:
            own_id = str(cell(row, self.id_column))
        return Problem(
            own_id,
            question.text,
            level,
            {"row": text},
            question.system,
            row=number,
            columns=row,
        )

    def _question(self, row: Mapping[str, Any], number: int) -> Question:
        """Return the prompt of a row; an empty one where `reset` says all."""
        value = row.get(_PROMPT)
        try:
            return read_question(value) or Question("")
        except CellError as error:
            raise ConfigError(
                f"task.prompt: expected {error} in '{_PROMPT}' of row {number}, got {brief(value)}"
            ) from error

    # Checks

    def check(self) -> None:
        for split in Split:
            for problem in self.problems(split)[:1]:
                _refuse_images(problem.columns)
                self._try(problem)

    def _try(self, problem: Problem) -> None:
        """Begin an episode, and end it at once: the class may do anything.

        Raises:
            ConfigError: it raises an error, or says something that cannot be used.
        """
        key = json.dumps([self.identity(), problem.id], default=str)
        if key in _tried:
            return
        columns = {**problem.columns, _PROMPT: problem.messages}
        environment = self._call("its constructor", self.make_environment)
        observation = self._call(
            f"reset of row {problem.row}", lambda: environment.reset(**columns)
        )
        self._expect(observation is None or isinstance(observation, str | list), RESET, observation)
        if self.has(STATE):
            state = self._call(STATE, lambda: getattr(environment, STATE))
            self._call(STATE, lambda: number_state(state))
        if self.has(REWARD_SO_FAR):
            given = self._call(REWARD_SO_FAR, lambda: getattr(environment, REWARD_SO_FAR))
            self._expect(_is_number(given), REWARD_SO_FAR, given)
        if not inspect.iscoroutinefunction(getattr(environment, REWARD)):
            reward = self._call(REWARD, environment.get_reward)
            self._expect(reward is None or _is_number(reward), REWARD, reward)
        _tried.add(key)

    def _call(self, what: str, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except Exception as error:  # The user's code may raise anything.
            hint = ""
            if isinstance(error, TypeError) and "unexpected keyword" in str(error):
                hint = "; reset gets the prompt and all columns of a row by name: end it with **_"
            raise ConfigError(
                f"{line_of(self, error)}: {what} raised {type(error).__name__}: {error}{hint}"
            ) from error

    def _expect(self, is_met: bool, what: str, got: Any) -> None:
        if is_met:
            return
        expected = "a text or None" if what == RESET else "a finite number"
        raise ConfigError(f"{where_of(self)}.{what}: expected {expected}, got {got!r:.40}")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | np.number) and math.isfinite(value)


def _refuse_images(columns: Mapping[str, Any]) -> None:
    for name in _IMAGES:
        if name in columns:
            raise ConfigError(
                f"task.data: expected no column '{name}', which TRL takes for images; rename it"
            )


def environment_task(cls: type, code: NamedCode) -> type[EnvironmentTask]:
    """Make a task's class of an environment's.

    Raises:
        ConfigError: it has no tool, no reward, or one that cannot be used; it names file and line.
    """
    where = f"{code.where}: {code.object}"
    tools = _tools_of(cls)
    if not tools:
        raise ConfigError(
            f"{where}: expected a public method besides {RESET} and {REWARD}, which the model "
            "calls as a tool, got none"
        )
    for name, tool in tools.items():
        _check_tool(tool, f"{where}.{name}")
    if REWARD not in dict(inspect.getmembers(cls, inspect.isfunction)):
        raise ConfigError(
            f"{where}: expected a method {REWARD}, which returns the reward of an episode, got none"
        )
    for name in (STATE, REWARD_SO_FAR):
        if inspect.isfunction(inspect.getattr_static(cls, name, None)):
            raise ConfigError(
                f"{where}.{name}: expected a property, got a method, which TRL shows to the model "
                "as a tool; write @property above it"
            )
    parameters = read_options(cls, code)
    for name, *_ in parameters.options:
        if hasattr(EnvironmentTask, name):
            raise ConfigError(
                f"{where}: the parameter '{name}' is an option of every task with an environment; "
                "give it another name"
            )
    return make_class(cls, code, EnvironmentTask, parameters)


def _tools_of(cls: type) -> dict[str, Callable[..., Any]]:
    """Return the methods that TRL takes for tools."""
    functions = dict(inspect.getmembers(cls, inspect.isfunction))
    others = (RESET, REWARD, STATE, REWARD_SO_FAR)
    return {
        name: function
        for name, function in functions.items()
        if not name.startswith("_") and name not in others
    }


def _check_tool(tool: Callable[..., Any], where: str) -> None:
    """Refuse a tool that transformers cannot describe to a model."""
    text = inspect.getdoc(tool) or ""
    if not text:
        raise ConfigError(
            f"{where}: expected a docstring, which tells the model what the tool does, got none"
        )
    _, *parameters = inspect.signature(tool).parameters.values()
    for parameter in parameters:
        name = parameter.name
        if parameter.annotation is parameter.empty:
            raise ConfigError(
                f"{where}: expected a type of the parameter '{name}', as {name}: str, which tells "
                "the model what to give"
            )
        if not re.search(rf"^\s*{re.escape(name)}\b.*:", text, re.MULTILINE):
            raise ConfigError(
                f"{where}: expected a line '{name}: ...' under 'Args:' of the docstring, which "
                "tells the model what to give, got none"
            )
