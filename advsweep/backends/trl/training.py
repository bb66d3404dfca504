"""One training with TRL: settings, checkpoints, and the loop around the steps."""

from __future__ import annotations

import contextlib
import json
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import safetensors.torch
import torch
from datasets import Dataset
from transformers import TrainerCallback, TrainerState
from transformers.trainer_callback import PrinterCallback
from trl import GRPOConfig
from trl.models import unwrap_model_for_generation

from advsweep.backends.reporter import evaluation_stage
from advsweep.backends.training_loop import Loop, base_solve_rate
from advsweep.backends.trl.config import (
    TRAINING_REMEDIES,
    VllmGeneration,
    advise_if_out_of_memory,
    answer_tokens,
    generation_of,
    hf_model,
)
from advsweep.backends.trl.episode_trainer import EpisodeTrainer, episode_settings
from advsweep.backends.trl.generation_defaults import describe_dropped
from advsweep.backends.trl.loading import (
    load_model,
    load_tokenizer,
    loading,
    lora_config,
    model_arguments,
)
from advsweep.backends.trl.prompt_checks import Checkpoint
from advsweep.backends.trl.ranks import Ranks
from advsweep.backends.trl.reference import ReferenceModel
from advsweep.backends.trl.sampling import ModelSampler
from advsweep.backends.trl.steps import Samplers
from advsweep.backends.trl.trainer import EstimatorTrainer
from advsweep.tasks.environments import EnvironmentTask

if TYPE_CHECKING:
    from advsweep.backends.base import Run
    from advsweep.backends.checkpoints import Checkpoints
    from advsweep.backends.reporter import Reporter
    from advsweep.backends.trl.options import TrlOptions

_ESTIMATOR_FILE = "estimator.json"
_BASE_RATE_FILE = "base_rate.json"
_REFERENCE_FILE = "reference.safetensors"
_TRAINER_STATE_FILE = "trainer_state.json"
# A file of safetensors by content alone: vLLM loads every *.safetensors of a checkpoint as weights.
_CHANGE_FILE = "change.tensors"


def train(run: Run, options: TrlOptions, directory: Path, reporter: Reporter, ranks: Ranks) -> None:
    """Train to the last step, or until the reporter asks to stop; see `Backend.train`.

    Args:
        ranks: the processes that train the run together, each of which calls this. The first has
            the checkpoints and the reporter; the reporters of others report nothing.
    """
    with tempfile.TemporaryDirectory() as scratch, warnings.catch_warnings():
        # TRL uses deprecated names of transformers.
        warnings.filterwarnings("ignore", category=FutureWarning, module="transformers")
        with advise_if_out_of_memory(TRAINING_REMEDIES):
            ranks.connect(Path(scratch), options.threads)
            Training(run, options, directory, reporter, Path(scratch), ranks).train()


