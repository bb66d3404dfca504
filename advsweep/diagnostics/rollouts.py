"""The metrics of one step's rollouts, the same for every backend."""

from __future__ import annotations

from dataclasses import replace
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
from advsweep.estimators.batch import Advantages

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from jaxtyping import Bool, Float, Int, Num
    from torch import Tensor

    from advsweep.diagnostics.group_statistics import (
        CountPerGroup,
        FlagPerRollout,
        PerRollout,
        PerRun,
    )
    from advsweep.estimators import GroupBatch

# Metrics by name: a number of each run, or one that all share.
_Table = dict[str, "Float[np.ndarray, ' runs'] | float"]


def rollout_metrics(batch: GroupBatch, advantages: Advantages, **options: Any) -> dict[str, float]:
    """Return `stacked_rollout_metrics` of a single run."""
    (metrics,) = stacked_rollout_metrics(batch, advantages, [advantages.info], **options)
    return metrics


def stacked_rollout_metrics(
    batch: GroupBatch,
    advantages: Advantages,
    infos: Sequence[Mapping[str, float]],
    *,
    groups: Int[Tensor, " groups"] | None = None,
    rollouts: Int[Tensor, "groups some"] | None = None,
    outcomes: Float[Tensor, "runs*prompts rollouts"] | None = None,
    judged: Float[Tensor, "runs*prompts rollouts"] | None = None,
    levels: Sequence[int] | Int[np.ndarray, "*runs prompts"] | None = None,
    prompts: int | None = None,
    references: int = 0,
    turns: Int[Tensor, " prompts"] | None = None,
    last_turn: int = 1,
    verifier_free: bool | Sequence[bool] = False,
    graded: bool | None = None,
    brief: bool = False,
) -> list[dict[str, float]]:
    """Return the metrics of a step's rollouts, rewards and advantages by name, for each run.

    The runs' groups follow one run after another, as many for each; with more than one run, all
    groups are trained on. Each run's numbers have the same bits whatever the other runs are.

    Rewards, collapse and entropies cover every drawn group, so that they describe the model and
    the problems independently of the rollout policy. Advantages and masses cover the groups
    trained on; of an advantage per token, they take each rollout's means of A and of |A| over its
    tokens. Masked rollouts enter no statistic. `reward/std` is the mean over groups of the
    population standard deviation within a group, by which estimators divide, and not the spread
    over the whole batch. `entropy/*` are means over rollouts of each rollout's mean per token,
    if the batch has entropies. Metrics are NaN if nothing could be scored.

    Args:
        batch: all drawn groups, including discarded ones; with a mask only for a single run.
        advantages: advantages of the groups that the step trains on; their `info` is not read.
        infos: the numbers that each run's estimator logs; one entry per run.
        groups: for a single run, the numbers of the groups trained on in the batch; by default
            all of them, in order.
        rollouts: for a single run, the numbers of the rollouts trained on in each of these groups;
            by default all.
        outcomes: the verifier's verdicts, 1 for a success, if the rewards contain other terms;
            by default the rewards.
        judged: the numbers whose spread tells whether a group has collapsed; by default the
            verdicts.
        levels: difficulty level of each drawn group.
        prompts: the target number of groups of each run's step; by default the number drawn.
        references: number of rollouts of each run beside these: of a reference model, or greedy.
        turns: for a single run, the turn of each drawn group, counted from 1, if prompts come in
            several. Rewards, collapse and entropies then cover the first turn alone.
        last_turn: the turn after which no prompt comes again.
        verifier_free: whether the advantages are made of another signal than the rewards, so that
            the collapse rate is undefined and left out; for all runs, or one per run.
        graded: whether rewards may be other than 0 and 1; by default, for each run, whether some
            of these are.
        brief: return only `reward/mean`, `std` and `unscorable`, `cost/*`, and the `collapse/*` of
            the judged numbers.

    Returns:
        `reward/mean`, `reward/std`, `reward/unscorable` (share of masked rollouts),
        `reward/truncated` (share that the token limit ended, if the batch says which); of graded
        rewards `reward/partial` (share of rollouts with a reward other than 0 and 1),
        `reward/best` and `reward/worst` (means of each group's largest and smallest);
        `collapse/*`, `prompts/fully_unsolved` (a number of prompts), `solved/K` (share of groups
        with K successes), `cost/rollouts` (generated rollouts per rollout of the target),
        `cost/utilisation` (share of the generated rollouts that take part in the update),
        `cost/tokens` (generated tokens without those of reference rollouts), `entropy/*`; if the
        step trains on any group also `collapse/acr_after`, `advantage/*`, `mass/*`, `weight/*`
        and the terms of the predicted entropy change, `entropy/drift` and `entropy/covariance`;
        and the estimator's own metrics as `estimator/*`. `mass/sign_ratio` and `weight/*` are
        absent where they are undefined. With turns also, for every turn T, the share of prompts
        that reach it, `retry/reached/turn_T`, and its masses per rollout of the first turn,
        `mass/success/turn_T` and `mass/failure/turn_T` (FADE, Eq. 16).
    """
    runs = StackedRollouts(batch.rewards, batch.mask, runs=len(infos))
    assert batch.mask is None or len(infos) == 1
    count, drawn, size = runs.shape
    generated = drawn * size + references
    verdicts = batch.rewards if outcomes is None else outcomes
    judged = verdicts if judged is None else judged
    rewards = runs.numbers(batch.rewards)
    spread = runs.spread(rewards)
    of_judged = spread if judged is batch.rewards else runs.spread(runs.numbers(judged))
    collapsed = collapsed_groups(of_judged)
    always: _Table = {
        "reward/unscorable": 1 - runs.total / (drawn * size),
        "cost/rollouts": generated
        / ((drawn if prompts is None else prompts) * advantages.values.shape[1]),
        "cost/utilisation": _sums(advantages.keep, count) / generated,
    }
    if batch.lengths is not None:
        always["cost/tokens"] = _sums(batch.lengths.double(), count)
    if batch.truncated is not None:
        always["reward/truncated"] = _sums(batch.truncated, count) / (drawn * size)
    always |= {
        "reward/mean": runs.rollout_mean(rewards),
        "reward/std": runs.group_mean(spread.std),
        **_prefixed("collapse", collapse_shares(runs, of_judged, collapsed)),
    }
    sometimes: _Table = {}
    if levels is not None and not brief:
        by_level = collapse_by_level(runs, collapsed, levels)
        sometimes |= {f"collapse/acr/level_{level}": acr for level, acr in by_level.items()}
    of_rewards = [name for name in (*always, *sometimes) if name.startswith("collapse/")]
    if not brief:
        if graded is not False:
            partial = runs.rollout_mean((rewards != 0) & (rewards != 1))
            # Of rewards of 0 and 1 the other two are 1 - solved/0 and solved/K.
            shown = {
                "reward/partial": partial,
                "reward/best": runs.group_mean(spread.high),
                "reward/worst": runs.group_mean(spread.low),
            }
            if graded:
                always |= shown
            else:
                sometimes |= {k: np.where(partial > 0, v, np.nan) for k, v in shown.items()}
        successes = runs.flags(verdicts == 1)
        solved = runs.group_count(successes)
        always["prompts/fully_unsolved"] = ((runs.scored > 0) & (solved == 0)).sum(axis=1)
        shares = difficulty.solve_rate_histogram(solved, runs.scored, size)
        always |= {f"solved/{number}": share for number, share in enumerate(shares.T)}
        if batch.token_entropy_exact is not None:
            always["entropy/token"] = runs.rollout_mean(runs.numbers(batch.token_entropy_exact))
        entropy = None if batch.token_entropy is None else runs.numbers(batch.token_entropy)
        if entropy is not None:
            always["entropy/token_sampled"] = runs.rollout_mean(entropy)
        if len(advantages.values):
            lengths = batch.lengths
            if groups is not None:
                trained = replace(batch, rewards=verdicts).select(groups, rollouts)
                runs, lengths = StackedRollouts(trained.rewards, trained.mask), trained.lengths
                successes = runs.flags(trained.rewards == 1)
                solved = runs.group_count(successes)
                surprisal = trained.token_entropy
                entropy = None if surprisal is None else runs.numbers(surprisal)
            values = runs.numbers(advantages.rollout_means(lengths))
            sizes = np.abs(values)
            if advantages.per_token:
                sizes = runs.numbers(advantages.sizes(lengths))
            _add_advantages(always, sometimes, runs, values, sizes, successes, solved, entropy)
    found = _by_run(always, sometimes, count)
    if turns is not None:
        (only,) = found
        first = (turns == 1).nonzero()[:, 0]
        of_first = stacked_rollout_metrics(
            batch.select(first),
            Advantages(values=batch.rewards[:0], keep=advantages.keep[:0]),
            infos,
            outcomes=verdicts[first],
            judged=judged[first],
            levels=None if levels is None else np.ravel(levels)[first.numpy(force=True)],
            graded=graded,
            brief=brief,
        )[0]
        only |= {name: v for name, v in of_first.items() if not name.startswith("cost/")}
        if not brief:
            only |= _of_turns(batch, advantages, verdicts == 1, turns, last_turn, groups)
    without = [verifier_free] * count if isinstance(verifier_free, bool) else verifier_free
    for metrics, info, gone in zip(found, infos, without, strict=True):
        if gone:
            for name in of_rewards:
                metrics.pop(name, None)
        metrics |= {f"estimator/{name}": value for name, value in info.items()}
    return found


