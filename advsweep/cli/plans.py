"""Print the plans of sweeps, and what happens while they are trained."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from advsweep.cli import execution
from advsweep.cli.output import echo, echo_line, print_columns, print_json, warn
from advsweep.cli.runs import print_tuning
from advsweep.components import Plain
from advsweep.config.overrides import Override, parse_overrides, written_values
from advsweep.config.space import Assignment, Delete, Race
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
from advsweep.sweep import strategies
from advsweep.sweep.events import SweepResult
from advsweep.sweep.labels import config_labels
from advsweep.sweep.planning.eta import TimeEstimate, estimate
from advsweep.sweep.planning.plan import Plan
from advsweep.sweep.planning.versions import describe_meeting
from advsweep.sweep.retry_policy import Policy
from advsweep.sweep.strategies import Preview, Stage, SweepStrategy, TrainedSweep

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
    more = len(rows) - LISTED
    if more > 0:
        echo_line(f"{more} more not shown; --format json shows them.", err=True)


# The plan of a sweep


def print_plan(
    preview: Preview, url: str | None, jobs: int | None, *, as_json: bool, force: bool = False
) -> None:
    """Print the runs of a sweep's next stage, the remaining steps and an estimate of their time."""
    plan = preview.stage.plan
    store = open_existing(url)
    stored = [] if store is None else store.runs.select(newest_first=False)
    is_stage = preview.stage.is_part
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
    later = None
    if preview.later is not None:
        # Its runs have yet to get their values: those of the store are others.
        later = estimate(preview.later, store, slots, force=True, records=stored)
    tally = _tally(left)
    record = {
        "name": plan.name,
        "runs": _run_records(plan, left),
        "duplicates": _duplicate_records(plan),
        "states": left.states,
        **tally,
        "steps_left": left.steps,
        "seconds_left": left.seconds,
        "gpu_hours_left": left.gpu_hours,
        "runs_without_estimate": left.runs_without_estimate,
        "seconds_later": None if later is None else later.seconds,
        "parts": left.remaining.parts,
        "measured_runs": left.measured,
        "jobs": slots,
        "warnings": warnings,
        **preview.counts,
    }
    if as_json:
        print_json(record)
        return
    _print_runs(record["runs"])
    _print_duplicates(record["duplicates"])
    counts = ", ".join(f"{count} {state}" for state, count in tally.items() if count)
    echo()
    echo_line(f"sweep {plan.name}: {counted(len(plan.runs), 'run')}, {counts}")
    echo(describe_remaining(left, slots, fits=fits, is_most=plan.race is not None))
    if later is not None:
        echo(f"after these {_describe_later(later, preview.later)}")


def _describe_later(later: TimeEstimate, plan: Plan | None) -> str:
    """Describe the runs that come after a stage, with their time if it is known."""
    runs = counted(len(later.runs), "run")
    most = "at most " if plan is not None and plan.race is not None else ""
    if later.seconds is None:
        return f"come {most}{runs} that are compared"
    return f"come {most}{runs} that are compared, {most}about {rough_duration(later.seconds)}"


def _tally(left: TimeEstimate) -> dict[str, int]:
    """Return how many runs are done, running and missing."""
    states = left.states
    done = states["done"]
    running = states["running"]
    return {"done": done, "running": running, "missing": len(left.runs) - done - running}


def _run_records(plan: Plan, left: TimeEstimate) -> list[Plain]:
    """Return each run with its state, in JSON types."""
    labels = config_labels(planned.config for planned in plan.runs)
    return [
        {
            "identity": planned.run.identity,
            "estimator": planned.run.estimator.name,
            "seed": planned.run.seed,
            "steps": planned.run.steps,
            **state,
            "label": label,
            "config": planned.config,
        }
        for planned, state, label in zip(plan.runs, left.runs, labels, strict=True)
    ]


