"""Trainer modes of verl's V1 that give estimators their inputs and save their memory."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import transfer_queue
from verl.trainer.ppo.v1 import (
    PPOTrainerColocateAsync,
    PPOTrainerSeparateAsync,
    PPOTrainerSync,
    register_trainer,
)

from advsweep.diagnostics import rollout_metrics
from advsweep.errors import BatchError, ConfigError
from advsweep.integrations.rows import MEMORY_FILE, Origin, load_memory, prompt_name, save_memory
from advsweep.integrations.verl.advantages import (
    IN_OUR_TRAINERS,
    StepInputs,
    build_from,
    check_inputs,
    provide,
)
from advsweep.integrations.verl.spec import NAME

if TYPE_CHECKING:
    from collections.abc import Mapping

    from omegaconf import DictConfig
    from torch import Tensor
    from transfer_queue import KVBatchMeta

# Of advsweep's metrics; verl has those of rewards, costs and entropies under its own names.
_FAMILIES = ("advantage/", "collapse/", "estimator/")
_OF_SUCCESSES = ("mass/", "prompts/", "solved/", "update/", "weight/")

_log = logging.getLogger(__name__)


class EstimatorTrainer:
    """Mixin of a V1 trainer: entropy, step and prompts for estimators; memory in checkpoints.

    verl's own methods do the work. `_compute_advantage` calls verl's, which calls the function
    `advsweep` with what it always gives; the rest waits in `StepInputs`. A checkpoint has one
    file more, `estimator.json`. verl's log gets metrics of collapse, advantages and masses, and
    those of the estimator, under advsweep's names (`advsweep.diagnostics.rollout_metrics`).

    Attributes:
        verl_mode: the mode of verl whose trainer this one extends.
        estimator: the estimator of `algorithm.advsweep`.
    """

    verl_mode: ClassVar[str]
    config: DictConfig
    global_steps: int
    total_training_steps: int

    def __init__(self, config: DictConfig) -> None:
        """Build the estimator, then the trainer.

        Raises:
            ConfigError: `algorithm.advsweep` does not describe an estimator, or
                `algorithm.adv_estimator` names another function.
            BatchError: the estimator needs an input that verl does not have.
        """
        chosen = config.algorithm.adv_estimator
        if chosen != NAME:
            raise ConfigError(
                f"algorithm.adv_estimator: trainer.v1.trainer_mode={config.trainer.v1.trainer_mode}"
                f" expects {NAME}, got {chosen}; set algorithm.adv_estimator={NAME}, or "
                f"trainer.v1.trainer_mode={self.verl_mode}"
            )
        self.estimator = build_from(config.algorithm)
        check_inputs(self.estimator, IN_OUR_TRAINERS)
        super().__init__(config)  # type: ignore[call-arg]

    @property
    def trainer_mode(self) -> str:
        """Return verl's own name of the mode.

        verl compares it to choose the replay buffer and what a checkpoint holds, so the name
        that our mode is registered under would make a synchronous trainer an asynchronous one.
        """
        return self.verl_mode

    @trainer_mode.setter
    def trainer_mode(self, name: str) -> None:
        """Ignore the name that verl's constructor reads from the configuration."""

    def _compute_advantage(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        inputs = self._step_inputs(batch)
        with provide(inputs):
            batch = super()._compute_advantage(batch, metrics)  # type: ignore[misc]
        metrics.update(self._metrics(inputs))
        return batch

    def _metrics(self, inputs: StepInputs) -> dict[str, float]:
        """Return the metrics of the step that verl does not have, under our names."""
        if inputs.result is None:
            return {}
        groups, advantages = inputs.result
        # Rewards of other values, such as those with a KL penalty, tell no success.
        binary = bool(((groups.rewards == 0) | (groups.rewards == 1)).all())
        families = _FAMILIES + _OF_SUCCESSES if binary else _FAMILIES
        free = self.estimator.verifier_free
        metrics = rollout_metrics(groups, advantages, verifier_free=free)
        return {name: value for name, value in metrics.items() if name.startswith(families)}

    def _step_inputs(self, batch: KVBatchMeta) -> StepInputs:
        wanted = self.estimator.needs | self.estimator.uses
        fields = []
        if wanted & {"token_entropy", "token_kl"}:
            fields.append("old_log_probs")
        if "token_kl" in wanted:
            fields.append("ref_log_prob")
        if wanted & {"token_entropy_exact", "token_entropies"}:
            fields.append("entropy")
        if "prompt_ids" in wanted:
            fields.append("raw_prompt")
        columns: Mapping[str, Any] = {}
        if fields:
            columns = transfer_queue.kv_batch_get(
                keys=batch.keys, partition_id=batch.partition_id, select_fields=fields
            )
        missing = [name for name in fields if name not in columns.keys()]  # noqa: SIM118 (TensorDict)
        if missing:
            raise BatchError(
                f"estimator '{self.estimator.name}' reads {', '.join(missing)}, which this batch "
                "lacks; verl computes it unless algorithm.rollout_correction.bypass_mode is true, "
                "and ref_log_prob with actor_rollout_ref.actor.use_kl_loss=true"
            )
        # verl's `uid` is another in every epoch.
        prompts = (
            [prompt_name(p) for p in columns["raw_prompt"]] if "raw_prompt" in fields else None
        )
        return StepInputs(
            estimator=self.estimator,
            origins=_origins(batch.keys, batch.tags),
            step=self.global_steps,
            total_steps=self.total_training_steps,
            log_probs=_padded(columns, "old_log_probs"),
            reference_log_probs=_padded(columns, "ref_log_prob"),
            entropies=_padded(columns, "entropy"),
            prompt_ids=prompts,
        )

    def _save_checkpoint(self) -> None:
        # First, as verl's last act is to name this checkpoint as the one to resume from.
        folder = Path(self.config.trainer.default_local_dir, f"global_step_{self.global_steps}")
        folder.mkdir(parents=True, exist_ok=True)
        save_memory(folder / MEMORY_FILE, self.estimator)
        super()._save_checkpoint()  # type: ignore[misc]

    def _load_checkpoint(self) -> None:
        super()._load_checkpoint()  # type: ignore[misc]
        if not self.global_steps:
            return
        settings = self.config.trainer
        folder = Path(settings.default_local_dir, f"global_step_{self.global_steps}")
        if settings.resume_mode == "resume_path":
            folder = Path(settings.resume_from_path)
        path = folder / MEMORY_FILE
        if path.exists():
            load_memory(path, self.estimator)
        elif self.estimator.stateful:
            _log.warning(
                "%s: not found, so the memory of estimator '%s' begins afresh; expected in "
                "checkpoints of the trainer modes advsweep_*",
                path,
                self.estimator.name,
            )


def _origins(keys: Iterable[str], tags: Iterable[Mapping[str, Any]]) -> list[Origin]:
    """Read keys as V1 makes them: the prompt's uid, session and output, with `_` between."""
    origins = []
    for key, tag in zip(keys, tags, strict=True):
        parts = key.rsplit("_", 2)
        if len(parts) != 3 or not parts[2].isdecimal():
            raise BatchError(
                f"expected a key PROMPT_SESSION_OUTPUT of verl's transfer queue, got {key!r}; "
                "this release of verl is not supported"
            )
        prompt, session, output = parts
        number = int(session) if session.isdecimal() else session
        origins.append(Origin(prompt, number, int(output), bool(tag.get("is_padding", False))))
    return origins


def _padded(columns: Mapping[str, Any], name: str) -> Tensor | None:
    if name not in columns.keys():  # noqa: SIM118 (TensorDict)
        return None
    values: Tensor = columns[name]
    return values.to_padded_tensor(0.0) if values.is_nested else values


@register_trainer("advsweep_sync")
class AdvsweepTrainerSync(EstimatorTrainer, PPOTrainerSync):  # type: ignore[misc]
    """verl's synchronous trainer with an estimator of advsweep."""

    verl_mode: ClassVar[str] = "sync"


@register_trainer("advsweep_colocate_async")
class AdvsweepTrainerColocateAsync(EstimatorTrainer, PPOTrainerColocateAsync):  # type: ignore[misc]
    """verl's asynchronous trainer on shared GPUs with an estimator of advsweep."""

    verl_mode: ClassVar[str] = "colocate_async"


@register_trainer("advsweep_separate_async")
class AdvsweepTrainerSeparateAsync(EstimatorTrainer, PPOTrainerSeparateAsync):  # type: ignore[misc]
    """verl's asynchronous trainer on separate GPUs with an estimator of advsweep.

    With `parameter_sync_step` above 1 the memory advances at each of the updates of a step.
    """

    verl_mode: ClassVar[str] = "separate_async"
