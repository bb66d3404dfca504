"""The metrics of one step's rollouts, the same for every backend."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from advsweep.diagnostics.collapse import TOLERANCE, collapse, collapse_after
from advsweep.diagnostics.masses import masses
from advsweep.estimators import GroupBatch
from advsweep.estimators.groups import Groups

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int
    from torch import Tensor

    from advsweep.estimators import Advantages


def rollout_metrics(
    batch: GroupBatch,
    advantages: Advantages,
    *,
    groups: Int[Tensor, " groups"] | None = None,
    outcomes: Float[Tensor, "prompts rollouts"] | None = None,
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
        prompts: how many groups the step asked for; by default as many as were drawn.
        references: rollouts of a reference model that were generated besides.
        verifier_free: the advantages are made of another signal than the rewards, whose
            collapse rate is therefore undefined and left out.
        tolerance: groups whose rewards deviate less than this count as collapsed.

    Returns:
        `reward/mean`, `reward/std`, `reward/unscorable` (share of the rollouts that the mask
        leaves out), `collapse/*`, `prompts/fully_unsolved` (a number of prompts),
        `cost/rollouts` (generated rollouts per rollout asked for), `cost/utilisation` (share of
        the generated rollouts that take part in the update), `entropy/*`;
        `collapse/acr_after`, `advantage/*` and `mass/*` unless no group is trained on, and the
        estimator's own as `estimator/*`.
    """
    verdicts = batch.rewards if outcomes is None else outcomes
    scorable = torch.ones_like(verdicts, dtype=torch.bool) if batch.mask is None else batch.mask
    successes = scorable & (verdicts == 1)
    drawn, rollouts = batch.rewards.shape
    generated = batch.rewards.numel() + references
    metrics = {
        **_drawn_metrics(batch, None if verifier_free else tolerance),
        "reward/unscorable": (~scorable).double().mean().item(),
        "prompts/fully_unsolved": float((scorable.any(dim=1) & ~successes.any(dim=1)).sum()),
        "cost/rollouts": generated / ((drawn if prompts is None else prompts) * rollouts),
        "cost/utilisation": advantages.keep.sum().item() / generated,
    }
    if len(advantages.values):
        mask = batch.mask
        if groups is not None:
            successes, mask = successes[groups], mask if mask is None else mask[groups]
        metrics |= _advantage_metrics(advantages, successes, mask)
    return metrics | {f"estimator/{name}": value for name, value in advantages.info.items()}


def _drawn_metrics(batch: GroupBatch, tolerance: float | None) -> dict[str, float]:
    rewards = batch.rewards.double()
    groups = Groups(GroupBatch(rewards=rewards, mask=batch.mask))
    metrics = {
        "reward/mean": groups.rollout_mean(groups.rewards),
        "reward/std": groups.group_mean(groups.std()),
    }
    if tolerance is not None:
        collapsed = collapse(groups.rewards, batch.mask, tolerance=tolerance)
        metrics |= {f"collapse/{name}": share for name, share in collapsed._asdict().items()}
    if batch.token_entropy_exact is not None:
        metrics["entropy/token"] = groups.rollout_mean(batch.token_entropy_exact)
    if batch.token_entropy is not None:
        metrics["entropy/token_sampled"] = groups.rollout_mean(batch.token_entropy)
    return metrics


def _advantage_metrics(
    advantages: Advantages,
    successes: Bool[Tensor, "groups rollouts"],
    mask: Bool[Tensor, "groups rollouts"] | None,
) -> dict[str, float]:
    values = advantages.values.double()
    groups = Groups(GroupBatch(rewards=values, mask=mask))
    mass = masses(values, successes, mask)
    return {
        "collapse/acr_after": collapse_after(values, mask),
        "advantage/zero_fraction": groups.rollout_mean(values == 0),
        "advantage/abs_mean": groups.rollout_mean(values.abs()),
        "mass/success": mass.success,
        "mass/failure": mass.failure,
    }
