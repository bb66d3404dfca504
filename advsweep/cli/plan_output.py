"""Print plans: the runs of a sweep, the remaining work, and requirements that are missing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from advsweep.cli.options import ListFormat
from advsweep.cli.output import echo, echo_line, warn
from advsweep.errors import counted

if TYPE_CHECKING:
    from advsweep.store import Store
    from advsweep.sweep.planning.eta import TimeEstimate
    from advsweep.sweep.planning.plan import Duplicate, Plan

LISTED = 50
SHOWN = 10  # displayed characters of an identity


def print_plan(
    plan: Plan,
    url: str | None,
    jobs: int | None,
    how: ListFormat,
    *,
    force: bool = False,
    every: bool = False,
    more: Mapping[str, Any] | None = None,
) -> None:
    """Prints the runs of a sweep, the remaining steps and an estimate of their time.

    Args:
        more: what else `--format json` has.
    """
    from advsweep.cli.output import print_json, print_listing
    from advsweep.sweep.planning.eta import estimate
    from advsweep.sweep.planning.labels import config_labels
    from advsweep.sweep.planning.plan import outdated_runs

    store = open_existing(url)
    warnings = [*plan.warnings, *outdated_runs(plan, store)]
    fits = _fits_machine(plan, warnings)
    slots = jobs or plan.executor.capacity()
    left = estimate(plan, store, slots, force=force)
    rows = [
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
        }
        for planned, run, label in zip(
            plan.runs, left.runs, config_labels(p.config for p in plan.runs), strict=True
        )
    ]
    if how is ListFormat.JSON:
        configs = (planned.config for planned in plan.runs)
        print_json(
            {
                "name": plan.name,
                "runs": [row | {"config": c} for row, c in zip(rows, configs, strict=True)],
                "duplicates": [_duplicate_record(d) for d in plan.duplicates],
                "states": left.states,
                **_tally(left),
                **remaining_record(left),
                "jobs": slots,
                "warnings": warnings,
                **(more or {}),
            }
        )
    elif how is ListFormat.CSV:
        print_listing(rows, how)
    else:
        _print_table(plan, left, rows, slots, every=every, fits=fits)


def _fits_machine(plan: Plan, warnings: Iterable[str]) -> bool:
    """Returns whether this machine can execute the plan; prints what prevents it on stderr.

    A plan can be inspected on a machine that cannot execute it.
    """
    from advsweep.errors import ConfigError

    print_absent(plan)
    print_warnings(warnings)
    try:
        plan.check()
    except ConfigError as error:
        warn(f"this machine cannot execute the plan: {error}")
        return False
    return True


def print_warnings(warnings: Iterable[str]) -> None:
    """Prints the warnings of a plan on stderr."""
    for warning in warnings:
        warn(f"warning: {warning}")


def print_absent(plan: Plan) -> None:
    """Lists on stderr the data that must be downloaded or generated before a run can start."""
    if plan.absent:
        warn(
            f"not on this machine: {', '.join(plan.absent)}; problems and identities can be "
            "checked only once the data is present"
        )


def _print_table(
    plan: Plan,
    left: TimeEstimate,
    rows: list[dict[str, Any]],
    slots: int,
    *,
    every: bool,
    fits: bool,
) -> None:
    from advsweep.cli.output import print_columns
    from advsweep.sweep.scheduler.batching import count_stackable

    cut = len(rows) if every else LISTED
    print_columns(
        ["identity", "status", "steps", "left", "run"], [_cells(row) for row in rows[:cut]]
    )
    print_truncated(len(rows) - cut)
    if plan.duplicates:
        echo(f"\nduplicates, each executed once ({len(plan.duplicates)}):")
        cut = len(plan.duplicates) if every else LISTED
        for duplicate in plan.duplicates[:cut]:
            echo_line(f"  {_describe(duplicate)}")
        print_truncated(len(plan.duplicates) - cut)
    tally = ", ".join(f"{count} {state}" for state, count in _tally(left).items() if count)
    detail = {s: n for s, n in left.states.items() if s not in ("done", "running", "missing")}
    known = f" ({', '.join(f'{count} {state}' for state, count in detail.items())})"
    echo()
    echo_line(f"sweep {plan.name}: {counted(len(rows), 'run')}, {tally}{known if detail else ''}")
    echo(describe_remaining(left, slots, fits=fits))
    if together := count_stackable(plan):
        echo_line(f"{counted(together, 'run')} can be trained together, several in one process")


def _tally(left: TimeEstimate) -> dict[str, int]:
    """Counts the runs that are done, running and missing."""
    done, running = left.states["done"], left.states["running"]
    return {"done": done, "running": running, "missing": len(left.runs) - done - running}


def _cells(row: Mapping[str, Any]) -> list[str]:
    seconds = row["seconds_left"]
    took = "" if not row["steps_left"] else "?" if seconds is None else duration(seconds)
    return [
        row["identity"][:SHOWN],
        row["status"],
        f"{row['step']}/{row['steps']}",
        took,
        row["label"],
    ]


def print_truncated(more: int) -> None:
    """Prints on stderr how many rows a table omits."""
    if more > 0:
        echo_line(f"{more} more not shown; --all shows them.", err=True)


def _duplicate_record(duplicate: Duplicate) -> dict[str, Any]:
    return {
        "identity": duplicate.identity,
        "asked": _as_overrides(duplicate.assignment),
        "first": _as_overrides(duplicate.first),
        "block": duplicate.where or None,
    }


def _describe(duplicate: Duplicate) -> str:
    where = f" in {duplicate.where}" if duplicate.where else ""
    # The overrides differ if one of them uses an alias.
    first = {k: v for k, v in duplicate.first.items() if duplicate.assignment.get(k, v) != v}
    before = f", first given as {_as_overrides(first)}" if first else ""
    return f"{_as_overrides(duplicate.assignment)}{where} is {duplicate.identity[:SHOWN]}{before}"


def _as_overrides(assignment: Mapping[str, Any]) -> str:
    """Formats an assignment as overrides of the command line."""
    from advsweep.config.space import Delete

    return " ".join(
        f"~{key}" if isinstance(value, Delete) else f"{key}={value}"
        for key, value in assignment.items()
        if key != "experiment"
    )


def remaining_record(left: TimeEstimate) -> dict[str, Any]:
    """Returns the remaining work for `--format json`."""
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
    """Describes the remaining work in a line, by earlier runs or else by a first guess.

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
            f"{steps}, roughly {duration(left.guess)}{beside} (a first guess for an idle machine: "
            "no run of this kind has finished in this store)"
        )
    gpus = "" if left.gpu_hours is None else f" and {left.gpu_hours:.3g} GPU-hours"
    rest = (
        f"; no time estimate for {counted(left.unknown, 'run')}: none of that kind has finished yet"
        if left.unknown
        else ""
    )
    took = f"about {duration(left.seconds)}{gpus}{beside}"
    runs = counted(left.sources, "earlier run")
    sources = [f"from {runs}"] if left.sources or not left.published else []
    sources += [f"by {'; '.join(left.published)}"] if left.published else []
    return f"{steps}, {took} ({', '.join(sources)}){rest}"


def open_existing(url: str | None) -> Store | None:
    """Opens the store; returns None if it does not exist."""
    from advsweep.errors import NoStoreError
    from advsweep.store import open_store

    try:
        return open_store(url, create=False)
    except NoStoreError:
        return None


def duration(seconds: float) -> str:
    """Formats a time span roughly: 40 s, 12 min or 3.5 h."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