def _duplicate_records(plan: Plan) -> list[Plain]:
    """Return each point whose run is there already, in JSON types."""
    overrides = parse_overrides(plan.spec["overrides"])
    seen: Counter[tuple[Any, ...]] = Counter()
    records = []
    for duplicate in plan.duplicates:
        # 1 and 1.0 are equal here, as they are in `_as_written`.
        point = tuple(
            (k, v if isinstance(v, Hashable) else repr(v)) for k, v in duplicate.assignment.items()
        )
        is_first_in_other_digits = duplicate.assignment == duplicate.first
        number = seen[point] + is_first_in_other_digits
        seen[point] += 1
        records.append(
            {
                "identity": duplicate.identity,
                "asked": _as_written(duplicate.assignment, overrides, number),
                "first": _as_written(duplicate.first, overrides, 0),
            }
        )
    return records


def _as_written(assignment: Assignment, overrides: Sequence[Override], number: int) -> str:
    """Format an assignment with the values that the command line has for it.

    Args:
        number: which of the points of this assignment it is: `1e-4,0.0001` are two.
    """
    ways: dict[str, list[str]] = {}
    for override in overrides:
        pairs = zip(written_values(override), override.values, strict=False)
        texts = [text for text, value in pairs if value == assignment.get(override.key)]
        if texts:
            ways[override.key] = texts
    points = list(itertools.product(*ways.values()))
    chosen = points[number] if number < len(points) else ()
    return _as_overrides({**assignment, **dict(zip(ways, chosen, strict=False))})


def _print_runs(runs: Sequence[Plain]) -> None:
    rows = []
    for run in runs:
        seconds_left = ""
        seconds = run["seconds_left"]
        if seconds is None or seconds:
            seconds_left = "?" if seconds is None else rough_duration(seconds)
        steps = f"{run['step']}/{run['steps']}"
        identity = run["identity"][:_SHOWN]
        rows.append([identity, run["status"], steps, seconds_left, run["label"]])
    print_table(("identity", "status", "steps", "left", "run"), rows)


def _print_duplicates(duplicates: Sequence[Plain]) -> None:
    if duplicates:
        echo(f"\nduplicates, each executed once ({len(duplicates)}):")
        rows = [[each["asked"], each["first"], each["identity"][:_SHOWN]] for each in duplicates]
        print_table(("given", "same as", "identity"), rows)


def _as_overrides(assignment: Mapping[str, Any]) -> str:
    """Format an assignment as overrides of the command line."""
    return " ".join(
        f"~{key}" if isinstance(value, Delete) else f"{key}={value}"
        for key, value in assignment.items()
        if key != "experiment"
    )


def describe_remaining(
    left: TimeEstimate, slots: int, *, fits: bool = True, is_most: bool = False
) -> str:
    """Describe the remaining work in a line.

    Args:
        fits: whether this machine can execute the plan.
        is_most: whether not all of these runs may be needed.
    """
    if left.states["done"] == len(left.runs) and not left.steps:
        return "Everything is done already; no steps left."
    steps = f"{counted(left.steps, 'step')} left" if left.steps else "no steps left"
    if left.seconds is None:
        return f"{steps}; no estimate of the time before the first run of this kind on this machine"
    if not left.seconds:
        return steps
    gpus = "" if left.gpu_hours is None else f" and {left.gpu_hours:.3g} GPU-hours"
    room = "" if fits else ", for which this machine has no room"
    about = "at most about" if is_most else "about"
    took = f"{about} {rough_duration(left.seconds)}{gpus} with {slots} side by side{room}"
    return f"{steps}, {took} (as measured by {counted(left.measured, 'earlier run')})"


# The first lines of a training


def print_start(
    plan: Plan, store: Store, jobs: int | None, *, force: bool = False, is_stage: bool = False
) -> None:
    """Print on stderr what a plan trains, on what, and about how long it takes.

    Args:
        is_stage: whether the plan has only a part of its sweep's runs.
    """
    slots = max(1, min(jobs or plan.executor.capacity(), len(plan.runs)))
    stored = store.runs.select(newest_first=False)
    left = estimate(plan, store, slots, force=force, records=stored)
    for line in describe_meeting(plan, store, stored, force=force, is_stage=is_stage):
        warn(f"warning: {line}")
    echo_line(describe_plan(plan), err=True)
    echo_line(describe_remaining(left, slots, is_most=plan.race is not None), err=True)


