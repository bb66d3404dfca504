"""Print plans, and execute what `sweep` can be given: combinations, a race, a tuned sweep."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from advsweep.cli import execution
from advsweep.cli.output import (
    echo,
    echo_line,
    print_columns,
    print_json,
    warn,
)
from advsweep.cli.runs import print_tuning
from advsweep.config.space import Delete
from advsweep.errors import (
    ConfigError,
    NoStoreError,
    UnknownNameError,
    counted,
    nearest,
    rough_duration,
)
from advsweep.report.data.metrics import find_metric, read_catalogue
from advsweep.store import Store, open_store
from advsweep.store.races import RaceRecord, read_race
from advsweep.sweep.events import SweepResult
from advsweep.sweep.planning.eta import TimeEstimate, estimate
from advsweep.sweep.planning.plan import Plan, make_plan
from advsweep.sweep.planning.versions import describe_meeting
from advsweep.sweep.progress import config_labels
from advsweep.sweep.racing import execute_race, plan_race
from advsweep.sweep.retry_policy import Policy
from advsweep.sweep.tuning import Tuning, execute_tuning, plan_tuning

# Rows of a table; `--format json` has all.
LISTED = 50

_SHOWN = 10  # characters of an identity
_NAMES = 6  # names that a line lists


def open_existing(url: str | None) -> Store | None:
    """Open the store; return None if it does not exist."""
    try:
        return open_store(url, create=False)
    except NoStoreError:
        return None


def print_warnings(warnings: Iterable[str], absent: Sequence[str] = ()) -> None:
    """Print the warnings of a plan on stderr, and the data that it needs and this machine lacks."""
    if absent:
        warn(
            f"not on this machine: {', '.join(absent)}; problems and identities can be checked "
            "only once the data is present"
        )
    for warning in warnings:
        warn(f"warning: {warning}")


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print the first rows of a table, and on stderr how many are omitted."""
    print_columns(columns, rows[:LISTED])
    if (more := len(rows) - LISTED) > 0:
        echo_line(f"{more} more not shown; --format json shows them.", err=True)


# The plan of a sweep


def print_plan(
    plan: Plan,
    url: str | None,
    jobs: int | None,
    *,
    as_json: bool,
    force: bool = False,
    is_stage: bool = False,
    more: Mapping[str, Any] | None = None,
) -> None:
    """Print the runs of a sweep, the remaining steps and an estimate of their time.

    Args:
        is_stage: whether these are a part of the sweep's runs alone.
        more: what else JSON has.
    """
    store = open_existing(url)
    stored = [] if store is None else store.runs.select(newest_first=False)
    warnings = [
        *plan.warnings,
        *describe_meeting(plan, store, stored, force=force, is_stage=is_stage),
    ]
    print_warnings(warnings, plan.absent)
    fits = True
    try:
        plan.check()
    except ConfigError as error:
        # A plan can be inspected on a machine that cannot execute it.
        warn(f"this machine cannot execute the plan: {error}")
        fits = False
    slots = jobs or plan.executor.capacity()
    left = estimate(plan, store, slots, force=force, records=stored)
    labels = config_labels(planned.config for planned in plan.runs)
    done, running = left.states["done"], left.states["running"]
    tally = {"done": done, "running": running, "missing": len(left.runs) - done - running}
    duplicates = [
        {
            "identity": each.identity,
            "asked": _as_overrides(each.assignment),
            "first": _as_overrides(each.first),
        }
        for each in plan.duplicates
    ]
    records = [
        {
            "identity": planned.run.identity,
            "estimator": planned.run.estimator.name,
            "seed": planned.run.seed,
            "steps": planned.run.steps,
            **run,
            "label": label,
            "config": planned.config,
        }
        for planned, run, label in zip(plan.runs, left.runs, labels, strict=True)
    ]
    if as_json:
        print_json(
            {
                "name": plan.name,
                "runs": records,
                "duplicates": duplicates,
                "states": left.states,
                **tally,
                "steps_left": left.steps,
                "seconds_left": left.seconds,
                "gpu_hours_left": left.gpu_hours,
                "untold": left.unknown,
                "sources": left.sources,
                "jobs": slots,
                "warnings": warnings,
                **(more or {}),
            }
        )
        return
    rows = []
    for r in records:
        took = "?" if r["seconds_left"] is None else rough_duration(r["seconds_left"])
        steps = f"{r['step']}/{r['steps']}"
        took = took if r["steps_left"] else ""
        rows.append([r["identity"][:_SHOWN], r["status"], steps, took, r["label"]])
    print_table(("identity", "status", "steps", "left", "run"), rows)
    if duplicates:
        echo(f"\nduplicates, each executed once ({len(duplicates)}):")
        same = [[d["asked"], d["first"], d["identity"][:_SHOWN]] for d in duplicates]
        print_table(("given", "same as", "identity"), same)
    counts = ", ".join(f"{count} {state}" for state, count in tally.items() if count)
    echo()
    echo_line(f"sweep {plan.name}: {counted(len(rows), 'run')}, {counts}")
    echo(describe_remaining(left, slots, fits=fits))


