"""What `advsweep sweep` can be given: combinations, a search, or a sweep that is tuned first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from advsweep.cli import execution
from advsweep.cli.output import echo, echo_line, print_json, print_pairs, show_number, warn
from advsweep.cli.plans import (
    describe_plan,
    open_existing,
    print_plan,
    print_start,
    print_table,
    print_warnings,
)
from advsweep.cli.runs import print_tuning
from advsweep.errors import counted
from advsweep.store import Store
from advsweep.store.records import TuningRecord
from advsweep.sweep.events import SweepResult
from advsweep.sweep.planning.plan import Plan, make_plan
from advsweep.sweep.retry_policy import Policy
from advsweep.sweep.search.optuna import Dimension, TrialResult, format_params
from advsweep.sweep.search.study import (
    Study,
    execute_search,
    plan_search,
    refuse_search,
)
from advsweep.sweep.tuning import Tuning, execute_tuning, plan_tuning


@dataclass
class Sweep:
    """A sweep of combinations.

    Attributes:
        plan: its runs; those of a search are an example.
        more: what its result has besides the outcome, for `--format json`.
    """

    plan: Plan
    more: dict[str, Any] = field(default_factory=dict)

    def print(self, url: str | None, jobs: int | None, *, force: bool, as_json: bool) -> None:
        """Print the runs, what is done, and how long the rest takes."""
        print_plan(self.plan, url, jobs, force=force, as_json=as_json)

    def execute(self, store: Store, jobs: int | None, policy: Policy, force: bool) -> SweepResult:
        """Train what is missing."""
        print_start(self.plan, store, jobs, force=force)
        return execution.execute(self.plan, store, jobs=jobs, force=force, policy=policy)

    def print_result(self) -> None:
        """Print what came out besides the outcome."""

    def exit_code(self, outcome: SweepResult) -> int:
        """Return the exit code of the command."""
        return outcome.exit_code


def plan_sweep(
    overrides: Sequence[str], config_dirs: Sequence[Path], name: str | None, *, fetch: bool
) -> Sweep:
    """Plan a search, a tuned sweep or plain combinations, whichever the settings ask for.

    Raises:
        ConfigError: something does not fit, such as a declared outcome that is no column.
    """
    found: Sweep
    if (study := plan_search(overrides, config_dirs=config_dirs, name=name)) is not None:
        found = Search(study.example, study=study)
    elif tuning := plan_tuning(overrides, config_dirs=config_dirs, name=name, fetch=fetch):
        found = TunedSweep(tuning.test, tuning=tuning)
    else:
        found = Sweep(make_plan(overrides, config_dirs=config_dirs, name=name, fetch=fetch))
        refuse_search(found.plan)
    if "outcomes" in found.plan.spec:
        from advsweep.report.data.columns import parse_outcomes  # loads pandas

        parse_outcomes(found.plan.spec["outcomes"], "sweep.outcomes")
    return found


# Tuned sweeps


@dataclass
class TunedSweep(Sweep):
    """A sweep whose arms find the value of a key first, on seeds of their own."""

    tuning: Tuning = field(kw_only=True)
    record: TuningRecord | None = None

    def print(self, url: str | None, jobs: int | None, *, force: bool, as_json: bool) -> None:
        tuning = self.tuning
        record = tuning.read(open_existing(url))
        grid = [(arm.name, each.value) for arm in record.arms for each in arm.grid]
        plan = tuning.plan_test(record) if record.is_over else tuning.plan(grid)
        more = {
            "tune": record.plain(),
            "tuning_runs": len(grid) * len(record.seeds),
            "most_tuning_runs": len(tuning.first) * len(record.seeds) + tuning.extra_runs,
            "test_runs": len(tuning.test.runs),
        }
        if not as_json:
            print_warnings(tuning.test.warnings)
            echo_line(self._describe_size())
            print_tuning(record)
            echo()
        print_plan(plan, url, jobs, as_json=as_json, more=more)

    def execute(self, store: Store, jobs: int | None, policy: Policy, force: bool) -> SweepResult:
        tuning = self.tuning

        def run(stage: Plan) -> SweepResult:
            self.plan = stage
            print_start(stage, store, jobs)
            if stage.name == tuning.tuning_name:
                values = {planned.assignment[tuning.tune.key] for planned in stage.runs}
                listed = ", ".join(f"{value:g}" for value in sorted(values))
                echo_line(f"values of {tuning.tune.key}: {listed}", err=True)
            return execution.execute(stage, store, jobs=jobs, force=False, policy=policy)

        echo_line(self._describe_size(), err=True)
        record, outcome = execute_tuning(tuning, store, run)
        is_stopped = outcome is not None and (outcome.stopped or outcome.halted)
        if record.is_over and not is_stopped:
            echo_line(record.text, err=True)
            outcome = run(tuning.plan_test(record))
        assert outcome is not None
        if not record.is_over and (outcome.submitted or outcome.queued):
            warn("Start the same sweep again once these runs are done: it chooses and goes on.")
        self.record, self.more = record, {"tune": record.plain()}
        return outcome

    def _without_choice(self) -> list[str]:
        assert self.record is not None
        return [arm.name for arm in self.record.arms if self.record.is_over and arm.chosen is None]

    def print_result(self) -> None:
        assert self.record is not None
        if without := self._without_choice():
            warn(
                f"no value of {self.record.key} could be chosen for {', '.join(without)}, which "
                f"therefore has no test runs; `advsweep status {self.record.sweep}` says why"
            )

    def exit_code(self, outcome: SweepResult) -> int:
        return outcome.exit_code or int(bool(self._without_choice()))

    def _describe_size(self) -> str:
        tuning, tune = self.tuning, self.tuning.tune
        arms, seeds = counted(len(tuning.arms), "arm"), counted(len(tune.tuning_seeds), "seed")
        first = counted(len(tuning.first) * len(tune.tuning_seeds), "tuning run")
        more = tuning.extra_runs
        grown = f", and at most {more} more where the best value is at an edge" if more else ""
        return (
            f"sweep {tuning.name}: {first} ({arms} x {len(tune.values)} values of {tune.key} x "
            f"{seeds}){grown}; then {counted(len(tuning.test.runs), 'test run')}"
        )


# Searches


@dataclass
class Search(Sweep):
    """A sweep whose runs are suggested trial by trial."""

    study: Study = field(kw_only=True)
    best: Sequence[TrialResult] = ()
    results: Sequence[TrialResult] = ()

    def print(self, url: str | None, jobs: int | None, *, force: bool, as_json: bool) -> None:
        study = self.study
        results = study.results(open_existing(url))
        best = study.best(results)
        states = Counter(result.state.value for result in results)
        to_come = max(0, study.search.trials - len(results))
        kinds = {key: _dimension(dimension) for key, dimension in study.dimensions.items()}
        if as_json:
            print_json(
                {
                    "name": study.name,
                    "search": study.search.plain(),
                    "dimensions": kinds,
                    "seeds": study.seeds,
                    "trials": [
                        {**self._record(result), "state": result.state} for result in results
                    ],
                    "states": states,
                    "to_come": to_come,
                    "best": [self._record(result) for result in best],
                }
            )
            return
        print_pairs({key: str(dimension) for key, dimension in study.dimensions.items()})
        metrics = study.search.metrics
        if results:
            echo()
            rows = []
            for each in reversed(results):
                values = [show_number(v) for v in each.values] or [""] * len(metrics)
                point = format_params(each.params)
                rows.append([str(each.number), each.state.value, *values, point])
            print_table(("trial", "state", *metrics, "point"), rows)
        aims = " and ".join(f"{metric} ({better})" for metric, better in metrics.items())
        counts = [f"{count} {state}" for state, count in states.items()]
        counts += [f"{to_come} to come"] if to_come else []
        echo_line("")
        echo(
            f"sweep {study.name}: search={study.search.name} for {aims}, "
            f"{self._describe_size()}: {', '.join(counts)}"
        )
        self._print_best(best, results, err=False)

    def execute(self, store: Store, jobs: int | None, policy: Policy, force: bool) -> SweepResult:
        study = self.study
        over = ", ".join(study.dimensions)
        size = self._describe_size()
        echo_line(f"sweep {study.name}: {size}, search={study.search.name} over {over}", err=True)
        echo_line(describe_plan(replace(study.example, name=None)), err=True)

        def run(stage: Plan, policy: Policy) -> SweepResult:
            return execution.execute(stage, store, jobs=jobs, force=False, policy=policy)

        def say(line: str) -> None:
            echo_line(line, err=True)

        slots = jobs or study.example.executor.capacity()
        outcome = execute_search(study, store, slots, run, policy, say)
        self.results = study.results(store)
        self.best = study.best(self.results)
        self.more = {"best": [self._record(result) for result in self.best]}
        return outcome

    def print_result(self) -> None:
        self._print_best(self.best, self.results, err=True)

    def _describe_size(self) -> str:
        trials = counted(self.study.search.trials, "trial")
        return f"{trials} of {counted(len(self.study.seeds), 'run')} each"

    def _record(self, result: TrialResult) -> dict[str, Any]:
        values = dict(zip(self.study.search.metrics, result.values, strict=False))
        return {"trial": result.number, "params": dict(result.params), "values": values}

    def _print_best(
        self, best: Sequence[TrialResult], results: Sequence[TrialResult], *, err: bool
    ) -> None:
        metrics = self.study.search.metrics
        if not best:
            if any(result.is_over for result in results):
                echo_line(f"no trial has {' and '.join(metrics)}", err=err)
            return
        what = "best" if len(metrics) == 1 else "Pareto front"
        echo_line(f"{what} of {counted(len(results), 'trial')}, means over seeds:", err=err)
        for result in best:
            values = zip(metrics, result.values, strict=False)
            scores = ", ".join(f"{name} {show_number(value)}" for name, value in values)
            echo_line(f"  trial {result.number}: {format_params(result.params)}: {scores}", err=err)


def _dimension(dimension: Dimension) -> dict[str, Any]:
    if not dimension.is_range:
        return {"kind": "choice", "values": dimension.values}
    kind = "whole numbers" if dimension.is_integer else "numbers"
    low, high = dimension.values
    return {"kind": kind, "low": low, "high": high, "log": dimension.log}