def describe_plan(plan: Plan) -> str:
    """Describe what is trained and on what, in a line."""
    runs = [planned.run for planned in plan.runs]
    # A command chooses its data and its model.
    of_advsweep = [run for run in runs if not run.backend.external]
    trained_on = ""
    if of_advsweep:
        tasks = _several((_title(run.task) for run in runs), "tasks")
        models = _several((_title(run.model) for run in runs), "models")
        trained_on = f"on {tasks} with model {models} "
    what = _several((run.estimator.name for run in runs), "estimators")
    backends = _several((run.backend.name for run in runs), "backends")
    steps = counted(_several((run.steps for run in runs), "numbers"), "step")
    prompts = counted(_several((run.prompts_per_step for run in runs), "numbers"), "prompt")
    rollouts = counted(_several((run.drawn_size for run in runs), "numbers"), "rollout")
    line = f"{what} {trained_on}(backend {backends}): {steps} of {prompts} x {rollouts}"
    tokens = max((run.backend.completion_tokens(run) for run in of_advsweep), default=0)
    if tokens > 1:
        line += f" of at most {tokens:,} tokens"
    if plan.name is None:
        return f"Training {line}"
    return f"sweep {plan.name}: {counted(len(runs), 'run')} of {line}"


def _title(component: object) -> str:
    """Return the title or the path that users know a task or a model by, else its name."""
    names = (getattr(component, attribute, None) for attribute in ("title", "path", "name"))
    return str(next(filter(None, names)))


def _several(values: Iterable[object], what: str) -> str:
    """List different values, or count them where they are many."""
    different = list(dict.fromkeys(map(str, values)))
    if len(different) > _NAMES:
        return f"{len(different)} {what}"
    return ", ".join(different)


# Sweeps


def plan_sweep(
    overrides: Sequence[str], config_dirs: Sequence[Path], name: str | None, *, fetch: bool
) -> SweepStrategy:
    """Plan a sweep, and check the names of what decides it.

    Raises:
        ConfigError: something does not fit, such as a declared outcome that is no column.
    """
    sweep = strategies.plan_sweep(overrides, config_dirs=config_dirs, name=name, fetch=fetch)
    plan = sweep.plan
    if plan.race is not None and not plan.runs[0].run.backend.external:
        _check_race_metric(plan.race)
    if "outcomes" in plan.spec:
        from advsweep.report.data.columns import parse_outcomes  # loads pandas

        parse_outcomes(plan.spec["outcomes"], "sweep.outcomes")
    return sweep


def _check_race_metric(race: Race) -> None:
    """Refuse a metric that no run has.

    Raises:
        UnknownNameError: the message has the nearest names.
    """
    if find_metric(race.metric) is None:
        names = [metric.name for metrics in read_catalogue().values() for metric in metrics]
        raise UnknownNameError(
            f"sweep.race.metric: runs have no metric '{race.metric}'; {nearest(race.metric, names)}"
        )


def print_sweep(
    sweep: SweepStrategy, url: str | None, jobs: int | None, *, force: bool, as_json: bool
) -> None:
    """Print the runs of a sweep, what is done, and how long the rest takes."""
    preview = sweep.preview(open_existing(url))
    if not as_json:
        print_warnings(preview.warnings)
        for text in preview.texts:
            echo_line(text)
        if preview.tuning is not None:
            print_tuning(preview.tuning)
            echo()
    print_plan(preview, url, jobs, as_json=as_json, force=force)


def train_sweep(
    sweep: SweepStrategy, store: Store, jobs: int | None, policy: Policy, *, force: bool
) -> TrainedSweep:
    """Train what is missing of a sweep; print on stderr what happens."""

    def train(stage: Stage) -> SweepResult:
        print_start(stage.plan, store, jobs, force=force, is_stage=stage.is_part)
        if stage.text:
            echo_line(stage.text, err=True)
        return execution.execute(stage.plan, store, jobs=jobs, force=force, policy=policy)

    def say(text: str) -> None:
        echo_line(text, err=True)

    trained = sweep.execute(store, train, say)
    for remark in trained.remarks:
        warn(remark)
    return trained
