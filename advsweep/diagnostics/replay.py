"""What every estimator would have done with recorded rollouts.

Rewards are those of the recording whatever estimator is replayed: this compares single updates
on the same rollouts, not trainings.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from advsweep.diagnostics import difficulty
from advsweep.diagnostics.collapse import collapsed_groups, zero_groups
from advsweep.diagnostics.masses import masses_per_run
from advsweep.diagnostics.recorded import Block, RecordedStep, Recording
from advsweep.diagnostics.replay_statistics import (
    GroupSums,
    Statistics,
    cosine_of,
    known_mean,
    pairs,
    step_sums,
    weight_variance,
)
from advsweep.diagnostics.stacked_runs import ratio
from advsweep.errors import BatchError
from advsweep.estimators.baselines import GRPO

if TYPE_CHECKING:
    from jaxtyping import Float, Int
    from torch import Tensor

    from advsweep.diagnostics.stacked_runs import FlagPerRollout, PerRollout
    from advsweep.estimators import Estimator
    from advsweep.estimators.batch import Advantages

# More solve rates than a group of 16 has are merged into tenths.
_MOST_RATES = 17

LOGGED = "(logged)"
"""Label of the advantages that the trainer itself logged with the rollouts."""


@dataclass(frozen=True, kw_only=True)
class Replayed:
    """One estimator on a recording.

    Attributes:
        overall: of all steps: shares, masses and the sign ratio of all groups together; sample
            size, variance and cosine as means over the steps that define them.
        by_step: of each step.
        by_rate: of the groups of each solve rate, of all steps together.
    """

    overall: Statistics
    by_step: Statistics
    by_rate: Statistics | None


@dataclass(frozen=True, kw_only=True)
class Replay:
    """All estimators on a recording.

    Attributes:
        steps: the steps.
        groups, rollouts, reward, solve_rate, collapse: of each step: numbers of groups and of
            scorable rollouts, mean reward, share of successes, and share of groups with equal
            rewards.
        rates, rate_groups: solve rates that groups have, and the number of groups of each; None
            if successes have no common threshold.
        estimators: what each did, by label, and what the trainer logged, under `LOGGED`.
        lacking: inputs that the recording lacks, by label of an estimator that needs them.
        refused: in how many steps an estimator cannot use the rewards, and why; its statistics
            are of the other steps.
        remarks: sentences on how the recording was read.
    """

    steps: Int[np.ndarray, " steps"]
    groups: Int[np.ndarray, " steps"]
    rollouts: Int[np.ndarray, " steps"]
    reward: Float[np.ndarray, " steps"]
    solve_rate: Float[np.ndarray, " steps"]
    collapse: Float[np.ndarray, " steps"]
    rates: Float[np.ndarray, " rates"] | None
    rate_groups: Int[np.ndarray, " rates"] | None
    estimators: dict[str, Replayed] = field(default_factory=dict)
    lacking: dict[str, list[str]] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)

    def total(self) -> tuple[int, int, float, float, float]:
        """Return groups, rollouts, mean reward, solve rate and collapse of all steps together."""
        rollouts, groups = int(self.rollouts.sum()), int(self.groups.sum())
        means = [
            float(np.nansum(values * weights) / max(weights.sum(), 1))
            for values, weights in (
                (self.reward, self.rollouts),
                (self.solve_rate, self.rollouts),
                (self.collapse, self.groups),
            )
        ]
        return groups, rollouts, means[0], means[1], means[2]


def replay(
    steps: Iterable[RecordedStep],
    estimators: Mapping[str, Estimator],
    *,
    success_at: float | None = None,
    assumed: Mapping[str, float] | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Replay:
    """Compute what estimators would have done with recorded rollouts.

    A step is a batch of an estimator. Estimators with memory see the steps in order, from fresh
    memory. `prompt_ids` are the prompts' texts; `step` is the step and `total_steps` the last.

    Args:
        steps: a step each; groups may differ in size, and NaN marks an unscorable rollout.
        estimators: by label; not changed.
        success_at: rollouts with at least this reward are successes. By default, of two rewards
            the larger is a success; if there is one, 1 is. Of more than two, a success is a
            reward at or above the mean of its group: then there are no solve rates, and what
            they define is NaN.
        assumed: inputs that the recording lacks, with one number for all rollouts.
        progress: called with the numbers of finished estimators and of all.

    Raises:
        BatchError: there is nothing to replay.
    """
    recording = Recording(steps, assumed or {})
    outcomes = _Outcomes(recording, success_at)
    found = outcomes.result()
    reference, _ = _advantages(GRPO(), recording, outcomes)
    logged = [block.logged for block in recording.blocks if block.logged is not None]
    if logged:
        own = [_Values(table, np.abs(table), np.abs(table)) for table in logged]
        found.estimators[LOGGED] = outcomes.statistics(own, reference)
    for done, (label, estimator) in enumerate(estimators.items()):
        progress(done, len(estimators))
        lacking = sorted(estimator.needs - recording.inputs - {"step", "total_steps"})
        if lacking:
            found.lacking[label] = lacking
            continue
        values, reasons = _advantages(copy.deepcopy(estimator), recording, outcomes)
        if reasons:
            of = f"{len(reasons):,} of {len(recording.steps):,} steps"
            found.refused[label] = f"{of}: {reasons[0]}"
        if len(reasons) < len(recording.steps):
            found.estimators[label] = outcomes.statistics(values, reference)
    progress(len(estimators), len(estimators))
    return found


class _Values(NamedTuple):
    """Advantages of a block: mean A, mean |A| and largest |A| over the tokens of each rollout."""

    means: PerRollout
    sizes: PerRollout
    largest: PerRollout


def _advantages(
    estimator: Estimator, recording: Recording, outcomes: _Outcomes
) -> tuple[list[_Values], list[str]]:
    """Return the advantages of each block, NaN for steps that the estimator refuses, and why."""
    estimator.reset()
    blocks = recording.blocks
    found = [_Values(*(np.full(b.runs.shape, np.nan) for _ in range(3))) for b in blocks]
    done: set[int] = set()
    if estimator.per_group and not estimator.stateful:
        for number, block in enumerate(blocks):
            batch = block.batch(outcomes.given_rates[number])
            try:
                values = _values(estimator.compute(batch), batch.lengths)
            except BatchError:
                continue  # Some of its steps may do.
            found[number] = _Values(*(v.reshape(block.runs.shape) for v in values))
            done.add(number)
    reasons = []
    last = int(recording.steps[-1])
    for number, place in recording.in_order():
        if number in done:
            continue
        block = blocks[number]
        batch = block.batch_of(place, outcomes.given_rates[number], last)
        try:
            values = _values(estimator.compute(batch), batch.lengths)
        except BatchError as error:
            reasons.append(str(error))
            continue
        for table, numbers in zip(found[number], values, strict=True):
            table[place] = 0.0
            table[place, : block.groups[place]] = numbers
    return found, reasons


def _values(advantages: Advantages, lengths: Tensor | None) -> tuple[np.ndarray, ...]:
    means = advantages.rollout_means(lengths).double().numpy(force=True)
    sizes = advantages.sizes(lengths).double().numpy(force=True)
    if not advantages.per_token:
        return means, sizes, sizes
    return means, sizes, advantages.values.abs().amax(dim=2).double().numpy(force=True)


class _Outcomes:
    """Which rollouts of a recording are successes, and statistics that depend on it.

    Attributes:
        given_rates: solve rates of each block's groups for estimators that read them apart from
            the rewards; None for a block if the rewards are 0 and 1 or have no threshold.
    """

    def __init__(self, recording: Recording, success_at: float | None) -> None:
        self._recording = recording
        self._remarks: list[str] = []
        self._threshold = self._threshold_of(recording, success_at)
        self._successes = [self._flags(block) for block in recording.blocks]
        self._solved = [
            block.runs.group_count(flags)
            for block, flags in zip(recording.blocks, self._successes, strict=True)
        ]
        binary = recording.distinct is not None and set(recording.distinct) <= {0.0, 1.0}
        self.given_rates = [
            None
            if binary or self._threshold is None
            else ratio(solved, block.runs.scored).astype(np.float64)
            for block, solved in zip(recording.blocks, self._solved, strict=True)
        ]
        self._parts, self._rates = self._bins()

    def _threshold_of(self, recording: Recording, success_at: float | None) -> float | None:
        if success_at is not None:
            return success_at
        distinct = recording.distinct
        if distinct is None:
            self._remarks.append(
                "rewards have more than two values, so a success is a reward at or above the mean "
                "of its group, and nothing is known by solve rate; set --success-at"
            )
            return None
        threshold = distinct[-1] if len(distinct) == 2 else 1.0
        if threshold != 1:
            self._remarks.append(f"a success is a reward of {threshold:g}")
        return threshold

    def _flags(self, block: Block) -> FlagPerRollout:
        flags: FlagPerRollout
        if self._threshold is not None:
            flags = block.rewards >= self._threshold
        else:
            runs = block.runs
            # The rounded mean of equal rewards may be above them.
            low = runs.spread(block.rewards).low
            mean = runs.group_sum(block.rewards) / np.maximum(runs.scored, 1)
            same = runs.spread(block.rewards).high == low
            flags = block.rewards >= np.where(same, low, mean)[..., None]
        return flags if block.runs.mask is None else flags & block.runs.mask

    def _bins(self) -> tuple[Int[np.ndarray, " groups"], Float[np.ndarray, " rates"] | None]:
        """Return the bin of each scorable group, and the mean solve rate of each bin."""
        scored, solved = self._flat([b.runs.scored for b in self._recording.blocks]), None
        if self._threshold is None:
            return np.zeros(len(scored), dtype=np.int64), None
        solved = self._flat(self._solved)
        rates = solved / scored
        if len(np.unique(rates)) > _MOST_RATES:
            # 0 and 1 are bins of their own, as groups there have equal rewards.
            tenths = np.clip(np.ceil(rates * 10), 1, 10)
            parts = np.where(rates == 0, 0, np.where(rates == 1, 11, tenths))
        else:
            parts = rates
        _, inverse, counts = np.unique(parts, return_inverse=True, return_counts=True)
        return inverse, np.bincount(inverse, rates) / counts

    def _flat(self, values: list[np.ndarray]) -> np.ndarray:
        """Return numbers per group of all blocks in a row, without groups that do not count."""
        return np.concatenate(
            [
                numbers[block.runs.scored > 0]
                for block, numbers in zip(self._recording.blocks, values, strict=True)
            ]
        )

    def result(self) -> Replay:
        """Return what does not depend on the estimator."""
        recording = self._recording
        count = len(recording.steps)
        groups, rollouts = np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.int64)
        reward, rate, collapse = (np.full(count, np.nan) for _ in range(3))
        for block, solved in zip(recording.blocks, self._solved, strict=True):
            runs, places = block.runs, block.places
            total = np.broadcast_to(runs.total, len(places))
            groups[places] = (runs.scored > 0).sum(axis=1)
            rollouts[places] = total
            reward[places] = runs.rollout_mean(block.rewards)
            if self._threshold is not None:
                rate[places] = ratio(solved.sum(axis=1), total)
            collapse[places] = runs.group_mean(collapsed_groups(runs.spread(block.rewards)))
        remarks = list(self._remarks)
        if recording.large_groups:
            remarks.append(
                f"left out: groups of more than 1,024 rollouts ({recording.large_groups})"
            )
        known = None if self._rates is None else len(self._rates)
        return Replay(
            steps=recording.steps,
            groups=groups,
            rollouts=rollouts,
            reward=reward,
            solve_rate=rate,
            collapse=collapse,
            rates=self._rates,
            rate_groups=None if known is None else np.bincount(self._parts, minlength=known),
            remarks=remarks,
        )

    def statistics(self, values: list[_Values], reference: list[_Values]) -> Replayed:
        """Return the statistics of an estimator's advantages."""
        with np.errstate(all="ignore"):
            by_step = self._by_step(values, reference)
            sums = self._sums(values, reference)
            whole = sums.statistics(np.zeros(len(sums.scored), dtype=np.int64), 1)
            overall = whole._replace(
                effective_prompts=known_mean(by_step.effective_prompts),
                weight_variance=known_mean(by_step.weight_variance),
                cosine=known_mean(by_step.cosine),
            )
            by_rate = None
            if self._rates is None:
                nothing = np.full(1, np.nan)
                overall = overall._replace(sign_ratio=nothing)
            else:
                by_rate = sums.statistics(self._parts, len(self._rates))
        return Replayed(overall=overall, by_step=by_step, by_rate=by_rate)

    def _by_step(self, values: list[_Values], reference: list[_Values]) -> Statistics:
        steps = Statistics(*np.full((len(Statistics._fields), len(self._recording.steps)), np.nan))
        blocks = zip(
            self._recording.blocks, values, reference, self._successes, self._solved, strict=True
        )
        for block, own, grpo, successes, solved in blocks:
            runs, scored = block.runs, block.runs.scored
            group_sizes = runs.group_sum(own.sizes)
            weights = group_sizes / np.maximum(scored, 1)
            success, failure = masses_per_run(runs, own.means, successes)
            rate = ratio(solved.sum(axis=1), np.broadcast_to(runs.total, len(solved)))
            found = Statistics(
                zero_groups=zero_groups(runs, group_sizes),
                mass_success=success,
                mass_failure=failure,
                sign_ratio=difficulty.sign_ratio(success, failure, rate),
                effective_prompts=difficulty.effective_prompts(weights),
                weight_variance=weight_variance(weights, solved, scored),
                cosine=cosine_of(*(step_sums(a * b) for a, b in pairs(own.means, grpo.means))),
                largest=own.largest.max(axis=(1, 2)),
            )
            if self._threshold is None:
                nothing = np.full(len(rate), np.nan)
                found = found._replace(sign_ratio=nothing, weight_variance=nothing)
            refused = np.isnan(group_sizes).any(axis=1)
            for numbers, of_block in zip(steps, found, strict=True):
                numbers[block.places] = np.where(refused, np.nan, of_block)
        return steps

    def _sums(self, values: list[_Values], reference: list[_Values]) -> GroupSums:
        blocks = self._recording.blocks

        def flat(number: Callable[[Block, int], np.ndarray]) -> np.ndarray:
            return self._flat([number(block, i) for i, block in enumerate(blocks)])

        def products(pair: int) -> Callable[[Block, int], np.ndarray]:
            def sums(block: Block, i: int) -> np.ndarray:
                a, b = pairs(values[i].means, reference[i].means)[pair]
                return block.runs.group_sum(a * b)

            return sums

        return GroupSums(
            scored=flat(lambda block, i: block.runs.scored),
            solved=self._flat(self._solved),
            sizes=flat(lambda block, i: block.runs.group_sum(values[i].sizes)),
            upward=flat(
                lambda block, i: block.runs.group_sum(
                    np.where(self._successes[i], values[i].means, 0.0)
                )
            ),
            total=flat(lambda block, i: block.runs.group_sum(values[i].means)),
            products=(flat(products(0)), flat(products(1)), flat(products(2))),
            largest=flat(lambda block, i: values[i].largest.max(axis=2)),
        )
