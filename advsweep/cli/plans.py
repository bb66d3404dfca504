"""Print plans: what is trained, the runs of a sweep, how long they take, and what is missing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from advsweep.cli.output import echo, echo_line, print_columns, print_json, warn
from advsweep.config.space import Delete
from advsweep.errors import ConfigError, NoStoreError, counted
from advsweep.store import Store, open_store
from advsweep.sweep.planning.eta import TimeEstimate, estimate
from advsweep.sweep.planning.labels import config_labels
from advsweep.sweep.planning.plan import Plan

LISTED = 50
"""Rows of a table; `--format json` has all."""

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
    more: Mapping[str, Any] | None = None,
) -> None:
    """Print the runs of a sweep, the remaining steps and an estimate of their time.

    Args:
        more: what else JSON has.
    """
    store = open_existing(url)
    print_warnings(plan.warnings, plan.absent)
    fits = True
    try:
        plan.check()
    except ConfigError as error:
        # A plan can be inspected on a machine that cannot execute it.
        warn(f"this machine cannot execute the plan: {error}")
        fits = False
    slots = jobs or plan.executor.capacity()
    left = estimate(plan, store, slots, force=force)
    labels = config_labels(planned.config for planned in plan.runs)
    done, running = left.states["done"], left.states["running"]
    tally = {"done": done, "running": running, "missing": len(left.runs) - done - running}
    duplicates = [
        {
            "identity": duplicate.identity,
            "asked": _as_overrides(duplicate.assignment),
            "first": _as_overrides(duplicate.first),
        }
        for duplicate in plan.duplicates
    ]
    every = list(zip(plan.runs, left.runs, labels, strict=True))
    if as_json:
        print_json(
            {
                "name": plan.name,
                "runs": [
                    {
                        "identity": planned.run.identity,
                        "id": run.run_id,
                        "estimator": planned.run.estimator.name,
                        "seed": planned.run.seed,
                        "status": run.status,
                        "step": run.step,
                        "steps": planned.run.steps,
                        "steps_left": run.steps_left,
                        "seconds_left": run.seconds_left,
                        "label": label,
                        "config": planned.config,
                    }
                    for planned, run, label in every
                ],
                "duplicates": duplicates,
                "states": left.states,
                **tally,
                "steps_left": left.steps,
                "seconds_left": left.seconds,
                "gpu_hours_left": left.gpu_hours,
                "untold": left.unknown,
                "sources": left.sources,
                "jobs": slots,
                "warnings": list(plan.warnings),
                **(more or {}),
            }
        )
        return
    rows = []
    for planned, run, label in every:
        took = "?" if run.seconds_left is None else rough_duration(run.seconds_left)
        steps = f"{run.step}/{planned.run.steps}"
        took = took if run.steps_left else ""
        rows.append([planned.run.identity[:_SHOWN], run.status, steps, took, label])
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


def rough_duration(seconds: float) -> str:
    """Format a time span roughly: 40 s, 12 min or 3.5 h."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


# The first lines of a training


def print_start(plan: Plan, store: Store, jobs: int | None, *, force: bool = False) -> None:
    """Print on stderr what a plan trains, on what, and about how long it takes."""
    slots = max(1, min(jobs or plan.executor.capacity(), len(plan.runs)))
    left = estimate(plan, store, slots, force=force)
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
            ("group_size", "rollout"),
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
