"""Metrics of dumped rollouts, by the code that computes them for our own runs.

    found = metrics_of_dump(read_rollouts(Path("rollouts")), config)
    found.steps         # LoggedStep(1, {"collapse/acr": 0.25, "mass/success": 0.18, ...})
    found.notes         # what the advantages are, and what could not be computed

Collapse, solve rates and costs follow from the rewards. Masses, weights and the like also need the
advantages: those of the dump if it has them, else those of the config's estimator, computed from
the same rewards.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from advsweep.diagnostics import rollout_metrics
from advsweep.errors import AdvsweepError, counted
from advsweep.estimators import ESTIMATORS, Advantages, Estimator, GroupBatch
from advsweep.logs.dump_checks import fewer_than_usual
from advsweep.logs.names import LoggedStep
from advsweep.logs.rollout_records import GroupTurns, RolloutGroup, RolloutStep
from advsweep.names import ROLLOUT_COST, UNSCORABLE, UTILISATION
from advsweep.printable import printable_line

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

# Advantages that differ by more are not those of the config's estimator.
_DIFFERENT = 1e-3

# Options of a log may be wrong, or ask for more than memory holds.
_REFUSALS = (AdvsweepError, RuntimeError, ArithmeticError)


@dataclass
class DumpMetrics:
    """What a dump of rollouts says about a run.

    Attributes:
        steps: metrics by our names.
        rollouts: how many each step has.
        sizes: `prompts_per_step` and `group_size` of the first step with groups of one size;
            empty without one.
        notes: a sentence each.
    """

    steps: list[LoggedStep] = field(default_factory=list)
    rollouts: dict[int, int] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def metrics_of_dump(
    rollouts: Iterable[RolloutStep],
    config: Mapping[str, Any],
    *,
    success_at: float = 1.0,
    counts_rollouts: bool = True,
) -> DumpMetrics:
    """Compute the metrics of the steps of a dump.

    Args:
        rollouts: the steps, in order.
        config: the run's settings by our keys: `estimator`, `prompts_per_step`, `group_size` and
            `steps` are read where they are given.
        success_at: rollouts with at least this reward are successes.
        counts_rollouts: whether the dump holds all rollouts of the training. Otherwise what the
            training cost is not known.
    """
    steps = list(rollouts)
    dump = DumpMetrics()
    dump.rollouts = {step: sum(len(group.rewards) for group in groups) for step, groups in steps}
    dump.sizes = _sizes_of(steps)
    usual = _rollouts_of_a_step({**dump.sizes, **config}) if counts_rollouts else None
    total_steps = config.get("steps")
    if not isinstance(total_steps, int):
        total_steps = None
    source = _AdvantagesOfDump(config.get("estimator"))
    is_graded = any(map(_has_graded_rewards, steps))
    has_turns = tells_turns(steps)
    low, high = math.inf, -math.inf
    # In order, one after another: an estimator with memory sees what it saw in the training.
    for step in steps:
        batch = batch_of(step, total_steps)
        # A missing rollout of a smaller group counts nowhere, an unscorable one as unscorable.
        count = dump.rollouts[step.step]
        scorable = torch.ones_like(batch.rewards) == 1 if batch.mask is None else batch.mask
        advantages = source.of(step, batch)
        metrics = rollout_metrics(
            _with_turns(step, batch) if has_turns else batch,
            advantages or Advantages(values=batch.rewards[:0], keep=scorable),
            verdicts=(batch.rewards >= success_at).to(batch.rewards),
            judged=batch.rewards,
            verifier_free=source.estimator is not None and source.estimator.verifier_free,
            graded=is_graded,
        )
        del metrics[UTILISATION], metrics[ROLLOUT_COST]
        metrics[UNSCORABLE] = 1 - scorable.sum().item() / count
        if advantages is not None:
            metrics[UTILISATION] = advantages.keep.sum().item() / count
        if usual is not None:
            metrics[ROLLOUT_COST] = count / usual
        finite = {name: value for name, value in metrics.items() if math.isfinite(value)}
        dump.steps.append(LoggedStep(step.step, finite))
        # Of float32, as they are compared with the threshold.
        rewards = batch.rewards[scorable].tolist()
        low = min([low, *rewards])
        high = max([high, *rewards])
    dump.notes = source.notes()
    if low < high < success_at:
        dump.notes.append(
            f"no rollout counts as a success: rewards are {low:g} to {high:g}, and a success "
            f"has at least {success_at:g}; --set success_at=REWARD changes this"
        )
    dump.notes += fewer_than_usual(dump.rollouts, "rollouts")
    return dump


def _sizes_of(steps: Iterable[RolloutStep]) -> dict[str, int]:
    """Return the sizes of the first step with groups of one size; empty without one."""
    for _, groups in steps:
        sizes = {len(group.rewards) for group in groups}
        if len(sizes) == 1:
            return {"prompts_per_step": len(groups), "group_size": sizes.pop()}
    return {}


def _rollouts_of_a_step(sizes: Mapping[str, Any]) -> int | None:
    """Return how many rollouts a plain step has; None if that is unknown."""
    prompts = sizes.get("prompts_per_step")
    size = sizes.get("group_size")
    if not isinstance(prompts, int) or not isinstance(size, int):
        return None
    return prompts * size if prompts > 0 and size > 0 else None


def _has_graded_rewards(step: RolloutStep) -> bool:
    """Return whether a step has a reward that is neither 0 nor 1, unscorable ones aside."""
    rewards = (reward for group in step.groups for reward in group.rewards)
    return any(reward not in (0, 1) and not math.isnan(reward) for reward in rewards)


class _AdvantagesOfDump:
    """The advantages of each step: the logged ones, or else those of an estimator.

    Args:
        node: the config node of the estimator, or its name; None if it is unknown.
    """

    def __init__(self, node: Any) -> None:
        name = node.get("name", "") if isinstance(node, Mapping) else node
        self._named = f"estimator '{printable_line(str(name))[:100]}'"
        self.estimator: Estimator | None = None
        self._next = 1
        self._why = "the estimator is unknown"
        """Why the estimator's advantages cannot be computed; empty if they can."""
        self._logged = self._computed = self._without = 0
        self._furthest = (0.0, 0)
        if node is not None:
            try:
                self.estimator = ESTIMATORS.build(node)
                self._why = ""
            except _REFUSALS as error:
                self._refuse(str(error))

    def of(self, step: RolloutStep, batch: GroupBatch) -> Advantages | None:
        """Return the advantages of the next step; None if they cannot be known."""
        computed = None if self._why else self._compute(step.step, batch)
        logged = logged_advantages(step, batch)
        if logged is None:
            self._computed += computed is not None
            self._without += computed is None
            return computed
        self._logged += 1
        # The logged ones count; the computed ones only say whether the name is right.
        if computed is not None and computed.values.shape == logged.values.shape:
            difference = (computed.values - logged.values).abs().max().item()
            self._furthest = max(self._furthest, (difference, step.step))
        return logged

    def _compute(self, step: int, batch: GroupBatch) -> Advantages | None:
        estimator = self.estimator
        assert estimator is not None
        missing = sorted(name for name in estimator.needs if getattr(batch, name) is None)
        if missing:
            self._refuse(f"it needs {', '.join(missing)}, which the dump lacks")
        elif estimator.stateful and step != self._next:
            # Its memory would lack a step, and every later number would be another one.
            self._refuse(f"it has memory, and the rollouts of step {self._next} are missing")
        if self._why:
            return None
        self._next = step + 1
        try:
            return estimator.compute(batch)
        except _REFUSALS as error:
            self._refuse(f"step {step}: {error}")
            return None

    def _refuse(self, why: str) -> None:
        self._why = f"{self._named}: {printable_line(' '.join(why.split()))[:300]}"

    @property
    def fits(self) -> bool:
        """Whether all logged advantages so far are those of the estimator."""
        return not self._why and self._furthest[0] <= _DIFFERENT

    def notes(self) -> list[str]:
        """Return what a reader should know, a sentence each."""
        notes = []
        difference, step = self._furthest
        if self._logged:
            notes.append("masses and other metrics of advantages are of the logged advantages")
        elif self._computed:
            notes.append(f"advantages were computed from the rewards by {self._named}")
        if difference > _DIFFERENT:
            notes.append(
                f"the logged advantages are not those of {self._named}: they differ by up to "
                f"{difference:.3g} (step {step})"
            )
        if self._without:
            steps = counted(f"{self._without:,}", "step")
            notes.append(f"no masses and other metrics of advantages in {steps} ({self._why})")
        return notes


