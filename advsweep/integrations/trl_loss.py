"""The loss of an objective in TRL's GRPOTrainer."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
import trl
from torch import Tensor

from advsweep.backends.trl.releases import IMAGE_ARGUMENTS
from advsweep.backends.trl.steps import whole_rows
from advsweep.errors import AdvsweepWarning, ConfigError
from advsweep.integrations.objectives import lacks_length
from advsweep.objectives.base import Choice, LossInputs, Objective
from advsweep.objectives.parts import OF_ROLLOUTS, join

# Settings of TRL's own loss.
_OF_LOSS = (
    "loss_type",
    "epsilon",
    "epsilon_high",
    "delta",
    "importance_sampling_level",
    "top_entropy_quantile",
    "off_policy_mask_threshold",
    "entropy_coef",
    "use_adaptive_entropy",
    "use_bias_correction_kl",
    "sapo_temperature_neg",
    "sapo_temperature_pos",
    "vespo_k_pos",
    "vespo_lambda_pos",
    "vespo_k_neg",
    "vespo_lambda_neg",
)
# Settings of its correction of vLLM's log-probabilities.
_OF_CORRECTION = (
    "vllm_importance_sampling_mode",
    "vllm_importance_sampling_clip_max",
    "vllm_importance_sampling_clip_min",
)


def objective_loss(
    trainer: Any, objective: Objective, model: Any, inputs: Mapping[str, Any]
) -> Tensor:
    """Return the loss of one forward pass, which TRL adds up over those of an update.

    Args:
        inputs: the rows of the pass, as `GRPOTrainer._compute_loss` gets them, with
            `num_rollouts_in_batch` if some rollouts of the generation were dropped.
    """
    passes = 1
    choice = None
    if trainer.model.training:
        passes = trainer.current_gradient_accumulation_steps
        if objective.chooses:
            choice = _choice(trainer, objective, passes)
    loss_inputs, auxiliary = _loss_inputs(trainer, objective, model, inputs)
    output = objective.loss(replace(loss_inputs, choice=choice))
    entropies = loss_inputs.entropies
    assert entropies is not None
    mask = loss_inputs.completion_mask
    processes = trainer.accelerator.num_processes
    metrics = {"entropy": (entropies.detach() * mask).sum() / mask.sum().clamp(min=1)}
    metrics |= output.metrics
    loss = output.loss
    if trainer.aux_loss_enabled:
        metrics["aux_loss"] = auxiliary.detach()
        loss = loss + trainer.router_aux_loss_coef * auxiliary
    numbers = trainer.accelerator.gather(torch.stack([*metrics.values()])).view(processes, -1)
    log = trainer._metrics["train" if trainer.model.training else "eval"]
    for name, number in zip(metrics, numbers.nanmean(dim=0).tolist(), strict=True):
        log[name].append(number)
    return loss / passes


def _loss_inputs(
    trainer: Any, objective: Objective, model: Any, inputs: Mapping[str, Any]
) -> tuple[LossInputs, Any]:
    """Return what the loss of a pass reads, and the loss of a model's routers."""
    log_probs, entropies, auxiliary = trainer._get_per_token_logps_and_entropies(
        model,
        *whole_rows(inputs),
        compute_entropy=True,  # TRL logs it
        compute_aux_loss=trainer.aux_loss_enabled,
        **images_of(inputs),
    )
    mask = (inputs["completion_mask"] * inputs.get("tool_mask", 1)).bool()
    old = inputs.get("old_per_token_logps")
    # TRL's own correction of vLLM's log-probabilities, of tokens or of rollouts.
    weights = None if objective.needs_sampler else inputs.get("importance_sampling_ratio")
    # The passes of an update, and the parts of a generation. An evaluation has one of each.
    passes = parts = 1
    if trainer.model.training:
        passes = trainer.current_gradient_accumulation_steps
        parts = trainer.args.steps_per_generation
    processes = trainer.accelerator.num_processes
    rollouts = inputs.get("num_rollouts_in_batch", len(mask) * processes * parts)
    loss_inputs = LossInputs(
        log_probs=log_probs,
        old_log_probs=log_probs.detach() if old is None else old,
        completion_mask=mask,
        advantages=inputs["advantages"],
        rollouts=max(rollouts, 1) / (processes * parts),
        tokens=inputs["num_items_in_batch"].clamp(min=1) / (processes * parts),
        parts=passes * processes,
        reference_log_probs=inputs.get("ref_per_token_logps"),
        sampler_log_probs=inputs.get("sampling_per_token_logps"),
        weights=weights,
        entropies=entropies,
    )
    return loss_inputs, auxiliary


