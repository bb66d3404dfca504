"""A search over configurations: asks for trials, has the engine train them, asks again."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from advsweep.errors import ConfigError
from advsweep.store import Status
from advsweep.sweep.events import Outcome
from advsweep.sweep.plan import Plan, make_plan
from advsweep.sweep.search.dimensions import Dimension, override, split
from advsweep.sweep.search.tpe import OptunaSearch, Result, State
from advsweep.sweep.settings import Off

if TYPE_CHECKING:
    from advsweep.store import RunRecord, Store
    from advsweep.store.records import TrialRecord


@dataclass(frozen=True)
class Study:
    """A search that was planned.

    Attributes:
        example: the plan of one trial, at the start of each interval; it names the sweep.
        fixed: the overrides that all trials share.
    """

    search: OptunaSearch
    dimensions: Mapping[str, Dimension]
    example: Plan
    fixed: Sequence[str]
    config_dirs: Sequence[str | Path]

    @property
    def name(self) -> str:
        assert self.example.name is not None
        return self.example.name

    def results(self, store: Store) -> list[Result]:
        """What is known of each trial so far, by number."""
        by_config: dict[str, list[RunRecord]] = {}
        seeds = {planned.run.seed for planned in self.example.runs}
        for run in store.runs(sweep=self.name, newest_first=False):
            if run.seed in seeds:
                by_config.setdefault(run.config_hash, []).append(run)
        ids = [run.id for runs in by_config.values() for run in runs]
        measured = [store.means(ids, m, last=self.search.last) for m in self.search.metrics]
        return [
            _result(trial, by_config.get(trial.config_hash, []), len(seeds), measured)
            for trial in store.trials(self.name)
        ]

    def best(self, store: Store) -> list[Result]:
        """The best trial, or with two metrics the Pareto front."""
        return self.search.best(self.results(store), self.dimensions)

    def run(self, store: Store, jobs: int | None, execute: Callable[[Plan], Outcome]) -> Outcome:
        """Trains trials until there are as many as asked for.

        What an earlier start left unfinished comes first; runs that are done are not
        repeated, whatever trial or sweep they were made for.

        Args:
            jobs: runs side by side; the executor's capacity when None. As many trials are
                asked for at once as their seeds fill.
            execute: trains a plan.
        """
        store.add_sweep(self.name, self.example.spec)
        slots = jobs or self.example.executor.capacity()
        side_by_side = max(1, slots // len(self.example.runs))
        outcomes: list[Outcome] = []
        unfinished = (State.OPEN, State.FAILED)
        batch = [self._plan(r.params) for r in self.results(store) if r.state in unfinished]
        while True:
            results = self.results(store)
            while len(batch) < side_by_side and len(results) < self.search.trials:
                batch.append(self._ask(store, results))
                results = self.results(store)
            if not batch:
                return _together(outcomes)
            runs = {p.run.identity: p for plan in batch for p in plan.runs}
            outcomes.append(execute(replace(self.example, runs=list(runs.values()))))
            if outcomes[-1].stopped or outcomes[-1].unfinished:
                return _together(outcomes)
            batch = []

    def _ask(self, store: Store, results: Sequence[Result]) -> Plan:
        params = self.search.suggest(results, self.dimensions)
        plan = self._plan(params)
        store.add_trial(self.name, params, plan.runs[0].run.config_hash)
        return plan

    def _plan(self, params: Mapping[str, Any]) -> Plan:
        return _plan_trial(self.fixed, params, self.config_dirs, self.example.name)


def plan_search(
    overrides: Iterable[str], *, config_dirs: Sequence[str | Path] = (), name: str | None = None
) -> Study | None:
    """The search that overrides ask for; None where they ask for none.

    Raises:
        ConfigError: there is nothing to search over, or a trial would be several
            configurations.
    """
    texts = list(overrides)
    dimensions, fixed = split(texts)
    # A search is chosen by an override, or by an experiment's file.
    choices = {text.lstrip("+").partition("=")[0] for text in texts}
    if not choices & {"search", "experiment"}:
        return None
    if not dimensions and "search" not in choices:
        return None
    examples = {key: dimension.example for key, dimension in dimensions.items()}
    example = _plan_trial(fixed, examples, config_dirs, name)
    if isinstance(example.search, Off):
        return None
    if not dimensions:
        refuse_search(example)
    if len({planned.run.config_hash for planned in example.runs}) > 1:
        raise ConfigError(
            f"search: expected a trial to be one configuration with its seeds, got one of "
            f"{len(example.runs)} runs; write 'KEY=choice(A,B)' for KEY=A,B to search over it"
        )
    assert isinstance(example.search, OptunaSearch)
    spec = {"overrides": texts, "search": example.search.plain()}
    return Study(example.search, dimensions, replace(example, spec=spec), fixed, config_dirs)


def refuse_search(plan: Plan) -> None:
    """Refuses a plan with a search where nothing is searched over.

    Raises:
        ConfigError: the plan has a search.
    """
    if not isinstance(plan.search, Off):
        raise ConfigError(
            "search: expected `advsweep sweep` with something to search over, such as "
            "'optimizer.lr=tag(log,interval(1e-5,1e-3))' or 'group_size=choice(4,8)', got nothing"
        )


def _plan_trial(
    fixed: Sequence[str],
    params: Mapping[str, Any],
    config_dirs: Sequence[str | Path],
    name: str | None,
) -> Plan:
    given = [override(key, value) for key, value in params.items()]
    return make_plan([*fixed, *given], config_dirs=config_dirs, name=name)


def _result(
    trial: TrialRecord,
    runs: Sequence[RunRecord],
    seeds: int,
    measured: Sequence[Mapping[int, float]],
) -> Result:
    known = partial(Result, number=trial.number, params=trial.params)
    states = {run.status for run in runs}
    if len(runs) < seeds or not states <= {Status.DONE, Status.FAILED, Status.PRUNED}:
        return known(state=State.OPEN)
    if Status.FAILED in states:
        return known(state=State.FAILED)
    if Status.PRUNED in states:
        return known(state=State.PRUNED)
    values = tuple(
        sum(of_run.get(run.id, math.nan) for run in runs) / len(runs) for of_run in measured
    )
    if not all(map(math.isfinite, values)):
        return known(state=State.FAILED)
    return known(state=State.DONE, values=values)


def _together(outcomes: Sequence[Outcome]) -> Outcome:
    """Several executions as one; runs that several of them had count once."""
    ids = dict.fromkeys(run_id for outcome in outcomes for run_id in outcome.run_ids)
    done = sum(outcome.done for outcome in outcomes)
    failed = {run_id: why for outcome in outcomes for run_id, why in outcome.failed.items()}
    pruned = {run_id: why for outcome in outcomes for run_id, why in outcome.pruned.items()}
    unfinished = sum(outcome.unfinished for outcome in outcomes)
    return Outcome(
        run_ids=list(ids),
        done=done,
        skipped=len(ids) - done - len(failed) - len(pruned) - unfinished,
        failed=failed,
        pruned=pruned,
        unfinished=unfinished,
        stopped=any(outcome.stopped for outcome in outcomes),
    )
