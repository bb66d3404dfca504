"""Finds settings without effect when a plan is made.

A run is refused if its estimator gives only advantages of 0, if its rollout policy never keeps
a group, or if its learning rate is matched by the size of advantages for an optimizer whose steps
do not depend on it. Settings that may be intended are warned about: a warm-up longer than the run,
evaluations and early-stopping checks after the last step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from advsweep.config.settings import Match
from advsweep.errors import BatchError, ConfigError, counted

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

    from advsweep.backends.base import Run
    from advsweep.sweep.early_stopping import Stopping

T = TypeVar("T")

# Number of larger group sizes that are tried, to suggest one that would help.
_LARGER = 4


class EffectChecks:
    """Checks the runs of one plan; checks of runs that are alike are made once."""

    def __init__(self) -> None:
        self._found: dict[Any, Any] = {}

    def check(self, run: Run, given: Mapping[str, Any]) -> Iterator[str]:
        """Generate a warning for each setting of a run without effect.

        Args:
            given: the values that were set for the run, by dotted key.

        Raises:
            ConfigError: the run cannot train anything; the message names the key.
        """
        if reason := self._once(_no_groups, run, _kind_of(run)):
            raise ConfigError(reason)
        reason, remedy = self._once(_no_advantages, run, _kind_of(run)) or ("", "")
        if reason and _trains_without_advantages(run):
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
        clipped = (repr(run.objective), repr(run.backend))
        yield from filter(None, [self._once(_clips_everything, run, clipped)])

    def _once(self, find: Callable[[Run], T], run: Run, kind: tuple[Any, ...]) -> T:
        key = (find, *kind)
        if key not in self._found:
            self._found[key] = find(run)
        found: T = self._found[key]
        return found


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


def _kind_of(run: Run) -> tuple[Any, ...]:
    return (
        repr(run.estimator),
        repr(run.rollout),
        run.group_size,
        run.prompts_per_step,
        run.task.reward_range,
        run.task.is_binary,
        run.generation.is_greedy,
        run.steps,
    )


def _groups(run: Run, size: int, *, alike: bool = False) -> Float[Tensor, "groups rollouts"]:
    from advsweep.diagnostics.probes import representative_groups

    low, high = run.task.reward_range
    return representative_groups(size, low, high, binary=run.task.is_binary, alike=alike)


def _kept(run: Run) -> tuple[Float[Tensor, "groups rollouts"], str]:
    from advsweep.diagnostics.probes import groups_kept

    groups = _groups(run, run.group_size, alike=run.generation.is_greedy)
    return groups_kept(run.rollout, groups, run.prompts_per_step)


def _no_groups(run: Run) -> str:
    """Say why a rollout policy never keeps a group; empty if it keeps some."""
    kept, reason = _kept(run)
    if len(kept):
        return ""
    return (
        f"rollout: policy '{run.rollout.name}' keeps no group of "
        f"{counted(run.group_size, 'rollout')}, whatever their rewards "
        f"are{f' ({reason})' if reason else ''}; change group_size or its "
        f"fields, or take another policy"
    )


def _no_advantages(run: Run) -> tuple[str, str] | None:
    """Say why no rollout can have an advantage, and what to do; None if one can."""
    if _advantages_of(run, _kept(run)[0]):
        return None
    size, name = run.group_size, run.estimator.name
    if run.generation.is_greedy and _advantages_of(run, _groups(run, size)):
        return (
            f"generation: it always takes the likeliest token, and to groups of equal rewards "
            f"estimator '{name}' gives advantages of 0 alone",
            "expected sampling that can differ",
        )
    multiple = run.estimator.group_multiple
    for larger in (size + multiple * extra for extra in range(1, _LARGER + 1)):
        if _advantages_of(run, _groups(run, larger)):
            return (
                f"group_size: estimator '{name}' gives advantages of 0 alone to groups of {size}",
                f"expected >= {larger}, got {size}",
            )
    low, high = run.task.reward_range
    return (
        f"estimator: '{name}' with these fields gives advantages of 0 alone to groups of {size} "
        f"with rewards from {low:g} to {high:g}",
        "change its fields or choose another",
    )


def _advantages_of(run: Run, groups: Float[Tensor, "groups rollouts"]) -> bool:
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


def _trains_without_advantages(run: Run) -> bool:
    objective = run.objective
    # The penalty for leaving the base model has no gradient where training starts.
    penalty_alone = objective.needs_reference and not objective.needs_entropy
    return run.optimizer.decays_weights or not (objective.skips_exactly or penalty_alone)


def _clips_everything(run: Run) -> str:
    """Say why only the first update of a step trains; empty if the others train as well."""
    backend = run.backend.plain()
    updates = backend.get("minibatches", 1) * backend.get("inner_epochs", 1)
    if updates == 1 or _trains_moved_rollouts(run):
        return ""
    return (
        f"objective: '{run.objective.name}' gives no gradient to tokens whose probability has "
        f"moved as its advantage says, even by a thousandth, so that of the {updates} updates of "
        f"a step little more than the first has an effect; widen its clip range"
    )


def _trains_moved_rollouts(run: Run) -> bool:
    import torch

    from advsweep.objectives.base import LossInputs

    advantages = torch.tensor([1.0, -1.0])
    old = torch.full((2, 1), -1.0)
    log_probs = (old + 1e-3 * advantages[:, None]).requires_grad_()
    inputs = LossInputs(
        log_probs=log_probs,
        old_log_probs=old,
        completion_mask=torch.ones(2, 1, dtype=torch.bool),
        advantages=advantages,
        rollouts=2,
        tokens=2,
        reference_log_probs=log_probs.detach(),
        entropies=torch.zeros(2, 1),
    )
    run.objective.loss(inputs).loss.backward()  # type: ignore[no-untyped-call]
    assert log_probs.grad is not None
    return bool(log_probs.grad.any())
