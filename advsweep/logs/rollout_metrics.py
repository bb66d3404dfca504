"""Metrics of dumped rollouts, by the code that computes them for our own runs.

    found = metrics_of_dump(read_rollouts(Path("rollouts"), "verl"), config)
    found.steps         # LoggedStep(1, {"collapse/acr": 0.25, "mass/success": 0.18, ...})
    found.notes         # what the advantages are, and what could not be computed

Collapse, solve rates and costs follow from the rewards. Masses, weights and the like also need the
advantages: those of the dump if it has them, else those of the config's estimator, computed from
the same rewards. torch is imported when the first step is computed.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from advsweep.errors import AdvsweepError, ConfigError, counted
from advsweep.logs.names import LoggedStep
from advsweep.logs.rollouts import RolloutStep, filled
from advsweep.printable import printable_line

if TYPE_CHECKING:
    from advsweep.estimators import Advantages, Estimator, GroupBatch

_DIFFERENT = 1e-3
"""Advantages that differ by more are not those of the config's estimator."""


@dataclass
class DumpMetrics:
    """What a dump of rollouts says about a run.

    Attributes:
        steps: metrics by our names.
        rollouts: how many each step has.
        prompts, group_size: of the first step with groups of one size; None without one.
        notes: a sentence each.
        contradicts: whether the config's estimator is none of ours, or has other advantages than
            the logged ones.
    """

    steps: list[LoggedStep] = field(default_factory=list)
    rollouts: dict[int, int] = field(default_factory=dict)
    prompts: int | None = None
    group_size: int | None = None
    notes: list[str] = field(default_factory=list)
    contradicts: bool = False


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
    found = DumpMetrics()
    for step in steps:
        sizes = {len(group.rewards) for group in step.groups}
        if len(sizes) == 1:
            found.prompts, found.group_size = len(step.groups), sizes.pop()
            break
    # How many rollouts a step should have.
    prompts = config.get("prompts_per_step", found.prompts)
    size = config.get("group_size", found.group_size)
    known = isinstance(prompts, int) and isinstance(size, int) and prompts > 0 and size > 0
    target = prompts * size if counts_rollouts and known else None
    computed = RolloutMetrics(config.get("estimator"), config.get("steps"), success_at, target)
    found.rollouts = {step.step: _size(step) for step in steps}
    found.steps = [LoggedStep(step.step, computed.of(step)) for step in steps]
    found.notes = computed.finish() + fewer_than_usual(found.rollouts, "rollouts")
    found.contradicts = computed.contradicts
    return found


def missing_steps(logged: Iterable[int], dumped: Iterable[int]) -> list[str]:
    """Return a sentence on logged steps without rollouts, and one on rollouts without a log."""
    log, dump = set(logged), set(dumped)
    named = ((log - dump, "of the log without rollouts"), (dump - log, "without a line of the log"))
    return [
        f"{counted(f'{len(steps):,}', 'step')} {what}, the first is {min(steps)}"
        for steps, what in named
        if steps and log
    ]


def fewer_than_usual(counts: Mapping[int, int], what: str) -> list[str]:
    """Return a sentence on steps with fewer rollouts or samples than at least half of them have."""
    times = Counter(counts.values())
    usual = max(times, key=lambda count: (times[count], count), default=0)
    fewer = sorted(step for step, count in counts.items() if count < usual)
    if not fewer or 2 * times[usual] < len(counts):
        return []
    return [
        f"{counted(f'{len(fewer):,}', 'step')} with fewer {what} than usual, the first is "
        f"{fewer[0]}: {counts[fewer[0]]:,} of {usual:,}"
    ]


def estimator_of(node: Mapping[str, Any], rollouts: Iterable[RolloutStep], most: int = 20) -> bool:
    """Whether the logged advantages of the first steps are those of an estimator.

    Args:
        node: the config node of the estimator, which has no memory and needs rewards alone.
        most: steps with groups of unequal rewards that are compared.
    """
    from advsweep.estimators import ESTIMATORS

    estimator = ESTIMATORS.build(node)
    compared = 0
    for step in rollouts:
        batch = batch_of(step)
        logged = logged_advantages(step, batch)
        if logged is None or not logged.values.any():
            continue
        try:
            values = estimator.compute(batch).values
        except AdvsweepError:
            return False
        if (values - logged.values).abs().max().item() > _DIFFERENT:
            return False
        compared += 1
        if compared == most:
            break
    return compared > 0


