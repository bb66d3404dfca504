"""Completions that GRPOTrainer logs: metrics of the rollouts that were trained on.

They are checked against what the trainer logged of the same steps.
"""

from __future__ import annotations

import math
import operator
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from advsweep.errors import ConfigError, nearest
from advsweep.logs.base import ImportedRun, is_number
from advsweep.logs.completion_tables import REPEATED, TableOptions, sum_of
from advsweep.logs.dump_checks import missing_steps, success_reward
from advsweep.logs.names import LoggedStep, merged
from advsweep.logs.rollout_metrics import DumpMetrics, estimator_of, metrics_of_dump
from advsweep.logs.rollout_records import RolloutNotes, RolloutStep
from advsweep.logs.rollouts import read_rollouts
from advsweep.names import ACR, REWARD_MEAN, ROLLOUT_COST, TOKEN_COST, UNSCORABLE

# Metrics by step
StepMetrics = dict[int, dict[str, float]]


@dataclass(frozen=True)
class Training:
    """What is known of a training without its completions.

    Attributes:
        arguments: those of its `GRPOConfig`.
        settings: what the user says of it.
        logged: the metrics of each logged step.
    """

    arguments: Mapping[str, Any]
    settings: Mapping[str, Any]
    logged: Sequence[LoggedStep]


def read_completions(
    folder: Path,
    run: ImportedRun,
    training: Training,
    estimators: Sequence[Mapping[str, Any]],
) -> StepMetrics:
    """Return the metrics of the rollouts that were trained on; add what they tell to the run.

    Args:
        estimators: config nodes of the estimators whose advantages TRL can have.
    """
    settings = training.settings
    logged = training.logged
    dump = _read_dump(folder, run, training)
    if any(weight != 1 for weight in dump.weights.values()):
        run.config["reward_weights"] = dump.weights
    # The estimator whose advantages are the logged ones, if there is exactly one.
    fitting = [node for node in estimators if estimator_of(node, dump.trained)]
    is_recognised = len(fitting) == 1
    if is_recognised:
        run.config["estimator"] = dict(fitting[0])
    metrics = metrics_of_dump(
        dump.trained,
        merged(run.config, settings),
        success_at=success_reward(settings),
        counts_rollouts=_counts_rollouts(dump, run),
    )
    run.config |= {key: size for key, size in metrics.sizes.items() if key not in run.config}
    by_step = {step: dict(values) for step, values in metrics.steps}
    contradiction = _contradiction(logged, by_step, dump.weights, run.config)
    if contradiction:
        run.notes.append(contradiction)
        by_step = {step: _only_cost(values) for step, values in by_step.items()}
    else:
        if is_recognised and "estimator" not in settings:
            run.notes.append("the estimator was recognised by the logged advantages")
        run.notes += metrics.notes + _other_groups(logged, by_step, run.config)
    _add_costs(by_step, metrics, dump.hidden, logged)
    return by_step


@dataclass(frozen=True)
class _Dump:
    """The completions of a folder.

    Attributes:
        trained: steps whose rollouts were trained on.
        hidden: steps that lost theirs, as an evaluation at the same step wrote its own over them.
        weights: the weight of each reward function.
    """

    trained: list[RolloutStep]
    hidden: list[int]
    weights: dict[str, float]


def _read_dump(folder: Path, run: ImportedRun, training: Training) -> _Dump:
    """Read the completions of a folder; add to the run what was left out of them."""
    assert isinstance(run.left_out, Counter)
    notes = RolloutNotes(left_out=run.left_out)
    weights: dict[str, float] = {}

    def weigh(names: Sequence[str]) -> Mapping[str, float]:
        weights.update(_weights(names, training.arguments, training.settings))
        return {name: weights[name] for name in names}

    size = training.settings.get("group_size", run.config.get("group_size"))
    if not isinstance(size, int):
        size = None
    logged = training.logged
    steps = list(read_rollouts(folder, tables=TableOptions(weigh, size), notes=notes))
    numbers = [step.step for step in steps]
    evaluated = {step for step, values in logged if any(n.startswith("eval_") for n in values)}
    hidden = sorted(evaluated.intersection(numbers))
    if hidden:
        run.left_out["steps whose completions are those of an evaluation"] += len(hidden)
    run.notes += notes.remarks
    if REPEATED not in run.left_out:
        with_reward = [step for step, values in logged if "reward" in values]
        run.notes += missing_steps(with_reward, numbers)
    return _Dump([step for step in steps if step.step not in evaluated], hidden, weights)


