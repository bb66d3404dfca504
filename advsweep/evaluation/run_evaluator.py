"""Evaluations of a run: each is made once, and those of a base model are shared by its runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from filelock import FileLock

from advsweep.evaluation import ProblemResult, evaluate, evaluation_identity
from advsweep.local_files import FILE_MODE, make_private_folder
from advsweep.store import NewEvaluation, ProblemCounts

if TYPE_CHECKING:
    from advsweep.backends.base import Run
    from advsweep.components import Plain
    from advsweep.config.settings import EvaluationSettings
    from advsweep.store import EvaluationRecord, Store
    from advsweep.tasks.base import Sampler, Task


@dataclass(frozen=True)
class Evaluator:
    """Evaluates one run by the settings of its `evaluation` node.

    Attributes:
        attempt: of the run; a repeated training is evaluated anew.
    """

    store: Store
    run: Run
    run_id: int
    attempt: int

    def identity(self, step: int) -> str:
        """Returns the identity of the evaluation after `step` steps."""
        run = self.run
        return evaluation_identity(
            self._subject(step), run.task, run.evaluation, sampler=run.generation.sampler
        )

    def missing(self) -> list[int]:
        """Returns the steps of a completed training, first and last, without an evaluation.

        A calibration is not evaluated.
        """
        if self.run.optimizer.calibrates:
            return []
        steps = (0, self.run.steps)
        linked = self.store.evaluations.identities(self.run_id)
        return [step for step in steps if self.identity(step) not in linked]

    def ensure(self, step: int, sampler: Callable[[], Sampler]) -> EvaluationRecord:
        """Returns the evaluation after `step` steps; makes it if the store has none.

        Args:
            sampler: loads the weights; called only if they are needed.
        """
        identity = self.identity(step)
        if step == 0:
            # Runs that start together share a base model: one evaluates it, the others wait.
            with lock_of(self.store, identity):
                self._make(identity, step, sampler)
        else:
            self._make(identity, step, sampler)
        [evaluation] = self.store.evaluations.select([self.run_id], identity=identity)
        return evaluation

    def _make(self, identity: str, step: int, sampler: Callable[[], Sampler]) -> None:
        if self.store.evaluations.has(identity):
            self.store.evaluations.link(self.run_id, identity, step)
            return
        run = self.run
        results = evaluate(sampler(), run.task, run.evaluation)
        settings = settings_of(
            run.evaluation,
            run.generation.sampler,
            run.task,
            run.backend.answer_tokens(run.generation, run.task),
        )
        self.store.evaluations.add(
            NewEvaluation(
                identity=identity,
                subject=self._subject(step),
                run_id=self.run_id,
                step=step,
                task=run.task.label,
                settings=settings,
                problems=counts_of(results),
            )
        )

    def _subject(self, step: int) -> str:
        return subject_of(self.run, self.attempt, step)


def subject_of(run: Run, attempt: int, step: int) -> str:
    """Returns the name that evaluations give the weights of a run after `step` steps."""
    if step == 0:
        return f"base:{run.backend.base_key(run)}"
    again = f".{attempt}" if attempt > 1 else ""
    return f"{run.identity}{again}@{step}"


def lock_of(store: Store, identity: str) -> FileLock:
    """Returns the lock to hold while an evaluation is made that other processes may need."""
    locks = store.runs_directory / ".locks"
    make_private_folder(locks)
    return FileLock(locks / f"evaluation-{identity[:16]}.lock", mode=FILE_MODE)


def settings_of(
    settings: EvaluationSettings, sampler: str | None, task: Task, tokens: int | None
) -> Plain:
    """Returns the settings of an evaluation as the store keeps them.

    Args:
        sampler: the kind of sampler, by `Generation.sampler`.
        tokens: the maximum length of an answer, by `Backend.answer_tokens`.
    """
    protocol = task.protocol()
    # Only dataset tasks have a protocol. The answers of generated tasks have a fixed length, and
    # their stored settings must not change.
    if protocol and tokens is not None:
        protocol["max_tokens"] = tokens
    return settings.plain() | ({} if sampler is None else {"sampler": sampler}) | protocol


def counts_of(results: Sequence[ProblemResult]) -> list[ProblemCounts]:
    """Returns results as the store keeps them."""
    return [
        ProblemCounts(
            problem_id=result.problem.id,
            prompt=result.problem.prompt,
            level=result.problem.level,
            n=result.n,
            c=result.c,
            distinct=result.distinct,
            unscorable=result.unscorable,
            answer_entropy=result.answer_entropy,
            token_entropy=result.token_entropy,
        )
        for result in results
    ]
