"""`advsweep report`: tables of a sweep from the store alone."""

from __future__ import annotations

import functools
import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from advsweep.cli import options
from advsweep.cli.completion import complete_sweep
from advsweep.cli.output import echo, echo_line, echo_rendered
from advsweep.errors import ConfigError
from advsweep.store import Store, open_store
from advsweep.writing import write

if TYPE_CHECKING:
    from advsweep.report import Filter, Report


@contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """Pauses garbage collection, which would add a third to the time of a large report.

    A report of thousands of runs creates many objects and no reference cycles.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def report(
    sweep: Annotated[str | None, complete_sweep] = None,
    where: options.Where = None,
    rows: str | None = None,
    columns: str | None = None,
    sort: str | None = None,
    baseline: str | None = None,
    difference: float | None = None,
    at: str | None = None,
    assertions: list[str] | None = None,
    pool: bool = False,
    mixed_protocols: bool = False,
    short: bool = False,
    store: options.Store = None,
    output: Literal["table", "markdown", "latex", "csv", "json", "html"] = "table",
) -> None:
    """Each row is an estimator, averaged over its seeds; each column is a metric: the share of
    zero-variance groups (ACR), pass@k of the last evaluation, entropy. Differences of the primary
    outcomes to the first row are tested seed by seed, and corrected together; those of other
    columns are descriptive. A base model before training and the chance baseline have rows of
    their own. With --assert the exit code is 1 unless the data support a statement, for CI.

    Arguments:
        [SWEEP] (sweep): A sweep's name (default: every run).

    Options:
        --rows KEY,...: Group runs into rows by these config keys (default: the estimator
            and all keys that vary).
        --columns NAME,...: Show these metrics (collapse/acr@end, pass@8, pass@1[gsm8k],
            pass@1[level=3], collapse/acr@slope, pass@32@pass@1=0.45, total/rollouts; * for
            all), once per value of each config key listed.
        --sort NAME: Sort by a column, best first, or by a key; NAME:rising or NAME:falling.
            rank:NAME sorts by the interval of each row's rank in a column, and shows it.
        --baseline ROW: Compare rows with this row: grpo, or 'estimator=grpo group_size=8';
            none for no comparison (default: the first row).
        --difference D: Compute the seeds needed to detect this difference (default: the
            observed one).
        --at WHERE: Compare at equal steps, rollouts, tokens or seconds (the most that all
            runs have, or rollouts=50000), or at an equal value of a metric (pass@1=0.5).
        --assert EXPR (assertions): Exit with code 1 unless the data support this:
            'pass@1[fade] >= pass@1[grpo] - 0.02'; may be repeated.
        --pool: Average the different configs of a row for each seed.
        --mixed-protocols: Include runs with different evaluation protocols.
        --short: Print what the differences say, and a table of few columns without notes.
        --format (output): Choose the output format; html has figures and every run.

    Examples:
        advsweep report demo
        advsweep report demo --short
        advsweep report demo --baseline grpo --columns pass@1,pass@8
        advsweep report demo --format html > demo.html
        advsweep report demo --assert 'pass@1[fade] >= pass@1[grpo] - 0.02'
    """
    from advsweep.report import (
        ClaimVerdict,
        build_report,
        evaluate_assertion,
        parse_assertion,
        parse_cutoff,
        parse_where,
        shorten_report,
        split_list,
    )

    filters = [filter for text in where or () for filter in parse_where(text)]
    cutoff = None if at is None else parse_cutoff(at)
    names = None if columns is None else split_list(columns)
    if short and output != "table":
        raise ConfigError("--short: expected a table, without --format")
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
        baseline=baseline,
    )
    ranked = sort is not None and sort.startswith("rank:")
    with _without_garbage_collection():
        shown = build(
            columns=names,
            sort=None if ranked else sort,
            target=difference,
            rank=sort.removeprefix("rank:") if sort is not None and ranked else None,
        )
        results = []
        if asserted:
            used = dict.fromkeys(column for a in asserted for column in a.columns)
            judged = build(columns=list(used), described=False)
            results = [evaluate_assertion(judged, assertion) for assertion in asserted]
        if short:
            _print_short(shown if names else shorten_report(shown))
        else:
            _print(shown, opened, output, filters)
    for result in results:
        echo_line(result.text, err=True)
    if any(result.verdict is not ClaimVerdict.HOLDS for result in results):
        raise typer.Exit(1)


def _print_short(report: Report) -> None:
    from advsweep.report import describe_findings, lay_out_short

    for sentence in describe_findings(report):
        echo_line(sentence)
    echo()
    echo_rendered(write(lay_out_short(report)))


def _print(
    report: Report,
    store: Store,
    output: str,
    where: Sequence[Filter],
) -> None:
    if output != "html":
        from advsweep.report import render

        echo_rendered(render(report, output))
        return
    from advsweep.report.html import render_page

    echo_rendered(render_page(report, store, where=where))
