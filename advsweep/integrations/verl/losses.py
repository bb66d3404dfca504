"""The policy loss `advsweep` of verl: the loss of an objective."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor
from verl.trainer.ppo.core_algos import register_policy_loss

from advsweep.integrations.verl.config import objective_of
from advsweep.integrations.verl.spec import NAME
from advsweep.objectives.base import LossInputs

if TYPE_CHECKING:
    from jaxtyping import Float, Num


@register_policy_loss(NAME)  # type: ignore[untyped-decorator]
def compute_policy_loss(
    old_log_prob: Float[Tensor, "rows tokens"],
    log_prob: Float[Tensor, "rows tokens"],
    advantages: Float[Tensor, "rows tokens"],
    response_mask: Num[Tensor, "rows tokens"],
    loss_agg_mode: str = "token-mean",
    config: Any = None,
    rollout_is_weights: Float[Tensor, "rows tokens"] | None = None,
) -> tuple[Tensor, dict[str, float]]:
    """Compute the loss of the objective that `policy_loss.advsweep` describes, on a micro-batch.

    The signature is that of verl's own losses. verl adds up the losses of the micro-batches of a
    process, and takes the mean over processes. Weights of verl's rollout correction multiply the
    token losses. Metrics have advsweep's names; they are those of the whole batch where its
    micro-batches have equal numbers of rollouts.

    Args:
        loss_agg_mode: not read: the objective aggregates as its own options say.
        config: verl's settings of the actor.

    Raises:
        ConfigError: `policy_loss.advsweep` does not describe an objective that fits.
    """
    mask = response_mask.bool()
    info = config.global_batch_info
    processes = info.get("dp_size") or 1
    # Without numbers of the whole batch, a micro-batch is one.
    rows = int(mask.any(dim=1).sum())
    rollouts = info.get("global_batch_size")
    tokens = info.get("batch_num_tokens")
    rollouts = max(rows, 1) if rollouts is None else rollouts
    tokens = max(int(mask.sum()), 1) if tokens is None else tokens
    output = objective_of(config.policy_loss).loss(
        LossInputs(
            log_probs=log_prob,
            old_log_probs=old_log_prob,
            completion_mask=mask,
            advantages=advantages,
            rollouts=rollouts / processes,
            tokens=tokens / processes,
            parts=processes,
            weights=rollout_is_weights,
        )
    )
    # verl logs means over micro-batches, and ours add up.
    scale = rollouts / (processes * max(rows, 1))
    return output.loss, {name: float(v) * scale for name, v in output.metrics.items()}
