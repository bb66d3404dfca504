"""A run: one training with one seed, as built objects, and what makes it the same as another."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar

from advsweep.backends import BACKENDS, EVALUATIONS, GENERATIONS, MODELS, OPTIMIZERS
from advsweep.components import Component, Plain, option
from advsweep.config.settings import Match
from advsweep.errors import BatchError, ConfigError, UnknownNameError, nearest
from advsweep.estimators.registry import ESTIMATORS
from advsweep.objectives import OBJECTIVES
from advsweep.registry import Registry
from advsweep.rollouts import ROLLOUTS
from advsweep.tasks import TASKS

if TYPE_CHECKING:
    from advsweep.backends.base import Backend
    from advsweep.config.settings import EvaluationSettings, Generation, Optimizer
    from advsweep.estimators.base import Estimator
    from advsweep.objectives.base import Objective
    from advsweep.rollouts.base import RolloutPolicy
    from advsweep.tasks.base import Task

NODES: Mapping[str, Registry[Any]] = {
    "estimator": ESTIMATORS,
    "objective": OBJECTIVES,
    "rollout": ROLLOUTS,
    "task": TASKS,
    "model": MODELS,
    "optimizer": OPTIMIZERS,
    "generation": GENERATIONS,
    "evaluation": EVALUATIONS,
    "backend": BACKENDS,
}
"""The keys of a run's config that hold components."""

INERT = frozenset({"executor", "resources", "search", "stopping", "tracking"})
"""Keys that a config may have and that cannot change a run's results."""


@dataclass(kw_only=True)
class Numbers(Component):
    """The plain numbers of a run, at the top level of its config."""

    name: ClassVar[str] = "a run"

    group_size: int = option(ge=1, help="rollouts per prompt (G)")
    prompts_per_step: int = option(ge=1, help="prompts per training step (B)")
    steps: int = option(ge=1, help="training steps")
    seed: int = option(ge=0, help="seed of the training; replicates differ in it alone")


_NUMBERS = tuple(f.name for f in fields(Numbers))


@dataclass(frozen=True, kw_only=True)
class Run:
    """One training: built components and numbers; made by `build_run`.

    Attributes:
        group_size: rollouts per prompt (G).
        prompts_per_step: prompts per training step (B).
        steps: training steps.
        absent: data that is not on this machine and was not to be fetched. The task is known
            by its settings alone then, and the run by an identity that is not the final one
            and begins with a question mark.
    """

    estimator: Estimator
    objective: Objective
    rollout: RolloutPolicy
    task: Task
    model: Component
    optimizer: Optimizer
    generation: Generation
    evaluation: EvaluationSettings
    backend: Backend
    group_size: int
    prompts_per_step: int
    steps: int
    seed: int
    absent: tuple[str, ...] = ()

    def plain(self, shared: dict[int, Plain] | None = None) -> Plain:
        """The resolved config, in JSON types, every node with its name.

        Args:
            shared: nodes by the `id` of their component, for runs that share components: a
                component that is in it has that node, and others are added.
        """
        config: Plain = {}
        for key in NODES:
            component = getattr(self, key)
            if shared is None:
                config[key] = component.plain()
            else:
                if id(component) not in shared:
                    shared[id(component)] = component.plain()
                config[key] = shared[id(component)]
        return config | {key: getattr(self, key) for key in _NUMBERS}

    @functools.cached_property
    def config_hash(self) -> str:
        """sha256, in hex, of all that can change a training's result but its seed.

        Runs with the same hash are replicates. How a run is evaluated is not in it:
        evaluations have identities of their own.
        """
        return self._hash(self._material)

    @functools.cached_property
    def identity(self) -> str:
        """sha256, in hex, of all that can change a training's result."""
        return self._hash({**self._material, "seed": self.seed})

    @property
    def revisions(self) -> dict[str, int]:
        """The revisions above 1 of all components that can change a result, by config key."""
        return dict(_revisions(self._material))

    @functools.cached_property
    def learning_rate_scale(self) -> float:
        """What backends multiply their learning rate by, as `optimizer.match` has it.

        Raises:
            ConfigError: the estimator or its reference cannot be matched.
        """
        optimizer = self.optimizer
        if optimizer.match is Match.NONE:
            return 1.0
        from advsweep.diagnostics.scale_matching import learning_rate_scale
        from advsweep.estimators.base import Estimator

        reference = optimizer.match_reference
        assert isinstance(reference, Estimator)
        size = optimizer.match.value
        try:
            return learning_rate_scale(self.estimator, reference, self.group_size, size)
        except BatchError as error:
            raise ConfigError(
                f"optimizer.match: {error}; expected an estimator and a reference that can be "
                f"compared, or optimizer.match=none"
            ) from error

    @property
    def _material(self) -> Plain:
        keys = (key for key in NODES if key not in ("task", "evaluation"))
        nodes = {key: getattr(self, key).identity() for key in keys}
        nodes["task"] = self.task.plain() if self.absent else self.task.identity()
        return nodes | {key: getattr(self, key) for key in _NUMBERS if key != "seed"}

    def _hash(self, material: Plain) -> str:
        digest = hashlib.sha256(json.dumps(material, sort_keys=True).encode()).hexdigest()
        return f"?{digest}" if self.absent else digest


def _revisions(material: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, int]]:
    for key, value in material.items():
        for node in value if isinstance(value, list) else [value]:
            if isinstance(node, Mapping):
                if node.get("revision", 1) != 1:
                    yield f"{path}{key}", node["revision"]
                yield from _revisions(node, f"{path}{key}.")


