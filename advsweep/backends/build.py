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
from advsweep.estimators.given import hint_for_missing
from advsweep.objectives import OBJECTIVES
from advsweep.registry import Registry
from advsweep.rollouts import ROLLOUTS
from advsweep.synonyms import KEYS
from advsweep.tasks import TASKS
from advsweep.tasks.controls import CONTROL, CONTROLS, Control
from advsweep.tasks.episodes import EpisodeTask

if TYPE_CHECKING:
    from advsweep.backends.base import Backend
    from advsweep.config.settings import EvaluationSettings
    from advsweep.estimators.base import Estimator
    from advsweep.tasks.base import Task

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

# What nobody needs to choose: every estimator that reads nothing else can be trained on it.
DEFAULT_ROLLOUT = "plain"

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
    _check_keys(config)
    if cache is None:
        cache = BuildCache()
    control_node = config.get(CONTROL) or Control.name
    control: Control = cache.component(
        (CONTROL, repr(control_node)), lambda: CONTROLS.build(control_node, where=CONTROL)
    )
    if "backend" in config:
        config = _build("backend", config["backend"], cache).with_defaults(config)
    _check_complete(config)
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
        id(control),
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


def rollout_for_estimator(
    config: Mapping[str, Any], cache: BuildCache
) -> tuple[Mapping[str, Any] | str, list[str]]:
    """Return the node of the rollout policy that gives what the estimator of a config needs.

    Only the default is replaced, plain rollouts, with which the run would be refused.

    Returns:
        The node, which is that of the config if it will do or no policy does; and a message if it
        is another.

    Raises:
        ConfigError: a node cannot be built.
    """
    node = config["rollout"]
    estimator, backend, task = (
        _build(key, config[key], cache) for key in ("estimator", "backend", "task")
    )
    missing = estimator.needs - (backend.provides | task.provides)
    if not missing or backend.external:
        return node, []
    chosen, default = (_build("rollout", each, cache) for each in (node, DEFAULT_ROLLOUT))
    giving = [policy.name for policy in ROLLOUTS.classes() if missing <= policy.provides]
    if chosen.plain() != default.plain() or len(giving) != 1:
        return node, []
    message = (
        f"rollout: {giving[0]}, as estimator '{estimator.name}' needs "
        f"{', '.join(sorted(missing))}; what it draws in addition is in cost/rollouts"
    )
    return {"name": giving[0]}, [message]


def _check_keys(config: Mapping[str, Any]) -> None:
    """Refuse a backend that has no definition, and unknown keys."""
    backend = config.get("backend")
    name = backend.get("name") if isinstance(backend, Mapping) else backend
    undefined = BACKENDS.without_definition()
    if isinstance(name, str) and name in undefined:
        # First, because such a config has other keys than ours.
        raise UnknownNameError(f"backend: '{name}' cannot be built: {undefined[name]}")
    keys = [*NODES, *PARAMETERS, CONTROL]
    for key in config:
        if key not in keys and key not in INERT:
            raise UnknownNameError(f"{key}: a run has no such key; {nearest(str(key), keys, KEYS)}")


def _check_complete(config: Mapping[str, Any]) -> None:
    for key in (*NODES, *PARAMETERS):
        if key not in config:
            expected = f"one of {', '.join(NODES[key])}" if key in NODES else "an integer"
            raise ConfigError(f"{key}: expected {expected}, got nothing")


def _build_external(parts: Mapping[str, Any], *, follows_seed: bool) -> Run:
    """Build a run that a program apart from advsweep trains."""
    backend = parts["backend"]
    control = parts["control"]
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
    model = _model_for_task(parts["model"], parts["task"], cache)
    absent = () if fetch else parts["task"].absent()
    run = _for_completions(Run(**{**parts, "model": model, "absent": absent}))
    _check(run)
    run = _with_matched_rate(run)
    run.backend.check(run)
    return run


def _model_for_task(model: Component, task: Task, cache: BuildCache) -> Component:
    """Return the model with the options whose defaults are the task's choice."""
    for_task = getattr(model, "for_task", None)
    if for_task is None:
        return model
    # Planned runs share a model where they share its node and their task.
    key = ("model for task", f"{id(model)} {id(task)}")
    try:
        completed: Component = cache.component(key, lambda: for_task(task))
    except ConfigError as error:
        raise type(error)(f"model.{error}") from error
    return completed


def _for_completions(run: Run) -> Run:
    """Return a run whose objective and task know how long completions may be."""
    tokens = run.backend.completion_tokens(run)
    shared_task = run.shared_task
    if shared_task is not None:
        shared_task = shared_task.for_completions(tokens)
    return replace(
        run,
        objective=run.objective.for_completions(tokens),
        task=run.task.for_completions(tokens),
        shared_task=shared_task,
    )


def _with_matched_rate(run: Run) -> Run:
    """Return a run with the factor on its learning rate that `optimizer.match` asks for."""
    if run.optimizer.match == "none":
        return run
    if run.optimizer.match == "step":
        _check_calibration(run)
        return replace(run, learning_rate_scale=math.nan)
    return replace(run, learning_rate_scale=_learning_rate_scale(run))


def name_of(node: Any) -> str:
    """Return the name of a config node, which is a name or a mapping with one."""
    return str(node.get("name", "")) if isinstance(node, Mapping) else str(node)


def _build(key: str, node: Any, cache: BuildCache) -> Any:
    return cache.component((key, repr(node)), lambda: NODES[key].build(node, where=key))


