"""What every estimator would have done with recorded rollouts.

Rewards are those of the recording whatever estimator is replayed: this compares single updates
on the same rollouts, not trainings.
"""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from advsweep.diagnostics import difficulty
from advsweep.diagnostics.group_statistics import StackedRollouts, collapsed_groups, ratio
from advsweep.errors import BatchError
from advsweep.estimators.baselines import GRPO
from advsweep.estimators.batch import COUNTERS, GroupBatch
from advsweep.logs.rollout_metrics import batch_of, logged_advantages, tells_turns, turn_inputs
from advsweep.logs.rollout_records import RolloutStep

if TYPE_CHECKING:
    from jaxtyping import Float, Int

    from advsweep.diagnostics.group_statistics import CountPerGroup, FlagPerRollout, PerRollout
    from advsweep.estimators import Estimator
    from advsweep.estimators.batch import Advantages

# Label of the advantages that the trainer itself logged with the rollouts.
LOGGED = "(logged)"

# More solve rates than a group of 16 has are merged into tenths.
_MOST_RATES = 17
# A step may declare more than memory holds: one large group among many small ones.
_MOST_CELLS = 10**8
# The variance of weights enumerates the numbers of successes.
_LARGEST_GROUP = 1024


class Statistics(NamedTuple):
    """Arrays of one estimator's numbers: one of all steps, or by step, or by solve rate.

    Attributes:
        zero_groups: share of groups in which every advantage is 0.
        mass_success, mass_failure: m_S and m_F per rollout.
        sign_ratio: ρ = m_S p / (m_F q).
        effective_prompts: Kish's sample size of the groups' weights, mean |A|, in prompts.
        weight_variance: Var(w(p̂)) / E[w]², how much weights depend on the draw of rewards.
        cosine: of the angle between the advantages and GRPO's.
        largest: the largest |A|.
    """

    zero_groups: Float[np.ndarray, " parts"]
    mass_success: Float[np.ndarray, " parts"]
    mass_failure: Float[np.ndarray, " parts"]
    sign_ratio: Float[np.ndarray, " parts"]
    effective_prompts: Float[np.ndarray, " parts"]
    weight_variance: Float[np.ndarray, " parts"]
    cosine: Float[np.ndarray, " parts"]
    largest: Float[np.ndarray, " parts"]


class TurnStatistics(NamedTuple):
    """Arrays of one estimator's numbers by turn, of the rollouts of all steps that have it.

    An advantage per rollout is that of each of its turns. Where an estimator reads no turns and
    gives advantages per token, A and |A| are the rollout's means over its tokens.

    Attributes:
        mean: mean advantage.
        mean_size: mean |A|.
        zero_groups: share of groups in which every advantage at that turn is 0, among those with
            at least two rollouts that have it.
    """

    mean: Float[np.ndarray, " turns"]
    mean_size: Float[np.ndarray, " turns"]
    zero_groups: Float[np.ndarray, " turns"]


@dataclass(frozen=True, kw_only=True)
class Replayed:
    """One estimator on a recording.

    Attributes:
        overall: of all steps: shares, masses and the sign ratio of all groups together; sample
            size, variance and cosine as means over the steps that define them.
        by_step: of each step.
        by_rate: of the groups of each solve rate, of all steps together.
        by_turn: of each turn; None if rollouts have one turn.
    """

    overall: Statistics
    by_step: Statistics
    by_rate: Statistics | None
    by_turn: TurnStatistics | None = None


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
        turn_rollouts: rollouts that have a first, second, ... turn; None if all have one.
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
    turn_rollouts: Int[np.ndarray, " turns"] | None = None
    estimators: dict[str, Replayed] = field(default_factory=dict)
    lacking: dict[str, list[str]] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)

    def total(self) -> dict[str, Any]:
        """Return groups, rollouts and the means over them, of all steps together."""
        found: dict[str, Any] = {
            "groups": int(self.groups.sum()),
            "rollouts": int(self.rollouts.sum()),
        }
        for name, values, weights in (
            ("mean_reward", self.reward, self.rollouts),
            ("solve_rate", self.solve_rate, self.rollouts),
            ("equal_rewards", self.collapse, self.groups),
        ):
            found[name] = float(np.nansum(values * weights) / max(weights.sum(), 1))
        return found


