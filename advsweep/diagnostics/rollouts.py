"""The metrics of one step's rollouts, the same for every backend."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import torch

from advsweep.diagnostics import difficulty
from advsweep.diagnostics.collapse import (
    TOLERANCE,
    collapse_by_level,
    collapsed_groups,
    split,
    zero_groups,
)
from advsweep.diagnostics.entropy import terms_of
from advsweep.diagnostics.masses import masses_of
from advsweep.estimators import GroupBatch
from advsweep.estimators.groups import Groups

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jaxtyping import Bool, Float, Int
    from torch import Tensor

    from advsweep.estimators import Advantages


def rollout_metrics(
    batch: GroupBatch,
    advantages: Advantages,
    *,
    groups: Int[Tensor, " groups"] | None = None,
    outcomes: Float[Tensor, "prompts rollouts"] | None = None,
    levels: Sequence[int] | None = None,
    prompts: int | None = None,
    references: int = 0,
    verifier_free: bool = False,
    tolerance: float = TOLERANCE,
) -> dict[str, float]:
    """What a step's rollouts, rewards and advantages look like, by metric name.

    Rewards, collapse and entropies are those of every group that was drawn, so that they tell
    of the model and the problems, whatever the rollout policy trains on; advantages and
    masses are those of the groups trained on. Statistics are over the rollouts that
    `batch.mask` keeps. `reward/std` is the mean over groups of the standard deviation within
    a group (population), which is what estimators divide by, not the spread over the whole
    batch. `entropy/*` are means over rollouts of each rollout's mean per token, and are there
    if the batch has them. NaN where nothing could be scored.

    Args:
        batch: all groups that were drawn, discarded ones included.
        advantages: of the groups that the step trains on.
        groups: which of the batch those are; by default all of them, in order.
        outcomes: the verifier's verdicts, 1 for a success, where the rewards are mixed with
            other terms; the rewards by default.
        levels: difficulty level of each group that was drawn.
        prompts: how many groups the step asked for; by default as many as were drawn.
        references: rollouts of a reference model that were generated besides.
        verifier_free: the advantages are made of another signal than the rewards, whose
            collapse rate is therefore undefined and left out.
        tolerance: groups whose rewards deviate less than this count as collapsed.

    Returns:
        `reward/mean`, `reward/std`, `reward/unscorable` (share of the rollouts that the mask
        leaves out), `collapse/*`, `prompts/fully_unsolved` (a number of prompts), `solved/K`
        (share of groups with K successes), `cost/rollouts` (generated rollouts per rollout
        asked for), `cost/utilisation` (share of the generated rollouts that take part in the
        update), `cost/tokens` (generated tokens, those of reference rollouts aside),
        `entropy/*`; unless no group is trained on, `collapse/acr_after`, `advantage/*`,
        `mass/*`, `weight/*` and the terms of the predicted entropy change,
        `entropy/drift` and `entropy/covariance`; and the estimator's own as `estimator/*`.
        `mass/sign_ratio` and `weight/*` are left out where they are undefined.
    """
    verdicts = batch.rewards if outcomes is None else outcomes
    scorable = torch.ones_like(verdicts, dtype=torch.bool) if batch.mask is None else batch.mask
    successes = scorable & (verdicts == 1)
    drawn, rollouts = batch.rewards.shape
    generated = batch.rewards.numel() + references
    solved, scored = _counts(successes), _counts(scorable)
    metrics = {
        **_drawn_metrics(batch, None if verifier_free else tolerance, scored, levels),
        "reward/unscorable": 1 - int(scored.sum()) / batch.rewards.numel(),
        "prompts/fully_unsolved": float(((scored > 0) & (solved == 0)).sum()),
        "cost/rollouts": generated / ((drawn if prompts is None else prompts) * rollouts),
        "cost/utilisation": advantages.keep.sum().item() / generated,
        **difficulty.solve_rate_histogram(solved, scored, rollouts),
    }
    if batch.lengths is not None:
        metrics["cost/tokens"] = batch.lengths.double().sum().item()
    if len(advantages.values):
        mask, entropy = scorable, batch.token_entropy
        if groups is not None and not torch.equal(groups, torch.arange(drawn)):
            chosen = groups.numpy(force=True)
            successes, mask = successes[groups], mask[groups]
            solved, scored = solved[chosen], scored[chosen]
            entropy = entropy if entropy is None else entropy[groups]
        metrics |= _advantage_metrics(
            advantages, successes, None if batch.mask is None else mask, entropy
        )
        metrics |= _weight_metrics(advantages, mask, solved, scored)
    return metrics | {f"estimator/{name}": value for name, value in advantages.info.items()}


def _counts(flags: Bool[Tensor, "groups rollouts"]) -> Int[np.ndarray, " groups"]:
    counts: Int[np.ndarray, " groups"] = flags.numpy(force=True).sum(axis=1)
    return counts


def _drawn_metrics(
    batch: GroupBatch,
    tolerance: float | None,
    scored: Int[np.ndarray, " groups"],
    levels: Sequence[int] | None,
) -> dict[str, float]:
    rewards = batch.rewards.double()
    groups = Groups(GroupBatch(rewards=rewards, mask=batch.mask))
    metrics = {
        "reward/mean": groups.rollout_mean(groups.rewards),
        "reward/std": groups.group_mean(groups.std()),
    }
    if tolerance is not None:
        collapsed = collapsed_groups(groups, tolerance)
        shares = split(groups, collapsed)
        metrics |= {f"collapse/{name}": share for name, share in shares._asdict().items()}
        if levels is not None:
            by_level = collapse_by_level(collapsed, scored > 0, levels)
            metrics |= {f"collapse/acr/level_{level}": acr for level, acr in by_level.items()}
    if batch.token_entropy_exact is not None:
        metrics["entropy/token"] = groups.rollout_mean(batch.token_entropy_exact)
    if batch.token_entropy is not None:
        metrics["entropy/token_sampled"] = groups.rollout_mean(batch.token_entropy)
    return metrics


def _advantage_metrics(
    advantages: Advantages,
    successes: Bool[Tensor, "groups rollouts"],
    mask: Bool[Tensor, "groups rollouts"] | None,
    token_entropy: Float[Tensor, "groups rollouts"] | None,
) -> dict[str, float]:
    values = advantages.values.double()
    groups = Groups(GroupBatch(rewards=values, mask=mask))
    mass = masses_of(groups, successes)
    metrics = {
        "collapse/acr_after": zero_groups(groups),
        "advantage/zero_fraction": groups.rollout_mean(values == 0),
        "advantage/abs_mean": groups.rollout_mean(values.abs()),
        "mass/success": mass.success,
        "mass/failure": mass.failure,
    }
    ratio = difficulty.sign_ratio(mass, groups.rollout_mean(successes))
    metrics |= _defined({"mass/sign_ratio": ratio})
    if token_entropy is not None:
        terms = terms_of(groups, token_entropy)
        metrics |= {f"entropy/{name}": term for name, term in terms._asdict().items()}
    return metrics


def _weight_metrics(
    advantages: Advantages,
    scorable: Bool[Tensor, "groups rollouts"],
    solved: Int[np.ndarray, " groups"],
    scored: Int[np.ndarray, " groups"],
) -> dict[str, float]:
    sizes = torch.where(scorable, advantages.values.double().abs(), 0.0).sum(dim=1)
    weights = sizes.numpy(force=True) / np.maximum(scored, 1)
    return _defined(
        {
            "weight/effective_prompts": difficulty.effective_prompts(weights),
            "weight/variance": difficulty.weight_variance(weights, solved, scored),
        }
    )


def _defined(metrics: dict[str, float]) -> dict[str, float]:
    return {name: value for name, value in metrics.items() if not math.isnan(value)}
