"""A run, and the contract of a backend, which trains runs and samples from their weights."""

from __future__ import annotations

import functools
import shutil
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, fields, replace
from enum import Flag, auto
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from advsweep.backends.checkpoints import Checkpoints
from advsweep.backends.identity import (
    HashedSettings,
    Hashes,
    NamedSource,
    hash_settings,
    hashes_of,
    revisions_of,
)
from advsweep.components import (
    SOURCE,
    Component,
    Plain,
    Retired,
    identity_of,
    option,
)
from advsweep.errors import ConfigError
from advsweep.tasks.controls import CONTROL, Control

if TYPE_CHECKING:
    from advsweep.backends.reporter import Reporter
    from advsweep.config.settings import EvaluationSettings, Generation, Optimizer
    from advsweep.estimators.base import Estimator
    from advsweep.objectives.base import Objective
    from advsweep.rollouts.base import RolloutPolicy
    from advsweep.sources import SourceCode
    from advsweep.tasks.base import Sampler, Task


# The keys of a run's config that hold components, in the order of the stored config.
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


# The optional fields of `GroupBatch` that a backend can compute from its own rollouts.
BATCH_FIELDS = frozenset(
    {
        "lengths",
        "token_entropy",
        "token_entropy_exact",
        "token_entropies",
        "token_grad_norms",
        "token_kl",
        "self_certainty",
        "answered",
        "prompt_ids",
        "solve_rates",
        "step",
        "total_steps",
    }
)


MOST_SEED = 2**63 - 1


@dataclass(kw_only=True)
class RunParameters(Component):
    """The numbers at the top level of a run's config."""

    name: ClassVar[str] = "a run"

    group_size: int = option(ge=1, help="rollouts per prompt (G)")
    prompts_per_step: int = option(ge=1, help="prompts per training step (B)")
    steps: int = option(ge=1, help="training steps")
    # The store and torch hold a seed in 64 bits with a sign.
    seed: int = option(
        ge=0, le=MOST_SEED, help="seed of the training; replicates differ in it alone"
    )


PARAMETERS = tuple(f.name for f in fields(RunParameters))


