"""`advsweep report`: the table of a sweep, from the store alone."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from advsweep.cli import options
from advsweep.cli.collection import without_collection
from advsweep.cli.completion import complete_sweep
from advsweep.cli.output import echo_line, echo_rendered
from advsweep.errors import ConfigError, reason_of
from advsweep.writing import Document, write, write_table

if TYPE_CHECKING:
    from advsweep.report.claims.assertions import Assertion, Finding
    from advsweep.report.data.filters import Filter
    from advsweep.report.tables.request import ReportRequest
    from advsweep.report.tables.types import Report
    from advsweep.store import Store

ReportFormat = Literal["table", "markdown", "latex", "csv", "json", "html"]

_FORMATS: Mapping[str, ReportFormat] = {
    ".txt": "table",
    ".md": "markdown",
    ".tex": "latex",
    ".csv": "csv",
    ".json": "json",
    ".html": "html",
}
"""The format of a file, by the end of its name."""

# Formats for programs have all numbers; tables are short unless one asks for more.
_TABLES = ("table", "markdown", "latex")
_FILE_WIDTH = 120  # characters of a table in a file

EXAMPLES = (
    "advsweep report demo",
    "advsweep report demo --full",
    "advsweep report first second",
    "advsweep report demo --baseline grpo --columns pass@1,pass@8",
    "advsweep report demo --margin 0.02 --margin entropy/right_rarefied=0.05",
    "advsweep report demo -o table.tex",
    "advsweep report demo -o demo.html",
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
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Write to a .txt, .md, .tex, .csv, .json or .html file.",
        ),
    ] = None,
    store: options.Store = None,
    output_format: Annotated[
        ReportFormat | None,
        typer.Option(
            "--format",
            metavar="NAME",
            help="table, markdown, latex, csv, json, or html: a page with figures (default: that "
            "of FILE, or table).",
        ),
    ] = None,
) -> None:
    """Compare estimators in a table with 95 % intervals.

    Each row is an estimator, averaged over its seeds; base models and guessing have rows of
    their own. Differences of the primary outcomes to the first row are tested seed by seed, and
    corrected together. The table is short; --full has every column, and so have csv, json and html.
    """
    from advsweep.report.claims.assertions import ClaimVerdict, parse_assertion
    from advsweep.report.data.columns import parse_outcomes
    from advsweep.report.data.cutoffs import parse_cutoff
    from advsweep.report.data.early_ends import KEEP, parse_ended_early
    from advsweep.report.data.filters import parse_conditions, split_list
    from advsweep.report.tables.build import build_report
    from advsweep.report.tables.request import ReportRequest
    from advsweep.store import open_store

    chosen = _choose_format(output_format, output)
    filters = parse_conditions(where)
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
        if chosen in _TABLES:
            is_short = not full and names is None
            text = _write_tables(shown, chosen, is_short=is_short, is_file=output is not None)
        else:
            text = _write_data(shown, opened, chosen, filters)
    if output is None:
        echo_rendered(text)
    else:
        _write_file(output, text)
        echo_line(str(output))
    for result in results:
        echo_line(result.text, err=True)
    if any(result.verdict is not ClaimVerdict.HOLDS for result in results):
        raise typer.Exit(1)


def _split(text: str | None) -> list[str] | None:
    """Return the parts of an option's text; None if it is not given."""
    from advsweep.report.data.filters import split_list

    return None if text is None else split_list(text)


def _choose_format(output_format: ReportFormat | None, output: Path | None) -> ReportFormat:
    """Return the format to write, and check where to, before the work of making a report.

    Raises:
        ConfigError: a file's name ends otherwise, its folder does not exist, or a page would go
            to a terminal.
    """
    if output is None:
        if output_format == "html" and sys.stdout.isatty():
            raise ConfigError(
                "--format html: expected a file for the page, got a terminal; -o FILE.html "
                "writes one"
            )
        return output_format or "table"
    if output.is_dir() or not output.parent.is_dir():
        raise ConfigError(f"--output: expected a file in a folder that exists, got {output}")
    by_name = _FORMATS.get(output.suffix.lower())
    if output_format is None and by_name is None:
        raise ConfigError(
            f"--output: expected a file ending in {', '.join(_FORMATS)}, got {output}; --format "
            "names the format of others"
        )
    return output_format or by_name or "table"


def _write_tables(
    report: Report, output_format: ReportFormat, *, is_short: bool, is_file: bool
) -> str:
    """Write a report as a table: of the primary outcomes if it is short."""
    from advsweep.report.claims.sentences import lay_out_short
    from advsweep.report.tables.render import lay_out

    document: Document = lay_out_short(report) if is_short else lay_out(report)
    if is_file and output_format == "table":
        return write_table(document, width=_FILE_WIDTH, styled=False, wrapped=False)
    return write(document, output_format)


def _write_data(
    report: Report, store: Store, output_format: ReportFormat, filters: Sequence[Filter]
) -> str:
    """Write the numbers of a report, or its page."""
    if output_format == "html":
        from advsweep.report.html import render_page

        return render_page(report, store, where=filters)
    from advsweep.report.tables.render import render

    return render(report, output_format)


def _write_file(path: Path, text: str) -> None:
    """Write a text to a file.

    Raises:
        ConfigError: it cannot be written.
    """
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--output: {path} cannot be written ({reason_of(error)})") from error


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
