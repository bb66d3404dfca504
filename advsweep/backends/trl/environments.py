"""Environments of the user's in TRL's GRPOTrainer: one that fails or never ends costs its rollout.

TRL answers the model with the error of a tool. Any other error of an environment would end the
training, and a call that does not return would hold it up for ever.
"""

from __future__ import annotations

import functools
import inspect
import threading
import types
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from advsweep.backends.trl.config import Prompt, VllmGeneration, generation_of, hf_model
from advsweep.errors import AdvsweepWarning, ConfigError

if TYPE_CHECKING:
    from advsweep.backends.base import Run

LIMIT = "seconds_per_call"


def check_environment(run: Run, processes: int) -> None:
    """Refuse what cannot go together with a task's environment.

    Raises:
        ConfigError: names the key, the expected and the actual value.
    """
    if not run.task.has_environment:
        return
    task = f"as task '{run.task.label}' has an environment"
    generation = generation_of(run.generation)
    if isinstance(generation, VllmGeneration):
        raise ConfigError(f"generation: expected transformers, {task}, got vllm")
    if generation.stop:
        raise ConfigError(
            f"generation.stop: expected none, {task} and the chat template ends a turn, got "
            f"{list(generation.stop)}"
        )
    if run.rollout.draws_references or run.rollout.draws_greedy:
        raise ConfigError(
            f"rollout: expected one that draws no further rollouts, {task}, got "
            f"'{run.rollout.name}'"
        )
    if processes > 1:
        raise ConfigError(f"backend.processes: expected 1, {task}, got {processes}")
    if hf_model(run.model).prompt is Prompt.PLAIN:
        raise ConfigError(f"model.prompt: expected chat or auto, {task}, got plain")


Factory = Callable[[], Any]


class EnvironmentStoppedError(RuntimeError):
    """An environment has failed in its episode, and is not asked any more."""


class EnvironmentGuard:
    """Makes environments whose failures are known, and do not end the training.

    An episode fails if `reset` or `get_reward` raises an error, or if a call takes more than the
    environment's `seconds_per_call`. With such a limit each call runs in a thread of its own, in
    which it goes on after the limit. Methods that are coroutines are left alone.
    """

    def __init__(self) -> None:
        # By the number of the object, as environments need not be hashable.
        self._failures: dict[int, str] = {}
        self._hanging: set[int] = set()

    def guard(self, factory: Factory | Mapping[str, Factory]) -> Factory | dict[str, Factory]:
        """Return what TRL takes as `environment_factory`, with environments that are guarded."""
        if isinstance(factory, Mapping):
            return {name: self._guarded_factory(make) for name, make in factory.items()}
        return self._guarded_factory(factory)

    def fail(self, environment: Any, what: str, error: BaseException) -> None:
        """Note that the episode of an environment has failed, and warn of it."""
        reason = f"{type(environment).__name__}.{what} raised {type(error).__name__}: {error}"
        self._failures.setdefault(id(environment), reason)
        warnings.warn(
            f"environment: {reason}; its rollout cannot be scored", AdvsweepWarning, stacklevel=2
        )

    def failure(self, environment: Any) -> str | None:
        """Say why the episode of an environment has failed; None if it has not."""
        return self._failures.get(id(environment))

    def take_failures(self, environments: Iterable[Any]) -> list[str | None]:
        """Say the same of environments whose episodes are over, and forget it.

        Not at the next `reset`, which is not seen of environments that cannot be guarded.
        """
        return [self._failures.pop(id(environment), None) for environment in environments]

    def forget_hanging(self, pools: Mapping[Any, list[Any]]) -> None:
        """Take environments out of TRL's pools in which a call may still be going on."""
        for pool in pools.values():
            pool[:] = [each for each in pool if id(each) not in self._hanging]
        self._hanging.clear()

    def _guarded_factory(self, factory: Factory) -> Factory:
        def make() -> Any:
            environment = factory()
            if not hasattr(environment, "__dict__"):
                return environment  # of slots alone: its methods cannot be replaced
            for name, function in inspect.getmembers(type(environment), inspect.isfunction):
                if not name.startswith("_") and not inspect.iscoroutinefunction(function):
                    setattr(environment, name, self._guarded(environment, name, function))
            return environment

        return make

    def _guarded(
        self, environment: Any, name: str, function: Callable[..., Any]
    ) -> types.MethodType:
        """Return a method, which TRL describes to the model as it does the function."""

        @functools.wraps(function)
        def guarded(own: Any, *arguments: Any, **named: Any) -> Any:
            call = functools.partial(function, own, *arguments, **named)
            if name == "reset":
                return self._call_or_fail(own, name, call)
            if name == "get_reward":
                return None if self.failure(own) else self._call_or_fail(own, name, call)
            return self._call_tool(own, name, call)

        return types.MethodType(guarded, environment)

    def _call_or_fail(self, environment: Any, name: str, call: Factory) -> Any:
        """Return what a call returns, None if it fails."""
        try:
            return self._call(environment, call)
        except Exception as error:  # noqa: BLE001 - the user's code may raise anything
            self.fail(environment, name, error)
            return None

    def _call_tool(self, environment: Any, name: str, call: Factory) -> Any:
        """Return what a tool returns; its errors are the model's to read."""
        if self.failure(environment):
            raise EnvironmentStoppedError("the environment has stopped")
        try:
            return self._call(environment, call)
        except TimeoutError as error:
            if id(environment) in self._hanging:
                self.fail(environment, name, error)
            raise

    def _call(self, environment: Any, call: Factory) -> Any:
        seconds = getattr(environment, LIMIT, None)
        if seconds is None:
            return call()
        try:
            return _within(seconds, call)
        except _TooLongError:
            self._hanging.add(id(environment))
            raise TimeoutError(f"it took more than {seconds:g} s") from None


class _TooLongError(Exception):
    """A call has not returned in time."""


def _within(seconds: float, call: Factory) -> Any:
    """Return what a call returns in a thread of its own.

    Raises:
        _TooLongError: it takes more time.
    """
    results: list[Any] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(call())
        except BaseException as error:  # noqa: BLE001 - it is raised in the other thread
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    if errors:
        raise errors[0]
    if not results:
        raise _TooLongError
    return results[0]
