"""The metrics of one step's rollouts, the same for every backend."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import torch

from advsweep.diagnostics.collapse import TOLERANCE, collapse, collapse_after
from advsweep.diagnostics.masses import masses
from advsweep.estimators.groups import Groups

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

    from advsweep.estimators import Advantages, GroupBatch


def rollout_metrics(
    batch: GroupBatch,
    advantages: Advantages,
    *,
    outcomes: Float[Tensor, "prompts rollouts"] | None = None,
    generated: int | None = None,
    tolerance: float = TOLERANCE,
) -> dict[str, float]:
    """What a step's rollouts, rewards and advantages look like, by metric name.

    Statistics are over the rollouts that `batch.mask` keeps. `reward/std` is the mean over
    groups of the standard deviation within a group (population), which is what estimators
    divide by, not the spread over the whole batch. `entropy/*` are means over rollouts of
    each rollout's mean per token, and are there if the batch has them. NaN where nothing
    could be scored.

    Args:
        batch: the rollouts that the estimator saw.
        advantages: what it made of them.
        outcomes: the verifier's verdicts, 1 for a success, where the rewards are mixed with
            other terms; the rewards by default.
        generated: rollouts sampled to get this batch, with those that were discarded;
            by default no more than the batch holds.
        tolerance: groups whose rewards deviate less than this count as collapsed.

    Returns:
        `reward/mean`, `reward/std`, `collapse/*`, `advantage/*`, `mass/*`,
        `prompts/fully_unsolved` (a number of prompts), `cost/rollouts` (generated rollouts
        per rollout of the batch), `cost/utilisation` (share of the generated rollouts that
        take part in the update), `entropy/*`, and the estimator's own as `estimator/*`.
    """
    groups = Groups(dataclasses.replace(batch, rewards=batch.rewards.double()))
    values = advantages.values.double()
    scorable = torch.ones_like(values, dtype=torch.bool) if batch.mask is None else batch.mask
    verdicts = groups.rewards if outcomes is None else outcomes
    successes = scorable & (verdicts == 1)
    collapsed = collapse(groups.rewards, batch.mask, tolerance=tolerance)
    mass = masses(values, successes, batch.mask)
    generated = values.numel() if generated is None else generated
    unsolved = (scorable.any(dim=1) & ~successes.any(dim=1)).sum()
    metrics = {
        "reward/mean": groups.rollout_mean(groups.rewards),
        "reward/std": groups.group_mean(groups.std()),
        "collapse/acr": collapsed.acr,
        "collapse/all_wrong": collapsed.all_wrong,
        "collapse/all_correct": collapsed.all_correct,
        "collapse/acr_after": collapse_after(values, batch.mask),
        "advantage/zero_fraction": groups.rollout_mean(values == 0),
        "advantage/abs_mean": groups.rollout_mean(values.abs()),
        "mass/success": mass.success,
        "mass/failure": mass.failure,
        "prompts/fully_unsolved": float(unsolved),
        "cost/rollouts": generated / values.numel(),
        "cost/utilisation": advantages.keep.sum().item() / generated,
    }
    if batch.token_entropy_exact is not None:
        metrics["entropy/token"] = groups.rollout_mean(batch.token_entropy_exact)
    if batch.token_entropy is not None:
        metrics["entropy/token_sampled"] = groups.rollout_mean(batch.token_entropy)
    return metrics | {f"estimator/{name}": value for name, value in advantages.info.items()}
