"""Trains what a judge needs, stage after stage; what is done is not done again."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from advsweep.errors import ReportError, counted, first_of, rough_duration
from advsweep.judging.leaderboard import BASELINE
from advsweep.judging.plans import JudgePlans
from advsweep.store import Store
from advsweep.store.races import RaceRecord, read_race
from advsweep.store.tuning_records import TuningRecord
from advsweep.sweep.events import SweepResult
from advsweep.sweep.planning.eta import estimate
from advsweep.sweep.planning.plan import Plan
from advsweep.sweep.strategies import OnText, RacedSweep, Stage, Train
from advsweep.sweep.tuning import Tuning, execute_tuning

_STAGES = 3

# What a run on a range of the leaderboard took of a core of its machine, its base included.
_CORE_SECONDS = 21.0


@dataclass(frozen=True, kw_only=True)
class TrainedJudge:
    """What came of the trainings of a judge.

    Attributes:
        tuning: the idea's rates; None in a setting without a tuning.
        raced: the plan of the race; None if the idea has no rate, or the judge was interrupted
            before it.
        race: how the race stands; None likewise.
        failures: why runs failed, by id.
        is_complete: whether all stages are over.
        exit_code: 130 where the user stopped it.
    """

    tuning: TuningRecord | None = None
    raced: Plan | None = None
    race: RaceRecord | None = None
    failures: dict[int, str] = field(default_factory=dict)
    is_complete: bool = True
    exit_code: int = 0


@dataclass
class JudgeTraining:
    """The stages of a judge in a store.

    Attributes:
        slots: workers side by side, for estimates of the time.
    """

    plans: JudgePlans
    store: Store
    slots: int
    train: Train
    on_text: OnText
    _failures: dict[int, str] = field(default_factory=dict, init=False)

    def execute(self) -> TrainedJudge:
        """Train what is missing: the tuning, the race, RLOO's A/A.

        Raises:
            ReportError: no run of RLOO could be trained in this setting.
        """
        tuning = self.plans.tuning
        return self._race() if tuning is None else self._tune(tuning)

    def _tune(self, tuning: Tuning) -> TrainedJudge:
        self._announce(1, f"{self.plans.idea.label} at {len(tuning.tune.values)} learning rates")
        record, result = execute_tuning(tuning, self.store, self._train)
        if result is not None and result.is_cut_short:
            return self._cut_short(result, record)
        self.on_text(record.text)
        if record.arms[0].chosen is None:
            return TrainedJudge(tuning=record, failures=self._failures, exit_code=1)
        self._warn_of_change()
        return self._race(record)

    def _train(self, plan: Plan) -> SweepResult:
        result = self.train(Stage(plan=plan))
        self._failures.update(result.failed)
        return result

    def _race(self, record: TuningRecord | None = None) -> TrainedJudge:
        """Train the idea beside RLOO, then RLOO once more.

        Args:
            record: the tuning, whose choice the idea gets.
        """
        plan = self.plans.race(None if record is None else record.arms[0].chosen, record)
        # The tuning has left the sweep without its arms, by which the race is read.
        self.store.sweeps.add(self.plans.name, {**plan.spec, "settings": plan.settings()})
        self._announce(2, f"{self.plans.idea.label} beside {BASELINE}")
        trained = RacedSweep(plan).execute(self.store, self.train, self.on_text)
        self._failures.update(trained.result.failed)
        assert trained.race is not None
        if trained.result.is_cut_short:
            return self._cut_short(trained.result, record)
        self._refuse_without_baseline(trained.race)
        judged = TrainedJudge(tuning=record, raced=plan, race=trained.race, failures=self._failures)
        if trained.race.standings[1].has_failed:
            return judged  # no difference that an A/A could be held against
        self._warn_of_change()
        repeated = self.plans.repetition(plan, _seeds_of_idea(plan, trained.race))
        self._announce(3, f"{BASELINE} once more with other rollouts (A/A)")
        result = self._train(repeated)
        if result.is_cut_short:
            return self._cut_short(result, record)
        return judged

    def _refuse_without_baseline(self, race: RaceRecord) -> None:
        """Refuse a setting in which RLOO itself fails, which tells nothing of the idea.

        Raises:
            ReportError: all runs of RLOO failed; the message says why.
        """
        standing = race.standings[0]
        if not standing.has_failed:
            return
        stored = self.store.runs.by_identity(self.plans.name)
        records = [stored[identity] for identity in race.runs[0] if identity in stored]
        reasons = dict.fromkeys(record.error for record in records if record.error)
        raise ReportError(
            f"expected a setting in which {BASELINE} trains; all {standing.seeds} runs of it "
            f"failed: {first_of(reasons, 1)}"
        )

    def _cut_short(self, result: SweepResult, record: TuningRecord | None) -> TrainedJudge:
        return TrainedJudge(
            tuning=record,
            failures=self._failures,
            is_complete=False,
            exit_code=result.exit_code,
        )

    def _announce(self, stage: int, what: str) -> None:
        """Say which stage begins, and how long it and those after it take at most."""
        left = left_of(self.plans, self.store, self.slots, stage=stage)
        self.on_text(f"stage {stage} of {_STAGES}, {what}: {describe_left(left)}")

    def _warn_of_change(self) -> None:
        """Say where the file has changed; what was planned is trained."""
        place = self.plans.idea.changed_line
        if place:
            self.on_text(
                f"{place}: the file has changed since this judge began; what is judged is the text "
                "of the beginning, and the same command judges the new one"
            )


@dataclass(frozen=True, kw_only=True)
class TimeLeft:
    """What a judge has left at most.

    Attributes:
        seconds: None if it is unknown.
        is_of_another_machine: whether the seconds are those that the leaderboard's machine would
            take, as no run of this store was measured on this one.
    """

    runs: int
    seconds: float | None
    is_of_another_machine: bool = False

    def plain(self) -> dict[str, float | None]:
        """Return it in JSON types."""
        return {"runs": self.runs, "seconds": self.seconds}


def left_of(plans: JudgePlans, store: Store | None, slots: int, *, stage: int = 1) -> TimeLeft:
    """Return what a judge has left at most.

    Args:
        store: None if it does not exist yet.
        slots: workers side by side.
        stage: the first one that counts.
    """
    left = [estimate(plan, store, slots) for plan in _plans_from(plans, store, stage)]
    runs = sum(1 for each in left for run in each.runs if run["steps_left"])
    seconds = [each.seconds for each in left if each.seconds is not None]
    if len(seconds) == len(left):
        return TimeLeft(runs=runs, seconds=sum(seconds))
    if plans.setting.is_listed:
        seconds_of_runs = runs * _CORE_SECONDS / slots
        return TimeLeft(runs=runs, seconds=seconds_of_runs, is_of_another_machine=True)
    return TimeLeft(runs=runs, seconds=None)


def _plans_from(plans: JudgePlans, store: Store | None, stage: int) -> Iterator[Plan]:
    """Yield the plans of a stage and those after it, with all runs that they may need."""
    tuning = plans.tuning
    rate = None
    if tuning is not None:
        if stage <= 1:
            yield tuning.plan(tuning.grid)
        chosen = tuning.read(store).arms[0].chosen
        rate = max(tuning.tune.values) if chosen is None else chosen
    raced = plans.race(rate)
    seeds = _seeds_left(raced, store)
    if stage <= 2:
        yield replace(raced, runs=[each for each in raced.runs if each.run.seed in seeds])
    yield plans.repetition(raced, seeds)


def _seeds_left(raced: Plan, store: Store | None) -> set[int]:
    """Return the seeds that a race may need; once it is over, those that it has."""
    name = raced.name or ""
    if store is None or name not in store.sweeps.names():
        return set(_seeds_of(raced))
    record = read_race(store, name)
    if record is None or any(standing.is_racing for standing in record.standings):
        return set(_seeds_of(raced))
    return set(_seeds_of_idea(raced, record))


def describe_left(left: TimeLeft) -> str:
    """Say how many runs and how much time are left at most."""
    if not left.runs:
        return "everything is trained already"
    runs = f"at most {counted(left.runs, 'run')} left"
    if left.seconds is None:
        return f"{runs}; how long they take is known once the first has finished"
    took = f"{runs}, about {rough_duration(left.seconds)}"
    if left.is_of_another_machine:
        return f"{took} if this machine is as fast as the leaderboard's, and idle"
    return took


def _seeds_of_idea(plan: Plan, race: RaceRecord) -> list[int]:
    """Return the seeds that the idea has after a race."""
    return _seeds_of(plan)[: race.standings[1].seeds]


def _seeds_of(plan: Plan) -> list[int]:
    """Return all seeds of a race, in their order: those of RLOO."""
    seeds = [p.run.seed for p in plan.runs if p.run.estimator.name == BASELINE]
    return [seed for seed in seeds if seed is not None]
