"""The tiny backend: trains a transformer of 100,000 parameters on one CPU core.

Lists and plans import this module, so what needs torch is imported in the methods that train.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from advsweep.backends.base import BATCH_FIELDS, Backend, Can
from advsweep.backends.checkpoints import Checkpoints
from advsweep.backends.models import TinyModel
from advsweep.backends.tiny.options import TinyOptions
from advsweep.errors import ConfigError
from advsweep.tasks.base import SymbolTask

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from advsweep.backends.base import Run
    from advsweep.backends.reporter import Reporter
    from advsweep.backends.tiny.weights import Weights
    from advsweep.tasks.base import Sampler, Task


@dataclass(kw_only=True)
class TinyBackend(TinyOptions, Backend):
    """Trains the tiny model on a task over a small alphabet.

    Resetting the last layers at intervals is FADE's check of where a method learns
    (arXiv:2607.01490, App. 15.2, with the last 4 layers of a 7B model): what is learned only
    there is lost.
    """

    name: ClassVar[str] = "tiny"
    revision: ClassVar[int] = 2  # in 1, numbers had other last bits
    provides: ClassVar[frozenset[str]] = BATCH_FIELDS | {"reward_parts"}
    supports: ClassVar[Can] = (
        Can.CONTROLS
        | Can.GREEDY
        | Can.REFERENCES
        | Can.RETRIES
        | Can.SHAPED_REWARDS
        | Can.STEP_MATCHING
        | Can.TRUNCATED_SAMPLING
        | Can.RESETS
        | Can.SAMPLER_LOG_PROBS
        | Can.SELECTION
        | Can.EPISODES
        | Can.VALUES
    )

    def pretraining_left(self, run: Run) -> int:
        from advsweep.backends.tiny import pretraining

        model, task = _parts(run)
        return 0 if pretraining.is_cached(model, task) else model.pretraining_steps

    def check(self, run: Run) -> None:
        model, _ = _parts(run)
        if self.reset_layers > model.layers:
            raise ConfigError(
                f"backend.reset_layers: expected at most model.layers = {model.layers}, got "
                f"{self.reset_layers}"
            )
        self.check_minibatches(run.prompts_per_step)

    def cpu_threads(self) -> int:
        return self.threads

    def train(self, run: Run, directory: Path, reporter: Reporter) -> None:
        import torch

        from advsweep.backends import training_loop
        from advsweep.backends.tiny import pretraining
        from advsweep.backends.tiny.trainer import TinyTrainer

        model, task = _parts(run)
        torch.set_num_threads(self.threads)
        try:
            base = pretraining.base_weights(model, task, reporter)
        except pretraining.PretrainingStoppedError:
            return
        training_loop.train(run, TinyTrainer(run, self, model, task, base), directory, reporter)

    def change_norms(
        self, runs: Sequence[Run], reporter: Reporter, after_step: Callable[[int], None]
    ) -> list[float | Exception]:
        import torch

        from advsweep.backends.tiny import pretraining
        from advsweep.backends.tiny.trainer import TinyTrainer

        torch.set_num_threads(self.threads)
        norms: list[float | Exception] = []
        for run in runs:
            model, task = _parts(run)
            base = pretraining.base_weights(model, task, reporter)
            trainer = TinyTrainer(run, self, model, task, base)
            for step in range(1, run.steps + 1):
                try:
                    trainer.step(step)
                except Exception as error:  # noqa: BLE001 - it ends this run alone
                    norms.append(error)
                    break
                after_step(step)
            else:
                norms.append(trainer.change_norm())
        return norms

    def sampler(self, run: Run, directory: Path, step: int, task: Task | None = None) -> Sampler:
        import torch

        from advsweep.backends.tiny import pretraining
        from advsweep.backends.tiny.sampling import TinySampler
        from advsweep.backends.tiny.weights import flatten

        model, trained = _parts(run)
        target = task or trained
        if (
            not isinstance(target, SymbolTask)
            or target.alphabet != trained.alphabet
            or target.map_seed != trained.map_seed
        ):
            raise ConfigError(
                f"task: expected one over the characters '{trained.alphabet}' and with the map of "
                f"seed {trained.map_seed}, which the run's model knows, got '{target.label}'"
            )
        torch.set_num_threads(self.threads)
        weights = self._weights(run, directory, step)
        base = pretraining.base_weights(model, trained)
        top_p = run.evaluation.top_p
        return TinySampler(flatten(weights, model), model, target, flatten(base, model), top_p)

    def base_key(self, run: Run) -> str:
        from advsweep.backends.tiny import pretraining

        return pretraining.base_key(*_parts(run))

    def export(self, run: Run, directory: Path, step: int, target: Path) -> None:
        from advsweep.backends.tiny.weights import export_folder

        model, task = _parts(run)
        weights = self._weights(run, directory, step)
        export_folder(target, weights, model, task, temperature=run.generation.temperature)

    def _weights(self, run: Run, directory: Path, step: int) -> Weights:
        from advsweep.backends.tiny import pretraining
        from advsweep.backends.tiny.trainer import WEIGHTS_FILE
        from advsweep.backends.tiny.weights import from_bytes

        if step == 0:
            return pretraining.base_weights(*_parts(run))
        checkpoint = Checkpoints(directory, run.identity).load(step)
        return from_bytes((checkpoint.path / WEIGHTS_FILE).read_bytes())


def _parts(run: Run) -> tuple[TinyModel, SymbolTask]:
    """Return the run's model and task, checked to be those that this backend trains.

    The model's pretraining seed is an integer: that of the run if the config says `seed`.
    """
    if not isinstance(run.model, TinyModel):
        raise ConfigError(
            f"model: backend 'tiny' trains the model '{TinyModel.name}', got '{run.model.name}'"
        )
    if not isinstance(run.task, SymbolTask):
        raise ConfigError(
            f"task: backend 'tiny' needs a task over a small alphabet, such as 'countdown', "
            f"got '{run.task.name}'; for this task write backend=trl model=hf model.path=NAME"
        )
    return run.model.for_seed(run.seed), run.task