@dataclass(frozen=True, kw_only=True)
class Run:
    """One training: built components and numbers; made by `build.build_run`.

    Attributes:
        group_size: rollouts per prompt (G).
        prompts_per_step: prompts per training step (B).
        steps: training steps.
        shared_task: the task as the config has it, if the run's seed draws its own from it
            (`task.seed=seed`); None if all seeds have `task`. Config and identity have this one.
        control: what the training changes to show noise; by default nothing.
        absent: data that is not on this machine and must not be fetched. The identity then
            depends on the task's settings alone; it starts with a question mark, as it is not
            final.
        learning_rate_scale: factor on the learning rate that `optimizer.match` asks for. NaN
            with `match=step` until the calibration is made.
        stored_identity: that under which a store has the run, if its plug-ins changed since.
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
    shared_task: Task | None = None
    control: Control = field(default_factory=Control)
    absent: tuple[str, ...] = ()
    learning_rate_scale: float = 1.0
    stored_identity: str = ""

    @property
    def total_steps(self) -> int:
        """The steps that schedules span: for a calibration, those of the runs it is made for."""
        return self.optimizer.calibrates or self.steps

    @property
    def planned_task(self) -> Task:
        """The task as the config has it, the same for all seeds."""
        return self.task if self.shared_task is None else self.shared_task

    @property
    def drawn_size(self) -> int:
        """The rollouts drawn per prompt, of which `group_size` are trained on."""
        return self.rollout.drawn_size(self.group_size)

    @property
    def rollout_seed(self) -> int:
        """The seed of the rollouts' sampling: that of the run unless its control has another."""
        return self.control.rollout_seed(self.seed)

    def plain(self, shared: dict[int, Plain] | None = None) -> Plain:
        """Return the resolved config in JSON types; every node has its name.

        Args:
            shared: nodes by the `id` of their component, for runs that share components.
                Missing nodes are added.
        """
        config: Plain = {}
        for key in NODE_KEYS:
            component = self.planned_task if key == "task" else getattr(self, key)
            if shared is None:
                config[key] = component.plain()
            else:
                if id(component) not in shared:
                    shared[id(component)] = component.plain()
                config[key] = shared[id(component)]
        if self.control.name != Control.name:
            config[CONTROL] = self.control.plain()
        config |= {key: getattr(self, key) for key in PARAMETERS}
        return self.backend.training_config(config)

    @property
    def config_hash(self) -> str:
        """sha256, in hex, of everything that can change a training's result except its seed.

        Runs with the same hash are replicates. Evaluation settings are not in it, as
        evaluations have other identities.
        """
        return self._settings.config_hash

    @property
    def identity(self) -> str:
        """sha256, in hex, of everything that can change a training's result."""
        return self.stored_identity or self._hashes.identity

    @property
    def definition(self) -> str:
        """The identity without the sources of plug-ins and programs.

        Runs that share it have equal settings. It is the identity that versions of advsweep gave
        which did not keep sources.
        """
        return self._hashes.definition

    @property
    def sources(self) -> Mapping[str, NamedSource]:
        """The sources of plug-ins and of the program that trains, by config key."""
        return self._settings.sources

    @functools.cached_property
    def _hashes(self) -> Hashes:
        return hashes_of(self._settings, self.seed)

    @functools.cached_property
    def _settings(self) -> HashedSettings:
        names = {key: getattr(self, key).name for key in NODE_KEYS}
        return hash_settings(self._material, is_final=not self.absent, names=names)

    def with_seed(self, seed: int) -> Run:
        """Return the same training with another seed, which must not draw its task."""
        run = replace(self, seed=seed)
        run.__dict__["_settings"] = self._settings
        return run

    def share_settings(self, other: Run) -> None:
        """Take the hashes of what the seed does not change from a run that differs in it alone.

        A plan of many seeds would take most of its time to compute them for each. Runs that
        differ in more are left as they are.
        """
        if self._seedless_parts == other._seedless_parts:
            self.__dict__["_settings"] = other._settings

    @property
    def _seedless_parts(self) -> list[Any]:
        """The parts of `_material`, in a form that is quick to compare."""
        parts = [getattr(self, key) for key in NODE_KEYS if key not in ("task", "evaluation")]
        numbers = [getattr(self, key) for key in PARAMETERS if key != "seed"]
        return [*parts, self.planned_task, self.absent, self.control, *numbers]

    @property
    def revisions(self) -> dict[str, int]:
        """Revisions above 1 of the components that can change a result, by config key."""
        return revisions_of(self._material)

    @property
    def _material(self) -> Plain:
        keys = (key for key in NODE_KEYS if key not in ("task", "evaluation"))
        nodes = {key: identity_of(getattr(self, key)) for key in keys}
        task = self.planned_task
        nodes["task"] = task.plain() if self.absent else identity_of(task)
        if self.control.name != Control.name:
            nodes[CONTROL] = identity_of(self.control)
        nodes |= {key: getattr(self, key) for key in PARAMETERS if key != "seed"}
        config = self.backend.revised(self.backend.training_config(nodes), self)
        program = self.backend.program(self)
        if program is not None:
            config["backend"] = {**config["backend"], SOURCE: program.digest}
        return config


@dataclass(frozen=True)
class StackMember:
    """A run that is trained together with others.

    Attributes:
        directory: the run's directory.
        guard: makes a context that records and swallows errors, which end this run alone.
    """

    run: Run
    directory: Path
    reporter: Reporter
    guard: Callable[[], AbstractContextManager[None]] = nullcontext


class Can(Flag):
    """What a backend may support; `build` refuses runs that need what theirs does not.

    Attributes:
        REFERENCES: draw rollouts of a reference model, and renew that model.
        GREEDY: draw greedy rollouts in a training step.
        SYSTEM_MESSAGES: give models `Problem.messages` or `Problem.text`, not the prompt alone.
        SHAPED_REWARDS: train on `Task.rewards`, not on the verdicts of `Task.score` alone.
        RETRIES: train on more groups than a step asks for, of the same prompts too.
        TRUNCATED_SAMPLING: evaluate with a top-p below 1 and with the temperature 0.
        STEP_MATCHING: compute `change_norms`, which optimizer.match=step needs.
        CONTROLS: obey `Run.rollout_seed`, and train on the verdicts of `Run.control`.
        RESETS: obey `Optimizer.resets` and `Objective.renews_reference`.
        SAMPLER_LOG_PROBS: give objectives `LossInputs.sampler_log_probs`, and obey
            `Objective.recomputes_old`.
        SELECTION: draw `Run.drawn_size` rollouts per prompt, and train on `Collected.rollouts`.
        STOP_TEXTS: end completions at the texts of `generation.stop`.
        EPISODES: let the environment of an `EpisodeTask` answer, and give estimators its turns.
        VALUES: measure the values of turns by further rollouts.
        ENVIRONMENTS: let the environments of a task with `has_environment` answer.
    """

    NOTHING = 0
    REFERENCES = auto()
    GREEDY = auto()
    SYSTEM_MESSAGES = auto()
    SHAPED_REWARDS = auto()
    RETRIES = auto()
    TRUNCATED_SAMPLING = auto()
    STEP_MATCHING = auto()
    CONTROLS = auto()
    RESETS = auto()
    SAMPLER_LOG_PROBS = auto()
    SELECTION = auto()
    STOP_TEXTS = auto()
    EPISODES = auto()
    VALUES = auto()
    ENVIRONMENTS = auto()


