"""The first line of `run` and `sweep`: what is trained, on what, and about how long it takes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from advsweep.cli.output import echo_line
from advsweep.cli.plan_output import describe_remaining
from advsweep.config.validation import reported_problems, validation_problems
from advsweep.errors import counted

if TYPE_CHECKING:
    from advsweep.backends.base import Run
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
    echo_line(describe_remaining(left, slots), err=True)
    if line := describe_tokens(plan, left):
        echo_line(line, err=True)


def describe_plan(plan: Plan) -> str:
    """Describes what is trained and on what, in a line."""
    runs = [planned.run for planned in plan.runs]
    tokens = max(
        (0 if run.backend.external else run.backend.completion_tokens(run) for run in runs),
        default=0,
    )
    place = (
        f"on {_several((_title(run.task) for run in runs), 'tasks')} with model "
        f"{_several((_title(run.model) for run in runs), 'models')} "
    )
    if all(run.backend.external for run in runs):
        place = ""  # The command chooses its data and its model.
    parts = [
        f"{_several((run.estimator.name for run in runs), 'estimators')} {place}"
        f"(backend {_several((run.backend.name for run in runs), 'backends')})",
        f"{counted(_several((run.steps for run in runs), 'numbers'), 'step')} of "
        f"{counted(_several((run.prompts_per_step for run in runs), 'numbers'), 'prompt')} x "
        f"{counted(_several((run.group_size for run in runs), 'numbers'), 'rollout')}"
        + (f" of at most {tokens:,} tokens" if tokens > 1 else ""),
    ]
    if plan.name is None:
        return f"Training {parts[0]}: {parts[1]}"
    return f"sweep {plan.name}: {counted(len(runs), 'run')} of {parts[0]}: {parts[1]}"


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


def describe_tokens(plan: Plan, left: TimeEstimate) -> str | None:
    """Describes how many tokens are generated, where nobody knows how long a training takes.

    None if the time is known or guessed, or if a program apart from advsweep generates them.
    """
    if left.seconds is not None or left.guess is not None:
        return None
    trained = evaluated = 0
    for planned, state in zip(plan.runs, left.runs, strict=True):
        run = planned.run
        if run.backend.external:
            return None
        tokens = run.backend.completion_tokens(run)
        trained += state.steps_left * run.prompts_per_step * run.group_size * tokens
        if state.steps_left:
            evaluated += _answers(run, run.steps - state.steps_left) * tokens
    line = (
        f"At most {_in_words(trained + evaluated)} tokens are generated: {_in_words(trained)} in "
        f"training, {_in_words(evaluated)} in evaluations"
    )
    if evaluated > trained:
        line += "; a smaller evaluation.n makes them shorter"
    return line


def _answers(run: Run, done: int) -> int:
    """Returns the number of answers that the evaluations of a run sample after some steps."""
    settings, last = run.evaluation, run.steps
    steps = [step for step in settings.schedule(last) if done < step < last]
    ends = 1 if done else 2
    # A step that validation problems may choose has as many as the ends.
    n_between = settings.n if settings.validation else settings.between().n
    per_problem = ends * settings.n + len(steps) * n_between
    answers = per_problem * (len(reported_problems(run.task, settings)) + settings.train_problems)
    if settings.validation:
        problems = len(validation_problems(run.task, settings)[1])
        answers += (ends + len(steps)) * problems * settings.of_validation().n
    return answers


def _in_words(number: int) -> str:
    """Writes a number, a large one as 2.5 million."""
    for size, name in ((10**9, "billion"), (10**6, "million")):
        if number >= size:
            return f"{number / size:.3g} {name}"
    return f"{number:,}"
