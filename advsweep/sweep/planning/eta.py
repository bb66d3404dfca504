"""Estimates the time that a plan has left: what its runs have to do, by measured rates."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from advsweep.backends.build import calibration_of
from advsweep.components import Plain
from advsweep.evaluation.run_evaluator import Evaluator
from advsweep.store import Status
from advsweep.sweep.executors.debug import DebugExecutor
from advsweep.sweep.executors.local import LocalExecutor
from advsweep.sweep.planning.rates import Machine, read_rates
from advsweep.sweep.planning.remaining import Remaining, RunWork, Schedule, Workers, time_of
from advsweep.sweep.planning.stored import pretrained_share

if TYPE_CHECKING:
    from advsweep.backends.base import Run
    from advsweep.store import RunRecord, Store
    from advsweep.sweep.planning.plan import Plan, PlannedRun

# Status of a planned run that is not in the store.
MISSING = "missing"

# Status of a run that is trained and lacks evaluations of the plan.
UNEVALUATED = "unevaluated"

# How often a calibration usually trains its steps: the reference once, the others up to five times.
_USUAL_TRIALS = 3


@dataclass(frozen=True)
class TimeEstimate:
    """The time that a plan has left.

    Attributes:
        runs: a row for each run of the plan, in its order: `id` of its latest attempt in the store,
            or None; `status` there, or `missing` or `unevaluated`; training steps done (`step`)
            and left (`steps_left`), none left also if an earlier run of the plan is the same
            training; and the time of what it has left (`seconds_left`), None if it is unknown.
        remaining: the time of all runs.
        gpu_hours: the same in hours of all GPUs together; None if runs use no GPU.
        measured: how many earlier runs have measured the rates.
    """

    runs: Sequence[Plain]
    remaining: Remaining
    gpu_hours: float | None
    measured: int

    @property
    def seconds(self) -> float | None:
        """The time left; None if that of a run is unknown."""
        return self.remaining.seconds

    @property
    def runs_without_estimate(self) -> int:
        """The number of runs whose time is unknown."""
        return self.remaining.unknown

    @property
    def states(self) -> Counter[str]:
        """The number of runs of each status."""
        return Counter(run["status"] for run in self.runs)

    @property
    def steps(self) -> int:
        """Training steps left."""
        return sum(run["steps_left"] for run in self.runs)


def estimate(
    plan: Plan,
    store: Store | None,
    slots: int,
    *,
    force: bool = False,
    records: Sequence[RunRecord] | None = None,
) -> TimeEstimate:
    """Estimate the time that a plan has left.

    Args:
        store: None if it does not exist yet.
        slots: workers side by side.
        force: count completed runs as runs to be trained again.
        records: all runs of the store; None: they are read.
    """
    if records is None:
        records = [] if store is None else store.runs.select(newest_first=False)
    survey = _Survey(plan, store, records, force=force)
    works = []
    rows: list[Plain] = []
    for planned in plan.runs:
        work, row = survey.look_at(planned)
        works.append(work)
        rows.append(row)
    backends = {planned.run.backend.name for planned in plan.runs}
    rates = read_rates(
        store, [record for record in records if record.backend in backends], _machine_of(plan)
    )
    remaining = time_of(works, rates, _workers_of(plan, slots))
    for row, seconds in zip(rows, remaining.of_runs, strict=True):
        row["seconds_left"] = seconds
    gpus = plan.executor.resources.gpus
    gpu_hours = None
    if gpus and remaining.seconds is not None:
        gpu_hours = gpus * sum(filter(None, remaining.of_runs)) / 3600
    return TimeEstimate(rows, remaining, gpu_hours, rates.runs)


def _machine_of(plan: Plan) -> Machine:
    """Return where the plan is to be trained."""
    executor = plan.executor
    if isinstance(executor, (LocalExecutor, DebugExecutor)):
        return Machine.here(has_gpus=bool(executor.resources.gpus))
    return Machine()


def _workers_of(plan: Plan, slots: int) -> Workers:
    executor = plan.executor
    return Workers(
        number=slots,
        are_ready=isinstance(executor, DebugExecutor),
        # CUDA gives memory back only when its process ends.
        take_several=not executor.resources.gpus,
    )


@dataclass
class _Survey:
    """Looks at what the runs of a plan have left."""

    plan: Plan
    store: Store | None
    records: Sequence[RunRecord]
    force: bool
    _seen: set[str] = field(default_factory=set)
    # What each base has left to be made: updates, and samples of each problem.
    _bases: dict[Hashable, tuple[int, int]] = field(default_factory=dict)
    _base_keys: dict[Hashable, Hashable] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._latest = {record.identity: record for record in self.records}
        self._rule = self.plan.stopping.rule() if self.plan.stopping else None

    def look_at(self, planned: PlannedRun) -> tuple[RunWork, Plain]:
        """Return what a run has left, and its row."""
        run = planned.run
        record = self._latest.get(run.identity)
        # What was seen is another evaluation of the same training.
        is_repeated = run.identity in self._seen
        self._seen.add(run.identity)
        left = 0
        if not is_repeated:
            # A program may report more steps than were planned.
            left = max(0, self._steps_left(run, record))
        status = MISSING
        if record is not None:
            status = self._status(planned, record)
        row = {
            "id": None if record is None else record.id,
            "status": status,
            "step": 0 if record is None else record.step,
            "steps_left": left,
        }
        work = RunWork(config=planned.config)
        if left:
            work = self._work(planned, record, left)
        elif status == UNEVALUATED or (is_repeated and record is None):
            # The first and the last weights are evaluated anew.
            work = RunWork(config=planned.config, samples=2 * run.evaluation.n)
        return work, row

    def _work(self, planned: PlannedRun, record: RunRecord | None, left: int) -> RunWork:
        """Return the work of a run that has training steps left."""
        run = planned.run
        steps = left
        if run.optimizer.match == "step" and not run.optimizer.calibrates:
            steps += self._calibration_steps(run)
        is_active = record is not None and record.status is Status.RUNNING
        if run.backend.external:
            return RunWork(config=planned.config, steps=steps, is_active=is_active)
        if run.optimizer.calibrates:
            return RunWork(config=planned.config, steps=steps, is_active=is_active)
        base = self._base_of(run)
        updates, base_samples = self._bases[base]
        pretrained = 0.0 if record is None else pretrained_share(record)
        return RunWork(
            config=planned.config,
            steps=steps,
            samples=Schedule.of(run.evaluation).samples_after(run.steps - left, run.steps),
            base=base if updates or base_samples else None,
            updates=updates * (1 - pretrained),
            base_samples=base_samples,
            is_active=is_active,
        )

    def _base_of(self, run: Run) -> Hashable:
        """Return what the runs share that start from the same weights and evaluate them alike."""
        # Keys are hashes of whole recipes, and a plan has few of them.
        parts = (id(run.model), id(run.task), id(run.evaluation), run.seed)
        if parts in self._base_keys:
            return self._base_keys[parts]
        if run.absent:
            key: Hashable = parts  # without its data nobody knows the base
            left = (0, run.evaluation.n)
        else:
            key = (run.backend.base_key(run), repr(run.evaluation))
            is_evaluated = self.store is not None and Evaluator(self.store, run, 0, 1).has_base()
            samples = 0 if is_evaluated else run.evaluation.n
            left = (run.backend.pretraining_left(run), samples)
        self._base_keys[parts] = key
        self._bases.setdefault(key, left)
        return key

    def _calibration_steps(self, run: Run) -> int:
        calibration = calibration_of(run)
        record = self._latest.get(calibration.identity)
        if record is not None and record.status is Status.DONE:
            return 0
        return _USUAL_TRIALS * calibration.steps

    def _steps_left(self, run: Run, record: RunRecord | None) -> int:
        """Return the training steps that a run has left.

        Args:
            record: its latest attempt; None if the store has none.
        """
        if record is None or self.store is None:
            return run.steps
        if self.force and record.status in (Status.DONE, Status.PRUNED):
            return run.steps
        if record.status is Status.DONE:
            return 0
        # A run that the rule of this plan has stopped is not trained further.
        if record.status is Status.PRUNED and record.stopping == self._rule:
            return 0
        if record.status is Status.RUNNING or not record.step:
            return record.steps - record.step
        checkpoints = self.store.checkpoints.select(record.id)
        # Where no checkpoint has told of itself, as of commands, the last step counts.
        kept = max((each.step for each in checkpoints), default=record.step)
        return record.steps - kept

    def _status(self, planned: PlannedRun, record: RunRecord) -> str:
        wanted = planned.config.get("evaluation")
        is_done = record.status is Status.DONE
        if self.store is not None and is_done and wanted != record.config.get("evaluation"):
            evaluator = Evaluator(self.store, planned.run, record.id, record.attempt)
            if evaluator.missing():
                return UNEVALUATED
        return record.status.value
