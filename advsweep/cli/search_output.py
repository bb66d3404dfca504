"""Execute a search and print its trials, for `sweep` and `plan` with `search=`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn

import typer

from advsweep.cli import execution
from advsweep.cli.options import ListFormat, RecordFormat
from advsweep.cli.output import (
    echo,
    echo_line,
    print_columns,
    print_json,
    print_listing,
    show_number,
)
from advsweep.cli.plan_output import (
    LISTED,
    describe_remaining,
    open_existing,
    print_truncated,
    remaining_record,
)
from advsweep.cli.start_output import describe_plan
from advsweep.errors import counted
from advsweep.sweep.search.dimensions import format_params

if TYPE_CHECKING:
    from advsweep.sweep.retry_policy import Policy
    from advsweep.sweep.search.dimensions import Dimension
    from advsweep.sweep.search.optuna import TrialResult
    from advsweep.sweep.search.progress import SearchProgress
    from advsweep.sweep.search.study import Study


def search(
    study: Study,
    url: str | None,
    jobs: int | None,
    *,
    policy: Policy,
    output: RecordFormat,
) -> NoReturn:
    """Executes a search, prints the best trials and ends the command."""
    from advsweep.sweep.search.execution import execute_search

    echo_line(
        f"sweep {study.name}: {_describe_size(study)}, search={study.search.name} over "
        f"{', '.join(study.dimensions)}",
        err=True,
    )
    echo_line(describe_plan(replace(study.example, name=None)), err=True)
    with execution.writable_store(url) as store:
        with (
            execution.track_events(study.example, store) as track,
            execution.show_events(replace(study.example, runs=[]), store, track) as on_event,
        ):
            outcome = execute_search(study, store, jobs, on_event, policy=policy)
        results = study.results(store)
        best = study.search.best(results, study.dimensions)
        if output is RecordFormat.JSON:
            record = execution.outcome_record(study.example, outcome)
            print_json({**record, "best": [_record(study, result) for result in best]})
        else:
            execution.print_outcome(study.example, outcome, url)
            _print_best(study, best, results)
    raise typer.Exit(outcome.exit_code)


def _describe_size(study: Study) -> str:
    trials, runs = counted(study.search.trials, "trial"), counted(len(study.seeds), "run")
    return f"{trials} of {runs} each"


def print_search(
    study: Study, url: str | None, jobs: int | None, how: ListFormat, *, every: bool = False
) -> None:
    """Prints the search space, the trials so far and an estimate of the remaining time."""
    from advsweep.sweep.search.progress import read_progress

    slots = jobs or study.example.executor.capacity()
    progress = read_progress(study, open_existing(url), slots)
    if how is ListFormat.JSON:
        print_json(
            {
                "name": study.name,
                "search": study.search.plain(),
                "dimensions": {key: _dimension(d) for key, d in study.dimensions.items()},
                "seeds": study.seeds,
                "trials": [
                    {**_record(study, result), "state": result.state} for result in progress.results
                ],
                "states": progress.states,
                "to_come": progress.to_come,
                "best": [_record(study, result) for result in progress.best],
                **remaining_record(progress.left),
                "jobs": slots,
            }
        )
    elif how is ListFormat.CSV:
        print_listing([_row(study, result) for result in progress.results], how)
    else:
        _print_space(study)
        _print_trials(study, progress.results, every=every)
        _print_state(study, progress)
        echo(describe_remaining(progress.left, slots))


def _dimension(dimension: Dimension) -> dict[str, Any]:
    from advsweep.sweep.search.dimensions import RangeDimension

    if not isinstance(dimension, RangeDimension):
        return {"kind": "choice", "values": dimension.values}
    kind = "whole numbers" if dimension.is_integer else "numbers"
    return {"kind": kind, "low": dimension.low, "high": dimension.high, "log": dimension.log}


def _print_space(study: Study) -> None:
    kinds = {key: _dimension(dimension) for key, dimension in study.dimensions.items()}
    rows = [
        [key, kind["kind"], str(study.dimensions[key]), "log" if kind.get("log") else ""]
        for key, kind in kinds.items()
    ]
    print_columns(["searched over", "kind", "from", "scale"], rows)


def _print_trials(study: Study, results: Sequence[TrialResult], *, every: bool) -> None:
    shown = results if every else results[-LISTED:]
    lacking = [""] * len(study.search.metrics)
    if shown:
        echo()
        print_columns(
            ["trial", "state", *study.search.metrics, "point"],
            [
                [
                    str(result.number),
                    result.state.value,
                    *([show_number(value) for value in result.values] or lacking),
                    format_params(result.params),
                ]
                for result in shown
            ],
        )
        print_truncated(len(results) - len(shown))


def _print_state(study: Study, progress: SearchProgress) -> None:
    aims = " and ".join(f"{metric} ({better})" for metric, better in study.search.metrics.items())
    counts = [f"{count} {state}" for state, count in progress.states.items()]
    counts += [f"{progress.to_come} to come"] if progress.to_come else []
    echo(
        f"\nsweep {study.name}: search={study.search.name} for {aims}, "
        f"{_describe_size(study)}: {', '.join(counts)}"
    )
    _print_best(study, progress.best, progress.results, err=False)


def _row(study: Study, result: TrialResult) -> dict[str, Any]:
    values = dict(zip(study.search.metrics, result.values or (None, None), strict=False))
    return {"trial": result.number, "state": result.state, **values, **result.params}


def _record(study: Study, result: TrialResult) -> dict[str, Any]:
    values = dict(zip(study.search.metrics, result.values, strict=False))
    return {"trial": result.number, "params": dict(result.params), "values": values}


def _print_best(
    study: Study, best: Sequence[TrialResult], results: Sequence[TrialResult], *, err: bool = True
) -> None:
    if not best:
        if any(result.is_over for result in results):
            echo_line(f"no trial has {' and '.join(study.search.metrics)}", err=err)
        return
    what = "best" if len(study.search.metrics) == 1 else "Pareto front"
    echo_line(f"{what} of {counted(len(results), 'trial')}, means over seeds:", err=err)
    for result in best:
        record = _record(study, result)
        scores = ", ".join(f"{name} {show_number(v)}" for name, v in record["values"].items())
        echo_line(f"  trial {result.number}: {format_params(result.params)}: {scores}", err=err)