def _of_turns(
    batch: GroupBatch,
    advantages: Advantages,
    successes: Bool[Tensor, "prompts rollouts"],
    turns: Int[Tensor, " prompts"],
    last_turn: int,
    groups: Int[Tensor, " groups"] | None,
) -> dict[str, float]:
    """Return how many prompts reach each turn, and the masses of turns."""
    chosen = torch.arange(len(turns)) if groups is None else groups
    lengths = None if batch.lengths is None else batch.lengths[chosen]
    values = advantages.rollout_means(lengths)
    if batch.mask is not None:
        values = values.where(batch.mask[chosen], 0.0)
    upward = values.where(successes[chosen], 0.0)
    of_first = (turns == 1).sum().item()
    scored = turns[:, None] == 1 if batch.mask is None else batch.mask & (turns[:, None] == 1)
    rollouts = scored.expand_as(batch.rewards).sum().clamp(min=1)
    metrics = {}
    for turn in range(1, last_turn + 1):
        own = turns[chosen] == turn
        success = upward[own].double().sum() / rollouts
        total = values[own].double().sum() / rollouts
        metrics[f"retry/reached/turn_{turn}"] = (turns == turn).sum().item() / of_first
        metrics[f"mass/success/turn_{turn}"] = success.item()
        metrics[f"mass/failure/turn_{turn}"] = (success - total).item()
    return metrics