def success_reward(settings: Mapping[str, Any]) -> float:
    """Return the reward from which a rollout is a success: the setting `success_at`, or 1.

    Raises:
        ConfigError: the setting is not a number.
    """
    value = settings.get("success_at", 1.0)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ConfigError(
            f"success_at: expected the reward of a success, a number, got {str(value)[:100]!r}"
        )
    return float(value)


class RolloutMetrics:
    """Computes the metrics of a run's steps, in order.

    Args:
        estimator: the config node of the estimator, or its name; None if it is unknown.
        total_steps: the length of the training, for estimators that read it.
        success_at: rollouts with at least this reward are successes.
        target: rollouts of a step without resampling; None leaves `cost/rollouts` out.
    """

    def __init__(
        self,
        estimator: Any,
        total_steps: Any = None,
        success_at: float = 1.0,
        target: int | None = None,
    ) -> None:
        self._node = estimator
        self._built: Estimator | None = None
        self._total_steps = total_steps if isinstance(total_steps, int) else None
        self._success_at = success_at
        self._target = target
        self._next = 1
        self._why = ""
        """Why the estimator's advantages cannot be computed."""
        self._logged = self._computed = self._bare = 0
        self._furthest = (0.0, 0)
        self._extremes = (math.inf, -math.inf)

    def of(self, step: RolloutStep) -> dict[str, float]:
        """Return the metrics of a step by name, as a run of ours records them."""
        import torch

        from advsweep.diagnostics import rollout_metrics
        from advsweep.estimators import Advantages

        batch = batch_of(step, self._total_steps)
        scorable = torch.ones_like(batch.rewards, dtype=torch.bool)
        scorable = scorable if batch.mask is None else batch.mask
        advantages = self._advantages(step, batch)
        known = advantages is not None
        if advantages is None:
            self._bare += 1
            advantages = Advantages(values=batch.rewards[:0], keep=scorable)
        metrics = rollout_metrics(
            batch,
            advantages,
            outcomes=(batch.rewards >= self._success_at).to(batch.rewards),
            judged=batch.rewards,
            verifier_free=self._built is not None and self._built.verifier_free,
        )
        rollouts = _size(step)
        if not known:
            metrics.pop("cost/utilisation", None)
        elif rollouts < batch.rewards.numel():
            metrics["cost/utilisation"] = advantages.keep.sum().item() / rollouts
        metrics["reward/unscorable"] = 1 - scorable.sum().item() / rollouts
        metrics.pop("cost/rollouts", None)
        if self._target is not None:
            metrics["cost/rollouts"] = rollouts / self._target
        if scorable.any():
            scored = batch.rewards[scorable]
            low, high = self._extremes
            self._extremes = min(low, scored.min().item()), max(high, scored.max().item())
        return {name: value for name, value in metrics.items() if math.isfinite(value)}

    def _advantages(self, step: RolloutStep, batch: GroupBatch) -> Advantages | None:
        computed = self._of_estimator(step.step, batch)
        logged = logged_advantages(step, batch)
        if logged is None:
            self._computed += computed is not None
            return computed
        self._logged += 1
        if computed is not None and computed.values.shape == logged.values.shape:
            difference = (computed.values - logged.values).abs().max().item()
            self._furthest = max(self._furthest, (difference, step.step))
        return logged

    def _of_estimator(self, step: int, batch: GroupBatch) -> Advantages | None:
        """Return the advantages of the config's estimator; None if they cannot be known."""
        from advsweep.estimators import ESTIMATORS

        if self._why or self._node is None:
            return None
        if self._built is None:
            try:
                self._built = ESTIMATORS.build(self._node)
            except (AdvsweepError, RuntimeError, ArithmeticError) as error:
                self._why = _one_line(error)
                return None
        estimator = self._built
        missing = sorted(name for name in estimator.needs if getattr(batch, name) is None)
        if missing:
            self._why = f"it needs {', '.join(missing)}, which the dump lacks"
        elif estimator.stateful and step != self._next:
            self._why = f"it has memory, and the rollouts of step {self._next} are missing"
        if self._why:
            return None
        self._next = step + 1
        try:
            return estimator.compute(batch)
        except (AdvsweepError, RuntimeError, ArithmeticError) as error:
            # Options of a log may ask for more than memory holds.
            self._why = f"step {step}: {_one_line(error)}"
            return None

    @property
    def contradicts(self) -> bool:
        """Whether the estimator is none of ours, or has other advantages than the logged ones."""
        is_unknown = self._built is None and bool(self._why)
        return self._logged > 0 and (is_unknown or self._furthest[0] > _DIFFERENT)

    def finish(self) -> list[str]:
        """Return what a reader should know, a sentence each."""
        notes = []
        name = self._node.get("name", "") if isinstance(self._node, Mapping) else self._node
        named = f"estimator '{printable_line(str(name))[:100]}'"
        if self._logged:
            notes.append("masses and other metrics of advantages are of the logged advantages")
            difference, step = self._furthest
            if difference > _DIFFERENT:
                notes.append(
                    f"the logged advantages are not those of {named}: they differ by up to "
                    f"{difference:.3g} (step {step})"
                )
        elif self._computed:
            notes.append(f"advantages were computed from the rewards by {named}")
        if self._bare:
            why = f"{named}: {self._why}" if self._why else "the estimator is unknown"
            steps = counted(f"{self._bare:,}", "step")
            notes.append(f"no masses and other metrics of advantages in {steps} ({why})")
        low, high = self._extremes
        if low < high < self._success_at:
            notes.append(
                f"no rollout counts as a success: rewards are {low:g} to {high:g}, and a success "
                f"has at least {self._success_at:g}; --set success_at=REWARD changes this"
            )
        return notes


