"""Trains what a judge needs, stage after stage; what is done is not done again."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from advsweep.errors import counted, rough_duration
from advsweep.judging.leaderboard import BASELINE
from advsweep.judging.plans import JudgePlans
from advsweep.store import Store
from advsweep.store.races import RaceRecord
from advsweep.store.tuning_records import TuningRecord
from advsweep.sweep.events import SweepResult
from advsweep.sweep.planning.eta import TimeEstimate, estimate
from advsweep.sweep.planning.plan import Plan
from advsweep.sweep.strategies import OnText, RacedSweep, Stage, Train
from advsweep.sweep.tuning import execute_tuning

_STAGES = 3


@dataclass(frozen=True, kw_only=True)
class TrainedJudge:
    """What came of the trainings of a judge.

    Attributes:
        tuning: the idea's rates.
        raced: the plan of the race; None if the idea has no rate, or the judge was interrupted
            before it.
        race: how the race stands; None likewise.
        failures: why runs failed, by id.
        is_complete: whether all stages are over.
        exit_code: 130 where the user stopped it.
    """

    tuning: TuningRecord
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

    def execute(self) -> TrainedJudge:
        """Train what is missing: the tuning, the race, RLOO's A/A."""
        idea = self.plans.idea.label
        self._announce(1, f"{idea} at {len(self.plans.tuning.tune.values)} learning rates")
        failures: dict[int, str] = {}

        def train_tuning(plan: Plan) -> SweepResult:
            result = self.train(Stage(plan=plan))
            failures.update(result.failed)
            return result

        record, result = execute_tuning(self.plans.tuning, self.store, train_tuning)
        if result is not None and result.is_cut_short:
            return _cut_short(record, result, failures)
        chosen = record.arms[0].chosen
        self.on_text(record.text)
        if chosen is None:
            return TrainedJudge(tuning=record, failures=failures, exit_code=1)
        self._warn_of_change()
        return self._race(record, chosen, failures)

    def _race(self, record: TuningRecord, chosen: float, failures: dict[int, str]) -> TrainedJudge:
        plan = self.plans.race(chosen, record)
        self._announce(2, f"{self.plans.idea.label} beside {BASELINE}", plan)
        trained = RacedSweep(plan).execute(self.store, self.train, self.on_text)
        failures.update(trained.result.failed)
        assert trained.race is not None
        if trained.result.is_cut_short:
            return _cut_short(record, trained.result, failures)
        self._warn_of_change()
        seeds = _seeds_of_idea(plan, trained.race)
        repeated = self.plans.repetition(plan, seeds)
        self._announce(3, f"{BASELINE} once more with other rollouts (A/A)", repeated)
        result = self.train(Stage(plan=repeated))
        failures.update(result.failed)
        if result.is_cut_short:
            return _cut_short(record, result, failures)
        return TrainedJudge(tuning=record, raced=plan, race=trained.race, failures=failures)

    def _announce(self, stage: int, what: str, *plans: Plan) -> None:
        """Say which stage begins, and how long it and those after it take at most."""
        left = [
            estimate(plan, self.store, self.slots)
            for plan in [*plans, *self._later_plans(stage if plans else stage - 1)]
        ]
        self.on_text(f"stage {stage} of {_STAGES}, {what}: {describe_left(left)}")

    def _later_plans(self, stage: int) -> Iterator[Plan]:
        """Yield the plans of the stages after one; a later one may need less."""
        yield from plans_after(self.plans, stage)

    def _warn_of_change(self) -> None:
        """Say once more than needed rather than not at all that the file is another one now."""
        place = self.plans.idea.changed_line
        if place:
            self.on_text(
                f"{place}: the file has changed since this judge began; what is judged is the text "
                "of the beginning, and the same command judges the new one"
            )


def plans_after(plans: JudgePlans, stage: int) -> Iterator[Plan]:
    """Yield the plans of the stages after one, with all runs that they may need."""
    tuning = plans.tuning
    raced = plans.race(max(tuning.tune.values), None)
    if stage < 1:
        yield tuning.plan(tuning.grid)
    if stage < 2:
        yield raced
    if stage < 3:
        seeds = {planned.run.seed for planned in raced.runs}
        yield plans.repetition(raced, [seed for seed in seeds if seed is not None])


def describe_left(left: list[TimeEstimate]) -> str:
    """Say how many runs and how much time some plans have left at most."""
    runs = sum(1 for each in left for run in each.runs if run["steps_left"])
    seconds = [each.seconds for each in left if each.seconds is not None]
    if not runs:
        return "everything is trained already"
    if len(seconds) < len(left):
        return f"at most {counted(runs, 'run')} left"
    return f"at most {counted(runs, 'run')} left, about {rough_duration(sum(seconds))}"


def _seeds_of_idea(plan: Plan, race: RaceRecord) -> list[int]:
    """Return the seeds that the idea has after a race."""
    seeds = [p.run.seed for p in plan.runs if p.run.estimator.name == BASELINE]
    return [seed for seed in seeds[: race.standings[1].seeds] if seed is not None]


def _cut_short(record: TuningRecord, result: SweepResult, failures: dict[int, str]) -> TrainedJudge:
    return TrainedJudge(
        tuning=record, failures=failures, is_complete=False, exit_code=result.exit_code
    )
