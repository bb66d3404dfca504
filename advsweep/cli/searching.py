"""`advsweep sweep` with `search=`: trials until there are enough, and the best of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

import typer

from advsweep.cli import execution
from advsweep.cli.options import RecordFormat
from advsweep.cli.output import print_json, show_number

if TYPE_CHECKING:
    from advsweep.sweep.policy import Policy
    from advsweep.sweep.search.study import Study
    from advsweep.sweep.search.tpe import Result


def search(
    study: Study,
    url: str | None,
    jobs: int | None,
    *,
    dry_run: bool,
    force: bool,
    policy: Policy,
    output: RecordFormat,
) -> NoReturn:
    """Makes a search and says what is best; ends the command.

    Raises:
        ConfigError: `--force`, as what is told cannot be taken back.
    """
    from advsweep.errors import ConfigError

    if force:
        raise ConfigError("--force: a search goes on where it was; give a new one another --name")
    if dry_run:
        _print_study(study, output)
        raise typer.Exit
    with execution.opened(url) as store:
        outcome = study.run(
            store,
            jobs,
            lambda plan: execution.execute(plan, store, jobs=jobs, force=False, policy=policy),
        )
        best = study.best(store)
        if output is RecordFormat.JSON:
            record = execution.outcome_record(study.example, outcome)
            print_json({**record, "best": [_record(study, result) for result in best]})
        else:
            execution.print_outcome(study.example, outcome)
            _print_best(study, best, len(store.trials(study.name)))
    raise typer.Exit(outcome.exit_code)


def _print_study(study: Study, output: RecordFormat) -> None:
    seeds = len(study.example.runs)
    if output is RecordFormat.JSON:
        plain = {"name": study.name, "search": study.search.plain(), "seeds": seeds}
        print_json({**plain, "dimensions": dict(study.dimensions)})
        return
    for key, dimension in study.dimensions.items():
        typer.echo(f"{key}: {dimension}")
    typer.echo(f"sweep {study.name}: {study.search.trials} trials of {seeds} runs each")


def _record(study: Study, result: Result) -> dict[str, Any]:
    values = dict(zip(study.search.metrics, result.values, strict=True))
    return {"trial": result.number, "params": dict(result.params), "values": values}


def _print_best(study: Study, best: list[Result], trials: int) -> None:
    if not best:
        return
    what = "best" if len(study.search.metrics) == 1 else "not beaten in both metrics"
    typer.echo(f"{what} of {trials} trials, means over seeds:", err=True)
    for result in best:
        record = _record(study, result)
        scores = ", ".join(f"{name} {show_number(v)}" for name, v in record["values"].items())
        params = " ".join(f"{key}={value}" for key, value in result.params.items())
        typer.echo(f"  trial {result.number}: {params}: {scores}", err=True)
