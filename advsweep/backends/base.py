"""The contract of a backend: what trains a run and answers problems with its weights."""

from __future__ import annotations

import functools
import hashlib
import json
from abc import abstractmethod
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

from advsweep.components import Component, Plain, option
from advsweep.errors import ConfigError

if TYPE_CHECKING:
    from advsweep.config.settings import EvaluationSettings, Generation, Optimizer
    from advsweep.diagnostics.hidden_states import SampledTokens
    from advsweep.diagnostics.weight_files import Adapter, ModelWeights
    from advsweep.estimators.base import Estimator
    from advsweep.objectives.base import Objective
    from advsweep.rollouts.base import RolloutPolicy
    from advsweep.tasks.base import Sampler, Task


NODE_KEYS = (
    "estimator",
    "objective",
    "rollout",
    "task",
    "model",
    "optimizer",
    "generation",
    "evaluation",
    "backend",
)
"""The keys of a run's config that hold components, in the order of the stored config."""


BATCH_FIELDS = frozenset(
    {
        "lengths",
        "token_entropy",
        "token_entropy_exact",
        "self_certainty",
        "answered",
        "prompt_ids",
        "solve_rates",
        "step",
        "total_steps",
    }
)
"""The optional fields of `GroupBatch` that a backend can compute from its own rollouts."""


def hash_json(material: Plain) -> str:
    """Return the sha256, in hex, of a value in JSON types."""
    return hashlib.sha256(json.dumps(material, sort_keys=True).encode()).hexdigest()


@dataclass(kw_only=True)
class RunParameters(Component):
    """The plain numbers of a run, at the top level of its config."""

    name: ClassVar[str] = "a run"

    group_size: int = option(ge=1, help="rollouts per prompt (G)")
    prompts_per_step: int = option(ge=1, help="prompts per training step (B)")
    steps: int = option(ge=1, help="training steps")
    seed: int = option(ge=0, help="seed of the training; replicates differ in it alone")


PARAMETERS = tuple(f.name for f in fields(RunParameters))


@dataclass(frozen=True, kw_only=True)
class Run:
    """One training: built components and numbers; made by `build.build_run`.

    Attributes:
        group_size: rollouts per prompt (G).
        prompts_per_step: prompts per training step (B).
        steps: training steps.
        absent: data that is not on this machine and was not to be fetched. The task is known
            by its settings alone then, and the run by an identity that is not the final one
            and begins with a question mark.
        learning_rate_scale: factor on the learning rate that `optimizer.match` asks for.
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
    learning_rate_scale: float = 1.0

    def plain(self, shared: dict[int, Plain] | None = None) -> Plain:
        """The resolved config, in JSON types, every node with its name.

        Args:
            shared: nodes by the `id` of their component, for runs that share components: a
                component that is in it has that node, and others are added.
        """
        config: Plain = {}
        for key in NODE_KEYS:
            component = getattr(self, key)
            if shared is None:
                config[key] = component.plain()
            else:
                if id(component) not in shared:
                    shared[id(component)] = component.plain()
                config[key] = shared[id(component)]
        return config | {key: getattr(self, key) for key in PARAMETERS}

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

    @property
    def _material(self) -> Plain:
        keys = (key for key in NODE_KEYS if key not in ("task", "evaluation"))
        nodes = {key: getattr(self, key).identity() for key in keys}
        nodes["task"] = self.task.plain() if self.absent else self.task.identity()
        return nodes | {key: getattr(self, key) for key in PARAMETERS if key != "seed"}

    def _hash(self, material: Plain) -> str:
        digest = hash_json(material)
        return f"?{digest}" if self.absent else digest


def _revisions(material: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, int]]:
    for key, value in material.items():
        for node in value if isinstance(value, list) else [value]:
            if isinstance(node, Mapping):
                if node.get("revision", 1) != 1:
                    yield f"{path}{key}", node["revision"]
                yield from _revisions(node, f"{path}{key}.")


class Reporter(Protocol):
    """What a backend tells the engine while it trains, and what it asks of it."""

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        """Metric points of a finished step (counted from 1)."""

    def evaluate(self, step: int, sampler: Sampler) -> None:
        """Evaluates the weights after `step` steps, unless that was done; 0: the base model."""

    def checkpoint(self, step: int, path: Path) -> None:
        """A checkpoint was written, whole and in place."""

    def pruned(self, path: Path) -> None:
        """An old checkpoint was deleted."""

    def resumed(self, step: int) -> None:
        """Training goes on after `step`; whatever was reported past it is void."""

    def stop_requested(self) -> bool:
        """True when the run should write a checkpoint and return."""

    def log(self, message: str) -> None:
        """A line for the run's log."""

    def progress(self, stage: str, done: int, total: int) -> None:
        """How far a stage that is not a training step has come (pretraining the base)."""


