"""Finds settings without effect when a plan is made.

A run is refused if its estimator gives only advantages of 0, if its rollout policy never keeps
a group, or if its learning rate is matched by the size of advantages for an optimizer whose steps
do not depend on it. Settings that may be intended are warned about: a warm-up longer than the run,
evaluations and early-stopping checks after the last step.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from advsweep.config.settings import Match
from advsweep.errors import BatchError, ConfigError, counted

if TYPE_CHECKING:
    from advsweep.backends.base import Run
    from advsweep.sweep.early_stopping import Stopping


def check_effects(run: Run, given: Mapping[str, Any], known: dict[Any, str]) -> Iterator[str]:
    """Generate a warning for each setting of a run without effect.

    Args:
        given: the values that were set for the run, by dotted key.
        known: what was found of runs before, to be kept for the next one: checks of runs that
            are alike are made once.

    Raises:
        ConfigError: the run cannot train anything; the message names the key.
    """
    kind = (
        repr(run.estimator),
        repr(run.rollout),
        run.group_size,
        run.prompts_per_step,
        run.task.reward_range,
        run.task.is_binary,
        run.generation.is_greedy,
        run.steps,
    )
    if kind not in known:
        known[kind] = _no_advantages(run)
    objective, optimizer = run.objective, run.optimizer
    # The penalty for leaving the base model has no gradient where training starts.
    penalty_alone = objective.needs_reference and not objective.needs_entropy
    other_terms = not (objective.skips_exactly or penalty_alone)
    if known[kind] and (optimizer.decays_weights or other_terms):
        yield f"{known[kind]}; only other terms of the objective, and weight decay, train"
    elif known[kind]:
        remedy = "expected sampling that can differ"
        if not run.generation.is_greedy:
            remedy = "change group_size, the estimator or its fields"
        raise ConfigError(f"{known[kind]}, so that nothing would be trained; {remedy}")
    if optimizer.match in (Match.MAX_ADVANTAGE, Match.MASS) and optimizer.scale_invariant:
        raise ConfigError(
            f"optimizer.match: the steps of '{optimizer.name}' do not depend on the size of "
            f"advantages, so that match={optimizer.match.value} would make them differ by the "
            f"factor of the rates; expected match=step, which makes the steps equal, "
            f"match=none, or optimizer=sgd"
        )
    if optimizer.warmup_steps > run.steps:
        yield (
            f"optimizer.warmup_steps: the learning rate never rises to lr, as "
            f"{optimizer.warmup_steps} is above steps={run.steps}"
        )
    if run.evaluation.every >= run.steps and "evaluation.every" in given:
        yield (
            f"evaluation.every: only the evaluations before and after training are made, as "
            f"{run.evaluation.every} is not below steps={run.steps}"
        )
    if beyond := [step for step in run.evaluation.at if step > run.steps]:
        yield (
            f"evaluation.at: no evaluation is made after step {beyond[0]}, which is above "
            f"steps={run.steps}"
        )


def ineffective_rule(stopping: Stopping, runs: Sequence[Run]) -> str:
    """Say why a rule for early stopping can stop none of the runs; empty if it can."""
    longest = max(run.steps for run in runs)
    if stopping.rule() is None or any(map(stopping.is_due, range(1, longest))):
        return ""
    return (
        f"stopping: rule '{stopping.name}' judges no run, as its first judgement would be later "
        f"than step {longest - 1}"
    )


def _no_advantages(run: Run) -> str:
    """Say why no rollout can have an advantage; empty if one can.

    Raises:
        ConfigError: the rollout policy never keeps a group.
    """
    from advsweep.diagnostics.probes import groups_kept, has_advantages, representative_groups

    low, high = run.task.reward_range
    size, name, greedy = run.group_size, run.estimator.name, run.generation.is_greedy
    groups = representative_groups(size, low, high, binary=run.task.is_binary, alike=greedy)
    kept, why = groups_kept(run.rollout, groups, run.prompts_per_step)
    if not len(kept):
        raise ConfigError(
            f"rollout: policy '{run.rollout.name}' keeps no group of {counted(size, 'rollout')}, "
            f"whatever their rewards are{f' ({why})' if why else ''}; change group_size or its "
            f"fields, or take another policy"
        )
    alone = run.prompts_per_step == 1
    try:
        if has_advantages(run.estimator, kept, total_steps=run.steps, alone=alone):
            return ""
    except BatchError:
        return ""  # it may still accept the groups of a training
    except Exception as error:  # an estimator of another package may raise anything
        raise ConfigError(
            f"estimator: '{name}' raised {type(error).__name__}: {error}, for groups of {size}; "
            f"fix its code"
        ) from error
    if greedy:
        return (
            f"generation: it always takes the likeliest token, and to groups of equal rewards "
            f"estimator '{name}' gives advantages of 0 alone"
        )
    return (
        f"group_size: estimator '{name}' gives advantages of 0 alone to groups of {size} with "
        f"rewards from {low:g} to {high:g}"
    )
