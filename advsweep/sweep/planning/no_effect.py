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
    from jaxtyping import Float
    from torch import Tensor

    from advsweep.backends.base import Run
    from advsweep.sweep.early_stopping import Stopping

# Number of larger group sizes that are tried, to suggest one that would help.
_LARGER = 4


class EffectChecks:
    """Checks the runs of one plan; checks of runs that are alike are made once."""

    def __init__(self) -> None:
        self._found: dict[tuple[Any, ...], tuple[str, str]] = {}

    def check(self, run: Run, given: Mapping[str, Any]) -> Iterator[str]:
        """Generate a warning for each setting of a run without effect.

        Args:
            given: the values that were set for the run, by dotted key.

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
        if kind not in self._found:
            self._found[kind] = _no_advantages(run)
        reason, remedy = self._found[kind]
        objective = run.objective
        # The penalty for leaving the base model has no gradient where training starts.
        penalty_alone = objective.needs_reference and not objective.needs_entropy
        other_terms = not (objective.skips_exactly or penalty_alone)
        if reason and (run.optimizer.decays_weights or other_terms):
            yield f"{reason}; only other terms of the objective, and weight decay, train"
        elif reason:
            raise ConfigError(f"{reason}, so that nothing would be trained; {remedy}")
        optimizer = run.optimizer
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
    if stopping.rule() is None:
        return ""
    lengths = {run.steps for run in runs}
    if not any(stopping.is_due(step) for steps in lengths for step in range(1, steps)):
        return (
            f"stopping: rule '{stopping.name}' judges no run, as its first judgement would be "
            f"later than step {max(lengths) - 1}"
        )
    configurations = len({run.config_hash for run in runs})
    if configurations < stopping.least_configurations:
        return (
            f"stopping: rule '{stopping.name}' compares at least "
            f"{stopping.least_configurations} configurations, and these runs have "
            f"{configurations}; runs of other sweeps count only where they share a run"
        )
    return ""


def _no_advantages(run: Run) -> tuple[str, str]:
    """Say why no rollout can have an advantage, and what to do; empty texts if one can.

    Raises:
        ConfigError: the rollout policy never keeps a group.
    """
    from advsweep.diagnostics.probes import groups_kept, representative_groups

    low, high = run.task.reward_range
    binary, size, name = run.task.is_binary, run.group_size, run.estimator.name
    greedy = run.generation.is_greedy
    groups = representative_groups(size, low, high, binary=binary, alike=greedy)
    kept, why = groups_kept(run.rollout, groups, run.prompts_per_step)
    if not len(kept):
        raise ConfigError(
            f"rollout: policy '{run.rollout.name}' keeps no group of {counted(size, 'rollout')}, "
            f"whatever their rewards are{f' ({why})' if why else ''}; change group_size or its "
            f"fields, or take another policy"
        )
    if _has_advantages(run, kept):
        return "", ""
    if greedy and _has_advantages(run, representative_groups(size, low, high, binary=binary)):
        return (
            f"generation: it always takes the likeliest token, and to groups of equal rewards "
            f"estimator '{name}' gives advantages of 0 alone",
            "expected sampling that can differ",
        )
    multiple = run.estimator.group_multiple
    for larger in (size + multiple * extra for extra in range(1, _LARGER + 1)):
        if _has_advantages(run, representative_groups(larger, low, high, binary=binary)):
            return (
                f"group_size: estimator '{name}' gives advantages of 0 alone to groups of {size}",
                f"expected >= {larger}, got {size}",
            )
    return (
        f"estimator: '{name}' with these fields gives advantages of 0 alone to groups of {size} "
        f"with rewards from {low:g} to {high:g}",
        "change its fields or choose another",
    )


def _has_advantages(run: Run, groups: Float[Tensor, "groups rollouts"]) -> bool:
    from advsweep.diagnostics.probes import has_advantages

    alone = run.prompts_per_step == 1
    try:
        return has_advantages(run.estimator, groups, total_steps=run.steps, alone=alone)
    except BatchError:
        # The estimator may still accept the groups of a training.
        return True
    except Exception as error:  # an estimator of another package may raise anything
        raise ConfigError(
            f"estimator: '{run.estimator.name}' raised {type(error).__name__}: {error}, for "
            f"groups of {groups.shape[1]}; fix its code"
        ) from error
