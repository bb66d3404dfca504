"""A search over configurations: its trials, the next point to try, and how it is executed."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from advsweep.backends.build import INERT
from advsweep.config.groups import ConfigGroups
from advsweep.config.overrides import Override, parse_overrides
from advsweep.config.sweep_file import sweep_nodes
from advsweep.errors import ConfigError, NotFoundError, UnknownNameError, nearest
from advsweep.store import Status
from advsweep.sweep.events import Event, RunsAdded, SweepResult
from advsweep.sweep.executors.base import QueueExecutor
from advsweep.sweep.planning.plan import Plan, PlannedRun, make_plan
from advsweep.sweep.registry import SEARCHES, NoSearch, config_groups
from advsweep.sweep.scheduler.execute import execute
from advsweep.sweep.scheduler.runs import schedule_runs
from advsweep.sweep.scheduler.scheduler import RunSource, Scheduler
from advsweep.sweep.search.optuna import (
    Dimension,
    OptunaSearch,
    TrialResult,
    TrialState,
    fits,
    format_override,
    format_params,
    node_dimensions,
    split_overrides,
)

if TYPE_CHECKING:
    from advsweep.store import RunRecord, Store
    from advsweep.store.records import TrialRecord
    from advsweep.sweep.retry_policy import Policy

ATTEMPTS = 100
"""Number of suggested points in a row that cannot be runs before a search gives up."""

MOST_CORNERS = 512
"""Largest number of combinations of the dimensions' ends that are all checked."""

NOTHING = (
    "search: expected `advsweep sweep` with something to search over, such as "
    "'optimizer.lr=tag(log,interval(1e-5,1e-3))' or 'group_size=choice(4,8)', got nothing"
)
ONE_CONFIGURATION = (
    "search: expected a trial to be one configuration with its seeds, got {}; write "
    "choice(A,B) in place of a list to search over its values"
)


@dataclass(frozen=True, kw_only=True)
class Study:
    """A planned search.

    Attributes:
        example: the plan of one trial, with the first value of each dimension. It has the name
            and the settings of the sweep.
        corners: runs at the ends of the dimensions, with the first seed.
        fixed: the overrides that all trials share.
        groups: the config groups; every trial uses what they composed for the first one.
    """

    search: OptunaSearch
    dimensions: Mapping[str, Dimension]
    example: Plan
    corners: Sequence[PlannedRun]
    fixed: Sequence[str]
    groups: ConfigGroups

    @property
    def name(self) -> str:
        assert self.example.name is not None
        return self.example.name

    @property
    def seeds(self) -> list[int]:
        """The replicates of each trial."""
        return [planned.run.seed for planned in self.example.runs]

    def results(self, store: Store) -> list[TrialResult]:
        """Return the result of each trial so far, by number.

        Trials of an earlier start with other dimensions are left out.

        Raises:
            NotFoundError: the search was never started.
        """
        by_config: dict[str, list[RunRecord]] = {}
        for run in store.runs.select(sweep=self.name, newest_first=False):
            if run.seed in self.seeds:
                by_config.setdefault(run.config_hash, []).append(run)
        ids = [run.id for runs in by_config.values() for run in runs]
        measured = [store.metrics.means(ids, m, last=self.search.last) for m in self.search.metrics]
        return [
            _result(trial, by_config.get(trial.config_hash, []), len(self.seeds), measured)
            for trial in store.trials.select(self.name)
            if fits(trial.params, self.dimensions)
        ]

    def plan(self, params: Mapping[str, Any]) -> Plan:
        """Plan the runs of a trial.

        Raises:
            ConfigError: the point cannot be a run.
        """
        given = [format_override(key, value) for key, value in params.items()]
        return _plan_part([*self.fixed, *given], self.groups, self.name)

    def runs_in_parallel(self, slots: int) -> bool:
        """Whether trials run side by side, since a single one does not fill the slots."""
        return slots > len(self.seeds)

    def next_number(self, store: Store) -> int:
        """The number of the next trial."""
        trials = store.trials.select(self.name)
        return trials[-1].number + 1 if trials else 0

    def next_trial(
        self, store: Store, number: int, results: Sequence[TrialResult]
    ) -> tuple[dict[str, Any], Plan]:
        """Suggest the next trial's point and plan its runs, given the trials so far.

        Raises:
            ConfigError: no suggested point can be a run, or the runs so far lack a metric of the
                search.
        """
        self._check_metrics(store, results)
        reason: ConfigError
        for attempt in range(ATTEMPTS):
            params = self.search.suggest(results, self.dimensions, number, attempt)
            try:
                return params, self.plan(params)
            except ConfigError as error:
                reason = error
        raise ConfigError(
            f"search: expected points that can be runs, got {ATTEMPTS} in a row that cannot; the "
            f"last was {format_params(params)}: {reason}"
        ) from reason

    def _check_metrics(self, store: Store, results: Sequence[TrialResult]) -> None:
        """Refuse a misspelt metric, as soon as runs show which metrics there are."""
        unmeasured = next((r for r in results if r.state is TrialState.UNMEASURED), None)
        if unmeasured is None:
            return
        known = store.metrics.names(unmeasured.runs[0])
        for metric in self.search.metrics:
            if metric not in known:
                raise UnknownNameError(
                    f"search.metrics: the runs of trial {unmeasured.number} have no metric "
                    f"'{metric}'; {nearest(metric, known)}"
                )

    def add(self, store: Store, number: int, params: Mapping[str, Any], plan: Plan) -> bool:
        """Add a trial to the store; return False if another process has taken its number."""
        return store.trials.add(self.name, number, params, plan.runs[0].run.config_hash)