def _as_overrides(assignment: Mapping[str, Any]) -> str:
    """Format an assignment as overrides of the command line."""
    return " ".join(
        f"~{key}" if isinstance(value, Delete) else f"{key}={value}"
        for key, value in assignment.items()
        if key != "experiment"
    )


def describe_remaining(left: TimeEstimate, slots: int, *, fits: bool = True) -> str:
    """Describe the remaining work in a line.

    Args:
        fits: whether this machine can execute the plan.
    """
    if not left.steps:
        is_done = left.states["done"] == len(left.runs)
        return "Everything is done already; no steps left." if is_done else "no steps left"
    steps = f"{counted(left.steps, 'step')} left"
    if left.seconds is None:
        return f"{steps}; the time is known when the first run has finished"
    gpus = "" if left.gpu_hours is None else f" and {left.gpu_hours:.3g} GPU-hours"
    room = "" if fits else ", for which this machine has no room"
    rest = f"; no time estimate for {counted(left.unknown, 'run')}" if left.unknown else ""
    took = f"about {rough_duration(left.seconds)}{gpus} with {slots} side by side{room}"
    return f"{steps}, {took} (by {'; '.join(left.sources)}){rest}"


# The first lines of a training


def print_start(
    plan: Plan, store: Store, jobs: int | None, *, force: bool = False, is_stage: bool = False
) -> None:
    """Print on stderr what a plan trains, on what, and about how long it takes.

    Args:
        is_stage: as in `print_plan`.
    """
    slots = max(1, min(jobs or plan.executor.capacity(), len(plan.runs)))
    stored = store.runs.select(newest_first=False)
    left = estimate(plan, store, slots, force=force, records=stored)
    for line in describe_meeting(plan, store, stored, force=force, is_stage=is_stage):
        warn(f"warning: {line}")
    echo_line(describe_plan(plan), err=True)
    echo_line(describe_remaining(left, slots), err=True)


def describe_plan(plan: Plan) -> str:
    """Describe what is trained and on what, in a line."""
    runs = [planned.run for planned in plan.runs]
    own = [run for run in runs if not run.backend.external]  # a command chooses data and model
    place = ""
    if own:
        tasks = _several((_title(run.task) for run in runs), "tasks")
        models = _several((_title(run.model) for run in runs), "models")
        place = f"on {tasks} with model {models} "
    what = _several((run.estimator.name for run in runs), "estimators")
    backends = _several((run.backend.name for run in runs), "backends")
    steps, prompts, rollouts = (
        counted(_several((getattr(run, key) for run in runs), "numbers"), word)
        for key, word in (
            ("steps", "step"),
            ("prompts_per_step", "prompt"),
            ("drawn_size", "rollout"),
        )
    )
    line = f"{what} {place}(backend {backends}): {steps} of {prompts} x {rollouts}"
    tokens = max((run.backend.completion_tokens(run) for run in own), default=0)
    line += f" of at most {tokens:,} tokens" if tokens > 1 else ""
    if plan.name is None:
        return f"Training {line}"
    return f"sweep {plan.name}: {counted(len(runs), 'run')} of {line}"


def _title(component: object) -> str:
    """Return the title or the path that users know a task or a model by, else its name."""
    names = (getattr(component, attribute, None) for attribute in ("title", "path", "name"))
    return str(next(filter(None, names)))


def _several(values: Iterable[object], what: str) -> str:
    """List different values, or count them where they are many."""
    found = list(dict.fromkeys(map(str, values)))
    return f"{len(found)} {what}" if len(found) > _NAMES else ", ".join(found)


# What `advsweep sweep` can be given


