"""Tuned sweeps: each arm finds its own value of a key, and is then tested with other seeds.

The tuning runs are another sweep. The choice follows from their results in the store and
from the grid of the sweep file; what the store says of an earlier choice is not read.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from advsweep.components import identity_of
from advsweep.config.overrides import parse_overrides
from advsweep.config.space import SEED, Assignment, Tune, arm_of, points
from advsweep.config.sweep_file import read_spaces, sweep_nodes
from advsweep.errors import ConfigError, UnknownNameError, nearest
from advsweep.store import Status
from advsweep.store.tuning_records import TUNE_KEY, TunedArm, TunedValue, TuningRecord, ValueState
from advsweep.sweep.planning.plan import Change, Plan, make_plan
from advsweep.sweep.registry import config_groups

if TYPE_CHECKING:
    from advsweep.config.groups import ConfigGroups
    from advsweep.store import RunRecord, Store
    from advsweep.sweep.events import SweepResult


@dataclass(frozen=True, kw_only=True)
class Trial:
    """An arm with a value, and the number of tuning seeds that it is trained with."""

    arm: str
    value: float
    seeds: int


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """A planned tuning, and the sweep that it is for.

    Attributes:
        arms: the keys of each arm's tuning runs by its name, without the seed and the tuned key.
        names: the name of the arm of each run of the sweep, by the text of its keys.
        test: the plan of the test runs, without values of the tuned key.
        make: plans other runs in place of the sweep's.
        _identities: of the runs of an arm with a value and all tuning seeds.
    """

    tune: Tune
    arms: Mapping[str, Assignment]
    names: Mapping[str, str]
    test: Plan
    make: Callable[[Change], Plan]
    _identities: dict[tuple[str, float], list[str]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        assert self.test.name is not None
        return self.test.name

    @property
    def tuning_name(self) -> str:
        """The name of the sweep of the tuning runs."""
        return f"{self.name}-tuning"

    @property
    def grid(self) -> list[Trial]:
        """All arms with the values of the sweep file and all tuning seeds."""
        seeds = len(self.tune.tuning_seeds)
        return [
            Trial(arm=name, value=value, seeds=seeds)
            for name in self.arms
            for value in self.tune.values
        ]

    @property
    def first_runs(self) -> int:
        """The number of tuning runs with the values of the sweep file; by halving the most."""
        return len(self.arms) * self.tune.runs

    @property
    def extra_runs(self) -> int:
        """The most tuning runs by which grids may grow."""
        return len(self.arms) * self.tune.extend * len(self.tune.tuning_seeds)

    def plan(self, trials: Sequence[Trial]) -> Plan:
        """Plan tuning runs.

        Raises:
            ConfigError: an arm cannot have a value.
        """
        listed = [point for trial in trials for point in self._points(trial)]
        return replace(self.make(lambda _: listed), name=self.tuning_name)

    def _points(self, trial: Trial) -> list[Assignment]:
        """Return the keys of the runs of a trial, in the order of the tuning seeds."""
        seeds = self.tune.tuning_seeds[: trial.seeds]
        keys = {**self.arms[trial.arm], self.tune.key: trial.value}
        return [{**keys, SEED: seed} for seed in seeds]

    def _identities_of(self, trial: Trial) -> list[str]:
        """Return the identities of the runs of a trial, in the order of the tuning seeds.

        Raises:
            ConfigError: the arm cannot have the value.
        """
        key = (trial.arm, trial.value)
        if key not in self._identities:
            self._plan_identities([replace(trial, seeds=len(self.tune.tuning_seeds))])
        return self._identities[key][: trial.seeds]

    def _plan_identities(self, trials: Sequence[Trial]) -> Plan:
        """Plan trials with all tuning seeds, and keep the identities of their runs."""
        plan = self.plan(trials)
        identities = {_text(planned.assignment): planned.run.identity for planned in plan.runs}
        for duplicate in plan.duplicates:
            identities[_text(duplicate.assignment)] = duplicate.identity
        for trial in trials:
            points = self._points(trial)
            self._identities[trial.arm, trial.value] = [identities[_text(p)] for p in points]
        return plan

    def check_grid(self) -> Plan:
        """Plan all runs of the grid of the sweep file.

        Raises:
            ConfigError: an arm cannot have a value.
        """
        return self._plan_identities(self.grid)

    def plan_test(self, record: TuningRecord) -> Plan:
        """Plan the test runs of the arms that have a choice, each at its own.

        Raises:
            ConfigError: none has.
        """
        key = self.tune.key
        chosen = {arm.name: arm.chosen for arm in record.arms if arm.chosen is not None}
        if not chosen:
            raise ConfigError(
                f"sweep.tune: expected tuning runs that are done and have '{record.metric}', got "
                f"none; `advsweep status {self.tuning_name}` says why"
            )
        baseline = self.names[_text(arm_of(self.test.runs[0].assignment))]
        if self.test.race is not None and baseline not in chosen:
            raise ConfigError(
                f"sweep.race: expected a value of {key} for the baseline {baseline}, got none; "
                f"`advsweep status {self.tuning_name}` says why"
            )

        def at_choices(listed: Sequence[Assignment]) -> list[Assignment]:
            arms = [self.names[_text(arm_of(point))] for point in listed]
            return [
                {**point, key: chosen[arm]}
                for point, arm in zip(listed, arms, strict=True)
                if arm in chosen
            ]

        plan = self.make(at_choices)
        return replace(plan, name=self.name, spec={**plan.spec, TUNE_KEY: record.plain()})

    def read(self, store: Store | None) -> TuningRecord:
        """Return how far the tuning is.

        Args:
            store: None if it does not exist yet.
        """
        runs: dict[str, RunRecord] = {}
        measured: Mapping[int, float] = {}
        if store is not None and self._has_begun(store):
            runs = store.runs.by_identity(self.tuning_name)
            ids = [run.id for run in runs.values()]
            measured = store.metrics.means(ids, self.tune.metric, last=1)

        def result(trial: Trial) -> TunedValue:
            identities = self._identities_of(trial)
            replicates = [runs[identity] for identity in identities if identity in runs]
            state = state_of(replicates, len(identities), measured)
            scores: tuple[float, ...] = ()
            if state is ValueState.DONE:
                scores = tuple(measured[run.id] for run in replicates)
            return TunedValue(value=trial.value, state=state, seeds=trial.seeds, scores=scores)

        return TuningRecord(
            key=self.tune.key,
            metric=self.tune.metric,
            lower=self.tune.lower,
            seeds=self.tune.tuning_seeds,
            sweep=self.tuning_name,
            halving=self.tune.halving,
            arms=[self._read_arm(name, result) for name in self.arms],
        )

    def _has_begun(self, store: Store) -> bool:
        return self.tuning_name in store.sweeps.names()

    def _read_arm(self, name: str, result: Callable[[Trial], TunedValue]) -> TunedArm:
        """Return how far an arm is: its values climb the rungs, then its grid may grow.

        Both follow from the results alone, so that a resumed sweep comes to the same.
        """
        tune = self.tune
        results: dict[float, TunedValue] = {}
        values = list(tune.values)
        for rung in tune.rungs:
            # What has failed on a rung is among the worse half of it.
            kept = tune.ranked(_scores(results))[: rung.values] if results else values
            for value, each in results.items():
                if each.state is ValueState.DONE and value not in kept:
                    results[value] = replace(each, state=ValueState.DROPPED)
            for value in kept:
                results[value] = result(Trial(arm=name, value=value, seeds=rung.seeds))
            if any(each.state is ValueState.OPEN for each in results.values()):
                return TunedArm(name=name, grid=_ascending(results))
        while True:
            best = tune.best(_scores(results))
            more = None if best is None else tune.beyond(sorted(results), best)
            if more is None or len(results) == len(tune.values) + tune.extend:
                return TunedArm(name=name, grid=_ascending(results), chosen=best)
            trial = Trial(arm=name, value=more, seeds=len(tune.tuning_seeds))
            try:
                results[more] = result(trial)
            except ConfigError:  # the arm cannot have that value
                return TunedArm(name=name, grid=_ascending(results), chosen=best)
            if results[more].state is ValueState.OPEN:
                return TunedArm(name=name, grid=_ascending(results))


def _ascending(results: Mapping[float, TunedValue]) -> list[TunedValue]:
    return [results[value] for value in sorted(results)]


def _scores(results: Mapping[float, TunedValue]) -> dict[float, float | None]:
    """Return the scores of the values that may be chosen."""
    return {value: each.score for value, each in results.items() if each.state is ValueState.DONE}


def state_of(runs: Sequence[RunRecord], wanted: int, measured: Mapping[int, float]) -> ValueState:
    """Return how far the replicates of a configuration are.

    A run that raised an error is over, since a rate at which a training diverges is not to be
    chosen.

    Args:
        wanted: how many there should be.
        measured: the value of each run.
    """
    states = {run.status for run in runs}
    if len(runs) < wanted or not all(run.is_conclusive for run in runs):
        return ValueState.OPEN
    if Status.FAILED in states:
        return ValueState.FAILED
    if Status.PRUNED in states:
        return ValueState.PRUNED
    if all(math.isfinite(measured.get(run.id, math.nan)) for run in runs):
        return ValueState.DONE
    return ValueState.UNMEASURED


def plan_tuning(
    overrides: Iterable[str],
    *,
    config_dirs: Sequence[str | Path] = (),
    name: str | None = None,
    fetch: bool = True,
) -> Tuning | None:
    """Plan the tuning that a sweep file asks for; None without one.

    All runs are built and checked: the first grid's, and the test runs.

    Raises:
        ConfigError: something does not fit. Nothing was started.
    """
    texts = list(overrides)
    groups = config_groups(config_dirs)
    space = _read_space(groups, texts)
    if space is None:
        return None
    tune, listed = space

    def make(change: Change) -> Plan:
        return make_plan(texts, groups=groups, name=name, fetch=fetch, change=change)

    test = make(lambda listed: listed)
    seeds_of_both = {planned.run.seed for planned in test.runs} & set(tune.tuning_seeds)
    if seeds_of_both:
        raise ConfigError(
            f"sweep.tune.seeds: expected other seeds than those of the test runs, got "
            f"{min(seeds_of_both)} in both"
        )
    arms = {_text(arm_of(point)): arm_of(point) for point in listed}
    names = dict(zip(arms, _names(list(arms.values())), strict=True))
    tuning = Tuning(
        tune=tune,
        arms={names[text]: keys for text, keys in _tuning_keys(tune, arms, test).items()},
        names=names,
        test=test,
        make=make,
    )
    first = tuning.check_grid()
    warnings = [*first.warnings, *_warn_of_shared_problems(first, test)]
    return replace(tuning, test=replace(test, warnings=warnings))


def _read_space(groups: ConfigGroups, texts: Sequence[str]) -> tuple[Tune, list[Assignment]] | None:
    """Return what is tuned, and the points of the sweep; None without a tuning.

    Raises:
        ConfigError: there are several sweep files, or something else sets the tuned key.
    """
    parsed = parse_overrides(texts)
    with groups:
        nodes = [node for _, node in sweep_nodes(groups, parsed)]
        if not any(isinstance(node, Mapping) and node.get("tune") for node in nodes):
            return None
        spaces = read_spaces(groups, parsed)
        listed = list(points(spaces))
    if len(spaces) > 1:
        raise ConfigError(f"sweep.tune: expected one sweep file, got {len(spaces)}")
    tune = spaces[0].tune
    assert tune is not None
    if any(tune.key in point for point in listed):
        raise ConfigError(
            f"sweep.tune.key: expected a key that nothing else sets, got '{tune.key}', which "
            "the sweep sets"
        )
    return tune, listed


def _tuning_keys(tune: Tune, arms: Mapping[str, Assignment], test: Plan) -> dict[str, Assignment]:
    """Return the keys of each arm's tuning runs, by the text of the arm."""
    keys = dict(arms)
    for planned in test.runs:
        if isinstance(planned.config["task"].get(SEED), int):
            # A seed of the task draws the problems. If that is the run's, they differ already.
            text = _text(arm_of(planned.assignment))
            keys[text] = {**arms[text], "task.seed": tune.tuning_seeds[0]}
    return {text: {**arm_keys, **tune.set} for text, arm_keys in keys.items()}


