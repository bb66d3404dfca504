"""The turns of episodes that TRL's GRPOTrainer makes with tools and environments.

TRL's `tool_mask` tells the policy's tokens from those of tools. What stands before a turn and what
was given for it, only an environment knows. It may say so by two properties, which TRL, unlike
public methods, does not show to the model as tools:

    turn_state       what stands before the next turn: text, numbers, or lists and mappings of these
    reward_so_far    the sum of what the environment has given since its `reset`

What becomes of an environment that fails, `environments` beside this says.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from advsweep.backends.trl.environments import EnvironmentGuard
from advsweep.errors import ConfigError, TrainingError
from advsweep.estimators.turns import number_turns
from advsweep.state_numbers import number_state

STATE = "turn_state"
REWARD = "reward_so_far"

# Rows of what is known of turns, by the names of the inputs of estimators.
TURN_ROWS = ("turn_of_token", "turn_states", "turn_rewards")


class ToolTrainer(Protocol):
    """What is read of a GRPOTrainer; the environments are those of its current rollouts."""

    tools: Sequence[Any]
    rollout_func: Any
    environments: Sequence[Any] | None
    environment_factories: Mapping[Any, Any] | None
    _environment_pool: Mapping[Any, Sequence[Any]]


class _Moment(NamedTuple):
    """What the environments of all rollouts say before a turn."""

    states: list[int]
    rewards: list[float]


class EpisodeRecorder:
    """Records what environments say before each turn of a generation of TRL's.

    Call `begin` before a generation, `before_turn` each time that the model is about to write, and
    `end` when all rollouts are complete and not yet scored.

    Args:
        guard: knows which environments have failed; these are not read.

    Attributes:
        has_turns: whether rollouts may have several turns.
        has_states: whether every environment tells its state.
        has_rewards: whether an environment tells what it has given; others have given 0.

    Raises:
        ConfigError: an environment has one of the properties as a method.
    """

    def __init__(self, trainer: ToolTrainer, guard: EnvironmentGuard) -> None:
        self._trainer = trainer
        self._guard = guard
        self._moments: list[_Moment] = []
        self._records = False
        self.has_turns = bool(trainer.tools) or trainer.rollout_func is not None
        environments = list(_examples(trainer))
        for environment in environments:
            _refuse_methods(environment)
        self.has_states = bool(environments) and all(_has(e, STATE) for e in environments)
        self.has_rewards = any(_has(environment, REWARD) for environment in environments)

    def begin(self) -> None:
        """Forget the last generation."""
        self._moments = []
        self._records = self.has_states or self.has_rewards

    def before_turn(self) -> None:
        """Read all environments; those whose rollout is over are not looked at later."""
        if not self._records:
            return
        environments = self._trainer.environments or ()
        states = [self._state(environment) for environment in environments]
        rewards = [self._reward_so_far(environment) for environment in environments]
        self._moments.append(_Moment(states, rewards))

    def _state(self, environment: Any) -> int:
        if not self.has_states:
            return 0
        state, is_known = self._read(environment, STATE)
        return name_state(environment, state) if is_known else 0

    def _reward_so_far(self, environment: Any) -> float:
        """Return what an environment has given; 0 for one that does not say."""
        if not _has(environment, REWARD):
            return 0.0
        value, is_known = self._read(environment, REWARD)
        if not is_known:
            return 0.0
        is_number = isinstance(value, int | float) and math.isfinite(value)
        if not is_number:
            raise TrainingError(
                f"{_label(environment)}.{REWARD}: expected a finite number, got {value!r:.60}"
            )
        return float(value)

    def _read(self, environment: Any, name: str) -> tuple[Any, bool]:
        """Return a property, and whether it is known: the environment has not failed."""
        if self._guard.failure(environment):
            return None, False
        try:
            return getattr(environment, name), True
        except Exception as error:  # noqa: BLE001 - the user's code may raise anything
            self._guard.fail(environment, name, error)
            return None, False

    def end(self) -> None:
        """Read the environments a last time."""
        self.before_turn()
        self._records = False

    def rows(
        self, tool_masks: Sequence[Sequence[int]], width: int, device: torch.device
    ) -> dict[str, Tensor]:
        """Return what is known of the turns of a generation, a row for each rollout.

        Args:
            tool_masks: for each rollout, 1 for tokens of the model and 0 for those of tools.
            width: tokens of the rows of completions.
        """
        generated = torch.zeros(len(tool_masks), width, dtype=torch.bool)
        for row, mask in enumerate(tool_masks):
            generated[row, : len(mask)] = torch.tensor(mask, dtype=torch.bool)
        turn_of_token = number_turns(generated)
        rows = {"turn_of_token": turn_of_token}
        counts = (turn_of_token.amax(dim=1) + 1).tolist()
        if self.has_states:
            rows["turn_states"] = self._states(counts)
        if self.has_rewards:
            rows["turn_rewards"] = self._rewards(counts)
        return {name: values.to(device) for name, values in rows.items()}

    def _states(self, counts: Sequence[int]) -> Tensor:
        states = torch.zeros(len(counts), max(counts), dtype=torch.int64)
        for row, count in enumerate(counts):
            for turn in range(count):
                states[row, turn] = self._moments[turn].states[row]
        return states

    def _rewards(self, counts: Sequence[int]) -> Tensor:
        """Return what was given from before each turn to before the next, or to the end."""
        rewards = torch.zeros(len(counts), max(counts))
        for row, count in enumerate(counts):
            sums = [moment.rewards[row] for moment in self._moments[:count]]
            sums.append(self._moments[-1].rewards[row])
            for turn in range(count):
                rewards[row, turn] = sums[turn + 1] - sums[turn]
        return rewards


def name_state(environment: Any, state: Any) -> int:
    """Return a number for the state of an environment, equal for equal states in every process.

    Raises:
        TrainingError: it is no plain data.
    """
    try:
        return number_state(state)
    except (TypeError, ValueError) as error:
        raise TrainingError(
            f"{_label(environment)}.{STATE}: expected text, numbers, or lists and mappings of "
            f"these, got {type(state).__name__}: {error}"
        ) from error


def _examples(trainer: ToolTrainer) -> Iterator[Any]:
    """Return an environment of each kind, which TRL makes to learn of its tools."""
    for name in trainer.environment_factories or ():
        yield trainer._environment_pool[name][0]


def _refuse_methods(environment: Any) -> None:
    for name in (STATE, REWARD):
        if inspect.isfunction(inspect.getattr_static(type(environment), name, None)):
            raise ConfigError(
                f"{_label(environment)}.{name}: expected a property, got a method, which TRL shows "
                "to the model as a tool; write @property above it"
            )


def _has(environment: Any, name: str) -> bool:
    """Return whether an environment has a property, without reading it."""
    return inspect.getattr_static(environment, name, None) is not None


def _label(environment: Any) -> str:
    return type(environment).__name__
