"""The first line of `run` and `sweep`: what is trained, on what, and about how long it takes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from advsweep.cli.shared.output import echo_line
from advsweep.cli.shared.plan_output import describe_remaining, duration

if TYPE_CHECKING:
    from advsweep.store import Store
    from advsweep.sweep.planning.eta import TimeEstimate
    from advsweep.sweep.planning.plan import Plan

LISTED = 6
"""Names that a line lists."""


def print_start(plan: Plan, store: Store, jobs: int | None, *, force: bool = False) -> None:
    """Prints on stderr what a plan trains, on what, and about how long it takes."""
    from advsweep.sweep.planning.eta import estimate

    slots = max(1, min(jobs or plan.executor.capacity(), len(plan.runs)))
    left = estimate(plan, store, slots, force=force)
    echo_line(describe_plan(plan), err=True)
    echo_line(describe_time(plan, left, slots), err=True)


def describe_plan(plan: Plan) -> str:
    """Describes what is trained and on what, in a line."""
    runs = [planned.run for planned in plan.runs]
    tokens = max(
        (0 if run.backend.external else run.backend.completion_tokens(run) for run in runs),
        default=0,
    )
    parts = [
        f"{_several((run.estimator.name for run in runs), 'estimators')} on "
        f"{_several((_title(run.task) for run in runs), 'tasks')} with model "
        f"{_several((_title(run.model) for run in runs), 'models')} "
        f"(backend {_several((run.backend.name for run in runs), 'backends')})",
        f"{_several((run.steps for run in runs), 'numbers')} steps of "
        f"{_several((run.prompts_per_step for run in runs), 'numbers')} prompts x "
        f"{_several((run.group_size for run in runs), 'numbers')} rollouts"
        + (f" of at most {tokens:,} tokens" if tokens > 1 else ""),
    ]
    if plan.name is None:
        return f"Training {parts[0]}: {parts[1]}"
    count = "1 run" if len(runs) == 1 else f"{len(runs)} runs"
    return f"sweep {plan.name}: {count} of {parts[0]}: {parts[1]}"


def _title(component: object) -> str:
    """Returns the title or the path that users know a task or a model by, else its name."""
    for attribute in ("title", "path", "name"):
        if text := getattr(component, attribute, None):
            return str(text)
    return type(component).__name__


def _several(values: Iterable[object], what: str) -> str:
    """Lists different values, or counts them where they are many."""
    found = list(dict.fromkeys(map(str, values)))
    if len(found) > LISTED:
        return f"{len(found)} {what}"
    return ", ".join(found)


def describe_time(plan: Plan, left: TimeEstimate, slots: int) -> str:
    """Describes the time that is left, by earlier runs or else by the backend's first guess."""
    if not left.steps:
        return "Everything is done already; no steps left."
    if left.seconds is not None:
        return describe_remaining(left, slots)
    total = 0.0
    for planned, state in zip(plan.runs, left.runs, strict=True):
        guess = planned.run.backend.rough_seconds(planned.run)
        if guess is None:
            return f"{left.steps} steps left; the time is known when the first run has finished"
        total += guess * state.steps_left / planned.run.steps
    return (
        f"{left.steps} steps left, roughly {duration(total / slots)} with {slots} side by side (a "
        "first guess for an idle machine: no run of this kind has finished in this store)"
    )
