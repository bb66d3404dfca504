"""A search over configurations: its trials, the next point to try, and how it is executed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from advsweep.backends.build import INERT
from advsweep.config.groups import ConfigGroups
from advsweep.config.overrides import Override, parse_overrides
from advsweep.config.sweep_file import sweep_nodes
from advsweep.errors import ConfigError
from advsweep.store.records import ValueState
from advsweep.sweep.events import SweepResult
from advsweep.sweep.executors.base import QueueExecutor
from advsweep.sweep.planning.plan import Plan, make_plan
from advsweep.sweep.registry import SEARCHES, NoSearch, config_groups
from advsweep.sweep.search.optuna import (
    Dimension,
    OptunaSearch,
    TrialResult,
    fits,
    format_override,
    format_params,
    node_dimensions,
    split_overrides,
)
from advsweep.sweep.tuning import check_metric, state_of

if TYPE_CHECKING:
    from advsweep.store import RunRecord, Store
    from advsweep.sweep.retry_policy import Policy

ATTEMPTS = 100
"""Number of suggested points in a row that cannot be runs before a search gives up."""

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
        fixed: the overrides that all trials share.
        groups: the config groups; every trial uses what they composed for the first one.
    """

    search: OptunaSearch
    dimensions: Mapping[str, Dimension]
    example: Plan
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

    def results(self, store: Store | None) -> list[TrialResult]:
        """Return the trials so far that are points of this search; others are left aside.

        Args:
            store: None if it does not exist yet.
        """
        if store is None or self.name not in {sweep.name for sweep in store.sweeps.select()}:
            return []
        by_config: dict[str, list[RunRecord]] = {}
        for run in store.runs.select(sweep=self.name, newest_first=False):
            # Other seeds of a configuration may belong to an earlier start of the search.
            if run.seed in self.seeds:
                by_config.setdefault(run.config_hash, []).append(run)
        ids = [run.id for runs in by_config.values() for run in runs]
        measured = [store.metrics.means(ids, m, last=self.search.last) for m in self.search.metrics]
        results = []
        for trial in store.trials.select(self.name):
            if not fits(trial.params, self.dimensions):
                continue
            runs = by_config.get(trial.config_hash, [])
            state = state_of(runs, len(self.seeds), measured)
            means: list[float] = []
            if state is ValueState.DONE:
                means = [sum(each[run.id] for run in runs) / len(runs) for each in measured]
            results.append(
                TrialResult(
                    number=trial.number,
                    params=trial.params,
                    state=state,
                    values=tuple(means),
                    runs=tuple(run.id for run in runs),
                )
            )
        return results

    def best(self, results: Sequence[TrialResult]) -> list[TrialResult]:
        """Return the best trial, or with two metrics the Pareto front; empty if none is done."""
        return self.search.best(results, self.dimensions)

    def plan(self, params: Mapping[str, Any]) -> Plan:
        """Plan the runs of a trial.

        Raises:
            ConfigError: the point cannot be a run.
        """
        given = [format_override(key, value) for key, value in params.items()]
        return _plan_part([*self.fixed, *given], self.groups, self.name)

    def next_trial(
        self, store: Store, number: int, results: Sequence[TrialResult]
    ) -> tuple[dict[str, Any], Plan]:
        """Suggest the next trial's point and plan its runs, given the trials so far.

        Raises:
            ConfigError: no suggested point can be a run, or the runs so far lack a metric of the
                search.
        """
        for result in results:
            if result.state is ValueState.UNMEASURED:
                for metric in self.search.metrics:
                    check_metric(store, result.runs[0], metric, "search.metrics")
                break
        reason: ConfigError
        # A point that cannot be a run, such as a group size that does not divide, is redrawn.
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
    in_files = {key: d for node in nodes for key, d in node_dimensions(node).items()}
    set_keys = {o.key for o in parsed}
    dimensions = {k: d for k, d in in_files.items() if k not in set_keys} | given
    _refuse_dimensions(dimensions, nodes)
    first = {key: dimension.values[:1] for key, dimension in dimensions.items()}
    example = _plan_part([*fixed, *_listed(first)], groups, name)
    if isinstance(example.executor, QueueExecutor):
        raise ConfigError(
            f"search: expected an executor whose runs are waited for, as the next trial depends on "
            f"those before, got '{example.executor.name}'"
        )
    if len({planned.run.config_hash for planned in example.runs}) > 1:
        raise ConfigError(ONE_CONFIGURATION.format(f"one of {len(example.runs)} runs"))
    checked = list(example.runs)
    # Each dimension on its own: a space may have more combinations than can be planned.
    for key, dimension in dimensions.items():
        seed = f"seed={example.runs[0].run.seed}"
        values = _listed({**first, key: dimension.values})
        plan = _plan_part([*fixed, seed, *values], groups, name)
        checked += plan.runs
        if len(plan.runs) + len(plan.duplicates) != len(dimension.values):
            raise ConfigError(
                ONE_CONFIGURATION.format(f"{len(plan.runs)} for {len(dimension.values)} of {key}")
            )
    assert isinstance(example.search, OptunaSearch)
    example.executor.prepare(example.executor.resources, [planned.run for planned in checked])
    spec = {"overrides": texts, "search": example.search.plain()}
    return Study(
        search=example.search,
        dimensions=dimensions,
        # By default named after its content, like any sweep.
        example=replace(example, name=plan.name, spec=spec),
        fixed=fixed,
        groups=groups,
    )