def estimator_of(node: Mapping[str, Any], rollouts: Iterable[RolloutStep], most: int = 20) -> bool:
    """Whether the logged advantages of the first steps are those of an estimator.

    Args:
        node: the config node of the estimator, which has no memory and needs rewards alone.
        most: steps with groups of unequal rewards that are compared.
    """
    source = _AdvantagesOfDump(node)
    compared = 0
    for step in rollouts:
        batch = batch_of(step)
        logged = logged_advantages(step, batch)
        if logged is None or not logged.values.any():
            continue
        source.of(step, batch)
        compared += 1
        if not source.fits or compared == most:
            break
    return compared > 0 and source.fits


def batch_of(
    step: RolloutStep,
    total_steps: int | None = None,
    *,
    dtype: torch.dtype = torch.float32,
    least: int = 0,
) -> GroupBatch:
    """Return the rollouts of a step as an estimator sees them.

    Args:
        dtype: of the numbers; by default float32, as in the trainers that dump, so that their
            rewards are the same numbers.
        least: the least size of a group; smaller ones are filled up, and masked.
    """
    groups = step.groups
    rewards = _filled([group.rewards for group in groups], least).to(dtype)
    scored = ~rewards.isnan()
    inputs: dict[str, Any] = {"rewards": rewards}
    if not scored.all():
        inputs |= {"mask": scored, "rewards": rewards.masked_fill(~scored, 0.0)}
    for name, rows in _lists_of_all(groups).items():
        numbers = _filled(rows, least).to(dtype).nan_to_num(0.0)
        inputs[name] = numbers == 1 if name == "answered" else numbers
    if all(group.prompt for group in groups):
        inputs["prompt_ids"] = tuple(group.prompt for group in groups)
    return GroupBatch(**inputs, step=step.step, total_steps=total_steps)