def _sums(values: Num[Tensor, "runs*groups rollouts"], runs: int) -> Num[np.ndarray, " runs"]:
    sums: Num[np.ndarray, " runs"] = values.numpy(force=True).reshape(runs, -1).sum(axis=1)
    return sums


def _prefixed(prefix: str, values: Mapping[str, PerRun]) -> dict[str, PerRun]:
    return {f"{prefix}/{name}": value for name, value in values.items()}


def _add_advantages(
    always: _Table,
    sometimes: _Table,
    runs: StackedRollouts,
    advantages: PerRollout,
    sizes: PerRollout,
    successes: FlagPerRollout,
    solved: CountPerGroup,
    token_entropy: PerRollout | None,
) -> None:
    success, failure = masses_per_run(runs, advantages, successes)
    group_sizes = runs.group_sum(sizes)
    always |= {
        "collapse/acr_after": runs.group_mean(group_sizes == 0),
        "advantage/zero_fraction": 1 - runs.rollout_mean(sizes != 0),
        "advantage/abs_mean": runs.rollout_mean(sizes),
        "mass/success": success,
        "mass/failure": failure,
    }
    if token_entropy is not None:
        terms = entropy_terms_per_run(runs, advantages, token_entropy)
        always |= _prefixed("entropy", terms)
    weights = group_sizes / np.maximum(runs.scored, 1)
    noise = difficulty.weight_noise(weights, solved, runs.scored)
    solve_rate = ratio(solved.sum(axis=1), runs.total)
    sometimes |= {
        "mass/sign_ratio": difficulty.sign_ratio(success, failure, solve_rate),
        "weight/effective_prompts": difficulty.effective_prompts(weights),
        "weight/variance": noise.variance,
        "update/quality": noise.quality,
    }


def _by_run(always: _Table, sometimes: _Table, runs: int) -> list[dict[str, float]]:
    """Return the metrics of each run, without the `sometimes` metrics that are NaN for it."""
    names = [*always, *sometimes]
    numbers = np.empty((len(names), runs))
    for row, values in zip(numbers, [*always.values(), *sometimes.values()], strict=True):
        row[:] = values
    found = [dict(zip(names, column, strict=True)) for column in numbers.T.tolist()]
    undefined = np.isnan(numbers[len(always) :])
    for row, run in zip(*undefined.nonzero(), strict=True):
        del found[run][names[len(always) + row]]
    return found