Parts = dict[tuple[str, str], Component]
"""Components that were built, by their key and the text of their node."""


def build_run(config: Mapping[str, Any], *, fetch: bool = True, parts: Parts | None = None) -> Run:
    """Builds a run from a plain config and refuses what does not fit together.

    Nodes are names, or mappings with a `name`; fields that are left out take their defaults.

    Args:
        fetch: false for a run that is only looked at: data that is not on this machine stays
            where it is, and what the task's problems would be refused for is not known.
        parts: components to share with other runs that are planned and not trained here; those
            that it lacks are added.

    Raises:
        ConfigError: a key is missing or unknown, a value does not fit, or the parts do not
            fit each other; the message starts with the key's path.
    """
    known = [*NODES, *_NUMBERS]
    for key in config:
        if key not in known and key not in INERT:
            raise UnknownNameError(f"{key}: a run has no such key; {nearest(str(key), known)}")
    for key in known:
        if key not in config:
            expected = f"one of {', '.join(NODES[key])}" if key in NODES else "an integer"
            raise ConfigError(f"{key}: expected {expected}, got nothing")
    numbers = Numbers.build({key: config[key] for key in _NUMBERS})
    nodes = {key: _build(key, config[key], parts) for key in NODES}
    absent = () if fetch else nodes["task"].absent()
    run = Run(**nodes, **{key: getattr(numbers, key) for key in _NUMBERS}, absent=absent)
    objective = run.objective.for_completions(run.backend.completion_tokens(run))
    if objective is not run.objective:
        run = replace(run, objective=objective)
    _check(run)
    return run


def _build(key: str, node: Any, parts: Parts | None) -> Any:
    if parts is None:
        return NODES[key].build(node, where=key)
    text = repr(node)
    if (key, text) not in parts:
        parts[key, text] = NODES[key].build(node, where=key)
    return parts[key, text]


def _check(run: Run) -> None:
    estimator, backend = run.estimator, run.backend
    if not run.absent:
        run.task.check()
    if not run.absent and not run.task.can_train:
        raise ConfigError(
            f"task: '{run.task.label}' has no training problems, it is there to evaluate with; "
            f"choose another, or data with a train_split"
        )
    if run.group_size < estimator.minimum_group:
        raise ConfigError(
            f"group_size: expected >= {estimator.minimum_group}, which estimator "
            f"'{estimator.name}' needs, got {run.group_size}"
        )
    if run.group_size % estimator.group_multiple:
        raise ConfigError(
            f"group_size: expected a multiple of {estimator.group_multiple}, which estimator "
            f"'{estimator.name}' needs, got {run.group_size}"
        )
    _check_rewards(estimator, run.task)
    if run.task.is_shaped and not backend.shapes_rewards:
        raise ConfigError(
            f"task.reward: backend '{backend.name}' trains on correct and wrong alone; expected "
            f"reward=accuracy, or another backend"
        )
    if run.task.has_system_messages and not backend.puts_system_messages:
        raise ConfigError(
            f"task.prompt: backend '{backend.name}' gives models the prompt alone; expected one "
            f"without a system message, or another backend"
        )
    provided = backend.provides | run.rollout.provides
    if missing := estimator.needs - provided:
        giving = [name for name in ROLLOUTS if ROLLOUTS.get(name).provides & missing]
        remedy = f"; rollout={' or '.join(giving)} does" if giving else ""
        raise ConfigError(
            f"estimator: '{estimator.name}' needs {', '.join(sorted(missing))}, which backend "
            f"'{backend.name}' with rollout policy '{run.rollout.name}' does not give{remedy}"
        )
    if run.rollout.draws_references and not backend.keeps_reference:
        raise ConfigError(
            f"rollout: '{run.rollout.name}' draws rollouts of a reference model, which backend "
            f"'{backend.name}' does not keep; choose another backend or rollout policy"
        )
    if run.optimizer.name not in backend.optimizers:
        raise ConfigError(
            f"optimizer: backend '{backend.name}' trains with "
            f"{' or '.join(sorted(backend.optimizers))}, got '{run.optimizer.name}'"
        )
    check_sampling(backend, run.evaluation)
    if run.optimizer.match is not Match.NONE:
        _ = run.learning_rate_scale  # which is refused where there is none
    backend.check(run)


def check_sampling(backend: Backend, evaluation: EvaluationSettings) -> None:
    """Refuses an evaluation that a backend cannot sample for.

    Raises:
        ConfigError: it is cut, and the backend's samplers draw from the whole distribution.
    """
    if evaluation.is_cut and not backend.cuts_evaluations:
        raise ConfigError(
            f"evaluation: backend '{backend.name}' samples from the whole distribution; expected "
            f"temperature > 0 and top_p=1, got temperature={evaluation.temperature:g} and "
            f"top_p={evaluation.top_p:g}"
        )


def _check_rewards(estimator: Estimator, task: Task) -> None:
    low, high = task.reward_range
    if estimator.binary_only and not task.is_binary:
        raise ConfigError(
            f"estimator: '{estimator.name}' is defined for rewards of 0 and 1 only, and task "
            f"'{task.label}' gives others, from {low:g} to {high:g}; reward accuracy alone"
        )
    if estimator.rates and not (low >= 0 and high <= 1):
        raise ConfigError(
            f"estimator: '{estimator.name}' reads a prompt's mean reward as its solve rate and "
            f"needs rewards in [0, 1], and those of task '{task.label}' go from {low:g} to "
            f"{high:g}; change their weights"
        )