def _warn_of_shared_problems(tuning: Plan, test: Plan) -> list[str]:
    """Return a warning for each task whose tuning runs have the problems of the test runs."""
    labels = _problems(tuning)
    shared = labels.keys() & _problems(test).keys()
    return [
        f"sweep.tune: the tuning runs of task '{labels[each]}' have the problems of the "
        f"test runs; set others for them, such as another split, under sweep.tune.set"
        for each in sorted(shared)
    ]


def _problems(plan: Plan) -> dict[str, str]:
    """Return the labels of a plan's tasks by what tells their problems apart, where known."""
    runs = [planned.run for planned in plan.runs]
    tasks = [run.task for run in runs if not (run.backend.external or run.absent)]
    return {repr(identity_of(task)): task.label for task in tasks}


def _names(arms: Sequence[Assignment]) -> list[str]:
    """Name arms by the keys in which they differ, such as `grpo group_size=8`."""
    names = []
    for arm in arms:
        words = []
        for key, value in arm.items():
            if key in ("estimator", "method"):
                words.append(str(value))
            elif any(repr(other.get(key)) != repr(value) for other in arms):
                words.append(f"{key}={value}")
        names.append(" ".join(words) or "all runs")
    return names


def _text(assignment: Assignment) -> str:
    return repr(sorted(assignment.items()))