@dataclass(frozen=True)
class SearchProgress:
    """The progress of a search.

    Attributes:
        results: the trials so far, by number.
        best: the best trial; with two metrics, the Pareto front.
        to_come: the number of trials that are not suggested yet.
    """

    results: Sequence[TrialResult]
    best: Sequence[TrialResult]
    to_come: int

    @property
    def states(self) -> Counter[str]:
        """The number of trials in each state."""
        return Counter(result.state.value for result in self.results)


def read_progress(study: Study, store: Store | None) -> SearchProgress:
    """Read the progress of a search.

    Args:
        store: None if it does not exist yet.
    """
    results: Sequence[TrialResult] = ()
    if store is not None:
        with suppress(NotFoundError):  # The search was never started.
            results = study.results(store)
    return SearchProgress(
        results=results,
        best=study.search.best(results, study.dimensions),
        to_come=max(0, study.search.trials - len(results)),
    )


def plan_search(
    overrides: Iterable[str], *, config_dirs: Sequence[str | Path] = (), name: str | None = None
) -> Study | None:
    """Plan the search that overrides, or the experiment in them, choose; None without a search.

    The runs at both ends of every interval and at every choice are built and checked.

    Raises:
        ConfigError: there is nothing to search over, a trial would be several configurations, or
            something else does not fit.
    """
    texts = list(overrides)
    given, fixed = split_overrides(texts)
    parsed = parse_overrides(fixed)
    if not {"search", "experiment"} & {o.key for o in parsed}:
        return None
    groups = config_groups(config_dirs)
    with groups:
        nodes = [node for _, node in sweep_nodes(groups, parsed)]
        if not _is_chosen(groups, parsed):
            return None
    in_files = [node_dimensions(node) for node in nodes]
    dimensions = {key: d for found in in_files for key, d in found.items()}
    dimensions = {k: d for k, d in dimensions.items() if k not in {o.key for o in parsed}} | given
    _refuse_dimensions(dimensions, nodes)
    first = [format_override(key, dimension.ends[0]) for key, dimension in dimensions.items()]
    example = _plan_part([*fixed, *first], groups, name)
    _refuse_several(example)
    corners = _corners(example, fixed, dimensions, groups, name)
    assert isinstance(example.search, OptunaSearch)
    executor = example.executor
    executor.prepare(executor.resources, [p.run for plan in corners for p in plan.runs])
    spec = {"overrides": texts, "search": example.search.plain()}
    return Study(
        search=example.search,
        dimensions=dimensions,
        example=replace(example, name=corners[0].name, spec=spec),
        corners=[planned for plan in corners for planned in plan.runs],
        fixed=fixed,
        groups=groups,
    )