@dataclass(eq=False)
class Training:
    """A trainer and the loop around its steps.

    Attributes:
        scratch: a temporary folder that transformers writes to.
        ranks: the processes that train the run together; by default this one.
    """

    run: Run
    options: TrlOptions
    directory: Path
    reporter: Reporter
    scratch: Path
    ranks: Ranks = field(default_factory=Ranks)

    def __post_init__(self) -> None:
        run = self.run
        self.layout = self.options.layout_of(run, self.ranks.count)
        self._tokens = answer_tokens(run.generation, run.task)
        self._model = hf_model(run.model).as_trained()
        self._generation = generation_of(run.generation)
        self._tokenizer = load_tokenizer(self._model)

        self._loop: Loop | None = None
        if self.ranks.is_first:
            self._loop = Loop(run, self.directory, self.reporter, self._sampler, self._save)
        self._reference = ReferenceModel(self._model)
        self.reporter.progress("loading the model", 0, 1)
        trainer = EstimatorTrainer
        if isinstance(self._generation, VllmGeneration):
            from advsweep.backends.trl.vllm_trainer import VllmTrainer

            trainer = VllmTrainer
        if run.task.has_environment:
            trainer = EpisodeTrainer
        samplers = Samplers(
            reference=lambda: self._model_sampler(
                lambda: contextlib.nullcontext(self._reference.loaded()), truncated=True
            ),
            policy=lambda: self.trainer.evaluation_sampler(self._model_sampler(self._opened)),
        )
        with loading(self._model):
            self.trainer = trainer(
                run,
                self.options,
                ranks=self.ranks,
                samplers=samplers,
                log=self.reporter.log,
                args=self._settings(),
                train_dataset=Dataset.from_dict({"prompt": [""] * run.prompts_per_step}),
                processing_class=self._tokenizer,
                peft_config=lora_config(self._model) if self._model.lora_rank else None,
                callbacks=[_AroundSteps(self)],
            )
        self._check_model()
        # It prints to stdout, which is for the data of commands alone.
        self.trainer.remove_callback(PrinterCallback)

    def _check_model(self) -> None:
        """Refuse a model that cannot get the task's prompts, and log what is doubtful."""
        trainer = self.trainer
        model = Checkpoint(self._model, self._tokenizer, trainer.model, trainer.eos_token_ids)
        doubts = model.check(self.run.task, self._tokens, self._generation.stop)
        for line in doubts + describe_dropped(self._model, trainer.model.generation_config):
            self.reporter.log(line)

    def train(self) -> None:
        newest = self.ranks.from_first(self._newest)
        if newest:
            self._restore(newest)
        self.trainer.train(resume_from_checkpoint=str(newest) if newest else None)

    def _newest(self) -> Path | None:
        """Return the folder of the checkpoint to resume from."""
        assert self._loop is not None
        return self._loop.newest.path if self._loop.newest else None

    def begin(self) -> None:
        """Start the loop; call this once, before the first update."""
        if self.trainer.meter:
            self.trainer.meter.begin()
        # The others wait here for the first process's evaluations. In the first step they would
        # wait in torch.distributed, which gives up after 10 minutes on GPUs.
        self.ranks.from_first(self._begin_loop)

    def _begin_loop(self) -> None:
        assert self._loop is not None
        self._loop.begin()
        if self._loop.start == 0:
            # As the training samples; a resumed run has the rate in its checkpoint.
            base = replace(self._sampler(), truncated=True, base=None)
            self.trainer.base_rate = base_solve_rate(self.run, base)

    def end_update(self) -> bool:
        """Report a finished step; call this after each update. True: the training stops."""
        trainer = self.trainer
        # Checkpoints are written at the ends of steps alone: TRL counts the updates of a
        # generation from 0 again when it resumes.
        if trainer.state.global_step % self.layout.updates:
            return False
        step = trainer.steps_done
        # The others wait for the first process's evaluation and checkpoint.
        return self.ranks.from_first(lambda: self._end_step(step))

    def _end_step(self, step: int) -> bool:
        assert self._loop is not None
        trainer = self.trainer
        if self.run.rollout.renews_reference(step):
            self._reference.renew(trainer.accelerator.unwrap_model(trainer.model_wrapped))
        return self._loop.end_step(step, trainer.step_metrics())

    def _settings(self) -> GRPOConfig:
        run = self.run
        layout = self.layout
        options = self.options
        cpu = not torch.cuda.is_available()
        of_task = {}
        if isinstance(run.task, EnvironmentTask):
            of_task = episode_settings(run.task)
        reads_kl = "token_kl" in run.estimator.needs | run.estimator.uses
        return GRPOConfig(
            output_dir=str(self.scratch),
            model_init_kwargs=model_arguments(self._model),
            # The pace: a step of the run is one generation and one epoch of the dataset.
            max_steps=run.steps * layout.updates,
            per_device_train_batch_size=layout.device_batch,
            gradient_accumulation_steps=layout.passes,
            steps_per_generation=layout.minibatches * layout.passes,
            num_iterations=layout.inner_epochs,
            num_generations=run.group_size,
            shuffle_dataset=False,
            # Problems are drawn by seed and step: there is no order of data to go back to.
            ignore_data_skip=True,
            # Generation.
            **self._generation.trl_settings(),
            max_completion_length=self._tokens,
            **of_task,
            # The objective computes the loss. TRL computes log-probabilities of the reference
            # model if beta is not 0, and the objective and the estimator take those.
            beta=1.0 if run.objective.needs_reference or reads_kl else 0.0,
            router_aux_loss_coef=0.0,
            max_grad_norm=run.optimizer.max_grad_norm,
            # Precision and memory.
            use_cpu=cpu,
            bf16=not cpu and options.mixed_precision,
            gradient_checkpointing=options.gradient_checkpointing,
            disable_dropout=True,
            # advsweep saves and logs itself.
            seed=run.seed,
            save_strategy="no",
            logging_strategy="no",
            logging_nan_inf_filter=False,
            report_to="none",
            disable_tqdm=True,
        )

    # Weights that answer

    def _sampler(self) -> ModelSampler:
        """Return what samples from the weights in training."""
        sampler = self._model_sampler(self._opened, base=self._base_model)

        def report(done: int, total: int) -> None:
            self.reporter.progress(evaluation_stage(self.trainer.steps_done), done, total)

        return self.trainer.evaluation_sampler(replace(sampler, on_progress=report))

    @contextlib.contextmanager
    def _opened(self) -> Iterator[Any]:
        """The trained model, ready to generate."""
        trainer = self.trainer
        with unwrap_model_for_generation(trainer.model_wrapped, trainer.accelerator) as model:
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

    def _model_sampler(
        self, opened: Callable[[], AbstractContextManager[Any]], **more: Any
    ) -> ModelSampler:
        return ModelSampler(
            opened=opened,
            tokenizer=self._tokenizer,
            marks=self.trainer.eos_token_ids,
            model=self._model,
            generation=self._generation,
            tokens=self._tokens,
            batch=self.options.evaluation_batch,
            sharing=self.trainer.sharing,
            top_p=self.run.evaluation.top_p,
            **more,
        )

    # Checkpoints

    def _save(self, checkpoints: Checkpoints, step: int) -> Path:
        return checkpoints.save_folder(step, self._write)

    def _write(self, folder: Path) -> None:
        """Write what transformers writes, and what it does not."""
        trainer = self.trainer
        trainer.save_model(str(folder), _internal_call=True)
        trainer._save_optimizer_and_scheduler(str(folder))
        # Nothing reads it, and its paths make checkpoints of equal runs differ.
        (folder / "training_args.bin").unlink()
        names = ["global_step", "max_steps", "train_batch_size", "num_input_tokens_seen"]
        # transformers warns when these differ from the settings.
        names += ["logging_steps", "eval_steps", "save_steps"]
        state = TrainerState(**{name: getattr(trainer.state, name) for name in names})
        state.save_to_json(str(folder / _TRAINER_STATE_FILE))
        memory = json.dumps(trainer.estimator.state_dict())
        (folder / _ESTIMATOR_FILE).write_text(memory, encoding="utf-8")
        if self.run.control.base_samples:
            rate = json.dumps(trainer.base_rate)
            (folder / _BASE_RATE_FILE).write_text(rate, encoding="utf-8")
        if trainer.meter:
            change = {name: part.contiguous() for name, part in trainer.meter.state().items()}
            safetensors.torch.save_file(change, str(folder / _CHANGE_FILE))
        self._reference.save(folder / _REFERENCE_FILE)

    def _restore(self, folder: Path) -> None:
        """Load what transformers does not load when it resumes."""
        state = (folder / _ESTIMATOR_FILE).read_text(encoding="utf-8")
        self.trainer.estimator.load_state_dict(json.loads(state))
        if self.run.control.base_samples:
            rate = (folder / _BASE_RATE_FILE).read_text(encoding="utf-8")
            self.trainer.base_rate = json.loads(rate)
        if self.trainer.meter and (folder / _CHANGE_FILE).exists():
            self.trainer.meter.restore(safetensors.torch.load_file(str(folder / _CHANGE_FILE)))
        if self.ranks.is_first:
            self._reference.restore(folder / _REFERENCE_FILE)


class _AroundSteps(TrainerCallback):  # type: ignore[misc]
    """Calls the loop from transformers' Trainer."""

    def __init__(self, training: Training) -> None:
        self._training = training

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        self._training.begin()

    def on_pre_optimizer_step(self, *_: Any, **__: Any) -> None:
        self._training.trainer.end_update()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> Any:
        if self._training.end_update():
            control.should_training_stop = True
        return control
