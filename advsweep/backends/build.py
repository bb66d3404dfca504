"""Building a run from a plain config: registries, and what may be combined."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from advsweep.backends import BACKENDS, EVALUATIONS, GENERATIONS, MODELS, OPTIMIZERS
from advsweep.backends.base import PARAMETERS, Can, Run, RunParameters
from advsweep.components import Component
from advsweep.config.validation import check_validation
from advsweep.errors import BatchError, ConfigError, UnknownNameError, nearest
from advsweep.estimators import ESTIMATORS
from advsweep.objectives import OBJECTIVES
from advsweep.registry import Registry
from advsweep.rollouts import ROLLOUTS
from advsweep.tasks import TASKS
from advsweep.tasks.controls import CONTROL, CONTROLS, Control

if TYPE_CHECKING:
    from advsweep.backends.base import Backend
    from advsweep.config.settings import EvaluationSettings

# The keys of a run's config that hold components.
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

# Keys of a config that cannot change a run's results.
INERT = frozenset({"executor", "resources", "stopping", "tracking"})


@dataclass(frozen=True)
class BuildCache:
    """What planned runs share, so that it is built and checked once for all of them.

    Runs that are trained must share nothing, as components have state.

    Attributes:
        components: built components by their key and the text of their node.
        trainings: a run of each setting, by everything that makes it but its seed.
    """

    components: dict[tuple[str, str], Component] = field(default_factory=dict)
    trainings: dict[tuple[Any, ...], Run] = field(default_factory=dict)

    def component(self, key: tuple[str, str], make: Callable[[], Component]) -> Any:
        """Return the component of a key; make it if it is not there."""
        if key not in self.components:
            self.components[key] = make()
        return self.components[key]


def build_run(
    config: Mapping[str, Any], *, fetch: bool = True, cache: BuildCache | None = None
) -> Run:
    """Build a run from a plain config, and check that its parts fit together.

    Nodes are names, or mappings with a `name`; missing fields take their defaults.

    Args:
        fetch: whether to fetch missing data. If not, data may be absent, and the task's
            problems are not checked.
        cache: what is shared with other planned runs, all of the same `fetch`; what is missing
            is added.

    Raises:
        ConfigError: a key is missing or unknown, or a value does not fit the key or the other
            values; the message starts with the key's path.
    """
    backend = config.get("backend")
    named = backend.get("name") if isinstance(backend, Mapping) else backend
    if isinstance(named, str) and (reason := BACKENDS.without_definition().get(named)):
        # First, because such a config has other keys than ours.
        raise UnknownNameError(f"backend: '{named}' cannot be built: {reason}")
    required = [*NODES, *PARAMETERS]
    known = [*required, CONTROL]
    for key in config:
        if key not in known and key not in INERT:
            raise UnknownNameError(f"{key}: a run has no such key; {nearest(str(key), known)}")
    if cache is None:
        cache = BuildCache()
    control = CONTROLS.build(config.get(CONTROL) or Control.name, where=CONTROL)
    if "backend" in config:
        config = _build("backend", config["backend"], cache).with_defaults(config)
    for key in required:
        if key not in config:
            expected = f"one of {', '.join(NODES[key])}" if key in NODES else "an integer"
            raise ConfigError(f"{key}: expected {expected}, got nothing")
    parameters = RunParameters.build({key: config[key] for key in PARAMETERS})
    numbers = {key: getattr(parameters, key) for key in PARAMETERS}
    nodes = {key: _build(key, config[key], cache) for key in NODES}
    shared_task = nodes["task"]
    # Planned runs of one seed share their task, as they share its problems.
    seed = parameters.seed
    key_of_task = ("task for seed", f"{id(shared_task)} {seed}")
    nodes["task"] = cache.component(key_of_task, lambda: shared_task.for_seed(seed))
    follows_seed = nodes["task"] is not shared_task
    parts = {**nodes, **numbers, "control": control}
    if nodes["backend"].external:
        return _build_external(parts, follows_seed=follows_seed)
    # Plans may have thousands of seeds of one setting: what they share is made once.
    setting = (
        *(id(node) for key, node in nodes.items() if key != "task"),
        id(shared_task),
        *(number for key, number in numbers.items() if key != "seed"),
        repr(control),
    )
    first = cache.trainings.get(setting)
    if first is not None and not follows_seed:
        return first.with_seed(seed)
    if follows_seed:
        parts["shared_task"] = shared_task
    run = _build_training(parts, cache, fetch=fetch)
    if first is None:
        cache.trainings[setting] = run
    else:
        run.share_settings(first)
    return run


def _build_external(parts: Mapping[str, Any], *, follows_seed: bool) -> Run:
    """Build a run that a program apart from advsweep trains."""
    backend, control = parts["backend"], parts["control"]
    if follows_seed:
        raise ConfigError(
            f"task.seed: expected an integer with backend '{backend.name}', whose "
            f"program draws no task by the seed of a run, got 'seed'"
        )
    if control.name != Control.name:
        raise ConfigError(
            f"control: expected none with backend '{backend.name}', got '{control.name}'"
        )
    run = Run(**parts)
    backend.check(run)
    return run


def _build_training(parts: Mapping[str, Any], cache: BuildCache, *, fetch: bool) -> Run:
    """Build a run that advsweep trains: let its components complete one another, and check them."""
    model, task = parts["model"], parts["task"]
    # The defaults of some options of a model are the task's choice.
    if for_task := getattr(model, "for_task", None):
        # Planned runs share a model where they share its node and their task.
        key_of_model = ("model for task", f"{id(model)} {id(task)}")
        try:
            model = cache.component(key_of_model, lambda: for_task(task))
        except ConfigError as error:
            raise type(error)(f"model.{error}") from error
    absent = () if fetch else task.absent()
    run = Run(**{**parts, "model": model, "absent": absent})
    tokens = run.backend.completion_tokens(run)
    run = replace(
        run,
        objective=run.objective.for_completions(tokens),
        task=run.task.for_completions(tokens),
        shared_task=run.shared_task and run.shared_task.for_completions(tokens),
    )
    _check(run)
    if run.optimizer.match == "step":
        _check_calibration(run)
        run = replace(run, learning_rate_scale=math.nan)
    elif run.optimizer.match != "none":
        run = replace(run, learning_rate_scale=_learning_rate_scale(run))
    run.backend.check(run)
    return run


def name_of(node: Any) -> str:
    """Return the name of a config node, which is a name or a mapping with one."""
    return str(node.get("name", "")) if isinstance(node, Mapping) else str(node)


def _build(key: str, node: Any, cache: BuildCache) -> Any:
    return cache.component((key, repr(node)), lambda: NODES[key].build(node, where=key))


def _check(run: Run) -> None:
    estimator, backend, task = run.estimator, run.backend, run.task
    if not run.absent:
        task.check()
    if not run.absent and not task.can_train:
        raise ConfigError(
            f"task: '{task.label}' has no training problems, only held-out ones; choose another "
            f"task, or data with a train_split"
        )
    least, multiple = estimator.minimum_group, estimator.group_multiple
    if run.group_size < least or run.group_size % multiple:
        rule = f">= {least}" if multiple == 1 else f">= {least} and a multiple of {multiple}"
        raise ConfigError(
            f"group_size: expected {rule}, which estimator '{estimator.name}' needs, "
            f"got {run.group_size}"
        )
    run.rollout.drawn_size(run.group_size)
    low, high = task.reward_range
    if (estimator.binary_only and not task.is_binary) or (
        estimator.rates and not (low >= 0 and high <= 1)
    ):
        defined = "of 0 and 1 only" if estimator.binary_only else "in [0, 1], as solve rates"
        raise ConfigError(
            f"estimator: '{estimator.name}' is defined for rewards {defined}, and those of task "
            f"'{task.label}' go from {low:g} to {high:g}; change their weights, or reward accuracy"
        )
    if missing := estimator.needs - (backend.provides | run.rollout.provides):
        giving = [policy.name for policy in ROLLOUTS.classes() if policy.provides & missing]
        remedy = f"; rollout={' or '.join(giving)} does" if giving else ""
        raise ConfigError(
            f"estimator: '{estimator.name}' needs {', '.join(sorted(missing))}, which backend "
            f"'{backend.name}' with rollout policy '{run.rollout.name}' does not give{remedy}"
        )
    if "reward_parts" in estimator.needs and len(task.part_weights) < 2:
        raise ConfigError(
            f"estimator: '{estimator.name}' weighs the parts of a reward apart, and that of task "
            f"'{task.label}' has one; expected several, as task.reward={{accuracy: 1, format: 0.5}}"
        )
    given = estimator.plain().get("weights") if "reward_parts" in estimator.needs else None
    if given and len(given) != len(task.part_weights):
        raise ConfigError(
            f"estimator.weights: expected {len(task.part_weights)} numbers, one for each part of "
            f"task.reward, or null for the parts' own weights, got {len(given)}"
        )
    if run.optimizer.name not in backend.optimizers:
        raise ConfigError(
            f"optimizer: backend '{backend.name}' trains with "
            f"{' or '.join(sorted(backend.optimizers))}, got '{run.optimizer.name}'"
        )
    _check_support(run)
    check_sampling(backend, run.evaluation)
    if not run.absent:
        check_validation(task, run.evaluation)
    reason = ""
    if not task.rewards_verdicts:
        reason = f"of which the rewards of task '{task.label}' are not made"
    elif estimator.verifier_free:
        reason = f"which estimator '{estimator.name}' does not read"
    if reason and run.control.changes_verdicts:
        raise ConfigError(
            f"control: '{run.control.name}' changes a verifier's verdicts, {reason}; expected "
            f"control=none or aa, or another task or estimator"
        )


def _check_support(run: Run) -> None:
    """Refuse a run that needs more than its backend supports: the table of `Can`."""
    rollout, task, control = run.rollout, run.task, run.control
    reset, renewed = run.optimizer.reset_every, run.objective.plain().get("renew_every", 0)
    corrected = "objective.correction: expected none; others need a sampler apart from the trainer"
    stop = run.generation.plain().get("stop")
    is_controlled, by_steps = control.name != Control.name, run.optimizer.match == "step"
    needs: list[tuple[Can, bool, str]] = [
        (Can.SHAPED_REWARDS, task.is_shaped, "task.reward: expected reward=accuracy"),
        (Can.SYSTEM_MESSAGES, task.has_system_messages, "task.prompt: expected no system message"),
        (Can.REFERENCES, rollout.draws_references, f"rollout: '{rollout.name}' draws references"),
        (Can.GREEDY, rollout.draws_greedy, f"rollout: '{rollout.name}' draws greedy rollouts"),
        (Can.RETRIES, rollout.draws_again, f"rollout: '{rollout.name}' trains on more groups"),
        (Can.SELECTION, rollout.selects, f"rollout: '{rollout.name}' trains on some rollouts"),
        (Can.RESETS, bool(reset), f"optimizer.reset_every: expected 0, got {reset}"),
        (Can.RESETS, bool(renewed), f"objective.renew_every: expected 0, got {renewed}"),
        (Can.SAMPLER_LOG_PROBS, run.objective.needs_sampler, corrected),
        (Can.CONTROLS, is_controlled, f"control: expected none, got '{control.name}'"),
        (Can.STOP_TEXTS, bool(stop), f"generation.stop: expected none, got {stop}"),
        (Can.STEP_MATCHING, by_steps, "optimizer.match: expected none, mass or max, got step"),
    ]
    for capability, is_needed, message in needs:
        if is_needed and capability not in run.backend.supports:
            able = [cls.name for cls in BACKENDS.classes() if capability in cls.supports]
            raise ConfigError(
                f"{message}, which backend '{run.backend.name}' cannot do; backends that can: "
                f"{', '.join(able)}"
            )


def check_sampling(backend: Backend, evaluation: EvaluationSettings) -> None:
    """Refuse an evaluation that a backend cannot sample for.

    Raises:
        ConfigError: it truncates sampling, which the backend does not support.
    """
    if evaluation.is_truncated and Can.TRUNCATED_SAMPLING not in backend.supports:
        raise ConfigError(
            f"evaluation: backend '{backend.name}' samples from the whole distribution; expected "
            f"temperature > 0 and top_p=1, got temperature={evaluation.temperature:g} and "
            f"top_p={evaluation.top_p:g}"
        )


def _learning_rate_scale(run: Run) -> float:
    """The factor that makes updates as large as those of `optimizer.match_reference`.

    Raises:
        ConfigError: the estimator or its reference cannot be matched.
    """
    # Plans are made without torch unless a run needs this.
    from advsweep.diagnostics.probes import Size, learning_rate_scale

    size: Size = "mass" if run.optimizer.match == "mass" else "max_advantage"
    try:
        return learning_rate_scale(run.estimator, run.optimizer.reference, run.group_size, size)
    except BatchError as error:
        raise ConfigError(
            f"optimizer.match: {error}; expected an estimator and a reference that can be "
            f"compared, or optimizer.match=none"
        ) from error


def reference_run(run: Run) -> Run:
    """Return a run with match=step with the reference's estimator in place of its own."""
    return replace(run, estimator=run.optimizer.reference)


def calibration_of(run: Run) -> Run:
    """Return the run that finds the learning rate of a run with match=step.

    It has the first steps of the run alone, and schedules that span all its steps.
    """
    optimizer = replace(run.optimizer, calibrates=run.steps)
    return replace(run, optimizer=optimizer, steps=min(optimizer.match_steps, run.steps))


def _check_calibration(run: Run) -> None:
    """Refuse a run with match=step that cannot be calibrated.

    Raises:
        ConfigError: the backend cannot do it, or the reference does not fit the run.
    """
    optimizer = run.optimizer
    if optimizer.calibrates and optimizer.calibrates < run.steps:
        raise ConfigError(
            f"optimizer.calibrates: expected 0 or at least steps={run.steps}, got "
            f"{optimizer.calibrates}"
        )
    try:
        _check(reference_run(run))
    except ConfigError as error:
        raise ConfigError(f"optimizer.match_reference: {error}") from error