def _is_chosen(groups: ConfigGroups, overrides: Sequence[Override]) -> bool:
    """Whether an override chooses a search or, without one, an experiment's file does."""
    last = {o.key: o.values for o in overrides if o.key in ("search", "experiment")}
    if "search" in last:
        names = [groups.member("search", value) for value in last["search"]]
    else:
        experiments = [groups.member("experiment", value) for value in last["experiment"]]
        nodes = [groups.compose({"experiment": e}).config["search"] for e in experiments]
        names = [node["name"] for node in nodes]
    return any(not issubclass(SEARCHES.get(name), NoSearch) for name in names)


def _refuse_dimensions(dimensions: Mapping[str, Dimension], nodes: Sequence[Any]) -> None:
    if not dimensions:
        raise ConfigError(NOTHING)
    for key in dimensions:
        group = key.split(".")[0]
        if group in (*INERT, "evaluation", "experiment"):
            raise ConfigError(
                f"{key}: expected a dimension that training depends on; it does not depend on "
                f"{group}"
            )
    blocks = [b for node in nodes for b in (node or {}).get("blocks", [{}])]
    if len(blocks) > 1:
        raise ConfigError(
            f"search: expected one block, as a trial is one configuration, got {len(blocks)}; "
            f"write 'estimator: choice(A,B)' to search over it, or make a search of each block"
        )


def _corners(
    example: Plan,
    fixed: Sequence[str],
    dimensions: Mapping[str, Dimension],
    groups: ConfigGroups,
    name: str | None,
) -> list[Plan]:
    """Plan runs with each end of each dimension, and the first seed.

    A small space is one plan, with all combinations of ends.
    """
    ends = {key: dimension.ends for key, dimension in dimensions.items()}
    size = math.prod(map(len, ends.values()))
    fixed = [*fixed, format_override("seed", example.runs[0].run.seed)]
    if size > MOST_CORNERS:
        return [
            _plan_part(
                [
                    *fixed,
                    *(format_override(k, *(v if k == key else v[:1])) for k, v in ends.items()),
                ],
                groups,
                name,
            )
            for key in ends
        ]
    grid = [format_override(key, *values) for key, values in ends.items()]
    plan = make_plan([*fixed, *grid], groups=groups, name=name, strict=True)
    planned = len(plan.runs) + len(plan.duplicates)
    if planned > size:
        raise ConfigError(ONE_CONFIGURATION.format("several; `when` gives keys several values"))
    if planned < size:
        raise ConfigError(
            f"search: expected every point of the space to be a run, got {planned} of {size}; "
            f"`exclude` removes the others, narrow the dimensions instead"
        )
    return [plan]


def _plan_part(overrides: Sequence[str], groups: ConfigGroups, name: str | None) -> Plan:
    """Plan a part of a space."""
    return make_plan(overrides, groups=groups, name=name, strict=True)


def refuse_search(plan: Plan) -> None:
    """Refuse a plan with a search that has no dimensions.

    Raises:
        ConfigError: the plan has a search.
    """
    if not isinstance(plan.search, NoSearch):
        raise ConfigError(NOTHING)


def _refuse_several(example: Plan) -> None:
    """Refuse trials of several configurations, and executors whose runs are not waited for."""
    if isinstance(example.executor, QueueExecutor):
        raise ConfigError(
            f"search: expected an executor whose runs are waited for, as the next trial depends on "
            f"those before, got '{example.executor.name}'"
        )
    if len({planned.run.config_hash for planned in example.runs}) > 1:
        raise ConfigError(ONE_CONFIGURATION.format(f"one of {len(example.runs)} runs"))


def _result(
    trial: TrialRecord,
    runs: Sequence[RunRecord],
    seeds: int,
    measured: Sequence[Mapping[int, float]],
) -> TrialResult:
    ids = tuple(run.id for run in runs)
    known = partial(TrialResult, number=trial.number, params=trial.params, runs=ids)
    states = {run.status for run in runs}
    if Status.RUNNING in states:
        return known(state=TrialState.RUNNING)
    if len(runs) < seeds or not states <= {Status.DONE, Status.FAILED, Status.PRUNED}:
        return known(state=TrialState.OPEN)
    if Status.FAILED in states:
        return known(state=TrialState.FAILED)
    if Status.PRUNED in states:
        return known(state=TrialState.PRUNED)
    values = tuple(
        sum(of_run.get(run.id, math.nan) for run in runs) / len(runs) for of_run in measured
    )
    if not all(map(math.isfinite, values)):
        return known(state=TrialState.UNMEASURED)
    return known(state=TrialState.DONE, values=values)


