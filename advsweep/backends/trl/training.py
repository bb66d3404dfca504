"""One training with TRL: settings, checkpoints, and the loop around the steps."""

from __future__ import annotations

import contextlib
import json
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import safetensors.torch
import torch
from accelerate.utils import broadcast_object_list, gather_object
from datasets import Dataset
from torch import Tensor
from transformers import TrainerCallback, TrainerState
from transformers.trainer_callback import PrinterCallback
from trl import GRPOConfig
from trl.models import unwrap_model_for_generation

from advsweep.backends.base import evaluation_stage
from advsweep.backends.randomness import Stream, torch_seed
from advsweep.backends.training_loop import Loop, base_solve_rate
from advsweep.backends.trl.config import (
    BASE_RATE_FILE,
    CHANGE_FILE,
    ESTIMATOR_FILE,
    TRAINING_REMEDIES,
    VllmGeneration,
    advise_if_out_of_memory,
    share_of,
)
from advsweep.backends.trl.loading import load_model, load_tokenizer, loading, model_arguments
from advsweep.backends.trl.sampling import ModelSampler, TokenStatistics, as_completions
from advsweep.backends.trl.trainer import EstimatorTrainer

if TYPE_CHECKING:
    from advsweep.backends.base import Reporter, Run
    from advsweep.backends.checkpoints import Checkpoints
    from advsweep.backends.trl.backend import TrlBackend
    from advsweep.backends.trl.config import HfModel, Layout
    from advsweep.tasks.base import Completions, Problem, Sampler

_REFERENCE_FILE = "reference.safetensors"
_TRAINER_STATE_FILE = "trainer_state.json"


def train(
    run: Run, backend: TrlBackend, layout: Layout, directory: Path, reporter: Reporter | None
) -> None:
    """Train to the last step, or until the reporter asks to stop; see `Backend.train`.

    Args:
        reporter: None in all processes of a training but the first.
    """
    with tempfile.TemporaryDirectory() as scratch, warnings.catch_warnings():
        # TRL uses deprecated names of transformers.
        warnings.filterwarnings("ignore", category=FutureWarning, module="transformers")
        with advise_if_out_of_memory(TRAINING_REMEDIES):
            Training(run, backend, layout, directory, reporter, Path(scratch)).train()