def _choice(trainer: Any, objective: Objective, passes: int) -> Choice:
    """Return what the loss of the current pass takes from its minibatch, on all processes.

    Where an update has several generations, it is taken from the rollouts of this one.
    """
    buffer = trainer._buffered_inputs
    number = trainer._step % len(buffer)
    first = max(number - trainer._step % passes, 0)
    if number == first:
        window = buffer[first : number - trainer._step % passes + passes]
        trainer.choices_of_update = _choose(trainer, objective, window)
    choice: Choice = trainer.choices_of_update[number - first]
    return choice


@torch.no_grad()
def _choose(
    trainer: Any, objective: Objective, passes: Sequence[Mapping[str, Any]]
) -> list[Choice]:
    """Return what the losses of passes take from all rollouts in them, those of all processes.

    It takes a further forward pass over them, with the weights of their update.
    """
    accelerator = trainer.accelerator
    of_process = join([_loss_inputs(trainer, objective, trainer.model, row)[0] for row in passes])
    whole = of_process
    if accelerator.num_processes > 1:
        gathered = {}
        for name in OF_ROLLOUTS:
            values = getattr(of_process, name)
            if values is not None:
                if values.ndim > 1:
                    # Each process pads its completions to its longest.
                    values = accelerator.pad_across_processes(values, dim=1)
                gathered[name] = accelerator.gather(values.contiguous())
        whole = replace(of_process, **gathered)
    choice = objective.choose(replace(whole, parts=len(passes) * accelerator.num_processes))
    rows, width = of_process.completion_mask.shape
    first = accelerator.process_index * rows
    size = rows // len(passes)
    starts = range(first, first + rows, size)
    return [choice.of_rows(slice(start, start + size), width) for start in starts]


def images_of(outputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the images of a multimodal model, as TRL's forward pass takes them."""
    return {name: outputs[name] for name in IMAGE_ARGUMENTS if name in outputs}


def check_objective(trainer: Any, objective: Objective) -> None:
    """Refuse an objective that needs what TRL's trainer does not have.

    Raises:
        ConfigError: says what is missing, and which setting gives it.
    """
    label = f"objective '{objective.name}'"
    if objective.needs_reference and trainer.beta == 0:
        raise ConfigError(
            f"beta: {label} has a KL penalty, and TRL keeps a reference model for beta above 0 "
            f"alone: expected such a number, got 0; the penalty's weight is the objective's"
        )
    if objective.needs_sampler and not trainer.use_vllm:
        raise ConfigError(
            f"use_vllm: {label} reads the log-probabilities of a sampler: expected true, got "
            f"false; without vLLM the weights in training sample, and correction=none fits"
        )
    every = objective.plain().get("renew_every", 0)
    if every:
        raise ConfigError(
            f"renew_every: expected 0, got {every}; sync_ref_model=True renews TRL's reference"
        )
    if trainer.max_completion_length is None and lacks_length(objective):
        raise ConfigError(
            f"max_completion_length: {label} divides by the length of the longest completion: "
            f"expected it, or the objective's max_tokens, got neither"
        )
    unread = list(_OF_LOSS)
    if objective.needs_sampler:
        unread += _OF_CORRECTION
    read = trainer.estimator.needs | trainer.estimator.uses
    if not (objective.needs_reference or "token_kl" in read):
        unread.append("beta")
    warn_of_unread(trainer.args, unread, f"{label} computes the loss")


def warn_of_unread(arguments: Any, settings: Sequence[str], reason: str) -> None:
    """Warn of settings without effect that are not TRL's defaults."""
    defaults = {field.name: field.default for field in dataclasses.fields(trl.GRPOConfig)}
    for name in settings:
        if getattr(arguments, name) != defaults[name]:
            warnings.warn(
                f"{name}={getattr(arguments, name)!r} has no effect: {reason}",
                AdvsweepWarning,
                stacklevel=4,
            )
