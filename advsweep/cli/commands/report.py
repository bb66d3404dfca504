"""`advsweep report`: the table of a sweep, from the store alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from advsweep.cli import options
from advsweep.cli.collection import without_collection
from advsweep.cli.completion import complete_sweep
from advsweep.cli.output import echo_line, echo_rendered
from advsweep.writing import write

if TYPE_CHECKING:
    from advsweep.report.claims.assertions import Assertion, Finding
    from advsweep.report.data.filters import Filter
    from advsweep.report.tables.request import ReportRequest
    from advsweep.report.tables.types import Report
    from advsweep.store import Store

ReportFormat = Literal["table", "markdown", "latex", "csv", "json", "html"]

EXAMPLES = (
    "advsweep report demo",
    "advsweep report demo --full",
    "advsweep report first second",
    "advsweep report demo --baseline grpo --columns pass@1,pass@8",
    "advsweep report demo --margin 0.02 --margin entropy/right_rarefied=0.05",
    "advsweep report demo --format html > demo.html",
    "advsweep report demo --assert 'pass@1[fade] >= pass@1[grpo] - 0.02'",
)


def report(
    sweeps: Annotated[
        list[str] | None,
        typer.Argument(
            show_default=False,
            metavar="[SWEEP]...",
            autocompletion=complete_sweep,
            help="A sweep's name; of several, the runs of all in one table (default: every run).",
        ),
    ] = None,
    where: options.Where = None,
    rows: Annotated[
        str | None,
        typer.Option(
            "--rows",
            metavar="KEY,...",
            help="Group runs by these keys (default: all that vary).",
        ),
    ] = None,
    columns: Annotated[
        str | None,
        typer.Option(
            "--columns",
            metavar="NAME,...",
            help="Show these metrics: pass@8, pass@1[level=3], collapse/acr@end, "
            "pass@32@pass@1=0.45; a key gives one column for each of its values.",
        ),
    ] = None,
    sort: Annotated[
        str | None,
        typer.Option(
            "--sort",
            metavar="NAME",
            help="Sort by a column or a key; rank:NAME by the interval of the rank.",
        ),
    ] = None,
    baseline: Annotated[
        str | None,
        typer.Option(
            "--baseline",
            metavar="ROW",
            help="Compare with this row: grpo, 'estimator=grpo group_size=8', or none.",
        ),
    ] = None,
    difference: Annotated[
        float | None,
        typer.Option(
            "--difference",
            metavar="D",
            help="Compute the seeds that would show this difference.",
        ),
    ] = None,
    margin: Annotated[
        list[str] | None,
        typer.Option(
            "--margin",
            metavar="[OUTCOME=]NUMBER,...",
            help="Test whether rows are equivalent within this margin: of every pass@k, or of one "
            "outcome.",
        ),
    ] = None,
    at: Annotated[
        str | None,
        typer.Option(
            "--at",
            metavar="WHERE",
            help="Compare at equal steps, rollouts, tokens, seconds, or pass@1=0.5.",
        ),
    ] = None,
    outcomes: Annotated[
        str | None,
        typer.Option(
            "--outcomes",
            metavar="NAME,...",
            help="Test these columns.",
        ),
    ] = None,
    ended_early: Annotated[
        str | None,
        typer.Option(
            "--ended-early",
            metavar="WHAT",
            help="Runs that end early: keep, failed or a number.",
        ),
    ] = None,
    assertions: Annotated[
        list[str] | None,
        typer.Option(
            "--assert",
            metavar="EXPR",
            help="Exit with code 1 unless the data support this.",
        ),
    ] = None,
    full: Annotated[
        bool,
        typer.Option(
            "--full",
            help="Print every column, difference and note.",
        ),
    ] = False,
    store: options.Store = None,
    output_format: Annotated[
        ReportFormat,
        typer.Option(
            "--format",
            metavar="NAME",
            help="table, markdown, latex, csv, json, or html: a page with figures.",
        ),
    ] = "table",
) -> None:
    """Compare estimators in a table with 95 % intervals.

    Each row is an estimator, averaged over its seeds; base models and guessing have rows of
    their own. Differences of the primary outcomes to the first row are tested seed by seed, and
    corrected together.
    """
    from advsweep.report.claims.assertions import ClaimVerdict, parse_assertion
    from advsweep.report.data.columns import parse_outcomes
    from advsweep.report.data.cutoffs import parse_cutoff
    from advsweep.report.data.early_ends import KEEP, parse_ended_early
    from advsweep.report.data.filters import parse_where, split_list
    from advsweep.report.tables.build import build_report
    from advsweep.report.tables.request import ReportRequest
    from advsweep.store import open_store

    filters = [filter for text in where or () for filter in parse_where(text)]
    cutoff = None if at is None else parse_cutoff(at)
    names = _split(columns)
    asserted = [parse_assertion(text) for text in assertions or ()]
    margins = [each for text in margin or () for each in split_list(text)]
    declared = parse_outcomes(_split(outcomes), "--outcomes")
    opened = open_store(store, create=False)
    named = sweeps or []
    sweep = named[0] if len(named) == 1 else None
    if len(named) > 1:
        filters.append(_among(opened, named))
    request = ReportRequest(
        sweep,
        rows=_split(rows),
        where=filters,
        at=cutoff,
        baseline=baseline,
        outcomes=declared,
        declared_by="--outcomes",
        ended_early=parse_ended_early(ended_early or KEEP),
    )
    sort_column, rank_column = _parse_sort(sort)
    with without_collection():
        shown = build_report(
            opened,
            replace(
                request,
                columns=names,
                sort=sort_column,
                target=difference,
                margins=margins,
                rank=rank_column,
            ),
        )
        results = _judge(opened, request, asserted)
        is_short = output_format == "table" and not full and names is None
        echo_rendered(
            _render(shown, opened, filters=filters, output_format=output_format, short=is_short)
        )
    for result in results:
        echo_line(result.text, err=True)
    if any(result.verdict is not ClaimVerdict.HOLDS for result in results):
        raise typer.Exit(1)


def _split(text: str | None) -> list[str] | None:
    """Return the parts of an option's text; None if it is not given."""
    from advsweep.report.data.filters import split_list

    return None if text is None else split_list(text)