@dataclass(frozen=True)
class StackMember:
    """One of the runs that are trained together.

    Attributes:
        directory: the run's.
        guard: makes a context in which whatever goes wrong is this run's alone: the context
            records and swallows it, and the run leaves the others.
    """

    run: Run
    directory: Path
    reporter: Reporter
    guard: Callable[[], AbstractContextManager[None]] = nullcontext


class StackKey(NamedTuple):
    """What tells which runs can be trained together.

    Attributes:
        shape: runs with equal ones can be.
        kind: of those, runs with equal ones are trained fastest together.
    """

    shape: Hashable
    kind: Hashable


@dataclass(kw_only=True)
class Backend(Component):
    """Trains runs; resumes them from its own checkpoints.

    All randomness of a step comes from generators seeded by (seed, stream, step), so that a
    checkpoint holds weights and moments alone and a resumed run equals an undisturbed one
    bit for bit.
    """

    provides: ClassVar[frozenset[str]] = frozenset()
    """Optional fields of `GroupBatch` that this backend gives to estimators."""
    keeps_reference: ClassVar[bool] = False
    """True if it can draw rollouts of a reference model, and renew that model."""
    late_imports: ClassVar[frozenset[str]] = frozenset()
    """Modules that only a training imports; where runs are forked, that is done before."""
    supports_system_messages: ClassVar[bool] = False
    """True if models are given `Problem.messages` or `Problem.text`, not the prompt alone."""
    shapes_rewards: ClassVar[bool] = False
    """True if it trains on `Task.rewards`, and not on the verdicts of `Task.score` alone."""

    optimizers: ClassVar[frozenset[str]] = frozenset({"adamw"})
    """The optimizers that it trains with."""

    supports_truncated_sampling: ClassVar[bool] = False
    """True if its evaluations know a top-p below 1, and the temperature 0."""

    checkpoint_every: int = option(
        50, ge=0, identity=False, help="steps between checkpoints; 0: only after the last step"
    )
    keep_last: int = option(2, ge=1, identity=False, help="newest checkpoints that are kept")
    keep_every: int = option(
        0, ge=0, identity=False, help="checkpoints of these multiples are kept as well; 0: none"
    )

    @abstractmethod
    def check(self, run: Run) -> None:
        """Refuses a run that this backend cannot train.

        Raises:
            ConfigError: names the key, what the backend expects of it and what it got.
        """

    def cpu_threads(self) -> int:
        """CPU threads that a run computes with; its executor gives it as many cores."""
        return 1

    def completion_tokens(self, run: Run) -> int:
        """The most tokens that a rollout of the run can have, its end mark included.

        By default the longest answer of a task over a small alphabet, and 1 for other tasks.
        """
        from advsweep.tasks.base import SymbolTask

        return run.task.max_completion_length if isinstance(run.task, SymbolTask) else 1

    def answer_tokens(self, generation: Generation, task: Task) -> int | None:
        """The most tokens of an answer to the task; None where the generation cannot set it."""
        return None

    @abstractmethod
    def train(self, run: Run, directory: Path, reporter: Reporter) -> None:
        """Trains to the last step, or until the reporter asks to stop.

        Goes on from the newest sound checkpoint in the directory. Evaluates before the
        first step, every `run.evaluation.every` steps and after the last, before it writes
        that step's checkpoint, and the step that it goes on from if that is one of these:
        what is left undone by an interruption is done again.
        `loop.train` does all this for a backend that can make single steps.

        Raises:
            TrainingError: a loss or a gradient is not finite; the message names the step.
        """

    def stack_key(self, run: Run) -> StackKey | None:
        """Which other runs this one can be trained together with; None: it is trained alone."""
        return None

    def stack_size(self) -> int:
        """How many runs are trained together at most."""
        return 1

    def train_together(self, members: Sequence[StackMember]) -> None:
        """Trains runs whose `stack_key` has the same shape, each as `train` does.

        Each gets the numbers that it has alone, and ends by itself: at its last step, when its
        reporter asks to stop, or with an error, which is raised within its guard.
        """
        raise NotImplementedError

    @abstractmethod
    def sampler(self, run: Run, directory: Path, step: int, task: Task | None = None) -> Sampler:
        """The weights after `step` steps of a run; step 0 is the base model.

        Args:
            task: whose problems they are to answer; None: those of the run's task.

        Raises:
            CheckpointError: the directory holds no sound checkpoint of that step.
            ConfigError: the weights cannot answer the problems of this task.
        """

    def weights(self, run: Run, directory: Path, step: int) -> ModelWeights | Adapter:
        """The weights after `step` steps of a run, or the adapter; step 0 is the base model.

        Raises:
            CheckpointError: the directory holds no sound checkpoint of that step.
            ConfigError: the backend trains no matrices, or its base model cannot be read.
        """
        raise ConfigError(f"backend: '{self.name}' has no weights that could be compared")

    def sampled_tokens(
        self, run: Run, directory: Path, step: int, prompts: int, *, advantages: bool
    ) -> SampledTokens:
        """Rollouts of the weights after `step` steps, with the states that predict their tokens.

        The prompts are training problems: those that the next step would begin with.

        Args:
            prompts: how many; each has `run.group_size` rollouts.
            advantages: whether the estimator, with its memory at that step, is to weigh them.

        Raises:
            CheckpointError: the directory holds no sound checkpoint of that step.
            ConfigError: the backend has no hidden states.
            BatchError: the estimator cannot weigh such rollouts.
        """
        raise ConfigError(f"backend: '{self.name}' has no hidden states")

    def analyses_weights(self) -> bool:
        """Whether a training ends with a comparison of its weights with the base model's."""
        return False

    @classmethod
    def samples_with(cls) -> tuple[type[Generation], ...]:
        """What may sample from its weights on this machine, the fastest first.

        Empty where there is no choice.
        """
        return ()

    def sampler_by(
        self, generation: Generation, run: Run, directory: Path, step: int, task: Task
    ) -> Sampler:
        """As `sampler`, by another generation than the run's; `samples_with` has them.

        Raises:
            CheckpointError: the directory holds no sound checkpoint of that step.
            SamplerError: the weights cannot be sampled from so.
        """
        raise NotImplementedError

    def model_sampler(
        self, model: Component, generation: Generation, task: Task, settings: EvaluationSettings
    ) -> Sampler:
        """A model that answers a task's problems without any run.

        Raises:
            ConfigError: this backend has no such model, or it cannot be loaded.
            SamplerError: the model cannot be sampled from by this generation.
        """
        raise ConfigError(f"backend: '{self.name}' evaluates no models but those of its runs")

    def model_key(self, model: Component, generation: Generation) -> str:
        """Names such a model, and what of the generation changes its answers.

        Raises:
            ConfigError: this backend has no such model.
        """
        raise ConfigError(f"backend: '{self.name}' evaluates no models but those of its runs")

    @abstractmethod
    def base_key(self, run: Run) -> str:
        """Names the base model: runs with the same key share its evaluation."""

    @abstractmethod
    def export(self, run: Run, directory: Path, step: int, target: Path) -> None:
        """Writes the weights after `step` steps as a Hugging Face folder.

        Raises:
            CheckpointError: the directory holds no sound checkpoint of that step.
            ConfigError: this backend's weights are no language model.
        """
