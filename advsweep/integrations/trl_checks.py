"""Settings with which TRL's trainer goes on, and does something else than was meant."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

import torch

from advsweep.backends.trl.loading import disable_dropout
from advsweep.errors import BatchError, ConfigError

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor


def check_saves(arguments: Any) -> None:
    """Refuse saves between the updates of a generation, from which TRL resumes to other weights.

    TRL counts the updates of a generation from 0 again, and samples another one.

    Raises:
        ConfigError: says how many updates a generation has.
    """
    if str(getattr(arguments.save_strategy, "value", arguments.save_strategy)) != "steps":
        return
    every = arguments.save_steps
    if every < 1 and arguments.max_steps <= 0:
        return  # a share of a number of updates that is not known yet
    if every < 1:
        every = math.ceil(arguments.max_steps * every)
    passes = arguments.steps_per_generation * arguments.num_iterations
    updates = passes // math.gcd(passes, arguments.gradient_accumulation_steps)
    if every % updates:
        raise ConfigError(
            f"save_steps: expected a multiple of {updates}, the updates of a generation "
            f"(steps_per_generation * num_iterations / gradient_accumulation_steps), got "
            f"{every:g}; TRL resumes to other weights from a save in between"
        )


def check_dataset(dataset: Any, arguments: Any) -> None:
    """Refuse a dataset without enough prompts for a generation, on which TRL makes no step.

    Raises:
        ConfigError: says how many prompts a generation has.
    """
    if not hasattr(dataset, "__len__"):
        return
    needed = arguments.generation_batch_size // arguments.num_generations
    if len(dataset) < needed:
        raise ConfigError(
            f"train_dataset: expected at least {needed} prompts, those of a generation "
            f"(generation_batch_size / num_generations), got {len(dataset)}; TRL leaves out a "
            f"generation that is not full, and would train no step"
        )


def check_dropout(model: Any, arguments: Any, reader: str, read: Collection[str]) -> None:
    """Refuse dropout where something reads numbers of the policy, which dropout changes.

    Args:
        reader: what reads them, for the message.
        read: the numbers of the policy that are read.

    Raises:
        ConfigError: names the setting of TRL that turns dropout off.
    """
    if arguments.disable_dropout:
        # TRL's setting leaves the rates of layers that call torch's function.
        disable_dropout(model)
        return
    rate = largest_dropout(model)
    if read and rate:
        raise ConfigError(
            f"disable_dropout: {reader} reads {', '.join(sorted(read))} of the policy, which "
            f"dropout of {rate:g} changes at random: expected True, got False"
        )


def largest_dropout(model: Any) -> float:
    """Return the largest rate of dropout of a model's layers."""
    rates = [0.0]
    for module in model.modules():
        if isinstance(module, torch.nn.modules.dropout._DropoutNd):
            rates.append(module.p)
        for name, value in vars(module).items():
            if "drop" in name and isinstance(value, float):
                rates.append(value)
    return max(rates)


def check_rewards(rewards: Float[Tensor, "rollouts functions"], names: Collection[str]) -> None:
    """Refuse infinite rewards; NaN stands for None.

    Raises:
        BatchError: says which function gave them.
    """
    for name, scored in zip(names, rewards.T, strict=True):
        count = int(scored.isinf().sum())
        if count:
            raise BatchError(
                f"reward function {name}: expected finite numbers, got {count} of {len(scored)} "
                f"infinite ones; return None for a completion that it cannot score"
            )