def _lists_of_all(groups: Sequence[RolloutGroup]) -> dict[str, list[list[float]]]:
    """Return the numbers per rollout that all groups have, by their names."""
    inputs = [group.inputs or {} for group in groups]
    names = set(inputs[0]).intersection(*inputs)
    lists = {name: [each[name] for each in inputs] for name in sorted(names)}
    lengths = [group.lengths for group in groups]
    if None not in lengths:
        lists["lengths"] = [[float(length) for length in each or ()] for each in lengths]
    return lists


def tells_turns(steps: Iterable[RolloutStep]) -> bool:
    """Return whether a dump tells the turns of all rollouts, and some have several."""
    turns = [group.turns for step in steps for group in step.groups]
    known = [group for group in turns if group is not None]
    return len(known) == len(turns) and any(max(group.counts) > 1 for group in known)


def _with_turns(step: RolloutStep, batch: GroupBatch) -> GroupBatch:
    """Return a batch with its turns, for metrics, which read no tokens of them."""
    turns = [group.turns for group in step.groups if group.turns is not None]
    inputs: dict[str, Any] = dict(turn_inputs(turns, batch.rewards))
    del inputs["lengths"]
    return replace(batch, **inputs)


def turn_inputs(
    groups: Sequence[GroupTurns], rewards: Float[Tensor, "groups rollouts"]
) -> dict[str, Tensor]:
    """Return the turns of a step as inputs of a batch, with one token for each turn.

    A dump does not say where in a text a turn begins, and estimators of turns read no tokens.

    Args:
        rewards: of the batch, whose groups may be filled up.
    """
    longest = max(max(group.counts) for group in groups)
    shape = (*rewards.shape, longest)
    turn_of_token = torch.full(shape, -1)
    turn_rewards = torch.zeros(shape, dtype=rewards.dtype)
    turn_states = torch.zeros(shape, dtype=torch.int64)
    for number, group in enumerate(groups):
        for rollout, count in enumerate(group.counts):
            turn_of_token[number, rollout, :count] = torch.arange(count)
            if group.rewards is not None:
                of_turns = torch.tensor(group.rewards[rollout], dtype=rewards.dtype)
                turn_rewards[number, rollout, :count] = of_turns
            if group.states is not None:
                turn_states[number, rollout, :count] = torch.tensor(group.states[rollout])
    inputs = {
        "turn_of_token": turn_of_token,
        "lengths": (turn_of_token >= 0).sum(dim=-1).to(rewards),
    }
    if all(group.rewards is not None for group in groups):
        inputs["turn_rewards"] = turn_rewards
    if all(group.states is not None for group in groups):
        inputs["turn_states"] = turn_states
    return inputs


def logged_advantages(step: RolloutStep, batch: GroupBatch) -> Advantages | None:
    """Return the advantages that a dump holds; None unless it has them for all groups."""
    if not all(group.advantages is not None for group in step.groups):
        return None
    rows = [group.advantages or [] for group in step.groups]
    values = _filled(rows, batch.rewards.shape[1]).to(batch.rewards).nan_to_num(0.0)
    keep = torch.ones_like(values, dtype=torch.bool) if batch.mask is None else batch.mask.clone()
    return Advantages(values=values.where(keep, 0.0), keep=keep)


def _filled(rows: list[list[float]], least: int = 0) -> Float[Tensor, "rows longest"]:
    """Return rows as a table, filled up with NaN to the longest, or at least so far."""
    sizes = np.array([len(row) for row in rows], dtype=np.int64)
    table = np.full((len(rows), sizes.max(initial=least)), math.nan)
    places = np.arange(table.shape[1]) < sizes[:, None]
    table[places] = [value for row in rows for value in row]
    return torch.from_numpy(table)