def execute_search(
    study: Study,
    store: Store,
    jobs: int | None = None,
    on_event: Callable[[Event], None] = lambda event: None,
    *,
    policy: Policy | None = None,
) -> SweepResult:
    """Train trials until the search has as many as it needs, and wait for all of them.

    Unfinished trials of an earlier start come first. Completed runs are not repeated, whatever
    trial or sweep they belong to, and runs that another process trains are waited for.

    If one trial fills the slots, the next is suggested when it is over, so that the search
    depends on its results and its seed alone. Otherwise the next is suggested as soon as a slot
    is free; running trials then count as poor ones.

    Args:
        jobs: runs side by side; the executor's capacity if None.
        on_event: called with each event, in the calling thread.
        policy: retries and limits; the default policy if None.

    Raises:
        ConfigError: as `execute`, or no suggested point can be a run, or the runs lack a metric
            of the search.
        StoreError: the store cannot be used.
    """
    start = replace(study.example, runs=[], duplicates=[])
    slots = jobs or study.example.executor.capacity()
    store.sweeps.add(study.name, study.example.spec)
    trials = Trials(study, store, parallel=study.runs_in_parallel(slots))
    outcome = execute(start, store, jobs, on_event, policy=policy, source=trials)
    ids = list(outcome.run_ids)
    # Add the trials that were over before, and those that only another process trained.
    ids += {i for r in study.results(store) if r.is_over for i in r.runs}.difference(ids)
    skipped = outcome.skipped + len(ids) - len(outcome.run_ids)
    return replace(outcome, run_ids=sorted(ids), skipped=skipped)


class Trials(RunSource):
    """The trials of a search, one after another."""

    def __init__(self, study: Study, store: Store, *, parallel: bool) -> None:
        self._study = study
        self._store = store
        self._parallel = parallel
        self._seen: set[int] = set()
        self._enough = False
        self._exhausted = False

    @property
    def is_exhausted(self) -> bool:
        return self._exhausted

    def add_runs(self, scheduler: Scheduler) -> bool:
        idle = scheduler.is_idle
        if not idle and (self._enough or not self._parallel):
            return False
        study, store = self._study, self._store
        # Read before the results: if another process adds a trial in between, `add` fails below.
        number = study.next_number(store)
        results = study.results(store)
        for result in results:
            if not result.is_over and result.number not in self._seen:
                plan = study.plan(result.params)
                self._queue(scheduler, result.number, result.params, plan, len(results))
                return True
        if len(results) < study.search.trials:
            params, plan = study.next_trial(store, number, results)
            if study.add(store, number, params, plan):
                self._queue(scheduler, number, params, plan, len(results) + 1)
            return True
        self._enough = True
        # Another process may still add trials while runs are being trained here.
        self._exhausted = idle
        return False

    def _queue(
        self,
        scheduler: Scheduler,
        number: int,
        params: Mapping[str, Any],
        plan: Plan,
        trials: int,
    ) -> None:
        """Queue the unfinished runs of a trial.

        Args:
            trials: the number of trials so far, this one included.
        """
        study = self._study
        self._seen.add(number)
        known = {scheduled.run_id for scheduled in scheduler.runs}
        made = schedule_runs(replace(study.example, runs=plan.runs), self._store, force=False)
        runs = [scheduled for scheduled in made if scheduled.run_id not in known]
        to_come = max(0, study.search.trials - trials) * len(study.seeds)
        labels = {p.run.identity: f"trial {number} seed={p.run.seed}" for p in plan.runs}
        message = f"trial {number}: {format_params(params)}"
        total = len(scheduler.runs) + len(runs) + to_come
        scheduler.emit(RunsAdded(message, labels, total))
        scheduler.add(runs)