class Training:
    """A trainer and the loop around its steps.

    The first of several processes has the loop. It tells the others when to take part in an
    evaluation, when to write their share of a checkpoint and when to continue.

    Args:
        scratch: a temporary folder that transformers writes to.
    """

    def __init__(
        self,
        run: Run,
        backend: TrlBackend,
        layout: Layout,
        directory: Path,
        reporter: Reporter | None,
        scratch: Path,
    ) -> None:
        self._run = run
        self._backend = backend
        self._layout = layout
        self._model = backend.model_of(run)
        self._generation = backend.generation_of(run)
        self._tokens = backend.completion_tokens(run)
        self._reporter = reporter
        self._tokenizer = load_tokenizer(self._model)
        self._loop = Loop(run, directory, reporter, self._sampler, self._save) if reporter else None
        self._reference: Any = None
        self._renewed = False
        if reporter:
            reporter.progress("loading the model", 0, 1)
        trainer = EstimatorTrainer
        if isinstance(self._generation, VllmGeneration):
            from advsweep.backends.trl.vllm_trainer import VllmTrainer

            trainer = VllmTrainer
        with loading(self._model):
            self.trainer = trainer(
                run,
                backend,
                layout,
                reference=lambda: self._model_sampler(
                    lambda: contextlib.nullcontext(self._reference_model())
                ),
                args=self._settings(scratch),
                train_dataset=Dataset.from_dict({"prompt": [""] * run.prompts_per_step}),
                processing_class=self._tokenizer,
                peft_config=_peft(self._model),
                callbacks=[_AroundSteps(self)],
            )
        # It prints to stdout, which is for the data of commands alone.
        self.trainer.remove_callback(PrinterCallback)

    def train(self) -> None:
        newest = self._loop.newest.path if self._loop and self._loop.newest else None
        newest = self._broadcast(newest)
        if newest:
            self._restore(newest)
        self.trainer.train(resume_from_checkpoint=str(newest) if newest else None)

    def begin(self) -> None:
        """Start the loop; call this once, before the first update."""
        if self.trainer.meter:
            self.trainer.meter.begin()
        if self._loop is None:
            self._follow()
        else:
            self._loop.begin()
            if self._loop.start == 0:
                rate = base_solve_rate(self._run, _SharedSampler(self, truncated=True))
                self.trainer.base_rate = rate
            self._broadcast(("continue", False))
        # Those that follow have not estimated it.
        self.trainer.base_rate = self._broadcast(self.trainer.base_rate)

    def end_update(self) -> bool:
        """Report a finished step; call this after each update. True: the training stops."""
        trainer = self.trainer
        if trainer.state.global_step % self._layout.updates:
            return False
        step = trainer.steps_done
        if self._run.rollout.renews_reference(step):
            trained = trainer.accelerator.unwrap_model(trainer.model_wrapped)
            self._reference_model().load_state_dict(trained.state_dict())
            self._renewed = True
        metrics = trainer.step_metrics()
        if self._loop is None:
            return self._follow()
        stopping = self._loop.end_step(step, metrics)
        self._broadcast(("continue", stopping))
        return stopping

    # Several processes

    def _broadcast(self, message: Any) -> Any:
        """Return the first process's message in all processes, which must call this together."""
        return broadcast_object_list([message])[0]

    def _follow(self) -> bool:
        """Do what the first process says until it continues; return whether it stops."""
        while True:
            task, content = self._broadcast(None)
            if task == "continue":
                return bool(content)
            if task == "complete":
                self._complete_share(*content)
            else:
                self._write_share(content)

    def complete(
        self, problems: Sequence[Problem], temperature: float, seed: int, *, truncated: bool
    ) -> tuple[list[str], TokenStatistics]:
        """Draw one completion per problem in all processes; only the first may call this.

        Args:
            truncated: as in `ModelSampler.complete`.
        """
        parts = self._complete_share(
            *self._broadcast(("complete", (problems, temperature, seed, truncated)))[1]
        )
        texts = [text for part, _, _ in parts for text in part][: len(problems)]
        statistics = torch.cat([part for _, part, _ in parts])[: len(problems)]
        kl = [part for _, _, part in parts if part is not None]
        return texts, replace(
            TokenStatistics.unstacked(statistics),
            kl=torch.cat(kl)[: len(problems)] if kl else None,
        )

    def _complete_share(
        self, problems: Sequence[Problem], temperature: float, seed: int, truncated: bool
    ) -> list[tuple[list[str], Tensor, Tensor | None]]:
        process, processes = self.trainer.accelerator.process_index, self._layout.processes
        texts, statistics = self._own_sampler().complete(
            share_of(problems, process, processes),
            temperature,
            torch_seed(seed, Stream.EVALUATION, process=process),
            truncated=truncated,
        )
        own = (texts, statistics.stacked(), statistics.kl)
        parts: list[tuple[list[str], Tensor, Tensor | None]] = gather_object([own])
        return parts

    def _settings(self, scratch: Path) -> GRPOConfig:
        run, layout, backend = self._run, self._layout, self._backend
        cpu = not torch.cuda.is_available()
        return GRPOConfig(
            output_dir=str(scratch),
            model_init_kwargs=model_arguments(self._model),
            # The pace: a step of the run is one generation and one epoch of the dataset.
            max_steps=run.steps * layout.updates,
            per_device_train_batch_size=layout.device_batch,
            gradient_accumulation_steps=layout.passes,
            steps_per_generation=layout.minibatches * layout.passes,
            num_iterations=layout.inner_epochs,
            num_generations=run.group_size,
            shuffle_dataset=False,
            ignore_data_skip=True,
            # Generation.
            **self._generation.trl_settings(),
            max_completion_length=self._tokens,
            # The objective computes the loss. TRL computes log-probabilities of the reference
            # model if beta is not 0, and the objective takes those.
            beta=1.0 if run.objective.needs_reference else 0.0,
            router_aux_loss_coef=0.0,
            max_grad_norm=run.optimizer.max_grad_norm,
            # Precision and memory.
            use_cpu=cpu,
            bf16=not cpu and backend.mixed_precision,
            gradient_checkpointing=backend.gradient_checkpointing,
            disable_dropout=True,
            # advsweep saves and logs itself.
            seed=run.seed,
            save_strategy="no",
            logging_strategy="no",
            logging_nan_inf_filter=False,
            report_to="none",
            disable_tqdm=True,
            ddp_timeout=7 * 24 * 3600,
        )

    # Weights that answer

    def _sampler(self) -> Sampler:
        return _SharedSampler(self) if self._layout.processes > 1 else self._own_sampler()

    def _own_sampler(self) -> ModelSampler:
        """Return what samples in this process alone."""
        sampler = replace(
            self._model_sampler(self._opened),
            base=None if self._backend.accelerate is not None else self._base_model,
            on_progress=self._report_samples,
        )
        return self.trainer.evaluation_sampler(sampler)

    def _report_samples(self, done: int, total: int) -> None:
        """Report how much of an evaluation is sampled; each process samples an equal share."""
        if self._reporter:
            everyone, stage = self._layout.processes, evaluation_stage(self.trainer.steps_done)
            self._reporter.progress(stage, done * everyone, total * everyone)

    @contextlib.contextmanager
    def _opened(self) -> Iterator[Any]:
        """The trained model, ready to generate."""
        trainer = self.trainer
        wrapped = trainer.model_wrapped
        with (
            unwrap_model_for_generation(wrapped, trainer.accelerator) as model,
            trainer._dist.summon_full_params(wrapped, recurse=False),
        ):
            training = model.training
            model.eval()
            yield model
            model.train(training)

    @contextlib.contextmanager
    def _base_model(self, model: Any) -> Iterator[Callable[..., Any]]:
        """The base model, in the precision of the trained one.

        It is in memory for as long as it is open, when no gradients are.
        """
        trainer = self.trainer
        if trainer.steps_done == 0:
            yield model
            return
        has_adapter = self._model.lora_rank > 0
        base = model if has_adapter else load_model(self._model)

        def call(**inputs: Any) -> Any:
            without = model.disable_adapter() if has_adapter else trainer.accelerator.autocast()
            with without:
                return base(**inputs)

        yield call

    def _model_sampler(self, opened: Callable[[], AbstractContextManager[Any]]) -> ModelSampler:
        return ModelSampler(
            opened=opened,
            tokenizer=self._tokenizer,
            model=self._model,
            generation=self._generation,
            tokens=self._tokens,
            batch=self._backend.evaluation_batch,
            top_p=self._run.evaluation.top_p,
        )

    def _reference_model(self) -> Any:
        """Return the model of reference rollouts: the base model until it is renewed."""
        if self._reference is None:
            self._reference = load_model(self._model)
            self._reference.to(self.trainer.accelerator.device)
        return self._reference

    # Checkpoints

    def _save(self, checkpoints: Checkpoints, step: int) -> Path:
        def write_all(folder: Path) -> None:
            self._write_share(self._broadcast(("write", folder))[1])

        return checkpoints.save_folder(step, write_all)

    def _write_share(self, folder: Path) -> None:
        """Write this process's files of a checkpoint, and wait for the others."""
        trainer = self.trainer
        trainer.save_model(str(folder), _internal_call=True)
        trainer._save_optimizer_and_scheduler(str(folder))
        if self._loop:
            self._write_common(folder)
        trainer.accelerator.wait_for_everyone()

    def _write_common(self, folder: Path) -> None:
        trainer = self.trainer
        # Nothing reads it, and its paths make checkpoints of equal runs differ.
        (folder / "training_args.bin").unlink()
        given = ["global_step", "max_steps", "train_batch_size", "num_input_tokens_seen"]
        # transformers warns when these differ from the settings.
        given += ["logging_steps", "eval_steps", "save_steps"]
        state = TrainerState(**{name: getattr(trainer.state, name) for name in given})
        state.save_to_json(str(folder / _TRAINER_STATE_FILE))
        own = json.dumps(trainer.estimator.state_dict())
        (folder / ESTIMATOR_FILE).write_text(own, encoding="utf-8")
        if self._run.control.base_samples:
            rate = json.dumps(trainer.base_rate)
            (folder / BASE_RATE_FILE).write_text(rate, encoding="utf-8")
        if trainer.meter:
            change = {name: part.contiguous() for name, part in trainer.meter.state().items()}
            safetensors.torch.save_file(change, str(folder / CHANGE_FILE))
        if self._renewed:
            safetensors.torch.save_model(self._reference, str(folder / _REFERENCE_FILE))

    def _restore(self, folder: Path) -> None:
        """Load what transformers does not load when it resumes."""
        state = (folder / ESTIMATOR_FILE).read_text(encoding="utf-8")
        self.trainer.estimator.load_state_dict(json.loads(state))
        if self._run.control.base_samples:
            rate = (folder / BASE_RATE_FILE).read_text(encoding="utf-8")
            self.trainer.base_rate = json.loads(rate)
        if self.trainer.meter and (folder / CHANGE_FILE).exists():
            self.trainer.meter.restore(safetensors.torch.load_file(str(folder / CHANGE_FILE)))
        if (folder / _REFERENCE_FILE).exists():
            safetensors.torch.load_model(self._reference_model(), str(folder / _REFERENCE_FILE))
            self._renewed = True


@dataclass(frozen=True)
class _SharedSampler:
    """Samples from the weights in training with all processes together.

    Attributes:
        truncated: whether tokens are cut as in training, or as in evaluations.
    """

    training: Training
    truncated: bool = False

    def sample(
        self, problems: Sequence[Problem], n: int, *, temperature: float, seed: int
    ) -> Completions:
        """Draw n completions per problem; the same seed gives the same completions."""
        repeated = [problem for problem in problems for _ in range(n)]
        made = self.training.complete(repeated, temperature, seed, truncated=self.truncated)
        return as_completions(*made, n)


class _AroundSteps(TrainerCallback):  # type: ignore[misc]
    """Calls the loop from transformers' Trainer."""

    def __init__(self, training: Training) -> None:
        self._training = training

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        self._training.begin()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> Any:
        if self._training.end_update():
            control.should_training_stop = True
        return control


def _peft(model: HfModel) -> Any:
    if model.lora_rank == 0:
        return None
    from peft import LoraConfig

    targets = list(model.lora_targets)
    return LoraConfig(
        r=model.lora_rank,
        lora_alpha=model.lora_alpha,
        target_modules=targets[0] if targets == ["all-linear"] else targets,
        task_type="CAUSAL_LM",
    )
