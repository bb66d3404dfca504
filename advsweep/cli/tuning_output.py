"""Execute a tuned sweep, and print how far its tuning is."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

import typer

from advsweep.cli import execution, runs
from advsweep.cli.options import ListFormat, RecordFormat
from advsweep.cli.output import echo, echo_line, print_columns, print_json, warn
from advsweep.cli.plan_output import open_existing, print_plan, print_warnings
from advsweep.errors import counted

if TYPE_CHECKING:
    from advsweep.store.tuning import TunedValue, TuningRecord
    from advsweep.sweep.events import SweepResult
    from advsweep.sweep.planning.plan import Plan
    from advsweep.sweep.retry_policy import Policy
    from advsweep.sweep.tuning import Tuning


def sweep_tuned(
    tuning: Tuning, url: str | None, jobs: int | None, *, policy: Policy, output: RecordFormat
) -> NoReturn:
    """Executes the tuning runs and then the test runs, and ends the command."""
    from advsweep.cli.start_output import print_start
    from advsweep.sweep.planning.plan import outdated_runs
    from advsweep.sweep.tuning import execute_tuning

    print_warnings(tuning.test.warnings)
    tuning.test.check()  # before creating a store
    plan = tuning.test
    with execution.writable_store(url) as store:

        def run(stage: Plan) -> SweepResult:
            nonlocal plan
            plan = stage
            print_start(plan, store, jobs)
            if plan.name == tuning.tuning_name:
                values = {planned.assignment[tuning.tune.key] for planned in plan.runs}
                listed = ", ".join(f"{value:g}" for value in sorted(values))
                echo_line(f"values of {tuning.tune.key}: {listed}", err=True)
            print_warnings(outdated_runs(plan, store))
            with execution.track_events(plan, store) as track:
                return execution.execute(
                    plan, store, jobs=jobs, force=False, policy=policy, track=track
                )

        echo_line(_describe_size(tuning), err=True)
        record, outcome = execute_tuning(tuning, store, run)
        is_stopped = outcome is not None and (outcome.stopped or outcome.halted)
        if record.is_over and not is_stopped:
            echo_line(record.text, err=True)
            outcome = run(tuning.plan_test(record))
        assert outcome is not None
        if output is RecordFormat.JSON:
            print_json({**execution.outcome_record(plan, outcome), "tune": record.plain()})
        else:
            for sentence in runs.describe_no_signal(store, outcome.run_ids):
                echo_line(sentence, err=True)
            execution.print_outcome(plan, outcome, url)
            if not record.is_over and (outcome.submitted or outcome.queued):
                warn("Start the same sweep again once these runs are done: it chooses and goes on.")
    without = [arm.name for arm in record.arms if record.is_over and arm.chosen is None]
    if without:
        warn(
            f"no value of {record.key} could be chosen for {', '.join(without)}, which therefore "
            f"has no test runs; `advsweep status {record.sweep}` says why"
        )
    raise typer.Exit(outcome.exit_code or int(bool(without)))


def _describe_size(tuning: Tuning) -> str:
    """Describes how many runs a tuned sweep has, in a line."""
    tune = tuning.tune
    arms, seeds = counted(len(tuning.arms), "arm"), counted(len(tune.tuning_seeds), "seed")
    first = counted(len(tuning.first) * len(tune.tuning_seeds), "tuning run")
    more = tuning.extra_runs
    grown = f", and at most {more} more where the best value is at an edge" if more else ""
    return (
        f"sweep {tuning.name}: {first} ({arms} x {len(tune.values)} values of {tune.key} x "
        f"{seeds}){grown}; then {counted(len(tuning.test.runs), 'test run')}"
    )


def print_tuned_plan(
    tuning: Tuning, url: str | None, jobs: int | None, how: ListFormat, *, every: bool = False
) -> None:
    """Prints the runs of the stage that a tuned sweep is in, and how many it has in all."""
    record = tuning.read(open_existing(url))
    grid = [(arm.name, each.value) for arm in record.arms for each in arm.grid]
    plan = tuning.plan_test(record) if record.is_over else tuning.plan(grid)
    more = {
        "tune": record.plain(),
        "tuning_runs": len(grid) * len(record.seeds),
        "most_tuning_runs": len(tuning.first) * len(record.seeds) + tuning.extra_runs,
        "test_runs": len(tuning.test.runs),
    }
    if how is ListFormat.TABLE:
        print_warnings(tuning.test.warnings)
        echo_line(_describe_size(tuning))
        print_tuning(record)
        echo()
    print_plan(plan, url, jobs, how, every=every, more=more)


def print_tuning(record: TuningRecord) -> None:
    """Prints the scores of each arm and its choice."""
    values = sorted({each.value for arm in record.arms for each in arm.grid})
    rows = []
    for arm in record.arms:
        scores = {each.value: _score(each) for each in arm.grid}
        rows.append([arm.name, *(scores.get(value, "") for value in values), arm.choice])
    echo_line(record.title)
    print_columns(["arm", *(f"{value:g}" for value in values), "choice"], rows)


def _score(each: TunedValue) -> str:
    return each.state.value if each.score is None else f"{each.score:.3f}"