def _size(step: RolloutStep) -> int:
    return sum(len(group.rewards) for group in step.groups)


def batch_of(
    step: RolloutStep, total_steps: int | None = None, *, dtype: Any = None, least: int = 0
) -> GroupBatch:
    """Return the rollouts of a step as an estimator sees them.

    Args:
        dtype: of the numbers; by default float32, as in the trainers that dump, so that their
            rewards are the same numbers.
        least: the least size of a group; smaller ones are filled up, and masked.
    """
    import torch

    from advsweep.estimators import GroupBatch

    groups = step.groups

    def table(rows: list[list[float]]) -> Any:
        return torch.from_numpy(filled(rows, least)).to(dtype or torch.float32)

    inputs: dict[str, Any] = {"rewards": table([group.rewards for group in groups])}
    scored = ~inputs["rewards"].isnan()
    if not scored.all():
        inputs["mask"] = scored
        inputs["rewards"].masked_fill_(~scored, 0.0)
    if all(group.lengths is not None for group in groups):
        lengths = table([[float(n) for n in group.lengths or ()] for group in groups])
        inputs["lengths"] = lengths.nan_to_num(0.0)
    shared = set.intersection(*(set(group.inputs or ()) for group in groups))
    for name in sorted(shared):
        numbers = table([list((group.inputs or {})[name]) for group in groups]).nan_to_num(0.0)
        inputs[name] = numbers == 1 if name == "answered" else numbers
    if all(group.prompt for group in groups):
        inputs["prompt_ids"] = tuple(group.prompt for group in groups)
    return GroupBatch(**inputs, step=step.step, total_steps=total_steps)


def logged_advantages(step: RolloutStep, batch: GroupBatch) -> Advantages | None:
    """Return the advantages that a dump holds; None unless it has them for all groups."""
    import torch

    from advsweep.estimators import Advantages

    if not all(group.advantages is not None for group in step.groups):
        return None
    table = filled([group.advantages or [] for group in step.groups], batch.rewards.shape[1])
    values = torch.from_numpy(table).to(batch.rewards).nan_to_num(0.0)
    keep = torch.ones_like(values, dtype=torch.bool) if batch.mask is None else batch.mask.clone()
    return Advantages(values=values.where(keep, 0.0), keep=keep)


def _one_line(error: BaseException) -> str:
    return printable_line(" ".join(str(error).split()))[:300]
