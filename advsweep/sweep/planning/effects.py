"""Checks of a planned run: whether it can train anything, and settings without effect."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from advsweep.errors import BatchError, ConfigError, counted

if TYPE_CHECKING:
    from advsweep.backends.base import Run
    from advsweep.sweep.early_stopping import Stopping


def check_effects(
    run: Run, set_values: Mapping[str, Any], reasons: dict[Any, str]
) -> Iterator[str]:
    """Generate a warning for each setting of a run without effect.

    Args:
        set_values: the values that were set for the run, by dotted key.
        reasons: what was found of runs before, to be kept for the next one: checks of runs that
            are alike are made once.

    Raises:
        ConfigError: the run cannot train anything; the message names the key.
    """
    yield from _check_advantages(run, reasons)
    _check_matched_rate(run)
    yield from _find_unread(run, set_values)


def _check_advantages(run: Run, reasons: dict[Any, str]) -> Iterator[str]:
    """Refuse a run of which nothing would be trained, or warn that only other terms train.

    Args:
        reasons: why rollouts of runs before can have no advantage, by what decides it.
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
    if kind not in reasons:
        reasons[kind] = _no_advantages(run)
    reason = reasons[kind]
    if not reason:
        return
    if run.optimizer.decays_weights or run.objective.moves_alone:
        yield f"{reason}; only other terms of the objective, and weight decay, train"
        return
    remedy = "expected sampling that can differ"
    if not run.generation.is_greedy:
        remedy = "change group_size, the estimator or its fields"
    raise ConfigError(f"{reason}, so that nothing would be trained; {remedy}")


def _check_matched_rate(run: Run) -> None:
    """Refuse to match rates by the size of advantages where steps do not depend on it."""
    optimizer = run.optimizer
    if optimizer.match in ("max_advantage", "mass") and optimizer.scale_invariant:
        raise ConfigError(
            f"optimizer.match: the steps of '{optimizer.name}' do not depend on the size of "
            f"advantages, so that match={optimizer.match} would make them differ by the "
            f"factor of the rates; expected match=step, which makes the steps equal, "
            f"match=none, or optimizer=sgd"
        )


def _find_unread(run: Run, set_values: Mapping[str, Any]) -> Iterator[str]:
    """Generate a warning for each setting that the training never reads."""
    unread = run.rollout.provides - run.estimator.needs - run.estimator.uses
    if unread and not run.rollout.selects:
        yield (
            f"rollout: estimator '{run.estimator.name}' does not read the {', '.join(unread)} "
            f"that '{run.rollout.name}' draws"
        )
    if run.optimizer.warmup_steps > run.steps:
        yield (
            f"optimizer.warmup_steps: the learning rate never rises to lr, as "
            f"{run.optimizer.warmup_steps} is above steps={run.steps}"
        )
    if run.evaluation.every >= run.steps and "evaluation.every" in set_values:
        yield (
            f"evaluation.every: only the evaluations before and after training are made, as "
            f"{run.evaluation.every} is not below steps={run.steps}"
        )
    beyond = [step for step in run.evaluation.at if step > run.steps]
    if beyond:
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
    size = run.group_size
    name = run.estimator.name
    greedy = run.generation.is_greedy
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
