"""Evaluations of a run: each made once, base models' shared between runs."""

from __future__ import annotations

from collections.abc import Callable
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
        """What makes the evaluation after `step` steps the same as another."""
        return evaluation_identity(
            self._subject(step), self.run.task, self.run.evaluation, sampler=self._sampled_by
        )

    def missing(self) -> list[int]:
        """The steps of a finished training, first and last, that were not evaluated so."""
        steps = (0, self.run.steps)
        linked = self.store.evaluations.identities(self.run_id)
        return [step for step in steps if self.identity(step) not in linked]

    def ensure(self, step: int, sampler: Callable[[], Sampler]) -> EvaluationRecord:
        """The evaluation after `step` steps, made now if the store does not have it.

        Args:
            sampler: gives the weights; called only when they are needed.
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
        results = evaluate(sampler(), self.run.task, self.run.evaluation)
        self.store.evaluations.add(
            NewEvaluation(
                identity=identity,
                subject=self._subject(step),
                run_id=self.run_id,
                step=step,
                task=self.run.task.label,
                settings=settings_of(
                    self.run.evaluation,
                    self._sampled_by,
                    self.run.task,
                    self.run.backend.answer_tokens(self.run.generation, self.run.task),
                ),
                problems=[counts_of(result) for result in results],
            )
        )

    @property
    def _sampled_by(self) -> str | None:
        return self.run.generation.sampler

    def _subject(self, step: int) -> str:
        return subject_of(self.run, self.attempt, step)


def subject_of(run: Run, attempt: int, step: int) -> str:
    """What evaluations call the weights of a run after `step` steps."""
    if step == 0:
        return f"base:{run.backend.base_key(run)}"
    again = f".{attempt}" if attempt > 1 else ""
    return f"{run.identity}{again}@{step}"


def lock_of(store: Store, identity: str) -> FileLock:
    """Held while an evaluation is made that others may want at the same time."""
    locks = store.runs_directory / ".locks"
    make_private_folder(locks)
    return FileLock(locks / f"evaluation-{identity[:16]}.lock", mode=FILE_MODE)


def settings_of(
    settings: EvaluationSettings, sampler: str | None, task: Task, tokens: int | None
) -> Plain:
    """How an evaluation was made, as the store keeps it.

    Args:
        sampler: what sampled, by `Generation.sampler`.
        tokens: the most tokens of an answer, by `Backend.answer_tokens`.
    """
    protocol = task.protocol()
    # Tasks of our own need answers of a known length, and their settings stay as they were.
    if protocol and tokens is not None:
        protocol["max_tokens"] = tokens
    return settings.plain() | ({} if sampler is None else {"sampler": sampler}) | protocol


def counts_of(result: ProblemResult) -> ProblemCounts:
    """A result as the store keeps it."""
    return ProblemCounts(
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
