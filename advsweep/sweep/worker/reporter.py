"""Writes the metrics of a training to the store: the reporter that a backend gets."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from advsweep.backends.reporter import evaluation_stage
from advsweep.backends.work_clock import Work
from advsweep.errors import StoreUnavailableError
from advsweep.evaluation.run_evaluator import Evaluator
from advsweep.names import ACR, REWARD_MEAN, SELECTED_STEP, TOKEN_ENTROPY
from advsweep.sweep.stop_request import RunStopped

if TYPE_CHECKING:
    from advsweep.backends.reporter import CountedProblem
    from advsweep.store import Store
    from advsweep.sweep.early_stopping import StoppingCheck
    from advsweep.sweep.stop_request import AnyStopRequest
    from advsweep.tasks.base import Sampler

BATCH_POINTS = 1000
BATCH_SECONDS = 0.5
# Writes of all runs of a process together, if each has few points.
WRITES_PER_SECOND = 32

# Interval between two tries to write to a store that is away; each try may take seconds.
AWAY_SECONDS = 30.0

# Interval at which a run records what its work takes.
MEASURED_SECONDS = 5.0

# Lines that a whole training writes to its log, evaluations excluded.
LOG_LINES = 20

_LOGGED = {REWARD_MEAN: "reward", ACR: "ACR", TOKEN_ENTROPY: "entropy"}

_log = logging.getLogger(__name__)


class StoreReporter:
    """Writes a run's reports to the store, metric points in batches.

    The points of a step are in the store before a checkpoint of that step exists, so that a run
    killed at any moment resumes without a gap: the last step, the steps with a checkpoint and
    the step of a stop are flushed at once, and wait for a store that is away. The points of
    other steps stay in memory until it is back.

    Args:
        runs_in_process: number of runs that the process trains; the more, the larger the batches.

    Attributes:
        step: number of completed training steps.
        prune_reason: why the run is stopped early; None if it is not.
    """

    def __init__(
        self,
        store: Store,
        evaluator: Evaluator,
        stop: AnyStopRequest,
        stopping: StoppingCheck | None = None,
        *,
        runs_in_process: int = 1,
    ) -> None:
        self._clock = evaluator.clock
        self._measured = time.monotonic()
        self._store = store
        self._evaluator = evaluator
        self._run = evaluator.run
        self._run_id = evaluator.run_id
        self._stop = stop
        self._stopping = stopping
        self._runs_in_process = runs_in_process
        self._points: list[tuple[str, int, float]] = []
        self._positioned = False
        self._flushed = time.monotonic()
        self._tried = -math.inf
        self._staged = 0.0
        self._saved = 0
        self._stop_reported = False
        self._judged = -1
        self.step = 0
        self.prune_reason: str | None = None

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        self._position(step - 1)
        self._stop.protect()
        # Programs apart from advsweep may log an earlier step once more.
        self.step = max(self.step, step)
        self._clock.count(Work.TRAINING, 1)
        self._points += [(name, step, float(value)) for name, value in values.items()]
        if step % max(1, self._run.steps // LOG_LINES) == 0 or step == self._run.steps:
            numbers = [f"{label} {values[n]:.3f}" for n, label in _LOGGED.items() if n in values]
            if numbers or not self._run.backend.external:
                self.log(f"step {step} of {self._run.steps}: {', '.join(numbers)}")
        every = self._run.backend.checkpoint_every
        checkpoint = step == self._run.steps or (every > 0 and step % every == 0)
        patience = max(BATCH_SECONDS, (self._runs_in_process - 1) / WRITES_PER_SECOND)
        stale = time.monotonic() - self._flushed >= patience
        if checkpoint:
            # Before the checkpoint exists: a run resumes after it, and would lack these points.
            self.flush()
        elif stale or len(self._points) >= BATCH_POINTS:
            # A training must not wait for a server that restarts; its points wait in memory. The
            # heartbeat notices when the store is back.
            now = time.monotonic()
            if not self._store.patience.is_away or now - self._tried >= AWAY_SECONDS:
                self._tried = now
                with suppress(StoreUnavailableError), self._store.patience.suspended():
                    self._write()

    def evaluate(self, step: int, sampler: Sampler) -> None:
        self._position(step)
        self._write(stage=evaluation_stage(step))
        try:
            with self._stop.interruptible():
                evaluation = self._evaluator.ensure(step, lambda: sampler)
        except RunStopped:
            if self.step == self._saved:
                raise
            # The training saves its steps first, and repeats the evaluation when it resumes.
            return
        ks = [k for k in self._run.evaluation.k if k <= evaluation.settings["n"]]
        values = evaluation.scores(ks)
        # As a metric, this name belongs to the training rollouts.
        del values[TOKEN_ENTROPY]
        validated = self._evaluator.validation_scores()
        if validated and step in validated:
            values["validation/pass@1"] = validated[step]
        self._add_scores(step, values)
        selected = self._evaluator.selected_step() if step == self._run.steps else None
        if selected is not None:
            self._points.append((SELECTED_STEP, step, selected))
            self._store.metrics.set_summaries(self._run_id, {SELECTED_STEP: selected})
            self.log(f"step {selected} has the best pass@1 on validation problems")
        self._write(stage="training")

    def counted(self, step: int, task: str, problems: Sequence[CountedProblem]) -> None:
        self._position(step)
        self._write()
        evaluation = self._evaluator.record(step, task, problems)
        scores = evaluation.scores(evaluation.settings["k"])
        values = {name: value for name, value in scores.items() if name.startswith("pass@")}
        self._add_scores(step, values)
        self._write()

    def _add_scores(self, step: int, values: Mapping[str, float]) -> None:
        numbers = ", ".join(f"{name} {value:.3f}" for name, value in values.items())
        self.log(f"evaluation after step {step}: {numbers}")
        self._points += [(name, step, value) for name, value in values.items()]

    def checkpoint(self, step: int, path: Path) -> None:
        self.flush()
        self._store.checkpoints.add(self._run_id, step, path)
        self._saved = step

    def pruned(self, path: Path) -> None:
        self._store.checkpoints.remove(self._run_id, path)

    def resumed(self, step: int) -> None:
        self._position(step)
        self.step = self._saved = step
        self._store.leases.heartbeat(self._run_id, step=step, stage="training")
        self.log(f"resuming after step {step}")

    def stop_requested(self) -> bool:
        if self._stop.reason is None and not self._is_pruned():
            return False
        self.flush()
        self._stop_reported = True
        return True

    @property
    def is_over(self) -> bool:
        """Whether the last checkpoint of the training is written."""
        at_end = self.step == self._run.steps or self._stop_reported
        return at_end and self._saved == self.step

    def _is_pruned(self) -> bool:
        early = self._judged < self.step < self._run.steps
        if early and self._stopping is not None and self._stopping.is_due(self.step):
            self.flush()
            self._judged = self.step
            self.prune_reason = self._stopping.judge(self.step)
        return self.prune_reason is not None

    def log(self, message: str) -> None:
        _log.info("%s", message)

    def progress(self, stage: str, done: int, total: int) -> None:
        now = time.monotonic()
        if done == total or now - self._staged >= BATCH_SECONDS:
            self._staged = now
            with suppress(StoreUnavailableError), self._store.patience.suspended():
                self._store.leases.heartbeat(self._run_id, stage=f"{stage} {done}/{total}")

    def doing(self, work: Work, units: float = 0) -> AbstractContextManager[None]:
        return self._clock.doing(work, units)

    def flush(self) -> None:
        """Writes the waiting points; the store then has everything that was reported.

        Raises:
            LeaseLostError: another process has the run, and nothing was written.
        """
        if self._points:
            self._write()

    def _write(self, stage: str | None = None) -> None:
        self._store.metrics.record(self._run_id, self._points, step=self.step, stage=stage)
        self._points = []
        self._flushed = time.monotonic()
        if self._flushed - self._measured >= MEASURED_SECONDS:
            # Not at the end alone: others of the sweep are estimated by its first run.
            self._measured = self._flushed
            self._store.metrics.set_summaries(self._run_id, self._clock.summaries())

    def _position(self, step: int) -> None:
        """Deletes the points of an earlier process past the step that this one starts from."""
        # Not when the process starts: only the backend knows which checkpoint was sound.
        if not self._positioned:
            self._positioned = True
            self._clock.begin(Work.TRAINING)
            self._store.metrics.truncate(self._run_id, after_step=step)