def replay(
    steps: Iterable[RolloutStep],
    estimators: Mapping[str, Estimator],
    *,
    success_at: float | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Replay:
    """Compute what estimators would have done with recorded rollouts.

    A step is a batch of an estimator. Estimators with memory see the steps in order, from fresh
    memory. `prompt_ids` tell the prompts apart; `total_steps` is the last step.

    Args:
        steps: a step each; groups may differ in size, and NaN marks an unscorable rollout.
        estimators: by label; not changed.
        success_at: rollouts with at least this reward are successes. By default, of two rewards
            the larger is a success; if there is one, 1 is. Of more than two, a success is a
            reward at or above the mean of its group: then there are no solve rates, and what
            they define is NaN.
        progress: called with the numbers of finished estimators and of all.

    Raises:
        BatchError: there is nothing to replay.
    """
    recording = _Recording(steps, success_at)
    found = recording.result()
    reference, _ = recording.advantages(GRPO())
    logged = [
        _Given(step.logged, step.batch.lengths)
        for step in recording.steps
        if step.logged is not None
    ]
    if len(logged) == len(recording.steps):
        found.estimators[LOGGED] = recording.statistics(logged, reference)
    for done, (label, estimator) in enumerate(estimators.items()):
        progress(done, len(estimators))
        if lacking := sorted(estimator.needs - recording.inputs_of(estimator) - COUNTERS):
            found.lacking[label] = lacking
            continue
        values, reasons = recording.advantages(copy.deepcopy(estimator))
        if reasons:
            of = f"{len(reasons):,} of {len(recording.steps):,} steps"
            found.refused[label] = f"{of}: {reasons[0]}"
        if len(reasons) < len(recording.steps):
            found.estimators[label] = recording.statistics(values, reference)
    progress(len(estimators), len(estimators))
    return found


@dataclass(frozen=True)
class _Step:
    """A step as an estimator sees it, and which of its rollouts are successes.

    Attributes:
        runs: shape and mask of the rollouts of one run.
        rewards: 0 where masked.
        logged: the advantages that the trainer logged.
        episodes: the batch with its turns, a token each; None if rollouts have one turn.
    """

    number: int
    batch: GroupBatch
    runs: StackedRollouts
    rewards: PerRollout
    logged: Advantages | None
    successes: FlagPerRollout
    solved: CountPerGroup
    episodes: GroupBatch | None

    def batch_for(self, estimator: Estimator) -> GroupBatch:
        """Return what an estimator sees: the turns if it reads them."""
        if self.episodes is not None and estimator.reads_turns:
            return self.episodes
        return self.batch

    def of_scored(self, counts: CountPerGroup) -> Int[np.ndarray, " groups"]:
        """Return the counts of the groups that have a scorable rollout."""
        return counts[self.runs.scored > 0]


class _Given(NamedTuple):
    """The advantages of a step.

    Attributes:
        lengths: the tokens of each rollout, where advantages are per token.
        of_episodes: whether the estimator saw `_Step.episodes`, in which a token is a turn.
    """

    advantages: Advantages
    lengths: torch.Tensor | None
    of_episodes: bool = False

    @property
    def means(self) -> torch.Tensor:
        """The mean of A over the tokens of each rollout."""
        return self.advantages.rollout_means(self.lengths)

    @property
    def sizes(self) -> torch.Tensor:
        """The mean of |A| over the tokens of each rollout."""
        return self.advantages.sizes(self.lengths)


class _RewardTable(NamedTuple):
    """The rewards of a step, 0 where they are masked."""

    runs: StackedRollouts
    rewards: PerRollout

    @classmethod
    def of(cls, batch: GroupBatch) -> _RewardTable:
        runs = StackedRollouts(batch.rewards, batch.mask)
        return cls(runs, runs.numbers(batch.rewards))

    def distinct_values(self) -> list[float]:
        """Return up to three different rewards of its scorable rollouts."""
        mask = self.runs.mask
        scorable = self.rewards if mask is None else self.rewards[mask]
        values: list[float] = np.unique(scorable)[:3].tolist()
        return values


# Inputs of a batch that a recording may lack.
_OPTIONAL = frozenset(f.name for f in dataclasses.fields(GroupBatch)) - {"rewards", "mask"}


def _check_sizes(steps: Sequence[RolloutStep]) -> None:
    """Refuse a recording without rollouts, and a step with more than memory holds."""
    if not steps:
        raise BatchError("expected rollouts of at least one step, got none")
    for number, groups in steps:
        longest = max(len(group.rewards) for group in groups)
        if longest > _LARGEST_GROUP or len(groups) * longest > _MOST_CELLS:
            raise BatchError(
                f"step {number}: expected groups of up to {_LARGEST_GROUP:,} rollouts, and up "
                f"to {_MOST_CELLS:,} with all filled up, got {len(groups):,} groups of up to "
                f"{longest:,}"
            )


def _batches_of(steps: Sequence[RolloutStep]) -> list[GroupBatch]:
    """Return the steps as estimators see them, with short names of prompts, if there are prompts.

    Texts of prompts may be long, and no valid Unicode.
    """
    prompts = dict.fromkeys(group.prompt for step in steps for group in step.groups)
    names = {prompt: str(number) for number, prompt in enumerate(prompts)}
    last = steps[-1].step
    batches = []
    for step in steps:
        # A group of one would be refused by estimators that compare; as part of a larger one
        # it has no gradient.
        batch = batch_of(step, last, dtype=torch.float64, least=2)
        ids = tuple(names[group.prompt] for group in step.groups) if any(prompts) else None
        batches.append(dataclasses.replace(batch, prompt_ids=ids))
    return batches


def _turns_of_all(
    steps: Sequence[RolloutStep], batches: Sequence[GroupBatch]
) -> list[dict[str, torch.Tensor] | None]:
    """Return the turns of each step, as inputs of its batch.

    None for each unless the turns of all rollouts are known, and some have several.
    """
    if not tells_turns(steps):
        return [None for _ in steps]
    inputs = []
    for step, batch in zip(steps, batches, strict=True):
        turns = [group.turns for group in step.groups if group.turns is not None]
        inputs.append(turn_inputs(turns, batch.rewards))
    common = set(inputs[0]).intersection(*inputs)
    return [{name: each[name] for name in sorted(common)} for each in inputs]


def _with_turns(batch: GroupBatch, inputs: Mapping[str, torch.Tensor] | None) -> GroupBatch | None:
    if inputs is None:
        return None
    fields: dict[str, Any] = dict(inputs)
    return dataclasses.replace(batch, **fields)


def _inputs_of_all(batches: Sequence[GroupBatch]) -> set[str]:
    """Return the names of the optional inputs that every batch has."""
    return {
        name for name in _OPTIONAL if all(getattr(batch, name) is not None for batch in batches)
    }


class _Recording:
    """All steps, ascending, and statistics of advantages for their rollouts.

    Statistics are sums over groups, added up by the parts that groups belong to: all groups, the
    groups of each step, and those of each solve rate. Groups without a scorable rollout have none.

    Attributes:
        inputs: names of what every batch has besides rewards.
    """

    def __init__(self, steps: Iterable[RolloutStep], success_at: float | None) -> None:
        self.remarks: list[str] = []
        kept = sorted((step for step in steps if step.groups), key=lambda step: step.step)
        _check_sizes(kept)
        batches = _batches_of(kept)
        self.inputs = _inputs_of_all(batches)
        # An input that only some steps have would make steps incomparable.
        missing: dict[str, Any] = dict.fromkeys(_OPTIONAL - self.inputs)
        batches = [dataclasses.replace(batch, **missing) for batch in batches]
        turns = _turns_of_all(kept, batches)
        tables = [_RewardTable.of(batch) for batch in batches]
        distinct = sorted({value for table in tables for value in table.distinct_values()})
        self._threshold = self._threshold_of(distinct, success_at)
        is_graded = not {0.0, 1.0}.issuperset(distinct)
        self.steps: list[_Step] = []
        for step, batch, table, inputs in zip(kept, batches, tables, turns, strict=True):
            runs = table.runs
            successes = self._successes(runs, table.rewards)
            solved = runs.group_count(successes)
            # Estimators that need a solve rate cannot count one from graded rewards.
            if self._threshold is not None and is_graded:
                rates = ratio(solved, runs.scored).astype(np.float64)
                batch = dataclasses.replace(batch, solve_rates=torch.from_numpy(rates[0]))
            self.steps.append(
                _Step(
                    number=step.step,
                    batch=batch,
                    runs=runs,
                    rewards=table.rewards,
                    logged=logged_advantages(step, batch),
                    successes=successes,
                    solved=solved,
                    episodes=_with_turns(batch, inputs),
                )
            )
        self._turn_inputs = self.inputs | set(turns[0] or ())
        # Of each group that has a scorable rollout, in the order of the steps.
        counts = [np.count_nonzero(step.runs.scored) for step in self.steps]
        self._scored = np.concatenate([step.of_scored(step.runs.scored) for step in self.steps])
        self._solved = np.concatenate([step.of_scored(step.solved) for step in self.steps])
        self._places = np.repeat(np.arange(len(counts)), counts)
        self._bins, self._rates = self._solve_rates()

    def inputs_of(self, estimator: Estimator) -> set[str]:
        """Return the names of the inputs that an estimator finds."""
        return self._turn_inputs if estimator.reads_turns else self.inputs

    def _threshold_of(self, distinct: Sequence[float], success_at: float | None) -> float | None:
        if success_at is not None:
            return success_at
        if len(distinct) > 2:
            self.remarks.insert(
                0,
                "rewards have more than two values, so a success is a reward at or above the mean "
                "of its group, and nothing is known by solve rate; set --success-at",
            )
            return None
        threshold = distinct[-1] if len(distinct) == 2 else 1.0
        if threshold != 1:
            self.remarks.insert(0, f"a success is a reward of {threshold:g}")
        return threshold

    def _successes(self, runs: StackedRollouts, rewards: PerRollout) -> FlagPerRollout:
        flags: FlagPerRollout
        if self._threshold is not None:
            flags = rewards >= self._threshold
        else:
            # The rounded mean of equal rewards may be above them.
            spread = runs.spread(rewards)
            mean = runs.group_sum(rewards) / np.maximum(runs.scored, 1)
            flags = rewards >= np.where(spread.high == spread.low, spread.low, mean)[..., None]
        return flags if runs.mask is None else flags & runs.mask

    def _solve_rates(self) -> tuple[Int[np.ndarray, " groups"], Float[np.ndarray, " rates"] | None]:
        """Return the bin of each scorable group, and the mean solve rate of each bin."""
        if self._threshold is None:
            return np.zeros(len(self._scored), dtype=np.int64), None
        rates = parts = self._solved / self._scored
        if len(np.unique(rates)) > _MOST_RATES:
            # 0 and 1 are bins of their own, as groups there have equal rewards.
            tenths = np.clip(np.ceil(rates * 10), 1, 10)
            parts = np.where(rates == 0, 0, np.where(rates == 1, 11, tenths))
        _, inverse, counts = np.unique(parts, return_inverse=True, return_counts=True)
        return inverse, np.bincount(inverse, rates) / counts

    def result(self) -> Replay:
        """Return what does not depend on the estimator."""
        rows = []
        for step in self.steps:
            runs, total = step.runs, float(np.ravel(step.runs.total)[0])
            rate = step.solved.sum() / total if self._threshold is not None and total else math.nan
            collapse = runs.group_mean(collapsed_groups(runs.spread(step.rewards))).item()
            reward = runs.rollout_mean(step.rewards).item()
            rows.append(((runs.scored > 0).sum(), total, reward, rate, collapse))
        groups, rollouts, reward, rate, collapse = np.array(rows, dtype=np.float64).T
        known = None if self._rates is None else len(self._rates)
        return Replay(
            steps=np.array([step.number for step in self.steps]),
            groups=groups.astype(np.int64),
            rollouts=rollouts.astype(np.int64),
            reward=reward,
            solve_rate=rate,
            collapse=collapse,
            rates=self._rates,
            rate_groups=None if known is None else np.bincount(self._bins, minlength=known),
            turn_rollouts=self._turn_rollouts(),
            remarks=self.remarks,
        )

    def _turn_rollouts(self) -> Int[np.ndarray, " turns"] | None:
        """Return how many rollouts that count have each turn."""
        present = [_present_turns(step) for step in self.steps]
        if present[0] is None:
            return None
        counts = [each.sum(axis=(0, 1)) for each in present if each is not None]
        return _added(counts).astype(np.int64)

    def advantages(self, estimator: Estimator) -> tuple[list[_Given | None], list[str]]:
        """Return the advantages of each step, None where the estimator refuses it, and why."""
        # Memory starts fresh and goes through the steps in order.
        estimator.reset()
        found: list[_Given | None] = []
        reasons = []
        for step in self.steps:
            batch = step.batch_for(estimator)
            try:
                advantages = estimator.compute(batch)
            except BatchError as error:
                found.append(None)
                reasons.append(str(error))
                continue
            found.append(_Given(advantages, batch.lengths, of_episodes=batch is step.episodes))
        return found, reasons

    def statistics(
        self, values: Sequence[_Given | None], reference: Sequence[_Given | None]
    ) -> Replayed:
        """Return the statistics of an estimator's advantages, without those of refused steps."""
        sums = np.concatenate(
            [
                np.full((7, np.count_nonzero(step.runs.scored)), math.nan)
                if own is None or grpo is None
                else _group_sums(step, own, grpo)
                for step, own, grpo in zip(self.steps, values, reference, strict=True)
            ],
            axis=1,
        )
        steps = self._of_parts(sums, self._places, len(self.steps))
        # w(k) is that of the step's own groups, as a training step sees no others.
        own_variances = [self._variance(sums[0], place) for place in range(len(self.steps))]
        steps = steps._replace(weight_variance=np.array(own_variances))
        overall = self._of_parts(sums, np.zeros_like(self._places), 1)
        means = ("effective_prompts", "weight_variance", "cosine")
        overall = overall._replace(**{name: _known_mean(getattr(steps, name)) for name in means})
        by_rate = None
        if self._rates is not None:
            by_rate = self._of_parts(sums, self._bins, len(self._rates))
        return Replayed(
            overall=overall, by_step=steps, by_rate=by_rate, by_turn=self._of_turns(values)
        )

    def _of_turns(self, values: Sequence[_Given | None]) -> TurnStatistics | None:
        """Return the statistics of each turn, without those of refused steps."""
        sums = []
        for step, given in zip(self.steps, values, strict=True):
            if step.episodes is None:
                return None
            if given is not None:
                sums.append(_turn_sums(step, given))
        count, total, size, dead, compared = (_added(parts) for parts in zip(*sums, strict=True))
        return TurnStatistics(
            mean=ratio(total, count),
            mean_size=ratio(size, count),
            zero_groups=ratio(dead, compared),
        )

    def _of_parts(
        self,
        sums: Float[np.ndarray, "sums groups"],
        parts: Int[np.ndarray, " groups"],
        count: int,
    ) -> Statistics:
        """Return the statistics of each part of the groups."""
        # Groups of refused steps have no sums.
        known = ~np.isnan(sums[0])
        parts, solved, scored = parts[known], self._solved[known], self._scored[known]
        sizes, upward, total, own, both, grpo, highest = sums[:, known]

        def add(numbers: np.ndarray) -> np.ndarray:
            return np.bincount(parts, numbers, count)

        rollouts = add(scored)
        success, failure = ratio(add(upward), rollouts), ratio(add(upward - total), rollouts)
        sign = variance = np.full(count, math.nan)
        weights = sizes / scored
        if self._threshold is not None:
            sign = difficulty.sign_ratio(success, failure, ratio(add(solved), rollouts))
            variance = difficulty.weight_variance_of_parts(weights, solved, scored, parts, count)
        largest = np.full(count, -np.inf)
        np.maximum.at(largest, parts, highest)
        lengths = np.sqrt(add(own)) * np.sqrt(add(grpo))
        return Statistics(
            zero_groups=ratio(add(sizes == 0), add(np.ones(len(parts)))),
            mass_success=success,
            mass_failure=failure,
            sign_ratio=sign,
            effective_prompts=ratio(add(weights) ** 2, add(weights**2)),
            weight_variance=variance,
            cosine=np.clip(ratio(add(both), lengths), -1.0, 1.0),
            largest=np.where(np.isneginf(largest), math.nan, largest),
        )

    def _variance(self, sizes: Float[np.ndarray, " groups"], place: int) -> float:
        own = self._places == place
        solved, scored = self._solved[own], self._scored[own]
        if self._threshold is None or scored.max(initial=0) < 2:
            return math.nan
        return float(difficulty.weight_noise(sizes[own] / scored, solved, scored).variance)


def _present_turns(step: _Step) -> np.ndarray | None:
    """Return which turns the rollouts that count have; None if all rollouts have one turn."""
    if step.episodes is None:
        return None
    assert step.episodes.turn_of_token is not None
    present: np.ndarray = (step.episodes.turn_of_token >= 0).numpy()
    mask = step.episodes.mask
    return present if mask is None else present & mask.numpy()[..., None]


def _turn_sums(step: _Step, given: _Given) -> list[np.ndarray]:
    """Return sums over the rollouts that have each turn.

    The rollouts, A, |A|, the groups whose advantages at the turn are all 0, and the groups with at
    least two rollouts that have it.
    """
    present = _present_turns(step)
    assert present is not None
    if given.of_episodes and given.advantages.per_token:
        means = given.advantages.values
        sizes = means.abs()
    else:
        # Without turns of its own, an estimator gives each turn what it gives the rollout.
        means = given.means[..., None]
        sizes = given.sizes[..., None]
    means_of_turns = np.where(present, means.numpy(), 0.0)
    sizes_of_turns = np.where(present, sizes.numpy(), 0.0)
    counts = present.sum(axis=1)
    is_compared = counts >= 2
    is_dead = is_compared & ~sizes_of_turns.any(axis=1)
    sums = [counts, means_of_turns.sum(axis=1), sizes_of_turns.sum(axis=1), is_dead, is_compared]
    return [each.sum(axis=0) for each in sums]


def _added(rows: Sequence[np.ndarray]) -> Float[np.ndarray, " turns"]:
    """Return the sum of rows of any length, which are 0 past their ends."""
    total = np.zeros(max(map(len, rows)))
    for row in rows:
        total[: len(row)] += row
    return total


def _group_sums(step: _Step, own: _Given, grpo: _Given) -> Float[np.ndarray, "sums groups"]:
    """Return sums over the rollouts of each group that counts.

    Of |A|, of A of the successes, of A, A², A A' and A'², with the advantages A' of GRPO; and the
    largest |A|. Of advantages per token, A and |A| are means over the tokens of a rollout.
    """
    runs = step.runs
    means = runs.numbers(own.means)
    others = runs.numbers(grpo.means)
    sizes = runs.numbers(own.sizes)
    largest = sizes
    if own.advantages.per_token:
        largest = runs.numbers(own.advantages.values.abs().amax(dim=2))
    upward = np.where(step.successes, means, 0.0)
    parts = (sizes, upward, means, means**2, means * others, others**2)
    counts = runs.scored > 0
    with np.errstate(all="ignore"):
        return np.stack([*(runs.group_sum(v)[counts] for v in parts), largest.max(axis=2)[counts]])


def _known_mean(values: Float[np.ndarray, " steps"]) -> Float[np.ndarray, " parts"]:
    known = values[~np.isnan(values)]
    return np.array([known.mean() if len(known) else math.nan])
