"""What the updates of a step on TRL do: to the policy at its own rollouts, and to the weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from accelerate import DistributedType
from torch import Tensor
from trl import GRPOTrainer

from advsweep.backends.step_changes import KL_STEP, ChangeMeter, evenly_spaced, kl_estimate
from advsweep.backends.trl.source import pick_rows

if TYPE_CHECKING:
    from jaxtyping import Float

    from advsweep.backends.trl.source import Rows

_KL_ROLLOUTS = 16
"""Rollouts of a process that a step's KL is estimated from."""

_WHOLE = (DistributedType.NO, DistributedType.MULTI_GPU, DistributedType.MULTI_CPU)
"""Ways to train in which a process has all weights."""


def change_meter(trainer: Any, most: int) -> ChangeMeter | None:
    """Return a meter of the trained weights in the first process; None where there is none.

    Args:
        most: more weights than these are not measured, nor are weights that processes share.
    """
    weights = {name: w for name, w in trainer.model.named_parameters() if w.requires_grad}
    is_whole = trainer.accelerator.distributed_type in _WHOLE
    if not is_whole or not trainer.accelerator.is_main_process:
        return None
    return ChangeMeter(weights) if sum(map(torch.numel, weights.values())) <= most else None


class StepEffect:
    """Compares the policy before and after the updates of a step.

    Every process must make and read it, because their passes belong together.

    Args:
        rows: this process's rollouts; the weights are those before the updates.
        entropies: whether to compare the entropies at all rollouts.
    """

    def __init__(self, trainer: Any, rows: Rows, *, entropies: bool) -> None:
        self._trainer = trainer
        self._rows = rows
        chosen = evenly_spaced(len(rows["keep"]), _KL_ROLLOUTS)
        self._some = pick_rows(rows, torch.tensor(chosen))
        self._log_probs = self._statistics(self._some)
        self._entropies = self._mean_entropies() if entropies else None

    def metrics(self) -> dict[str, float]:
        """Return `policy/kl_step` after the updates and, if measured, `entropy/change`."""
        mask = self._some["completion_mask"].bool() & self._some["keep"][:, None]
        sums = kl_estimate(self._log_probs, self._statistics(self._some), mask)
        kl, tokens = self._reduce(sums)
        metrics = {KL_STEP: kl / tokens if tokens else 0.0}
        if self._entropies is not None:
            keep = self._rows["keep"]
            change = (self._mean_entropies() - self._entropies).where(keep, 0.0)
            total, kept = self._reduce(torch.stack((change.sum(), keep.sum())))
            metrics |= {"entropy/change": total / kept} if kept else {}
        return metrics

    def _reduce(self, sums: Tensor) -> list[float]:
        reduced: list[float] = self._trainer.accelerator.reduce(sums, reduction="sum").tolist()
        return reduced

    def _mean_entropies(self) -> Float[Tensor, " rows"]:
        """Return the mean token entropy of each rollout, in nats."""
        mask = self._rows["completion_mask"]
        entropies = self._statistics(self._rows, entropies=True)
        return entropies.where(mask.bool(), 0.0).sum(dim=1) / mask.sum(dim=1)

    def _statistics(self, rows: Rows, *, entropies: bool = False) -> Float[Tensor, "rows tokens"]:
        """Return log π of each token, or the entropies of their distributions in nats."""
        trainer, completions, mask = self._trainer, rows["completion_ids"], rows["completion_mask"]
        with torch.no_grad():
            # VllmTrainer overrides this to score rollouts; this pass is no such one.
            log_probs, spread, _ = GRPOTrainer._get_per_token_logps_and_entropies(
                trainer,
                trainer.model,
                torch.cat((rows["prompt_ids"], completions), dim=1),
                torch.cat((rows["prompt_mask"], mask), dim=1),
                completions.shape[1],
                trainer.args.per_device_train_batch_size,
                compute_entropy=entropies,
            )
        found: Tensor = spread if entropies else log_probs
        return found
