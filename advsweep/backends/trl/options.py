"""The options of the TRL backend, and how they divide a step's rollouts.

Imports neither torch nor transformers, so that listing options stays fast.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from advsweep.backends.options import StepOptions
from advsweep.components import option
from advsweep.errors import ConfigError

if TYPE_CHECKING:
    from advsweep.backends.base import Run


@dataclass(kw_only=True)
class TrlOptions(StepOptions):
    """How a model of transformers is trained, and how much of it fits into memory."""

    minibatches: int = option(1, ge=1, help="updates per inner epoch; groups may be split")
    skip_zero_advantages: bool = option(
        False, help="leave rollouts of advantage 0 out of the computation where that is exact"
    )
    mixed_precision: bool = option(
        True, help="compute in bfloat16 on a GPU; a CPU computes in the weights' own type"
    )
    # The options below change results by rounding or by the samples drawn only. Users change
    # them to make a run fit into memory; it then has to resume, so they are not in its identity.
    device_batch: int | None = option(
        None, ge=1, identity=False, help="most rollouts of one forward pass; null: a minibatch"
    )
    rollout_batch: int | None = option(
        None,
        ge=1,
        identity=False,
        help="most rollouts that transformers generates together; null: all of a step",
    )
    evaluation_batch: int = option(
        64, ge=1, identity=False, help="answers to held-out problems that are sampled together"
    )
    gradient_checkpointing: bool = option(
        True, identity=False, help="compute activations again instead of keeping them"
    )
    share_prompts: bool | Literal["auto"] = option(
        "auto",
        identity=False,
        help="compute a group's prompt once, not for each of its rollouts; auto: where the model "
        "allows it exactly and a pass becomes cheaper, as with long prompts and short answers",
    )
    measured_weights: int = option(
        100_000_000,
        ge=0,
        identity=False,
        help="most trained weights whose changes each step measures, as optim/change_norm, "
        "optim/step_norm and optim/update_cosine; that takes three copies of them",
    )
    log_prob_bound: float | None = option(
        None,
        gt=0,
        identity=False,
        help="nats that log π of a sampled token may differ by between sampling and updates; "
        "null: 0.01, and 0.1 in the mean of tokens where one of them computes with 16 bits",
    )
    threads: int = option(1, ge=1, help="CPU threads of each process that trains")
    processes: int | None = option(
        None,
        ge=1,
        identity=False,
        help="processes that train a run together, on a GPU each or without any; null: one for "
        "each GPU of resources.gpus",
    )

    def layout_of(self, run: Run, processes: int | None = None) -> Layout:
        """Divide a step's rollouts over updates, and those over the largest equal passes.

        Args:
            processes: processes that train the run together; None: as the option says.

        Raises:
            ConfigError: they cannot be divided equally.
        """
        processes = processes or self.processes or 1
        rollouts = run.prompts_per_step * run.group_size
        if rollouts % (self.minibatches * processes):
            divisor = f"backend.minibatches = {self.minibatches}"
            if processes > 1:
                divisor += f" times {processes} processes"
            raise ConfigError(
                f"prompts_per_step: expected prompts_per_step x group_size to be a multiple of "
                f"{divisor}, got {run.prompts_per_step} x {run.group_size} = {rollouts} rollouts"
            )
        share = rollouts // (self.minibatches * processes)
        most = min(share, self.device_batch or share)
        size = next(size for size in range(most, 0, -1) if share % size == 0)
        return Layout(rollouts, self.minibatches, self.inner_epochs, size, processes)


@dataclass(frozen=True)
class Layout:
    """The shares that a step's rollouts are divided into.

    Attributes:
        rollouts: rollouts of a step.
        minibatches: updates per inner epoch.
        inner_epochs: how often a step trains on its rollouts.
        device_batch: rollouts of one forward pass.
        processes: processes that make these passes side by side.
    """

    rollouts: int
    minibatches: int
    inner_epochs: int
    device_batch: int
    processes: int = 1

    @property
    def passes(self) -> int:
        """Forward passes of each process per update."""
        return self.all_passes // self.processes

    @property
    def all_passes(self) -> int:
        """Forward passes of all processes per update."""
        return self.rollouts // (self.minibatches * self.device_batch)

    @property
    def updates(self) -> int:
        """Updates per step."""
        return self.minibatches * self.inner_epochs
