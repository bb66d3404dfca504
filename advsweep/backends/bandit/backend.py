"""The bandit backend: trains softmax policies over behaviours, one run or many together.

It also trains one on `walks`, where a behaviour is the next node, and values are exact.

Lists and plans import this module, so what needs torch is imported in the methods that train.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from advsweep.backends.bandit.options import BanditOptions
from advsweep.backends.base import BATCH_FIELDS, Backend, Can, StackMember
from advsweep.backends.checkpoints import Checkpoints
from advsweep.backends.identity import hash_json
from advsweep.backends.models import Table
from advsweep.components import identity_of
from advsweep.errors import ConfigError
from advsweep.tasks.bandit import BanditTask
from advsweep.tasks.walks import Walks

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from advsweep.backends.bandit.stack import BanditStack
    from advsweep.backends.bandit.walk_trainer import WalkTrainer
    from advsweep.backends.base import Run
    from advsweep.backends.reporter import Reporter
    from advsweep.tasks.base import Sampler, Task


# Settings of optimizer and generation in which runs of one stack may differ.
_PER_RUN = ("lr", "match", "match_reference", "temperature")


@dataclass(kw_only=True)
class BanditBackend(BanditOptions, Backend):
    """Trains a table on a task whose answers are numbered behaviours, or on `walks`.

    A rollout is one token. The objectives compute the losses; gradients of log π and of the
    entropy are in closed form.

    On `walks` a rollout is an episode, and a token is a turn. The table has a softmax over the
    neighbours of a place for each place and each node that a walker is on its way to; problems
    share it. Rates, entropies and the values of states are exact, by dynamic programming over
    place, stop and turns left: `rollout=vine` draws nothing. Such runs train one by one.

    Source: two-stage view (arXiv:2510.04028), Alg. 1, with one prompt, `dr_grpo` and `sgd`.

    Departures: the gradient of log softmax(z/T) has the factor 1/T here, as on every backend,
    but not in the paper. For T other than 1, the paper's learning rate is this one times T.
    """

    name: ClassVar[str] = "bandit"
    provides: ClassVar[frozenset[str]] = BATCH_FIELDS
    supports: ClassVar[Can] = (
        Can.REFERENCES
        | Can.GREEDY
        | Can.RETRIES
        | Can.SYSTEM_MESSAGES
        | Can.SHAPED_REWARDS
        | Can.STEP_MATCHING
        | Can.RESETS
        | Can.CONTROLS
        | Can.SELECTION
        | Can.EPISODES
        | Can.VALUES
    )
    optimizers: ClassVar[frozenset[str]] = frozenset({"adamw", "sgd"})

    def check(self, run: Run) -> None:
        if isinstance(run.task, Walks):
            _check_walks(run, run.task)
        else:
            _check_bandit(run)
        self.check_minibatches(run.prompts_per_step)

    def completion_tokens(self, run: Run) -> int:
        return run.task.max_turns if isinstance(run.task, Walks) else 1

    def train(self, run: Run, directory: Path, reporter: Reporter) -> None:
        self.train_together([StackMember(run, directory, reporter)])

    def stack_key(self, run: Run) -> str | None:
        if not run.rollout.keeps_all or run.optimizer.calibrates or isinstance(run.task, Walks):
            return None
        table, task = _parts(run)
        optimizer = identity_of(run.optimizer)
        generation = identity_of(run.generation)
        shape = {
            "backend": self.plain(),
            "table": [identity_of(table), task.shape],
            "objective": identity_of(run.objective),
            "rollout": identity_of(run.rollout),
            "changes_verdicts": run.control.changes_verdicts,
            "optimizer": {k: v for k, v in optimizer.items() if k not in _PER_RUN},
            "generation": {k: v for k, v in generation.items() if k not in _PER_RUN},
            "numbers": [run.group_size, run.prompts_per_step, run.steps],
        }
        return json.dumps(shape, sort_keys=True)

    def stack_size(self) -> int:
        return self.stack

    def train_together(self, members: Sequence[StackMember]) -> None:
        from advsweep.backends import training_loop

        if not isinstance(members[0].run.task, Walks):
            training_loop.train_together(members, self._stack)
            return
        for member in members:
            with member.guard():
                trainer = self._walk_trainer(member.run)
                training_loop.train(member.run, trainer, member.directory, member.reporter)

    def change_norms(
        self, runs: Sequence[Run], reporter: Reporter, after_step: Callable[[int], None]
    ) -> list[float | Exception]:
        if isinstance(runs[0].task, Walks):
            return [self._change_norm(run, after_step) for run in runs]
        stack = self._stack(runs)
        errors: dict[int, Exception] = {}
        for step in range(1, runs[0].steps + 1):
            for index, result in enumerate(stack.step(step)):
                if isinstance(result, Exception):
                    errors.setdefault(index, result)
            if len(errors) == len(runs):
                break
            after_step(step)
        return [errors.get(index) or stack.change_norm(index) for index in range(len(runs))]

    def _change_norm(self, run: Run, after_step: Callable[[int], None]) -> float | Exception:
        """Train a run on walks, and return the norm of the change of its table."""
        trainer = self._walk_trainer(run)
        for step in range(1, run.steps + 1):
            try:
                trainer.step(step)
            except Exception as error:  # noqa: BLE001 - it ends this run alone
                return error
            after_step(step)
        return trainer.change_norm()

    def _walk_trainer(self, run: Run) -> WalkTrainer:
        from advsweep.backends.bandit.walk_trainer import WalkTrainer

        return WalkTrainer(run, self)

    def _stack(self, runs: Sequence[Run]) -> BanditStack:
        from advsweep.backends.bandit.stack import BanditStack

        return BanditStack(runs, self)

    def sampler(self, run: Run, directory: Path, step: int, task: Task | None = None) -> Sampler:
        if isinstance(run.task, Walks):
            return self._walk_sampler(run, directory, step, _on_same_map(task, run.task))
        if task is not None and identity_of(task) != identity_of(run.task):
            raise ConfigError(
                f"task: expected the bandit that the run was trained on, got '{task.label}' with "
                f"other settings; a table has only the prompts of its own task"
            )
        stack = self._stack([run])
        if step > 0:
            stack.restore(0, Checkpoints(directory, run.identity).load(step).files)
        return stack.sampler(0)

    def _walk_sampler(self, run: Run, directory: Path, step: int, task: Walks) -> Sampler:
        from advsweep.backends.bandit.walk_sampling import WalkSampler

        trainer = self._walk_trainer(run)
        if step > 0:
            trainer.restore(Checkpoints(directory, run.identity).load(step).files)
        return WalkSampler(trainer.logits, trainer.ways, task)

    def base_key(self, run: Run) -> str:
        material = {"backend": self.name, "revision": self.revision, "task": identity_of(run.task)}
        return hash_json(material)

    def export(self, run: Run, directory: Path, step: int, target: Path) -> None:
        raise ConfigError(
            f"backend: '{self.name}' trains a table of logits, which cannot be exported; "
            "expected a run of a backend that trains a language model"
        )


def _check_bandit(run: Run) -> None:
    """Refuse a run that is none on a bandit, or that rests on answers of several tokens."""
    _parts(run)
    if run.evaluation.validation and run.evaluation.validation.task is not None:
        raise ConfigError(
            "evaluation.select_on.task: a table has only the prompts of its own task; expected "
            "select_on.share"
        )
    if run.rollout.mask_truncated:
        raise ConfigError(
            "rollout.mask_truncated: expected false with backend 'bandit', whose rollouts are "
            "one token and never cut off, got true"
        )


def _check_walks(run: Run, task: Walks) -> None:
    """Refuse a run on walks that a table cannot be trained on, or whose values are not exact."""
    table = _table(run)
    if table.rank:
        raise ConfigError(
            f"model.rank: expected 0 with task 'walks', whose problems share a table already, got "
            f"{table.rank}"
        )
    if not run.rollout.draws_values:
        return
    if list(task.reward) != ["accuracy"]:
        raise ConfigError(
            f"task.reward: expected accuracy alone, as rollout '{run.rollout.name}' with backend "
            f"'bandit' computes exact values from it, got {', '.join(task.reward)}"
        )
    if run.control.changes_verdicts:
        raise ConfigError(
            f"control: expected none or aa, as rollout '{run.rollout.name}' with backend 'bandit' "
            f"computes exact values from true verdicts, got '{run.control.name}'"
        )


def _on_same_map(task: Task | None, trained: Walks) -> Walks:
    """Return a task that is asked of a table, checked to be on the map that it was trained on."""
    if task is None:
        return trained
    if not isinstance(task, Walks) or task.map_seed != trained.map_seed:
        raise ConfigError(
            f"task: expected 'walks' on the map of seed {trained.map_seed}, which the run's table "
            f"is of, got '{task.label}'"
        )
    return task


def _table(run: Run) -> Table:
    """Return the run's model, checked to be the one that this backend trains."""
    if not isinstance(run.model, Table):
        raise ConfigError(
            f"model: backend 'bandit' trains the model '{Table.name}', got '{run.model.name}'; "
            "leave model out or give model=table"
        )
    return run.model


def _parts(run: Run) -> tuple[Table, BanditTask]:
    """Return the run's model and task, checked to be a table and a bandit."""
    table = _table(run)
    if not isinstance(run.task, BanditTask):
        raise ConfigError(
            f"task: backend 'bandit' needs a bandit, such as 'bandit' or 'toy', or 'walks', "
            f"got '{run.task.name}'; choose task=bandit, task=toy or task=walks"
        )
    return table, run.task