def _listed(values: Mapping[str, Sequence[Any]]) -> list[str]:
    return [format_override(key, *each) for key, each in values.items()]


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


def execute_search(
    study: Study,
    store: Store,
    slots: int,
    run: Callable[[Plan, Policy], SweepResult],
    policy: Policy,
    say: Callable[[str], None] = lambda line: None,
) -> SweepResult:
    """Train trials until the search has as many as it needs.

    Unfinished trials of an earlier start come first. Completed runs are not repeated, whatever
    trial or sweep they belong to, and runs that another process trains are waited for.

    Trials are made in rounds of as many as fill the slots. If one trial fills them, each is
    suggested when the one before is over, so that the search depends on its results and its seed
    alone. Trials of one round count as poor ones for each other.

    Args:
        slots: workers side by side.
        run: executes the runs of a round.
        say: receives a line about each trial.

    Raises:
        ConfigError: as `execute`, or no suggested point can be a run, or the runs lack a metric
            of the search.
        StoreError: the store cannot be used.
    """
    store.sweeps.add(study.name, study.example.spec)
    seen: set[int] = set()
    outcomes: list[SweepResult] = []
    while not outcomes or not (outcomes[-1].stopped or outcomes[-1].halted):
        # Read before the results: if another process adds a trial in between, `add` fails below.
        trials = store.trials.select(study.name)
        number = trials[-1].number + 1 if trials else 0
        results = study.results(store)
        planned: dict[int, tuple[Mapping[str, Any], Plan]] = {
            result.number: (result.params, study.plan(result.params))
            for result in results
            if not result.is_over and result.number not in seen
        }
        # At least one; more than fit would be chosen with less known than could be.
        size = math.ceil(slots / len(study.seeds))
        was_overtaken = False
        while len(planned) < size and len(results) < study.search.trials and not was_overtaken:
            params, plan = study.next_trial(store, number, results)
            config_hash = plan.runs[0].run.config_hash
            # The number is unique in the store: of two processes one adds the trial.
            was_overtaken = not store.trials.add(study.name, number, params, config_hash)
            if not was_overtaken:
                planned[number] = params, plan
                open_ = TrialResult(number=number, params=params, state=ValueState.OPEN)
                results.append(open_)
                number += 1
        if not planned and not was_overtaken:
            break
        for trial, (point, _) in planned.items():
            say(f"trial {trial}: {format_params(point)}")
        seen.update(planned)
        if policy.max_failures is not None and outcomes:
            left = policy.max_failures - len(outcomes[-1].failed)
            policy = replace(policy, max_failures=left)
        runs = [planned_run for _, plan in planned.values() for planned_run in plan.runs]
        outcomes.append(run(replace(study.example, runs=runs, duplicates=[]), policy))
    outcome = SweepResult.of_stages(outcomes)
    ids = list(outcome.run_ids)
    # Add the trials that were over before, and those that only another process trained.
    ids += {i for r in study.results(store) if r.is_over for i in r.runs}.difference(ids)
    skipped = outcome.skipped + len(ids) - len(outcome.run_ids)
    return replace(outcome, run_ids=sorted(ids), skipped=skipped)
