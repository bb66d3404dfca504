"""Trains what a judge needs, stage after stage; what is done is not done again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field

from advsweep.errors import counted, rough_duration
from advsweep.judging.leaderboard import BASELINE
from advsweep.judging.plans import JudgePlans
from advsweep.store import Store
from advsweep.store.races import RaceRecord
from advsweep.store.tuning_records import TuningRecord
from advsweep.sweep.events import SweepResult
from advsweep.sweep.planning.eta import estimate
from advsweep.sweep.planning.plan import Plan
from advsweep.sweep.strategies import OnText, RacedSweep, Stage, Train
from advsweep.sweep.tuning import Tuning, execute_tuning

_STAGES = 3


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
        """Train what is missing: the tuning, the race, RLOO's A/A."""
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
        self._announce(2, f"{self.plans.idea.label} beside {BASELINE}", plan)
        trained = RacedSweep(plan).execute(self.store, self.train, self.on_text)
        self._failures.update(trained.result.failed)
        assert trained.race is not None
        if trained.result.is_cut_short:
            return self._cut_short(trained.result, record)
        self._warn_of_change()
        repeated = self.plans.repetition(plan, _seeds_of_idea(plan, trained.race))
        self._announce(3, f"{BASELINE} once more with other rollouts (A/A)", repeated)
        result = self._train(repeated)
        if result.is_cut_short:
            return self._cut_short(result, record)
        return TrainedJudge(tuning=record, raced=plan, race=trained.race, failures=self._failures)

    def _cut_short(self, result: SweepResult, record: TuningRecord | None) -> TrainedJudge:
        return TrainedJudge(
            tuning=record,
            failures=self._failures,
            is_complete=False,
            exit_code=result.exit_code,
        )

    def _announce(self, stage: int, what: str, *plans: Plan) -> None:
        """Say which stage begins, and how long it and those after it take at most."""
        later = plans_after(self.plans, stage if plans else stage - 1)
        left = TimeLeft.of([*plans, *later], self.store, self.slots)
        self.on_text(f"stage {stage} of {_STAGES}, {what}: {describe_left(left)}")

    def _warn_of_change(self) -> None:
        """Say where the file has changed; what was planned is trained."""
        place = self.plans.idea.changed_line
        if place:
            self.on_text(
                f"{place}: the file has changed since this judge began; what is judged is the text "
                "of the beginning, and the same command judges the new one"
            )


def plans_after(plans: JudgePlans, stage: int) -> Iterator[Plan]:
    """Yield the plans of the stages after one, with all runs that they may need."""
    tuning = plans.tuning
    raced = plans.race(None if tuning is None else max(tuning.tune.values))
    if stage < 1 and tuning is not None:
        yield tuning.plan(tuning.grid)
    if stage < 2:
        yield raced
    if stage < 3:
        seeds = {planned.run.seed for planned in raced.runs}
        yield plans.repetition(raced, [seed for seed in seeds if seed is not None])


@dataclass(frozen=True, kw_only=True)
class TimeLeft:
    """What some plans have left at most.

    Attributes:
        seconds: None if it is unknown for some of them.
    """

    runs: int
    seconds: float | None

    @classmethod
    def of(cls, plans: Iterable[Plan], store: Store | None, slots: int) -> TimeLeft:
        """Estimate what plans have left, one after the other.

        Args:
            store: None if it does not exist yet.
        """
        left = [estimate(plan, store, slots) for plan in plans]
        seconds = [each.seconds for each in left if each.seconds is not None]
        return cls(
            runs=sum(1 for each in left for run in each.runs if run["steps_left"]),
            seconds=sum(seconds) if len(seconds) == len(left) else None,
        )

    def plain(self) -> dict[str, float | None]:
        """Return it in JSON types."""
        return asdict(self)


def left_of(plans: JudgePlans, store: Store | None, slots: int) -> TimeLeft:
    """Return what a judge has left at most."""
    return TimeLeft.of(plans_after(plans, 0), store, slots)


def describe_left(left: TimeLeft) -> str:
    """Say how many runs and how much time are left at most."""
    if not left.runs:
        return "everything is trained already"
    runs = f"at most {counted(left.runs, 'run')} left"
    return runs if left.seconds is None else f"{runs}, about {rough_duration(left.seconds)}"


def _seeds_of_idea(plan: Plan, race: RaceRecord) -> list[int]:
    """Return the seeds that the idea has after a race."""
    seeds = [p.run.seed for p in plan.runs if p.run.estimator.name == BASELINE]
    return [seed for seed in seeds[: race.standings[1].seeds] if seed is not None]