def _render(
    report: Report,
    store: Store,
    *,
    filters: Sequence[Filter],
    output_format: ReportFormat,
    short: bool,
) -> str:
    """Write a report in a format; a short one is a table of the primary outcomes."""
    if short:
        from advsweep.report.claims.sentences import lay_out_short

        return write(lay_out_short(report))
    if output_format == "html":
        from advsweep.report.html import render_page

        return render_page(report, store, where=filters)
    from advsweep.report.tables.render import render

    return render(report, output_format)


def _among(store: Store, sweeps: Sequence[str]) -> Filter:
    """Return the filter of the runs of some sweeps.

    Raises:
        NotFoundError: one of them does not exist.
    """
    from advsweep.report.data.filters import Filter

    for name in sweeps:
        store.sweeps.spec(name)
    names = tuple(dict.fromkeys(sweeps))
    return Filter("sweep", "=", names, f"sweep={','.join(names)}")


def _parse_sort(text: str | None) -> tuple[str | None, str | None]:
    """Return the column to sort by, and the one by whose rank to sort; one of them at most."""
    if text is None:
        return None, None
    if text.startswith("rank:"):
        return None, text.removeprefix("rank:")
    return text, None


def _judge(store: Store, request: ReportRequest, assertions: Sequence[Assertion]) -> list[Finding]:
    """Judge assertions by a report of the columns that they name."""
    from advsweep.report.claims.assertions import evaluate_assertion
    from advsweep.report.tables.build import build_report

    if not assertions:
        return []
    columns = dict.fromkeys(column for each in assertions for column in each.columns)
    judged = build_report(store, replace(request, columns=list(columns), described=False))
    return [evaluate_assertion(judged, each) for each in assertions]