def _counts_rollouts(dump: _Dump, run: ImportedRun) -> bool:
    """Return whether the rollouts of every generation can be counted.

    They cannot if those of several steps are the same and some are lost.
    """
    if dump.hidden and REPEATED in run.left_out:
        return False
    if "logging_steps" in run.config:
        return bool(run.config["logging_steps"] == 1)
    numbers = sorted([*(step.step for step in dump.trained), *dump.hidden])
    return numbers == list(range(1, len(numbers) + 1))


def _only_cost(values: Mapping[str, float]) -> dict[str, float]:
    return {ROLLOUT_COST: values[ROLLOUT_COST]} if ROLLOUT_COST in values else {}


def _add_costs(
    by_step: StepMetrics,
    metrics: DumpMetrics,
    hidden: Sequence[int],
    logged: Sequence[LoggedStep],
) -> None:
    """Add the costs of steps that lost their rollouts, and the tokens of all that are counted."""
    rollouts = dict(metrics.rollouts)
    # Rollouts that are lost were as many as those of the other steps.
    if metrics.sizes and any(ROLLOUT_COST in values for values in by_step.values()):
        for step in hidden:
            rollouts[step] = math.prod(metrics.sizes.values())
            by_step[step] = {ROLLOUT_COST: 1.0}
    for step, values in logged:
        length = values.get("completions/mean_length")
        if length is not None and ROLLOUT_COST in by_step.get(step, {}):
            by_step[step][TOKEN_COST] = length * rollouts[step]


def _weights(
    names: Sequence[str], arguments: Mapping[str, Any], settings: Mapping[str, Any]
) -> dict[str, float]:
    """Return the weight of each reward function: as given, as an argument of the training, or 1."""
    named = settings.get("reward_weights", {})
    if not isinstance(named, Mapping) or not all(map(is_number, named.values())):
        raise ConfigError(
            "reward_weights: expected numbers by the names of reward functions, such as "
            f"--set reward_weights.accuracy_reward=1; got {str(named)[:100]!r}"
        )
    for name in named:
        if name not in names:
            raise ConfigError(
                f"reward_weights: there is no reward function '{name}'; {nearest(name, names)}"
            )
    # Weights that are not named are those of the training: leaving them out would be 0.
    weights = dict.fromkeys(names, 1.0)
    listed = arguments.get("reward_weights")
    if isinstance(listed, list) and len(listed) == len(names) and all(map(is_number, listed)):
        weights = dict(zip(names, map(float, listed), strict=True))
    return weights | {name: float(weight) for name, weight in named.items()}


def _contradiction(
    logged: Sequence[LoggedStep],
    by_step: Mapping[int, Mapping[str, float]],
    weights: Mapping[str, float],
    config: Mapping[str, Any],
) -> str:
    """Return a sentence if logged rewards are not the weighted sums of the reward functions."""
    # Over several steps the trainer logs the means of the functions, but completions of the last
    # step only.
    is_mean = config.get("logging_steps", 1) != 1
    for step, values in logged:
        parts = [values.get(f"rewards/{name}/mean", math.nan) for name in weights]
        ours = math.fsum(map(operator.mul, parts, weights.values()))
        if not is_mean:
            ours = by_step.get(step, {}).get(REWARD_MEAN, math.nan)
        total = values.get("reward", math.nan)
        if abs(ours - total) > 1e-4 * max(1, abs(total)):
            return (
                f"{sum_of(weights)} has the mean {ours:.6g} at step {step}, the trainer logged "
                f"{total:.6g}: --set reward_weights.NAME=WEIGHT gives other weights. The logged "
                "values are kept, and those of the completions left out"
            )
    return ""


def _other_groups(
    logged: Sequence[LoggedStep],
    by_step: Mapping[int, Mapping[str, float]],
    config: Mapping[str, Any],
) -> list[str]:
    """Return a sentence if the logged share of groups of equal rewards is another one."""
    if config.get("logging_steps", 1) != 1:
        return []
    for step, values in logged:
        computed = by_step.get(step, {})
        ours = computed.get(ACR, math.nan)
        theirs = values.get("frac_reward_zero_std", math.nan)
        if not computed.get(UNSCORABLE) and abs(ours - theirs) > 1e-6:
            return [
                f"collapse/acr of the completions is {ours:.6g} at step {step}, the trainer logged "
                f"{theirs:.6g}: as with scale_rewards=batch, or with a prompt that comes again in "
                "a step, whose groups --set group_size=N tells apart"
            ]
    return []