@dataclass
class Sweep:
    """A sweep of combinations.

    Attributes:
        plan: its runs.
        more: what its result has besides the outcome, for `--format json`.
        lacks_choice: whether an arm was executed to its end and no value could be chosen for it.
        standing: how a race stands after its execution.
    """

    plan: Plan
    more: dict[str, Any] = field(default_factory=dict)
    lacks_choice: bool = False
    standing: RaceRecord | None = None

    def print(self, url: str | None, jobs: int | None, *, force: bool, as_json: bool) -> None:
        """Print the runs, what is done, and how long the rest takes."""
        if self.plan.race is not None and not as_json:
            echo_line(f"sweep {self.plan.name} is a race: these are all runs that it may need.")
        print_plan(self.plan, url, jobs, force=force, as_json=as_json)

    def execute(self, store: Store, jobs: int | None, policy: Policy, force: bool) -> SweepResult:
        """Train what is missing."""
        if self.plan.race is not None:
            return self.race(plan_race(self.plan), store, jobs, policy)
        print_start(self.plan, store, jobs, force=force)
        return execution.execute(self.plan, store, jobs=jobs, force=force, policy=policy)

    def race(self, plan: Plan, store: Store, jobs: int | None, policy: Policy) -> SweepResult:
        """Train runs of a race until it is over, or a queue has those of the next round."""

        def run(stage: Plan, record: RaceRecord) -> SweepResult:
            self.plan = stage
            print_start(stage, store, jobs, is_stage=True)
            echo_line(record.title, err=True)
            return execution.execute(stage, store, jobs=jobs, force=False, policy=policy)

        outcome = execute_race(plan, store, run)
        self.standing = read_race(store, self.plan.name or "")
        assert self.standing is not None
        self.more["race"] = self.standing.plain()
        if outcome.submitted or outcome.queued:
            warn("Start the same sweep again once these runs are done: the race goes on.")
        return outcome


def plan_sweep(
    overrides: Sequence[str], config_dirs: Sequence[Path], name: str | None, *, fetch: bool
) -> Sweep:
    """Plan a tuned sweep or plain combinations, whichever the sweep file asks for.

    Raises:
        ConfigError: something does not fit, such as a declared outcome that is no column.
    """
    found: Sweep
    if tuning := plan_tuning(overrides, config_dirs=config_dirs, name=name, fetch=fetch):
        found = TunedSweep(tuning.test, tuning=tuning)
    else:
        found = Sweep(make_plan(overrides, config_dirs=config_dirs, name=name, fetch=fetch))
    if (race := found.plan.race) is not None:
        plan_race(found.plan)  # refuses what it cannot compare
        if find_metric(race.metric) is None and not found.plan.runs[0].run.backend.external:
            names = [metric.name for metrics in read_catalogue().values() for metric in metrics]
            raise UnknownNameError(
                f"sweep.race.metric: runs have no metric '{race.metric}'; "
                f"{nearest(race.metric, names)}"
            )
    if "outcomes" in found.plan.spec:
        from advsweep.report.data.columns import parse_outcomes  # loads pandas

        parse_outcomes(found.plan.spec["outcomes"], "sweep.outcomes")
    return found


# Tuned sweeps


@dataclass
class TunedSweep(Sweep):
    """A sweep whose arms find the value of a key first, on seeds of their own."""

    tuning: Tuning = field(kw_only=True)

    def print(self, url: str | None, jobs: int | None, *, force: bool, as_json: bool) -> None:
        tuning = self.tuning
        record = tuning.read(open_existing(url))
        grid = [(arm.name, each.value) for arm in record.arms for each in arm.grid]
        plan = tuning.plan_test(record) if record.is_complete else tuning.plan(grid)
        more = {
            "tune": record.plain(),
            "tuning_runs": len(grid) * len(record.seeds),
            "most_tuning_runs": len(tuning.first) * len(record.seeds) + tuning.extra_runs,
            "test_runs": len(tuning.test.runs),
        }
        if not as_json:
            print_warnings(w for w in tuning.test.warnings if w not in plan.warnings)
            echo_line(self._describe_size())
            print_tuning(record)
            echo()
        print_plan(plan, url, jobs, as_json=as_json, is_stage=True, more=more)

    def execute(self, store: Store, jobs: int | None, policy: Policy, force: bool) -> SweepResult:
        tuning = self.tuning

        def run(stage: Plan) -> SweepResult:
            self.plan = stage
            print_start(stage, store, jobs, is_stage=True)
            if stage.name == tuning.tuning_name:
                values = {planned.assignment[tuning.tune.key] for planned in stage.runs}
                listed = ", ".join(f"{value:g}" for value in sorted(values))
                echo_line(f"values of {tuning.tune.key}: {listed}", err=True)
            return execution.execute(stage, store, jobs=jobs, force=False, policy=policy)

        echo_line(self._describe_size(), err=True)
        record, outcome = execute_tuning(tuning, store, run)
        is_stopped = outcome is not None and (outcome.stopped or outcome.halted)
        if record.is_complete and not is_stopped:
            echo_line(record.text, err=True)
            plan = tuning.plan_test(record)
            outcome = (
                run(plan) if plan.race is None else self.race(plan_race(plan), store, jobs, policy)
            )
        assert outcome is not None
        if not record.is_complete and (outcome.submitted or outcome.queued):
            warn("Start the same sweep again once these runs are done: it chooses and goes on.")
        self.more["tune"] = record.plain()
        if without := [a.name for a in record.arms if record.is_complete and a.chosen is None]:
            self.lacks_choice = True
            warn(
                f"no value of {record.key} could be chosen for {', '.join(without)}, which "
                f"therefore has no test runs; `advsweep status {record.sweep}` says why"
            )
        return outcome

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