def _check(run: Run) -> None:
    """Refuse parts of a run that do not fit together."""
    if not run.absent:
        _check_task(run.task)
    _check_group_size(run)
    _check_rewards(run.estimator, run.task)
    _check_needs(run)
    _check_named_code(run)
    if "reward_parts" in run.estimator.needs:
        _check_reward_parts(run.estimator, run.task)
    if run.optimizer.name not in run.backend.optimizers:
        raise ConfigError(
            f"optimizer: backend '{run.backend.name}' trains with "
            f"{' or '.join(sorted(run.backend.optimizers))}, got '{run.optimizer.name}'"
        )
    _check_support(run)
    check_sampling(run.backend, run.evaluation)
    if not run.absent:
        check_validation(run.task, run.evaluation)
    if run.control.changes_verdicts:
        _check_verdicts_are_read(run)


def _check_task(task: Task) -> None:
    task.check()
    if not task.can_train:
        raise ConfigError(
            f"task: '{task.label}' has no training problems, only held-out ones; choose another "
            f"task, or data with a train_split"
        )


def _check_group_size(run: Run) -> None:
    """Refuse groups that are too small for the estimator or the rollout policy."""
    least = run.estimator.minimum_group
    multiple = run.estimator.group_multiple
    if run.group_size < least or run.group_size % multiple:
        rule = f">= {least}" if multiple == 1 else f">= {least} and a multiple of {multiple}"
        raise ConfigError(
            f"group_size: expected {rule}, which estimator '{run.estimator.name}' needs, "
            f"got {run.group_size}"
        )
    run.rollout.drawn_size(run.group_size)


def _check_rewards(estimator: Estimator, task: Task) -> None:
    """Refuse rewards for which the estimator is not defined."""
    low, high = task.reward_range
    if estimator.binary_only and not task.is_binary:
        defined = "of 0 and 1 only"
    elif estimator.rates and not (low >= 0 and high <= 1):
        defined = "in [0, 1], as solve rates"
    else:
        return
    raise ConfigError(
        f"estimator: '{estimator.name}' is defined for rewards {defined}, and those of task "
        f"'{task.label}' go from {low:g} to {high:g}; {task.reward_remedy}"
    )


def _check_named_code(run: Run) -> None:
    """Try what the command line named by its file: it may do anything."""
    # Plans are made without torch unless a run needs this.
    from advsweep.estimators import named_checks
    from advsweep.objectives import functions

    named_checks.check_named(run.estimator, run.group_size)
    functions.check_named(run.objective)


def _check_needs(run: Run) -> None:
    """Refuse an estimator that reads what no part of the run gives."""
    given = run.backend.provides | run.rollout.provides | run.task.provides
    missing = run.estimator.needs - given
    if not missing:
        return
    giving = [policy.name for policy in ROLLOUTS.classes() if policy.provides & missing]
    remedy = hint_for_missing(missing)
    if giving:
        remedy = f"; rollout={' or '.join(giving)} does"
    if run.rollout.name in giving:
        remedy = f"; rollout={run.rollout.name} with its own defaults does"
    code = run.estimator.named_code
    place = "" if code is None else f"{code.where}: "
    raise ConfigError(
        f"{place}estimator: '{run.estimator.name}' needs {', '.join(sorted(missing))}, which "
        f"backend '{run.backend.name}' with rollout policy '{run.rollout.name}' and task "
        f"'{run.task.label}' does not give{remedy}"
    )


def _check_reward_parts(estimator: Estimator, task: Task) -> None:
    """Refuse a reward of one part, or weights that are not one for each part."""
    parts = len(task.part_weights)
    if parts < 2:
        raise ConfigError(
            f"estimator: '{estimator.name}' weighs the parts of a reward apart, and that of task "
            f"'{task.label}' has one; expected several, as task.reward={{accuracy: 1, format: 0.5}}"
        )
    weights = estimator.plain().get("weights")
    if weights and len(weights) != parts:
        raise ConfigError(
            f"estimator.weights: expected {parts} numbers, one for each part of task.reward, or "
            f"null for the parts' own weights, got {len(weights)}"
        )


def _check_verdicts_are_read(run: Run) -> None:
    """Refuse a control that changes verdicts which nothing is made of."""
    if not run.task.rewards_verdicts:
        reason = f"of which the rewards of task '{run.task.label}' are not made"
    elif run.estimator.verifier_free:
        reason = f"which estimator '{run.estimator.name}' does not read"
    else:
        return
    raise ConfigError(
        f"control: '{run.control.name}' changes a verifier's verdicts, {reason}; expected "
        f"control=none or aa, or another task or estimator"
    )


def _check_support(run: Run) -> None:
    """Refuse a run that needs more than its backend supports: the table of `Can`."""
    rollout = run.rollout
    task = run.task
    control = run.control
    reset = run.optimizer.reset_every
    renewed = run.objective.plain().get("renew_every", 0)
    stop = run.generation.plain().get("stop")
    is_controlled = control.name != Control.name
    by_steps = run.optimizer.match == "step"
    corrected = "objective.correction: expected none; others need a sampler apart from the trainer"
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
        (Can.EPISODES, isinstance(task, EpisodeTask), f"task: '{task.label}' has turns"),
        (Can.ENVIRONMENTS, task.has_environment, f"task: '{task.label}' is an environment"),
        (Can.VALUES, rollout.draws_values, f"rollout: '{rollout.name}' measures values of turns"),
        (Can.STOP_TEXTS, bool(stop), f"generation.stop: expected none, got {stop}"),
        (Can.STEP_MATCHING, by_steps, "optimizer.match: expected none, mass or max, got step"),
    ]
    has_turns = task.has_environment or isinstance(task, EpisodeTask)
    if rollout.draws_values and not has_turns:
        raise ConfigError(
            f"rollout: '{rollout.name}' measures values of turns, and task '{task.label}' has no "
            f"turns; one that has is task=walks"
        )
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
