"""The metrics of one step's rollouts, the same for every backend.

Each family of metrics has a function below; `stacked_rollout_metrics` puts them together.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from advsweep.diagnostics import difficulty
from advsweep.diagnostics.group_statistics import (
    StackedRollouts,
    collapse_by_level,
    collapse_shares,
    collapsed_groups,
    ratio,
)
from advsweep.diagnostics.masses import entropy_terms_per_run, masses_per_run
from advsweep.diagnostics.turns import credit_metrics, turn_metrics
from advsweep.names import (
    ACR_AFTER,
    REWARD_MEAN,
    ROLLOUT_COST,
    TOKEN_COST,
    TOKEN_ENTROPY,
    TRUNCATED,
    TURN_COST,
    UNSCORABLE,
    UTILISATION,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from jaxtyping import Float, Int, Num
    from torch import Tensor

    from advsweep.diagnostics.group_statistics import (
        CountPerGroup,
        FlagPerRollout,
        GroupSpread,
        PerRollout,
    )
    from advsweep.estimators import GroupBatch
    from advsweep.estimators.batch import Advantages

# Metrics by name: a number of each run, or one that all share.
_Table = dict[str, "Float[np.ndarray, ' runs'] | float"]


@dataclass(frozen=True, kw_only=True)
class StepRollouts:
    """The rollouts that a step of one or several runs has drawn, and what it trains on.

    The runs' groups follow one run after another, as many for each; with more than one run, all
    groups are trained on.

    Attributes:
        batch: all drawn groups, including discarded ones; with a mask only for a single run.
        advantages: advantages of the groups that the step trains on; their `info` is not read.
        groups: for a single run, the numbers of the groups trained on in the batch; by default
            all of them, in order.
        rollouts: for a single run, the numbers of the rollouts trained on in each of these groups;
            by default all.
        verdicts: the verifier's verdicts, 1 for a success, if the rewards contain other terms;
            by default the rewards.
        judged: the numbers whose spread tells whether a group has collapsed; by default the
            verdicts.
        levels: difficulty level of each drawn group.
        prompts: the target number of groups of each run's step; by default the number drawn.
        references: number of further rollouts of each run: of a reference model, greedy, or from
            states of episodes.
        further_tokens, further_turns: what was generated from states of episodes, to measure their
            values; for a single run.
        attempts: for a single run, which attempt at its prompt each drawn group is, from 1, if
            there are several.
        last_attempt: the attempt after which no prompt comes again.
        graded: whether rewards may be other than 0 and 1; by default, for each run, whether some
            of these are.
    """

    batch: GroupBatch
    advantages: Advantages
    groups: Int[Tensor, " groups"] | None = None
    rollouts: Int[Tensor, "groups some"] | None = None
    verdicts: Float[Tensor, "runs*prompts rollouts"] | None = None
    judged: Float[Tensor, "runs*prompts rollouts"] | None = None
    levels: Sequence[int] | Int[np.ndarray, "*runs prompts"] | None = None
    prompts: int | None = None
    references: int = 0
    further_tokens: int = 0
    further_turns: int = 0
    attempts: Int[Tensor, " prompts"] | None = None
    last_attempt: int = 1
    graded: bool | None = None


def rollout_metrics(
    batch: GroupBatch,
    advantages: Advantages,
    *,
    verifier_free: bool = False,
    brief: bool = False,
    **fields: Any,
) -> dict[str, float]:
    """Return `stacked_rollout_metrics` of a single run.

    Args:
        advantages: their `info` becomes the estimator's own metrics.
        verifier_free, brief: as in `stacked_rollout_metrics`.
        fields: other fields of `StepRollouts`.
    """
    (metrics,) = stacked_rollout_metrics(
        StepRollouts(batch=batch, advantages=advantages, **fields),
        [advantages.info],
        verifier_free=[verifier_free],
        brief=brief,
    )
    return metrics


def stacked_rollout_metrics(
    step: StepRollouts,
    infos: Sequence[Mapping[str, float]],
    *,
    verifier_free: Sequence[bool] | None = None,
    brief: bool = False,
) -> list[dict[str, float]]:
    """Return the metrics of a step's rollouts, rewards and advantages by name, for each run.

    Each run's numbers do not depend on the other runs, to the bit.

    Rewards, collapse and entropies cover every drawn group, so that they describe the model and
    the problems independently of the rollout policy; where prompts come in several attempts, every
    group of the first. Advantages and masses cover the groups trained on; of an advantage per
    token, they take each rollout's means of A and of |A| over its tokens. Of episodes with turns,
    collapse and masses are those of whole rollouts. Masked rollouts enter no statistic.
    `reward/std` is the mean over groups of the population standard deviation within a group, by
    which estimators divide, and not the spread over the whole batch. `entropy/*` are means over
    rollouts of each rollout's mean per token, if the batch has entropies. Metrics are NaN if
    nothing could be scored.

    Args:
        infos: the numbers that each run's estimator logs; one entry per run.
        verifier_free: of each run, whether the advantages are made of another signal than the
            rewards, so that the collapse rate is undefined and left out; by default of none.
        brief: return only `reward/mean`, `std`, `unscorable` and `truncated`, `cost/*`, and the
            `collapse/*` of the judged numbers.

    Returns:
        `reward/mean`, `reward/std`, `reward/unscorable` (share of masked rollouts),
        `reward/truncated` (share that the token limit ended, if the batch says which); of graded
        rewards `reward/partial` (share of rollouts with a reward other than 0 and 1),
        `reward/best` and `reward/worst` (means of each group's largest and smallest);
        `collapse/*`, `prompts/fully_unsolved` (a number of prompts), `solved/K` (share of groups
        with K successes), `cost/rollouts` (generated rollouts per rollout of the target),
        `cost/utilisation` (share of the generated rollouts that take part in the update),
        `cost/tokens` (generated tokens without those of reference rollouts), `cost/turns` (turns of
        episodes, of which each is a step of their environment), `entropy/*`; if the
        step trains on any group also `collapse/acr_after`, `advantage/*`, `mass/*`, `weight/*`
        and the terms of the predicted entropy change, `entropy/drift` and `entropy/covariance`;
        and the estimator's own metrics as `estimator/*`. `mass/sign_ratio` and `weight/*` are
        absent where they are undefined. With attempts also, for every attempt T, which FADE calls
        a turn, the share of prompts that reach it, `retry/reached/turn_T`, and its masses per
        rollout of the first attempt, `mass/success/turn_T` and `mass/failure/turn_T` (FADE,
        Eq. 16). If the batch has `turn_of_token`, also `turns/*` and `credit/*`, as
        `advsweep.diagnostics.turns` defines them, where they are defined.
    """
    count = len(infos)
    assert step.batch.mask is None or count == 1
    drawn = _Rollouts.drawn_in(step, count)
    described = drawn
    if step.attempts is not None:
        described = drawn.select((step.attempts == 1).nonzero()[:, 0])
    metrics = _Metrics(defined=_cost_metrics(step, count) | _reward_metrics(described))
    collapse = _collapse_metrics(described, by_level=not brief)
    metrics.add(collapse)
    if not brief:
        metrics.add(_graded_metrics(described, step.graded))
        metrics.defined |= _solved_metrics(described)
        metrics.defined |= _entropy_metrics(described)
        if step.batch.turn_of_token is not None:
            metrics.optional |= turn_metrics(described.batch, count)
        if len(step.advantages.values):
            trained = drawn if step.groups is None else drawn.select(step.groups, step.rollouts)
            metrics.add(_advantage_metrics(trained, step.advantages))
            if step.batch.turn_of_token is not None:
                metrics.optional |= credit_metrics(trained.batch, step.advantages, count)
        if step.attempts is not None:
            metrics.defined |= _attempt_metrics(step, drawn, step.attempts)
    of_runs = metrics.by_run(count)
    are_free = [False] * count if verifier_free is None else verifier_free
    for of_run, info, is_free in zip(of_runs, infos, are_free, strict=True):
        if is_free:
            for name in collapse.names:
                of_run.pop(name, None)
        of_run |= {f"estimator/{name}": value for name, value in info.items()}
    return of_runs


@dataclass
class _Metrics:
    """Metrics of all runs by name.

    Attributes:
        defined: metrics that every run has; NaN if nothing could be scored.
        optional: metrics that a run lacks where they are NaN.
    """

    defined: _Table = field(default_factory=dict)
    optional: _Table = field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        """Names of all metrics, the defined ones first."""
        return [*self.defined, *self.optional]

    def add(self, other: _Metrics) -> None:
        """Add other metrics."""
        self.defined |= other.defined
        self.optional |= other.optional

    def by_run(self, runs: int) -> list[dict[str, float]]:
        """Return the metrics of each run, without the optional ones that are NaN for it."""
        names = self.names
        numbers = np.empty((len(names), runs))
        for row, values in enumerate([*self.defined.values(), *self.optional.values()]):
            numbers[row] = values
        of_runs = [dict(zip(names, column, strict=True)) for column in numbers.T.tolist()]
        undefined = np.isnan(numbers[len(self.defined) :])
        for row, run in zip(*undefined.nonzero(), strict=True):
            del of_runs[run][names[len(self.defined) + row]]
        return of_runs


@dataclass(frozen=True, eq=False)
class _Rollouts:
    """Some rollouts of a step, as tensors and, once asked for, as arrays that are 0 where masked.

    Attributes:
        judged: the numbers whose spread tells whether a group has collapsed.
        runs: shape and mask of the rollouts of each run.
    """

    batch: GroupBatch
    verdicts: Float[Tensor, "groups rollouts"]
    judged: Float[Tensor, "groups rollouts"]
    levels: Int[np.ndarray, " groups"] | None
    runs: StackedRollouts

    @classmethod
    def drawn_in(cls, step: StepRollouts, count: int) -> _Rollouts:
        """Return all rollouts that a step has drawn for a number of runs."""
        batch = step.batch
        verdicts = batch.rewards if step.verdicts is None else step.verdicts
        return cls(
            batch=batch,
            verdicts=verdicts,
            judged=verdicts if step.judged is None else step.judged,
            levels=None if step.levels is None else np.ravel(step.levels),
            runs=StackedRollouts(batch.rewards, batch.mask, runs=count),
        )

    def select(
        self, groups: Int[Tensor, " groups"], rollouts: Int[Tensor, "groups some"] | None = None
    ) -> _Rollouts:
        """Return some groups of a single run, in the given order.

        Args:
            rollouts: numbers of the rollouts of each of these groups to return; None for all.
        """
        batch = self.batch.select(groups, rollouts)
        verdicts = self.verdicts[groups]
        judged = self.judged[groups]
        if rollouts is not None:
            verdicts = verdicts.gather(1, rollouts)
            judged = judged.gather(1, rollouts)
        return _Rollouts(
            batch=batch,
            verdicts=verdicts,
            judged=judged,
            levels=None if self.levels is None else self.levels[groups.numpy(force=True)],
            runs=StackedRollouts(batch.rewards, batch.mask),
        )

    @functools.cached_property
    def rewards(self) -> PerRollout:
        """The rewards."""
        return self.runs.numbers(self.batch.rewards)

    @functools.cached_property
    def reward_spread(self) -> GroupSpread:
        """The spread of the rewards of each group."""
        return self.runs.spread(self.rewards)

    @functools.cached_property
    def judged_spread(self) -> GroupSpread:
        """The spread of the judged numbers of each group."""
        if self.judged is self.batch.rewards:
            return self.reward_spread
        return self.runs.spread(self.runs.numbers(self.judged))

    @functools.cached_property
    def successes(self) -> FlagPerRollout:
        """Flag the successes."""
        return self.runs.flags(self.verdicts == 1)

    @functools.cached_property
    def solved(self) -> CountPerGroup:
        """The number of successes of each group."""
        return self.runs.group_count(self.successes)

    @functools.cached_property
    def token_entropy(self) -> PerRollout | None:
        """The mean of -log π over the tokens of each rollout, if the batch has it."""
        values = self.batch.token_entropy
        return None if values is None else self.runs.numbers(values)


def _cost_metrics(step: StepRollouts, runs: int) -> _Table:
    """Return `cost/*`: of all that was generated, in whichever attempt."""
    groups, size = step.batch.rewards.shape
    drawn = groups // runs
    generated = drawn * size + step.references
    prompts = drawn if step.prompts is None else step.prompts
    metrics: _Table = {
        ROLLOUT_COST: generated / (prompts * step.advantages.values.shape[1]),
        UTILISATION: _sums(step.advantages.keep, runs) / generated,
    }
    if step.batch.lengths is not None:
        metrics[TOKEN_COST] = _sums(step.batch.lengths.double(), runs) + step.further_tokens
    if step.batch.turn_of_token is not None:
        turns = step.batch.turn_of_token.amax(dim=-1) + 1
        metrics[TURN_COST] = _sums(turns, runs) + step.further_turns
    return metrics


def _reward_metrics(rollouts: _Rollouts) -> _Table:
    """Return the metrics of rewards that every task has."""
    runs = rollouts.runs
    count, groups, size = runs.shape
    metrics: _Table = {
        UNSCORABLE: 1 - runs.total / (groups * size),
        REWARD_MEAN: runs.rollout_mean(rollouts.rewards),
        "reward/std": runs.group_mean(rollouts.reward_spread.std),
    }
    if rollouts.batch.truncated is not None:
        metrics[TRUNCATED] = _sums(rollouts.batch.truncated, count) / (groups * size)
    return metrics


def _collapse_metrics(rollouts: _Rollouts, *, by_level: bool) -> _Metrics:
    """Return the shares of collapsed groups and, if asked for, those of each known level."""
    runs = rollouts.runs
    collapsed = collapsed_groups(rollouts.judged_spread)
    shares = collapse_shares(runs, rollouts.judged_spread, collapsed)
    metrics = _Metrics(defined={f"collapse/{name}": share for name, share in shares.items()})
    if by_level and rollouts.levels is not None:
        rates = collapse_by_level(runs, collapsed, rollouts.levels)
        metrics.optional = {f"collapse/acr/level_{level}": rate for level, rate in rates.items()}
    return metrics


def _graded_metrics(rollouts: _Rollouts, graded: bool | None) -> _Metrics:
    """Return the metrics of rewards other than 0 and 1, as `StepRollouts.graded` says."""
    if graded is False:
        return _Metrics()
    runs = rollouts.runs
    partial = runs.rollout_mean((rollouts.rewards != 0) & (rollouts.rewards != 1))
    metrics: _Table = {
        "reward/partial": partial,
        "reward/best": runs.group_mean(rollouts.reward_spread.high),
        "reward/worst": runs.group_mean(rollouts.reward_spread.low),
    }
    if graded:
        return _Metrics(defined=metrics)
    # Of rewards of 0 and 1 the other two are 1 - solved/0 and solved/K.
    seen: _Table = {name: np.where(partial > 0, values, np.nan) for name, values in metrics.items()}
    return _Metrics(optional=seen)


def _solved_metrics(rollouts: _Rollouts) -> _Table:
    """Return how many groups have each number of successes."""
    runs = rollouts.runs
    solved = rollouts.solved
    unsolved = (runs.scored > 0) & (solved == 0)
    metrics: _Table = {"prompts/fully_unsolved": unsolved.sum(axis=1)}
    shares = difficulty.solve_rate_histogram(solved, runs.scored, runs.shape[2])
    for successes, share in enumerate(shares.T):
        metrics[f"solved/{successes}"] = share
    return metrics


def _entropy_metrics(rollouts: _Rollouts) -> _Table:
    """Return the entropies that the batch has."""
    runs = rollouts.runs
    metrics: _Table = {}
    exact = rollouts.batch.token_entropy_exact
    if exact is not None:
        metrics[TOKEN_ENTROPY] = runs.rollout_mean(runs.numbers(exact))
    if rollouts.token_entropy is not None:
        metrics["entropy/token_sampled"] = runs.rollout_mean(rollouts.token_entropy)
    return metrics


def _advantage_metrics(rollouts: _Rollouts, advantages: Advantages) -> _Metrics:
    """Return the metrics of advantages, masses and weights, of the rollouts trained on."""
    runs = rollouts.runs
    lengths = rollouts.batch.lengths
    values = runs.numbers(advantages.rollout_means(lengths))
    sizes = np.abs(values)
    if advantages.per_token:
        sizes = runs.numbers(advantages.sizes(lengths))
    success, failure = masses_per_run(runs, values, rollouts.successes)
    group_sizes = runs.group_sum(sizes)
    defined: _Table = {
        ACR_AFTER: runs.group_mean(group_sizes == 0),
        "advantage/zero_fraction": 1 - runs.rollout_mean(sizes != 0),
        "advantage/abs_mean": runs.rollout_mean(sizes),
        "mass/success": success,
        "mass/failure": failure,
    }
    if rollouts.token_entropy is not None:
        terms = entropy_terms_per_run(runs, values, rollouts.token_entropy)
        for name, term in terms.items():
            defined[f"entropy/{name}"] = term
    weights = group_sizes / np.maximum(runs.scored, 1)
    noise = difficulty.weight_noise(weights, rollouts.solved, runs.scored)
    solve_rate = ratio(rollouts.solved.sum(axis=1), runs.total)
    optional: _Table = {
        "mass/sign_ratio": difficulty.sign_ratio(success, failure, solve_rate),
        "weight/effective_prompts": difficulty.effective_prompts(weights),
        "weight/variance": noise.variance,
        "update/quality": noise.quality,
    }
    return _Metrics(defined, optional)


def _attempt_metrics(
    step: StepRollouts, drawn: _Rollouts, attempts: Int[Tensor, " prompts"]
) -> _Table:
    """Return how many prompts reach each attempt, and the masses of attempts."""
    batch = drawn.batch
    trained = torch.arange(len(attempts)) if step.groups is None else step.groups
    lengths = None if batch.lengths is None else batch.lengths[trained]
    values = step.advantages.rollout_means(lengths)
    is_first = attempts == 1
    scored = is_first[:, None].expand_as(batch.rewards)
    if batch.mask is not None:
        values = values.where(batch.mask[trained], 0.0)
        scored = scored & batch.mask
    upward = values.where(drawn.verdicts[trained] == 1, 0.0)
    rollouts = scored.sum().clamp(min=1)
    prompts = is_first.sum().item()
    metrics: _Table = {}
    # The names are FADE's, which calls an attempt a turn.
    for attempt in range(1, step.last_attempt + 1):
        groups = attempts[trained] == attempt
        success = upward[groups].double().sum() / rollouts
        total = values[groups].double().sum() / rollouts
        metrics[f"retry/reached/turn_{attempt}"] = (attempts == attempt).sum().item() / prompts
        metrics[f"mass/success/turn_{attempt}"] = success.item()
        metrics[f"mass/failure/turn_{attempt}"] = (success - total).item()
    return metrics


def _sums(values: Num[Tensor, "runs*groups rollouts"], runs: int) -> Num[np.ndarray, " runs"]:
    """Return the sum of each run's values."""
    sums: Num[np.ndarray, " runs"] = values.numpy(force=True).reshape(runs, -1).sum(axis=1)
    return sums
