"""Plain, raced and tuned sweeps: which runs are trained, in which stages.

    sweep = plan_sweep(["sweep.yaml"])
    trained = train_sweep(sweep, store, on_text=print)

A strategy trains one stage after another through a function that it is given, and says in texts
what it does, so that the command line and Python callers share it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from advsweep.errors import counted
from advsweep.store.races import RaceRecord, read_race
from advsweep.sweep.events import Event, SweepResult
from advsweep.sweep.planning.plan import Plan, make_plan
from advsweep.sweep.racing import execute_race, plan_race
from advsweep.sweep.retry_policy import Policy
from advsweep.sweep.scheduler.execute import execute
from advsweep.sweep.tuning import Trial, Tuning, execute_tuning, plan_tuning

if TYPE_CHECKING:
    from advsweep.store import Store
    from advsweep.store.tuning_records import TuningRecord


@dataclass(frozen=True, kw_only=True)
class Stage:
    """Runs of a sweep that are trained together.

    Attributes:
        text: what is special about them, in a line; empty if nothing is.
        is_part: whether the sweep may have other stages.
    """

    plan: Plan
    text: str = ""
    is_part: bool = True


@dataclass(frozen=True, kw_only=True)
class Preview:
    """What a sweep would train, as far as that is known before.

    Attributes:
        texts: what is special about it, a line each.
        tuning: how far its tuning is; None without one.
        warnings: warnings of the sweep that the stage's plan lacks.
        counts: numbers of runs of the stages, and the tuning, in JSON types.
        later: the runs that come after the stage's and do not depend on them in number; None
            without any.
    """

    stage: Stage
    texts: Sequence[str] = ()
    tuning: TuningRecord | None = None
    warnings: Sequence[str] = ()
    counts: Mapping[str, Any] = field(default_factory=dict)
    later: Plan | None = None


@dataclass(frozen=True, kw_only=True)
class TrainedSweep:
    """What came of a sweep.

    Attributes:
        plan: the plan of its last stage.
        result: the result of its last stage; of a race, of all its rounds.
        tuning: how far its tuning is; None without one.
        race: how its race stands; None without one.
        remarks: what the user should know about it, a line each.
    """

    plan: Plan
    result: SweepResult
    tuning: TuningRecord | None = None
    race: RaceRecord | None = None
    remarks: Sequence[str] = ()

    @property
    def exit_code(self) -> int:
        """As of the result; 1 also if no value could be chosen for an arm."""
        if _arms_without_choice(self.tuning):
            return self.result.exit_code or 1
        return self.result.exit_code

    def plain(self) -> dict[str, Any]:
        """Return what it has besides the result, in JSON types."""
        nodes = {"race": self.race, "tune": self.tuning}
        return {key: record.plain() for key, record in nodes.items() if record is not None}


# Trains the runs of a stage.
Train = Callable[[Stage], SweepResult]

# Receives texts for the user, a line each.
OnText = Callable[[str], None]


class SweepStrategy(ABC):
    """How the runs of a sweep are chosen and trained.

    Attributes:
        plan: the runs that the sweep compares; of a race all that it may need, of a tuned sweep
            without values of the tuned key.
        always_resumes: whether it cannot train completed runs again.
    """

    plan: Plan
    always_resumes: ClassVar[bool] = True

    @abstractmethod
    def preview(self, store: Store | None) -> Preview:
        """Return what the sweep would train.

        Args:
            store: None if it does not exist yet.
        """

    @abstractmethod
    def execute(self, store: Store, train: Train, on_text: OnText) -> TrainedSweep:
        """Train what is missing.

        Args:
            train: trains each stage.
            on_text: receives what is decided before and between the stages.
        """


@dataclass
class PlainSweep(SweepStrategy):
    """All runs at once."""

    always_resumes: ClassVar[bool] = False

    plan: Plan

    def preview(self, store: Store | None) -> Preview:
        return Preview(stage=Stage(plan=self.plan, is_part=False))

    def execute(self, store: Store, train: Train, on_text: OnText) -> TrainedSweep:
        result = train(Stage(plan=self.plan, is_part=False))
        return TrainedSweep(plan=self.plan, result=result)


@dataclass
class RacedSweep(SweepStrategy):
    """Rounds of seeds, until nothing that they could settle is open."""

    plan: Plan

    def preview(self, store: Store | None) -> Preview:
        text = f"sweep {self.plan.name} is a race: these are all runs that it may need."
        return Preview(stage=Stage(plan=self.plan, is_part=False), texts=[text])

    def execute(self, store: Store, train: Train, on_text: OnText) -> TrainedSweep:
        return _race(self.plan, store, train)


@dataclass
class TunedSweep(SweepStrategy):
    """First runs with which each arm finds its value of a key, then the runs that are compared."""

    tuning: Tuning

    def __post_init__(self) -> None:
        self.plan = self.tuning.test

    def preview(self, store: Store | None) -> Preview:
        tuning = self.tuning
        record = tuning.read(store)
        trials = [
            Trial(arm=arm.name, value=each.value, seeds=each.seeds)
            for arm in record.arms
            for each in arm.grid
        ]
        plan = tuning.plan_test(record) if record.is_complete else tuning.plan(trials)
        grown = [t for t in trials if t.value not in tuning.tune.values]
        return Preview(
            stage=Stage(plan=plan),
            texts=[self._describe_size()],
            tuning=record,
            warnings=[text for text in self.plan.warnings if text not in plan.warnings],
            counts={
                "tune": record.plain(),
                "tuning_runs": tuning.first_runs + sum(trial.seeds for trial in grown),
                "most_tuning_runs": tuning.first_runs + tuning.extra_runs,
                "test_runs": len(self.plan.runs),
            },
            later=None if record.is_complete else self.plan,
        )

    def execute(self, store: Store, train: Train, on_text: OnText) -> TrainedSweep:
        on_text(self._describe_size())
        stages: list[Stage] = []

        def train_tuning(plan: Plan) -> SweepResult:
            stages.append(Stage(plan=plan, text=self._describe_values(plan)))
            return train(stages[-1])

        record, result = execute_tuning(self.tuning, store, train_tuning)
        is_stopped = result is not None and (result.stopped or result.halted)
        if record.is_complete and not is_stopped:
            on_text(record.text)
            trained = self._test(record, store, train)
        else:
            assert result is not None
            trained = TrainedSweep(plan=stages[-1].plan, result=result)
        return replace(
            trained, tuning=record, remarks=[*trained.remarks, *_tuning_remarks(record, trained)]
        )

    def _test(self, record: TuningRecord, store: Store, train: Train) -> TrainedSweep:
        """Train the runs that are compared, each arm at its choice."""
        plan = self.tuning.plan_test(record)
        if plan.race is not None:
            return _race(plan, store, train)
        return TrainedSweep(plan=plan, result=train(Stage(plan=plan)))

    def _describe_values(self, plan: Plan) -> str:
        """Return the values that a plan of tuning runs tries."""
        key = self.tuning.tune.key
        values = sorted({planned.assignment[key] for planned in plan.runs})
        text = f"values of {key}: {', '.join(f'{value:g}' for value in values)}"
        if self.tuning.tune.halving:
            seeds = {planned.run.seed for planned in plan.runs}
            text = f"{text}, with {counted(len(seeds), 'seed')}"
        return text

    def _describe_size(self) -> str:
        tuning = self.tuning
        tune = tuning.tune
        arms = counted(len(tuning.arms), "arm")
        first = counted(tuning.first_runs, "tuning run")
        rungs = [
            f"{rung.values} values of {tune.key} x {counted(rung.seeds, 'seed')}"
            for rung in tune.rungs
        ]
        size = f"{first} ({arms} x {rungs[0]})"
        if tune.halving:
            better = [f"the better {r.values} x {r.seeds} seeds" for r in tune.rungs[1:]]
            size = (
                f"at most {first} in place of {len(tuning.grid) * len(tune.tuning_seeds)} "
                f"({arms} x {', '.join([rungs[0], *better])})"
            )
        grown = ""
        if tuning.extra_runs:
            grown = f", and at most {tuning.extra_runs} more where the best value is at an edge"
        return (
            f"sweep {tuning.name}: {size}{grown}; then {counted(len(self.plan.runs), 'test run')}"
        )


def plan_sweep(
    overrides: Iterable[str],
    *,
    config_dirs: Sequence[str | Path] = (),
    name: str | None = None,
    fetch: bool = True,
) -> SweepStrategy:
    """Plan a tuned sweep, a race or plain combinations, whichever the sweep file asks for.

    Args:
        overrides: values to sweep over, in Hydra's grammar, and sweep files.
        config_dirs: folders of the user's own config groups, searched first.
        name: the sweep's name; None: as in `make_plan`.
        fetch: as in `make_plan`.

    Raises:
        ConfigError: something does not fit. Nothing was started.
    """
    texts = list(overrides)
    tuning = plan_tuning(texts, config_dirs=config_dirs, name=name, fetch=fetch)
    if tuning is not None:
        sweep: SweepStrategy = TunedSweep(tuning)
    else:
        plan = make_plan(texts, config_dirs=config_dirs, name=name, fetch=fetch)
        sweep = PlainSweep(plan) if plan.race is None else RacedSweep(plan)
    if sweep.plan.race is not None:
        plan_race(sweep.plan)  # refuses what it cannot compare
    return sweep


def train_sweep(
    sweep: SweepStrategy,
    store: Store,
    *,
    policy: Policy | None = None,
    on_text: OnText = lambda text: None,
    on_event: Callable[[Event], None] = lambda event: None,
) -> TrainedSweep:
    """Train what is missing of a sweep, as `advsweep sweep` does.

    Args:
        policy: retries and limits; the default policy when None.
        on_text: receives what is decided before, between and after the stages, a line each.
        on_event: receives the events of the scheduler, in the calling thread.

    Raises:
        ConfigError: as `execute`.
        UnknownNameError: the runs lack the metric by which arms are tuned or raced.
        StoreError: the store cannot be used.
    """

    def train(stage: Stage) -> SweepResult:
        if stage.text:
            on_text(stage.text)
        return execute(stage.plan, store, on_event=on_event, policy=policy)

    trained = sweep.execute(store, train, on_text)
    for remark in trained.remarks:
        on_text(remark)
    return trained


def _race(plan: Plan, store: Store, train: Train) -> TrainedSweep:
    """Train runs of a race until it is over, or a queue has the runs of the next round."""
    stages = [Stage(plan=plan)]

    def train_round(stage_plan: Plan, record: RaceRecord) -> SweepResult:
        stages.append(Stage(plan=stage_plan, text=record.title))
        return train(stages[-1])

    result = execute_race(plan_race(plan), store, train_round)
    standing = read_race(store, plan.name or "")
    assert standing is not None
    remarks = []
    if result.submitted or result.queued:
        remarks = ["Start the same sweep again once these runs are done: the race goes on."]
    return TrainedSweep(plan=stages[-1].plan, result=result, race=standing, remarks=remarks)


def _tuning_remarks(record: TuningRecord, trained: TrainedSweep) -> list[str]:
    """Return what the user should know about the tuning of a sweep after its last stage."""
    remarks = []
    if not record.is_complete and (trained.result.submitted or trained.result.queued):
        remarks.append(
            "Start the same sweep again once these runs are done: it chooses and goes on."
        )
    without = _arms_without_choice(record)
    if without:
        remarks.append(
            f"no value of {record.key} could be chosen for {', '.join(without)}, which "
            f"therefore has no test runs; `advsweep status {record.sweep}` says why"
        )
    return remarks


def _arms_without_choice(record: TuningRecord | None) -> list[str]:
    """Return the arms of a tuning that is over for which no value could be chosen."""
    if record is None or not record.is_complete:
        return []
    return [arm.name for arm in record.arms if arm.chosen is None]
