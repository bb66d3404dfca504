"""How one training with TRL is set up; imports neither torch nor TRL.

The rollouts of a step are divided equally over updates, processes and forward passes, because
every process has to take part in every pass.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from advsweep.errors import ConfigError, NoMemoryError, is_out_of_memory

if TYPE_CHECKING:
    from advsweep.backends.trl.config import HfModel, TransformersGeneration

T = TypeVar("T")

ESTIMATOR_FILE = "estimator.json"
"""The estimator's memory in a checkpoint."""

BASE_RATE_FILE = "base_rate.json"
"""The base's solve rate in a checkpoint, for a control that needs it."""

# A file of safetensors by content alone: vLLM loads every *.safetensors of a checkpoint as weights.
CHANGE_FILE = "change.tensors"
"""The last step's change of the weights in a checkpoint."""


@dataclass(frozen=True)
class Layout:
    """The shares that a step's rollouts are divided into.

    Attributes:
        rollouts: rollouts of a step.
        processes: number of processes; each has an equal share of every minibatch.
        minibatches: updates per inner epoch.
        inner_epochs: how often a step trains on its rollouts.
        device_batch: rollouts of one forward pass of one process.
    """

    rollouts: int
    processes: int
    minibatches: int
    inner_epochs: int
    device_batch: int

    @property
    def passes(self) -> int:
        """Forward passes of one process per update."""
        return self.rollouts // (self.processes * self.minibatches * self.device_batch)

    @property
    def updates(self) -> int:
        """Updates per step."""
        return self.minibatches * self.inner_epochs


@dataclass(frozen=True, kw_only=True)
class TrainingOptions:
    """What a training takes from its backend, model and generation settings.

    The options of `TrlBackend` have the same names and meanings.

    Attributes:
        max_tokens: the most tokens of a completion.
        shards: whether weights may be divided over processes.
    """

    model: HfModel
    generation: TransformersGeneration
    layout: Layout
    max_tokens: int
    skip_zero_advantages: bool
    mixed_precision: bool
    rollout_batch: int | None
    evaluation_batch: int
    gradient_checkpointing: bool
    entropy_change: bool
    measured_weights: int
    shards: bool


def lay_out(
    *,
    prompts: int,
    group_size: int,
    minibatches: int,
    inner_epochs: int,
    processes: int,
    device_batch: int | None,
) -> Layout:
    """Divide a step's rollouts into the largest forward passes that are all equal.

    Args:
        prompts: prompts of a step.
        device_batch: the most rollouts of one forward pass of one process; None: no limit.

    Raises:
        ConfigError: the rollouts cannot be divided equally.
    """
    rollouts, parts = prompts * group_size, minibatches * processes
    if rollouts % parts:
        unit = parts // math.gcd(parts, group_size)
        below, above = prompts // unit * unit, -(-prompts // unit) * unit
        nearest = " or ".join(str(number) for number in (below, above) if number)
        raise ConfigError(
            f"prompts_per_step: expected prompts_per_step x group_size to be a multiple of "
            f"backend.minibatches x processes = {minibatches} x {processes}, got {prompts} x "
            f"{group_size} = {rollouts} rollouts; the nearest that fits is prompts_per_step="
            f"{nearest}"
        )
    share = rollouts // parts
    most = min(share, device_batch or share)
    return Layout(
        rollouts=rollouts,
        processes=processes,
        minibatches=minibatches,
        inner_epochs=inner_epochs,
        device_batch=next(size for size in range(most, 0, -1) if share % size == 0),
    )


def share_of(items: Sequence[T], process: int, processes: int, *, unit: int = 1) -> list[T]:
    """Return one process's part of a list, padded with its first item to equal parts.

    Args:
        unit: the length of the padded list is a multiple of it.
    """
    multiple = math.lcm(processes, unit)
    missing = -len(items) % multiple
    filled = [*items, *[items[0]] * missing]
    size = len(filled) // processes
    return filled[process * size : (process + 1) * size]


TRAINING_REMEDIES = (
    "a smaller backend.rollout_batch (rollouts generated at once), backend.device_batch (trained "
    "on at once) or backend.evaluation_batch, or more processes (resources.gpus), need less "
    "memory, and the run resumes from its last checkpoint; backend.gradient_checkpointing=true, "
    "model.lora_rank=16, model.dtype=bfloat16 and a smaller generation.max_tokens need less "
    "memory too, the last three as another run"
)
EVALUATION_REMEDIES = (
    "a smaller backend.evaluation_batch (fewer answers at once) needs less memory, and so do a "
    "smaller generation.max_tokens and model.dtype=bfloat16, as another evaluation"
)


@contextmanager
def advise_if_out_of_memory(remedies: str) -> Iterator[None]:
    """Add advice to errors that say that memory ran out.

    Raises:
        NoMemoryError: instead of such an error.
    """
    try:
        yield
    except NoMemoryError:
        raise
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        lines = str(error).strip().splitlines() or ["out of memory"]
        raise NoMemoryError(f"{lines[0]}; {remedies}") from error
