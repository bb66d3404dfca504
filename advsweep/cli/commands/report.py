"""`advsweep report`: tables of a sweep, made from the store alone."""

from __future__ import annotations

import functools
import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import Enum
from typing import TYPE_CHECKING, Annotated

import typer

from advsweep.cli.shared import options
from advsweep.cli.shared.completion import complete_claims, complete_sweep
from advsweep.cli.shared.output import echo_line, echo_rendered

if TYPE_CHECKING:
    from advsweep.report import Filter, Report
    from advsweep.store import Store


@contextmanager
def _uncollected() -> Iterator[None]:
    """Thousands of runs are many objects and no cycles: looking for some takes a third as long."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


class ReportFormat(Enum):
    """How a report is printed."""

    TABLE = "table"
    MARKDOWN = "markdown"
    LATEX = "latex"
    CSV = "csv"
    JSON = "json"
    HTML = "html"


def report(
    sweep: Annotated[
        str | None,
        typer.Argument(
            metavar="[SWEEP]",
            help="A sweep's name (default: every run).",
            autocompletion=complete_sweep,
        ),
    ] = None,
    where: options.Where = None,
    rows: Annotated[
        str | None,
        typer.Option(
            "--rows",
            metavar="KEY,...",
            help="Config keys that name the rows (default: the estimator, and all that varies).",
        ),
    ] = None,
    columns: Annotated[
        str | None,
        typer.Option(
            "--columns",
            metavar="NAME,...",
            help="Metrics (collapse/acr@end, pass@8, pass@1[gsm8k], pass@1[level=3], "
            "total/rollouts; * for all), and config keys, each value of which then has them.",
        ),
    ] = None,
    sort: Annotated[
        str | None,
        typer.Option(
            "--sort",
            metavar="NAME",
            help="By a column, the best first, or a key; NAME:rising or NAME:falling.",
        ),
    ] = None,
    baseline: Annotated[
        str | None,
        typer.Option(
            "--baseline",
            metavar="ROW",
            help="What rows are compared with: grpo, or 'estimator=grpo group_size=8'; none for "
            "no comparison (default: the first row).",
        ),
    ] = None,
    difference: Annotated[
        float | None,
        typer.Option(
            "--difference",
            metavar="D",
            help="The difference that seeds needed are counted for (default: the one found).",
        ),
    ] = None,
    at: Annotated[
        str | None,
        typer.Option(
            "--at",
            metavar="WHERE",
            help="Where in the training: at equal steps, rollouts, tokens or seconds (as many as "
            "all runs have, or rollouts=50000), or where a metric is equal (pass@1=0.5).",
        ),
    ] = None,
    assertions: Annotated[
        list[str] | None,
        typer.Option(
            "--assert",
            metavar="EXPR",
            help="Exit code 1 unless the data bear it out: 'pass@1[fade] >= pass@1[grpo] - 0.02'; "
            "may be repeated.",
        ),
    ] = None,
    style: Annotated[
        str | None,
        typer.Option(
            "--style",
            metavar="NAME",
            help="Laid out as a paper's table: avspo-table1, a_grae-table2, aapo-table1, "
            "two_stage-table1, fade-table3, ...",
        ),
    ] = None,
    paper: Annotated[
        str | None,
        typer.Option(
            "--paper",
            metavar="NAME",
            help="With what a paper reports beside it: avspo, a_grae, aapo, two_stage.",
        ),
    ] = None,
    models: Annotated[
        bool,
        typer.Option(
            "--models",
            help="Models that `advsweep eval --model` has evaluated instead, with intervals over "
            "problems.",
        ),
    ] = False,
    pool: Annotated[
        bool,
        typer.Option("--pool", help="Average over what differs within a row, seed by seed."),
    ] = False,
    mixed_protocols: Annotated[
        bool,
        typer.Option("--mixed-protocols", help="Also runs that were not evaluated alike."),
    ] = False,
    claims: Annotated[
        str | None,
        typer.Option(
            "--claims",
            metavar="LIST",
            help="Of --format html: with the verdicts on a list of claims.",
            autocompletion=complete_claims,
        ),
    ] = None,
    store: options.Store = None,
    output: Annotated[
        ReportFormat,
        typer.Option(
            "--format", help="How to print it; html is a page with figures and every run."
        ),
    ] = ReportFormat.TABLE,
) -> None:
    """Compare estimators: ACR, pass@k, entropy, with 95 % intervals and tests over seeds."""
    from advsweep.errors import ConfigError
    from advsweep.report import (
        ClaimVerdict,
        build_model_report,
        build_report,
        choose_layout,
        evaluate_assertion,
        parse_assertion,
        parse_cutoff,
        parse_where,
        split_list,
    )
    from advsweep.store import open_store

    filters = [filter for text in where or () for filter in parse_where(text)]
    cutoff = None if at is None else parse_cutoff(at)
    names = None if columns is None else split_list(columns)
    if claims is not None and output is not ReportFormat.HTML:
        raise ConfigError("--claims: expected --format html; `advsweep claims` has other formats")
    if models:
        if sweep or where or rows or sort or baseline or at or assertions or style or paper:
            raise ConfigError("--models: expected --columns at most, as models have no runs")
        opened = open_store(store, create=False)
        _print(build_model_report(opened, names), opened, output, [], claims)
        return
    layout = choose_layout(style, paper)
    if layout is not None and (rows or columns or sort):
        raise ConfigError("--style: expected no --rows, --columns or --sort, as it has its own")
    asserted = [parse_assertion(text) for text in assertions or ()]
    opened = open_store(store, create=False)
    build = functools.partial(
        build_report,
        opened,
        sweep,
        rows=None if rows is None else split_list(rows),
        where=filters,
        pool=pool,
        mixed_protocols=mixed_protocols,
        at=cutoff,
    )
    with _uncollected():
        shown = build(columns=names, sort=sort, baseline=baseline, target=difference, layout=layout)
        results = []
        if asserted:
            used = dict.fromkeys(column for a in asserted for column in a.columns)
            judged = build(columns=list(used), baseline="none")
            results = [evaluate_assertion(judged, assertion) for assertion in asserted]
        _print(shown, opened, output, filters, claims)
    for result in results:
        echo_line(result.text, err=True)
    if any(result.verdict is not ClaimVerdict.HOLDS for result in results):
        raise typer.Exit(1)


def _print(
    report: Report,
    store: Store,
    output: ReportFormat,
    where: Sequence[Filter],
    claims: str | None,
) -> None:
    if output is not ReportFormat.HTML:
        from advsweep.report import render

        echo_rendered(render(report, output.value))
        return
    from advsweep.cli.commands.claims import find_claims
    from advsweep.report import evaluate_claims, read_claim_list
    from advsweep.report.html import render_page

    claim_results = None
    if claims is not None:
        claim_results = evaluate_claims(store, read_claim_list(find_claims(claims)))
    echo_rendered(render_page(report, store, where=where, claim_results=claim_results))