def check_metric(store: Store, sweep: str, metric: str, key: str) -> None:
    """Refuse a misspelt metric as soon as a run of a sweep shows which metrics there are.

    Raises:
        UnknownNameError: the message names the key that has the metric.
    """
    for run in store.runs.select(sweep=sweep, status=Status.DONE, limit=1):
        metrics = store.metrics.names(run.id)
        if metric not in metrics:
            raise UnknownNameError(
                f"{key}: run {run.id} has no metric '{metric}'; {nearest(metric, metrics)}"
            )


def execute_tuning(
    tuning: Tuning, store: Store, run: Callable[[Plan], SweepResult]
) -> tuple[TuningRecord, SweepResult | None]:
    """Train tuning runs until every arm has its choice.

    Runs are trained in rounds: all values of the sweep file, by halving those of a rung after
    those of the one before, then those by which grids grow. An arm without a choice whose runs
    failed is tried again, once.

    Args:
        run: executes a plan.

    Returns:
        The record, which is in the store too, and the result of the last round. The record is not
        over if the round was stopped, failed, or was submitted to a queue.

    Raises:
        UnknownNameError: the runs have no such metric.
    """
    last_round: SweepResult | None = None
    tried: set[Trial] = set()
    spec = {**tuning.test.spec, "settings": tuning.test.settings()}
    while True:
        record = tuning.read(store)
        # For `status` and reports; the choice itself is always made from the runs.
        store.sweeps.add(tuning.name, {**spec, TUNE_KEY: record.plain()})
        states = {each.state for arm in record.arms for each in arm.grid}
        if states - {ValueState.OPEN} == {ValueState.UNMEASURED}:
            check_metric(store, tuning.tuning_name, record.metric, "sweep.tune.metric")
        wanted = [trial for trial in trials_to_train(record) if trial not in tried]
        if not wanted or (last_round is not None and last_round.is_cut_short):
            return record, last_round
        tried.update(wanted)
        last_round = run(tuning.plan(wanted))


def trials_to_train(record: TuningRecord) -> list[Trial]:
    """Return the open values of each arm; those that failed as well where an arm has no choice."""
    wanted = []
    for arm in record.arms:
        states = [ValueState.OPEN]
        if arm.chosen is None and not arm.is_open:
            states.append(ValueState.FAILED)
        for each in arm.grid:
            if each.state in states:
                wanted.append(Trial(arm=arm.name, value=each.value, seeds=each.seeds))
    return wanted
