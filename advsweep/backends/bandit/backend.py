"""The bandit backend: trains softmax policies over behaviours, a millisecond or two a step."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from advsweep.backends import loop
from advsweep.backends.bandit.model_config import Table
from advsweep.backends.bandit.trainer import Trainer
from advsweep.backends.base import Backend, Reporter
from advsweep.backends.checkpoints import Checkpoints
from advsweep.components import option
from advsweep.errors import ConfigError
from advsweep.tasks.bandit import BanditTask

if TYPE_CHECKING:
    from advsweep.backends.run import Run
    from advsweep.tasks.base import Sampler, Task


@dataclass(kw_only=True)
class BanditBackend(Backend):
    """Trains a table on a task whose answers are numbered behaviours.

    A rollout is one token. Losses are the objectives' own; gradients of log π and of the
    entropy are in closed form.

    Source: two-stage view (arXiv:2510.04028), Alg. 1, with one prompt, `dr_grpo` and `sgd`.

    Departures: the gradient of log softmax(z/T) has the factor 1/T, as on every backend, and
    the paper's update has not: where T is not 1, its learning rate is ours times T.
    """

    name: ClassVar[str] = "bandit"
    provides: ClassVar[frozenset[str]] = frozenset(
        {
            "lengths",
            "token_entropy",
            "token_entropy_exact",
            "self_certainty",
            "solve_rates",
            "step",
            "total_steps",
        }
    )
    optimizers: ClassVar[frozenset[str]] = frozenset({"adamw", "sgd"})
    keeps_reference: ClassVar[bool] = True
    puts_system_messages: ClassVar[bool] = True
    shapes_rewards: ClassVar[bool] = True

    minibatches: int = option(1, ge=1, help="updates per inner epoch; groups are not split")
    inner_epochs: int = option(1, ge=1, help="how often a step trains on its rollouts")
    entropy_change: bool = option(
        False,
        identity=False,
        help="measure what each step does to the entropies at its own rollouts, as entropy/change",
    )
    exact_every: int = option(
        1, ge=0, identity=False, help="steps between exact quantities, as exact/*; 0: none"
    )
    exact_k: tuple[int, ...] = option(
        (1, 8, 64), ge=1, identity=False, help="the k of the exact pass@k"
    )

    def check(self, run: Run) -> None:
        _parts(run)
        if run.prompts_per_step < self.minibatches:
            raise ConfigError(
                f"backend.minibatches: expected at most prompts_per_step = "
                f"{run.prompts_per_step}, got {self.minibatches}"
            )

    def train(self, run: Run, directory: Path, reporter: Reporter) -> None:
        loop.train(run, Trainer(run, self, *_parts(run)), directory, reporter)

    def sampler(self, run: Run, directory: Path, step: int, task: Task | None = None) -> Sampler:
        if task is not None and task.identity() != run.task.identity():
            raise ConfigError(
                f"task: expected the bandit that the run was trained on, got '{task.label}' with "
                f"other settings: a table knows no prompts but its own"
            )
        trainer = Trainer(run, self, *_parts(run))
        if step > 0:
            trainer.restore(Checkpoints(directory, run.identity).load(step).files)
        return trainer.sampler()

    def base_key(self, run: Run) -> str:
        material = {"backend": self.name, "revision": self.revision, "task": run.task.identity()}
        return hashlib.sha256(json.dumps(material, sort_keys=True).encode()).hexdigest()

    def export(self, run: Run, directory: Path, step: int, target: Path) -> None:
        raise ConfigError(
            f"backend: '{self.name}' trains a table of logits, which cannot be exported; "
            "expected a run of a backend that trains a language model"
        )


def _parts(run: Run) -> tuple[Table, BanditTask]:
    """The run's model and task, where they are such as this backend can train."""
    if not isinstance(run.model, Table):
        raise ConfigError(
            f"model: backend 'bandit' trains the model '{Table.name}', got '{run.model.name}'"
        )
    if not isinstance(run.task, BanditTask):
        raise ConfigError(
            f"task: backend 'bandit' needs a bandit, such as 'bandit' or 'toy', "
            f"got '{run.task.name}'"
        )
    return run.model, run.task