@dataclass(kw_only=True)
class Backend(Component):
    """Trains runs, and resumes them from its own checkpoints.

    A subclass implements `check`, `train`, `sampler`, `base_key` and `export`, and says by the
    class attributes below what it supports: a plan refuses runs that need more. For a
    backend that makes single steps `training_loop.train` does everything around a step, and
    `diagnostics.rollout_metrics` the metrics that reports expect. The smallest complete backend
    is `tests/installed/advsweep_fake.py`. The contract suite `tests/backends/test_contract.py`
    tries one.

    All randomness of a step comes from generators seeded by (seed, stream, step). A checkpoint
    therefore holds weights and moments alone, and a resumed run equals an uninterrupted one
    bit for bit.

    Attributes:
        provides: optional fields of `GroupBatch` that this backend gives to estimators.
        supports: what it supports beyond the plain training of a task's verdicts.
        optimizers: names of the optimizers that it supports.
        external: whether a program apart from advsweep trains. It gets some keys of a config
            alone: a run's config and identity hold these. It cannot be asked for samples, and
            what else advsweep checks of a run is the program's to check.
    """

    retired: ClassVar[Retired] = {"weight_analysis": ()}
    provides: ClassVar[frozenset[str]] = frozenset()
    supports: ClassVar[Can] = Can.NOTHING
    optimizers: ClassVar[frozenset[str]] = frozenset({"adamw"})
    external: ClassVar[bool] = False

    checkpoint_every: int = option(
        50, ge=0, identity=False, help="steps between checkpoints; 0: only after the last step"
    )
    keep_last: int = option(2, ge=1, identity=False, help="newest checkpoints that are kept")
    keep_every: int = option(
        0, ge=0, identity=False, help="checkpoints of these multiples are kept as well; 0: none"
    )

    @abstractmethod
    def check(self, run: Run) -> None:
        """Refuse a run that this backend cannot train.

        Raises:
            ConfigError: names the key, the expected and the actual value.
        """

    @classmethod
    def load_node(cls, node: Plain) -> Plain:
        """Complete a config node of the command line with the files that it names.

        Nodes from a store are never completed: they hold what was read when they were planned.

        Raises:
            ConfigError: a file is missing, or does not fit.
        """
        return node

    def training_config(self, config: Plain) -> Plain:
        """Return the part of a config that reaches the training."""
        return config

    def revised(self, material: Plain, run: Run) -> Plain:
        """Return the material of a run's identity with revisions that depend on its settings.

        For a fix that changes the results of some runs of a component alone: the others keep their
        identity.
        """
        return material

    def with_defaults(self, config: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return a config with a value for every key, from what `training_config` left of it."""
        return config

    def program(self, run: Run) -> SourceCode | None:
        """Return the source of the program that trains a run; None if advsweep trains it."""
        return None

    def program_folder(self, run: Run) -> Path | None:
        """Return the folder that the program of a run starts in; None if advsweep trains it."""
        return None

    def check_given(self, keys: Iterable[str]) -> None:
        """Refuse keys that were set for a run and do not reach its training.

        Raises:
            ConfigError: names the key, and those that do.
        """

    def cautions(self, run: Run) -> list[str]:
        """Return warnings about settings that are valid but usually unintended."""
        return []

    def check_machine(self) -> None:
        """Refuse runs whose program this machine lacks, before any of them is claimed.

        Raises:
            ConfigError: names what is missing. It is a fault of the machine, and none of the runs.
        """

    def check_consent(self) -> None:
        """Refuse to start what only a store names, without the user's consent.

        Raises:
            ConfigError: the message names what gives consent.
        """

    def check_gpus(self, run: Run, gpus: int) -> None:
        """Refuse a run that cannot use so many GPUs; one may be a share of one.

        Raises:
            ConfigError: names the key, the expected and the actual value.
        """

    def cpu_threads(self) -> int:
        """Return the CPU threads of a run; its executor gives it as many cores."""
        return 1

    def completion_tokens(self, run: Run) -> int:
        """Return the most tokens of a rollout, end mark included.

        The default is the longest answer of a task over a small alphabet, 1 for other tasks.
        """
        from advsweep.tasks.base import SymbolTask

        return run.task.max_completion_length if isinstance(run.task, SymbolTask) else 1

    def pretraining_left(self, run: Run) -> int:
        """Return the updates that make the run's base model; 0 if this machine has it."""
        return 0

    def answer_limits(self, generation: Generation, task: Task) -> Plain:
        """Return how generation settings limit answers, as evaluations store it."""
        return {}

    @abstractmethod
    def train(self, run: Run, directory: Path, reporter: Reporter) -> None:
        """Train to the last step, or until the reporter asks to stop.

        Resume from the newest sound checkpoint in the directory. Evaluate before the first
        step and after the others of `run.evaluation.schedule`, each time before that step's
        checkpoint; after resuming, evaluate that step again. `training_loop.train` does
        all this for backends that make single steps.

        Raises:
            TrainingError: a loss or a gradient is not finite; the message names the step.
        """

    def discard_checkpoints(self, directory: Path, after_step: int) -> int:
        """Discard the checkpoints in a run's directory past a step; return how many there were."""
        checkpoints = Checkpoints(directory, "")
        late = [checkpoints.path(step) for step in checkpoints.steps() if step > after_step]
        for path in late:
            shutil.rmtree(path)
        return len(late)

    def stack_key(self, run: Run) -> str | None:
        """Return what runs that can be trained with this one share; None: train it alone."""
        return None

    def stack_size(self) -> int:
        """Return the most runs that are trained together."""
        return 1

    def train_together(self, members: Sequence[StackMember]) -> None:
        """Train runs with the same `stack_key`, each as `train` does.

        Each run gets the same numbers as alone. It ends by itself: after its last step, when
        its reporter asks to stop, or with an error, which is raised within its guard. By default
        one is trained after another.
        """
        for member in members:
            with member.guard():
                self.train(member.run, member.directory, member.reporter)

    def change_norms(
        self, runs: Sequence[Run], reporter: Reporter, after_step: Callable[[int], None]
    ) -> list[float | Exception]:
        """Train runs from their bases to their last step, and write nothing.

        Args:
            runs: runs with the same `stack_key`; a single run without one.
            reporter: gets the progress of pretraining.
            after_step: called after each step; what it raises ends the training.

        Returns:
            The Euclidean norm of each run's change of its weights, or the error that ended it.
        """
        raise NotImplementedError

    @abstractmethod
    def sampler(self, run: Run, directory: Path, step: int, task: Task | None = None) -> Sampler:
        """Return a sampler of the weights after `step` steps; step 0 is the base model.

        Args:
            task: the task whose problems it answers; None: the run's task.

        Raises:
            CheckpointError: the directory holds no sound checkpoint of that step.
            ConfigError: the weights cannot answer the problems of this task.
        """

    @classmethod
    def samples_with(cls) -> tuple[type[Generation], ...]:
        """Return the generation settings that work on this machine, the fastest first.

        Empty if there is no choice.
        """
        return ()

    def sampler_by(
        self, generation: Generation, run: Run, directory: Path, step: int, task: Task
    ) -> Sampler:
        """Return a sampler like `sampler`, with other generation settings than the run's.

        Raises:
            CheckpointError: the directory holds no sound checkpoint of that step.
            SamplerError: these settings cannot sample from the weights.
        """
        raise NotImplementedError

    def model_sampler(
        self, model: Component, generation: Generation, task: Task, settings: EvaluationSettings
    ) -> Sampler:
        """Return a sampler of a model apart from any run.

        Raises:
            ConfigError: this backend has no such model, or it cannot be loaded.
            SamplerError: these settings cannot sample from the model.
        """
        raise ConfigError(f"backend: '{self.name}' evaluates no models but those of its runs")

    def model_key(self, model: Component, generation: Generation) -> str:
        """Return the identity of such a model and of settings that change its answers.

        Raises:
            ConfigError: this backend has no such model.
        """
        raise ConfigError(f"backend: '{self.name}' evaluates no models but those of its runs")

    @abstractmethod
    def base_key(self, run: Run) -> str:
        """Return the identity of the base model; runs with the same key share its evaluation."""

    @abstractmethod
    def export(self, run: Run, directory: Path, step: int, target: Path) -> None:
        """Write the weights after `step` steps as a Hugging Face folder.

        Raises:
            CheckpointError: the directory holds no sound checkpoint of that step.
            ConfigError: the backend does not train a language model.
        """
