"""Print plans: what is trained, the runs of a sweep, how long they take, and what is missing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from advsweep.cli.output import (
    echo,
    echo_line,
    print_columns,
    print_json,
    warn,
)
from advsweep.config.space import Delete
from advsweep.errors import ConfigError, NoStoreError, counted
from advsweep.store import Store, open_store
from advsweep.sweep.planning.eta import TimeEstimate, estimate
from advsweep.sweep.planning.labels import config_labels
from advsweep.sweep.planning.plan import Duplicate, Plan, outdated_runs
from advsweep.sweep.scheduler.runs import count_stackable

LISTED = 50
"""Rows of a table; `--format json` has all."""

_SHOWN = 10  # characters of an identity

_NAMES = 6
"""Names that a line lists."""


def open_existing(url: str | None) -> Store | None:
    """Open the store; return None if it does not exist."""
    try:
        return open_store(url, create=False)
    except NoStoreError:
        return None


def print_warnings(warnings: Iterable[str]) -> None:
    """Print the warnings of a plan on stderr."""
    for warning in warnings:
        warn(f"warning: {warning}")


def print_absent(plan: Plan) -> None:
    """List on stderr the data that must be downloaded or generated before a run can start."""
    if plan.absent:
        warn(
            f"not on this machine: {', '.join(plan.absent)}; problems and identities can be "
            "checked only once the data is present"
        )


def print_truncated(more: int) -> None:
    """Print on stderr how many rows a table omits."""
    if more > 0:
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
    warnings = [*plan.warnings, *outdated_runs(plan, store)]
    print_absent(plan)
    print_warnings(warnings)
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
                    for planned, run, label in zip(plan.runs, left.runs, labels, strict=True)
                ],
                "duplicates": [
                    {
                        "identity": duplicate.identity,
                        "asked": _as_overrides(duplicate.assignment),
                        "first": _as_overrides(duplicate.first),
                        "block": duplicate.where or None,
                    }
                    for duplicate in plan.duplicates
                ],
                "states": left.states,
                **tally,
                **remaining_record(left),
                "jobs": slots,
                "warnings": warnings,
                **(more or {}),
            }
        )
        return
    rows = []
    for planned, run, label in zip(plan.runs, left.runs, labels, strict=True):
        took = "?" if run.seconds_left is None else rough_duration(run.seconds_left)
        rows.append(
            [
                planned.run.identity[:_SHOWN],
                run.status,
                f"{run.step}/{planned.run.steps}",
                took if run.steps_left else "",
                label,
            ]
        )
    print_columns(["identity", "status", "steps", "left", "run"], rows[:LISTED])
    print_truncated(len(rows) - LISTED)
    if plan.duplicates:
        echo(f"\nduplicates, each executed once ({len(plan.duplicates)}):")
        for duplicate in plan.duplicates[:LISTED]:
            echo_line(f"  {_describe_duplicate(duplicate)}")
        print_truncated(len(plan.duplicates) - LISTED)
    counts = ", ".join(f"{count} {state}" for state, count in tally.items() if count)
    detail = {s: n for s, n in left.states.items() if s not in tally}
    known = f" ({', '.join(f'{count} {state}' for state, count in detail.items())})"
    echo()
    echo_line(f"sweep {plan.name}: {counted(len(rows), 'run')}, {counts}{known if detail else ''}")
    echo(describe_remaining(left, slots, fits=fits))
    if together := count_stackable(plan):
        echo_line(f"{counted(together, 'run')} can be trained together, several in one process")


def _describe_duplicate(duplicate: Duplicate) -> str:
    where = f" in {duplicate.where}" if duplicate.where else ""
    # The overrides differ if one of them uses an alias.
    first = {k: v for k, v in duplicate.first.items() if duplicate.assignment.get(k, v) != v}
    before = f", first given as {_as_overrides(first)}" if first else ""
    return f"{_as_overrides(duplicate.assignment)}{where} is {duplicate.identity[:_SHOWN]}{before}"


def _as_overrides(assignment: Mapping[str, Any]) -> str:
    """Format an assignment as overrides of the command line."""
    return " ".join(
        f"~{key}" if isinstance(value, Delete) else f"{key}={value}"
        for key, value in assignment.items()
        if key != "experiment"
    )


# The remaining time


def remaining_record(left: TimeEstimate) -> dict[str, Any]:
    """Return the remaining work for `--format json`."""
    return {
        "steps_left": left.steps,
        "seconds_left": left.seconds,
        "guessed_seconds_left": left.guess,
        "gpu_hours_left": left.gpu_hours,
        "untold": left.unknown,
        "sources": left.sources,
        "printed": left.published,
    }


def describe_remaining(left: TimeEstimate, slots: int, *, fits: bool = True) -> str:
    """Describe the remaining work in a line, by earlier runs or else by a first guess.

    Args:
        fits: whether this machine can execute the plan.
    """
    if not left.steps:
        is_done = left.states["done"] == len(left.runs)
        return "Everything is done already; no steps left." if is_done else "no steps left"
    steps = f"{counted(left.steps, 'step')} left"
    beside = f" with {slots} side by side"
    beside += "" if fits else ", for which this machine has no room"
    if left.seconds is None:
        if left.guess is None:
            return f"{steps}; the time is known when the first run has finished"
        return (
            f"{steps}, roughly {rough_duration(left.guess)}{beside} (a first guess for an idle "
            "machine: no run of this kind has finished in this store)"
        )
    gpus = "" if left.gpu_hours is None else f" and {left.gpu_hours:.3g} GPU-hours"
    rest = (
        f"; no time estimate for {counted(left.unknown, 'run')}: none of that kind has finished yet"
        if left.unknown
        else ""
    )
    took = f"about {rough_duration(left.seconds)}{gpus}{beside}"
    runs = counted(left.sources, "earlier run")
    sources = [f"from {runs}"] if left.sources or not left.published else []
    sources += [f"by {'; '.join(left.published)}"] if left.published else []
    return f"{steps}, {took} ({', '.join(sources)}){rest}"


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
    external = [run.backend.external for run in runs]
    tokens = max(
        (0 if run.backend.external else run.backend.completion_tokens(run) for run in runs),
        default=0,
    )
    place = ""  # a command chooses its data and its model
    if not all(external):
        tasks = _several((_title(run.task) for run in runs), "tasks")
        models = _several((_title(run.model) for run in runs), "models")
        place = f"on {tasks} with model {models} "
    what = _several((run.estimator.name for run in runs), "estimators")
    backends = _several((run.backend.name for run in runs), "backends")
    sizes = [
        counted(_several((getattr(run, key) for run in runs), "numbers"), word)
        for key, word in (
            ("steps", "step"),
            ("prompts_per_step", "prompt"),
            ("group_size", "rollout"),
        )
    ]
    size = f"{sizes[0]} of {sizes[1]} x {sizes[2]}"
    size += f" of at most {tokens:,} tokens" if tokens > 1 else ""
    line = f"{what} {place}(backend {backends}): {size}"
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
