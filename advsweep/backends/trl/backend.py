"""The TRL backend and its checks; `training` has what happens at a training.

Plans import this module, so TRL and transformers are imported in the methods that need them.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import json
import os
import warnings
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from advsweep.backends.base import BATCH_FIELDS, Backend, Can
from advsweep.backends.checkpoints import Checkpoints
from advsweep.backends.identity import hash_json
from advsweep.backends.trl.config import (
    EVALUATION_REMEDIES,
    HfModel,
    TransformersGeneration,
    VllmGeneration,
    advise_if_out_of_memory,
    answer_tokens,
    generation_of,
    hf_model,
)
from advsweep.backends.trl.environments import check_environment
from advsweep.backends.trl.helpers import check_processes, helped
from advsweep.backends.trl.options import TrlOptions
from advsweep.backends.trl.releases import check_releases
from advsweep.backends.trl.tokenizer_file import (
    describe_lost_characters,
    describe_special_tokens,
)
from advsweep.components import Component, Plain, Retired, identity_of
from advsweep.errors import (
    AdvsweepWarning,
    ConfigError,
    SamplerError,
    counted,
    reason_of,
)
from advsweep.names import GPUS_VARIABLE
from advsweep.packages import extra_command
from advsweep.tasks.base import SymbolTask
from advsweep.tasks.environments import EnvironmentTask

if TYPE_CHECKING:
    from advsweep.backends.base import Run
    from advsweep.backends.reporter import Reporter
    from advsweep.backends.trl.sampling import ModelSampler
    from advsweep.backends.trl.vllm_engine import VllmSampler
    from advsweep.config.settings import EvaluationSettings, Generation
    from advsweep.tasks.base import Sampler, Task

# Learning rate above which a training of all weights gets a warning.
HIGH_RATE = 1e-5


@dataclass(kw_only=True)
class TrlBackend(TrlOptions, Backend):
    """Trains a model of transformers with TRL, on GPUs or, for small models, on a CPU."""

    name: ClassVar[str] = "trl"
    retired: ClassVar[Retired] = {
        **Backend.retired,
        "accelerate": (None, 1),
    }
    provides: ClassVar[frozenset[str]] = BATCH_FIELDS | {"reward_parts"}
    supports: ClassVar[Can] = (
        Can.GREEDY
        | Can.REFERENCES
        | Can.SHAPED_REWARDS
        | Can.SYSTEM_MESSAGES
        | Can.TRUNCATED_SAMPLING
        | Can.CONTROLS
        | Can.SAMPLER_LOG_PROBS
        | Can.SELECTION
        | Can.STOP_TEXTS
        | Can.ENVIRONMENTS
    )

    def identity(self) -> Plain:
        # Runs of the time when it was an option keep their identity.
        return {**super().identity(), "accelerate": None}

    def revised(self, material: Plain, run: Run) -> Plain:
        model = hf_model(run.model)
        if not model.is_trained_in_other_dtype:
            return material
        # Revision 1 trained weights of 16 bits, which usual rates hardly change.
        return {**material, "model": {**material["model"], "revision": model.revision + 1}}

    def check(self, run: Run) -> None:
        model = hf_model(run.model)
        if not model.path:
            raise ConfigError(
                "model.path: expected a folder or a name on the hub, got nothing; give it as "
                "model.path=Qwen/Qwen2.5-0.5B or model.path=/a/folder"
            )
        if not run.task.is_text:
            raise ConfigError(
                f"task: expected problems that a language model can read, got '{run.task.name}', "
                "a table of rewards; backend=bandit trains on it"
            )
        if isinstance(run.task, SymbolTask) and run.task.map_seed:
            raise ConfigError(
                f"task.seed: expected an integer with backend 'trl', as the model of all seeds "
                f"knows one map of '{run.task.name}', got 'seed'"
            )
        packages = ["trl", "datasets"]
        if model.lora_rank:
            packages.append("peft")
        for name in packages:
            if importlib.util.find_spec(name) is None:
                raise ConfigError(
                    f"backend: 'trl' needs {name}, which is not installed: {extra_command('trl')}"
                )
        check_releases("trl", [*packages, "transformers", "accelerate"], "backend: 'trl'")
        generation = generation_of(run.generation)
        generation.check()
        if run.objective.needs_sampler and not isinstance(generation, VllmGeneration):
            raise ConfigError(
                "objective.correction: expected none with generation=transformers, which samples "
                "with the weights in training; generation=vllm has log-probabilities of its own"
            )
        if run.group_size < 2:
            raise ConfigError(f"group_size: expected >= 2 with backend 'trl', got {run.group_size}")
        self.layout_of(run)
        check_environment(run, self.processes or 1)
        if self.processes is not None and self.processes > 1:
            check_processes(run)

    def check_gpus(self, run: Run, gpus: int) -> None:
        if self.processes not in (None, gpus):
            raise ConfigError(
                f"backend.processes: expected null or resources.gpus = {gpus}, a process for each "
                f"GPU, got {self.processes}"
            )
        self.layout_of(run, gpus)
        check_environment(run, gpus)
        if gpus > 1:
            check_processes(run)

    def cautions(self, run: Run) -> list[str]:
        model = hf_model(run.model)
        cautions = [] if run.absent else describe_lost_characters(model, run.task)
        wanted = {"task.reward": run.task.delimiters}
        wanted["generation.stop"] = generation_of(run.generation).stop
        cautions += describe_special_tokens(model, wanted)
        if model.is_trained_in_other_dtype:
            cautions.append(
                f"model.dtype: {model.dtype.value} is for weights that are not trained (a base "
                "under LoRA, evaluations of a model): all weights are trained here, and kept in "
                "float32, as 16 bits round small updates away; backend.mixed_precision computes "
                "in bfloat16 on a GPU"
            )
        if not model.lora_rank and run.optimizer.lr > HIGH_RATE:
            cautions.append(
                f"optimizer.lr: {run.optimizer.lr:g} is high for a pretrained language model, of "
                f"which all weights are trained; above {HIGH_RATE:g} it may forget what it "
                "learned; papers use optimizer.lr=1e-6"
            )
        return cautions

    def cpu_threads(self) -> int:
        return self.threads * (self.processes or 1)

    def train(self, run: Run, directory: Path, reporter: Reporter) -> None:
        count = self._process_count()
        torch.set_num_threads(self.threads)
        with helped(run, count, directory) as ranks:
            # Imported while the other processes start, which takes as long.
            from advsweep.backends.trl import training

            training.train(run, self, directory, reporter, ranks)

    def _process_count(self) -> int:
        """Return how many processes train a run here: one for each GPU in sight.

        Raises:
            ConfigError: there are other GPUs in sight than the run is meant to have.
        """
        gpus = torch.cuda.device_count()
        assigned = int(os.environ.get(GPUS_VARIABLE, "1"))
        if gpus == 0:
            if assigned > 1:
                raise ConfigError(
                    f"backend: expected {assigned} GPUs in sight, got none that torch can use; "
                    "install a build of torch for GPUs"
                )
            return self.processes or 1
        expected = self.processes or assigned
        if gpus != expected:
            raise ConfigError(
                f"backend: expected {counted(expected, 'GPU')} in sight, got {gpus}; train on all "
                f"of them by resources.gpus={gpus} and backend.processes={gpus}, or leave the "
                f"others out by CUDA_VISIBLE_DEVICES"
            )
        return gpus

    def sampler(self, run: Run, directory: Path, step: int, task: Task | None = None) -> Sampler:
        return self.sampler_by(run.generation, run, directory, step, task or run.task)

    @classmethod
    def samples_with(cls) -> tuple[type[Generation], ...]:
        slower = (TransformersGeneration,)
        return (VllmGeneration, *slower) if VllmGeneration.is_installed() else slower

    def sampler_by(
        self, generation: Generation, run: Run, directory: Path, step: int, task: Task
    ) -> Sampler:
        _refuse_engine(generation, task)
        # The length limit and the stop texts of the run's training hold for every sampler.
        tokens = answer_tokens(run.generation, task)
        ending = replace(generation_of(generation), stop=generation_of(run.generation).stop)
        folder = self._folder(run, directory, step)
        model = hf_model(run.model).as_trained()

        @functools.cache
        def load_base() -> Any:
            from advsweep.backends.trl.loading import load_model

            return load_model(model)

        def base(weights: Any) -> AbstractContextManager[Any]:
            # Without a checkpoint the weights are the base model's.
            return contextlib.nullcontext(weights if folder is None else load_base())

        sampler = self._open(model, folder, ending, tokens=tokens, top_p=run.evaluation.top_p)
        from advsweep.backends.trl.sampling import ModelSampler

        if isinstance(sampler, ModelSampler):
            return _for_task(replace(sampler, base=base), task)
        return sampler  # vLLM measures no KL from the base model

    def model_sampler(
        self, model: Component, generation: Generation, task: Task, settings: EvaluationSettings
    ) -> Sampler:
        if importlib.util.find_spec("transformers") is None:
            raise ConfigError(
                "model: a model is evaluated with transformers, which is not installed: "
                f"{extra_command('hf')}"
            )
        check_releases("hf", ["transformers"], "model: an evaluation with transformers")
        _refuse_engine(generation, task)
        from advsweep.backends.trl.generation_defaults import (
            describe_dropped,
            load_generation_config,
        )

        described = hf_model(model)
        cautions = describe_lost_characters(described, task)
        cautions += describe_dropped(described, load_generation_config(described))
        for caution in cautions:
            warnings.warn(caution, AdvsweepWarning, stacklevel=2)
        tokens = answer_tokens(generation, task)
        ending = generation_of(generation)
        sampler = self._open(described, None, ending, tokens=tokens, top_p=settings.top_p)
        from advsweep.backends.trl.prompt_checks import Checkpoint
        from advsweep.backends.trl.sampling import ModelSampler

        if isinstance(sampler, ModelSampler):
            with sampler.opened() as loaded:
                checked = Checkpoint(described, sampler.tokenizer, loaded, sampler.marks)
                for caution in checked.check(task, tokens, ending.stop):
                    warnings.warn(caution, AdvsweepWarning, stacklevel=2)
            return _for_task(sampler, task)
        return sampler

    def _open(
        self,
        model: HfModel,
        folder: Path | None,
        generation: TransformersGeneration,
        *,
        tokens: int,
        top_p: float,
    ) -> ModelSampler | VllmSampler:
        """Load weights into what samples them.

        Args:
            folder: a checkpoint; None: the model's own weights.
            tokens: the most tokens of a completion.
        """
        generation.check()
        if isinstance(generation, VllmGeneration):
            from advsweep.backends.trl.vllm_engine import VllmSampler

            return VllmSampler(model, folder, generation, tokens=tokens, top_p=top_p)
        from advsweep.backends.trl.ends import end_marks
        from advsweep.backends.trl.loading import load_model, load_tokenizer
        from advsweep.backends.trl.prompt_sharing import PromptSharing
        from advsweep.backends.trl.sampling import ModelSampler

        torch.set_num_threads(self.threads)
        tokenizer = load_tokenizer(model, folder)
        with advise_if_out_of_memory(EVALUATION_REMEDIES):
            loaded = load_model(model, folder)
        return ModelSampler(
            opened=lambda: contextlib.nullcontext(loaded),
            tokenizer=tokenizer,
            marks=end_marks(loaded.generation_config, tokenizer),
            model=model,
            generation=generation,
            tokens=tokens,
            batch=self.evaluation_batch,
            sharing=PromptSharing(self.share_prompts, loaded),
            top_p=top_p,
        )

    def model_key(self, model: Component, generation: Generation) -> str:
        material = {
            "backend": self.name,
            "revision": self.revision,
            "model": identity_of(hf_model(model)),
            "max_tokens": generation_of(generation).max_tokens,
            **_stopping(generation),
        }
        return hash_json(material)

    def base_key(self, run: Run) -> str:
        material = {
            "backend": self.name,
            "revision": self.revision,
            "tokens": self.completion_tokens(run),
            "model": identity_of(hf_model(run.model)),
            "task": identity_of(run.task),
            **_stopping(run.generation),
        }
        return hash_json(self.revised(material, run))

    def export(self, run: Run, directory: Path, step: int, target: Path) -> None:
        from advsweep.backends.trl.loading import load_model, load_tokenizer

        folder = self._folder(run, directory, step)
        model = hf_model(run.model).as_trained()
        try:
            load_model(model, folder).save_pretrained(target)
            load_tokenizer(model, folder).save_pretrained(target)
        except OSError as error:
            raise ConfigError(
                f"{target}: expected a folder that can be written, but {reason_of(error)}"
            ) from error

    def completion_tokens(self, run: Run) -> int:
        return answer_tokens(run.generation, run.task)

    def answer_limits(self, generation: Generation, task: Task) -> Plain:
        limits: Plain = {"max_tokens": answer_tokens(generation, task)}
        stop = generation_of(generation).stop
        if stop:
            limits["stop"] = json.dumps(list(stop))
        return limits

    def _folder(self, run: Run, directory: Path, step: int) -> Path | None:
        """Return the folder of a checkpoint; None for step 0, the base model."""
        return Checkpoints(directory, run.identity).load(step).path if step else None


def _refuse_engine(generation: Generation, task: Task) -> None:
    """Refuse vLLM for a task with an environment, so that the next sampler is tried."""
    if task.has_environment and isinstance(generation, VllmGeneration):
        raise SamplerError(f"generation: vllm plays no episodes of task '{task.label}'")


def _for_task(sampler: ModelSampler, task: Task) -> Sampler:
    """Return what samples for a task: episodes, if it has an environment."""
    if not isinstance(task, EnvironmentTask):
        return sampler
    from advsweep.backends.trl.episode_trainer import episode_sampler

    return episode_sampler(sampler, task)


def _stopping(generation: Generation) -> Plain:
    """Return the stop texts as a part of an identity, which older ones lack."""
    stop = generation_of(generation).stop
    return {"stop": list(stop)} if stop else {}
