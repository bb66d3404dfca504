"""The loop around the steps of a training: resume, evaluate, write checkpoints, stop."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from advsweep.backends.checkpoints import Checkpoints

if TYPE_CHECKING:
    from advsweep.backends.base import Reporter
    from advsweep.backends.run import Run
    from advsweep.tasks.base import Sampler


class Trainer(Protocol):
    """The state of a training in memory: weights, moments, the estimator's memory."""

    def step(self, step: int) -> Mapping[str, float]:
        """Makes one training step (counted from 1) and returns its metrics.

        Raises:
            TrainingError: a loss or a gradient is not finite; the message names the step.
        """
        ...

    def sampler(self) -> Sampler:
        """The present weights, for an evaluation; sampling leaves the training alone."""
        ...

    def state(self) -> Mapping[str, bytes]:
        """All that going on takes, as a checkpoint's files."""
        ...

    def restore(self, files: Mapping[str, bytes]) -> None:
        """Takes up what `state` gave."""
        ...


def train(run: Run, trainer: Trainer, directory: Path, reporter: Reporter) -> None:
    """Trains to the last step, or until the reporter asks to stop.

    An evaluation comes before the checkpoint of its step, and a training that goes on asks for
    that of the step it starts from again: a death between the two costs a second evaluation,
    a request to stop costs no step, and none of both leaves an evaluation out.

    Args:
        trainer: in the state of the base model.
        directory: the run's; its newest sound checkpoint is gone on from.
    """
    checkpoints = Checkpoints(directory, run.identity)
    checkpoints.discard_unfinished()
    start = 0
    if newest := checkpoints.newest_sound(reporter.log):
        start = newest.step
        trainer.restore(newest.files)
        reporter.resumed(start)
    if _is_evaluated(run, start):
        reporter.evaluate(start, trainer.sampler())
    backend = run.backend
    for step in range(start + 1, run.steps + 1):
        reporter.metrics(step, trainer.step(step))
        last = step == run.steps
        if _is_evaluated(run, step):
            reporter.evaluate(step, trainer.sampler())
        stopping = reporter.stop_requested()
        if last or stopping or _due(step, backend.checkpoint_every):
            reporter.checkpoint(step, checkpoints.save(step, trainer.state()))
            for old in checkpoints.prune(backend.keep_last, backend.keep_every):
                reporter.pruned(old)
        if stopping:
            return


def _is_evaluated(run: Run, step: int) -> bool:
    return step in (0, run.steps) or _due(step, run.evaluation.every)


def _due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0
