"""`advsweep report` and `claims`: tables of a sweep, and verdicts, from the store alone."""

from __future__ import annotations

import functools
import gc
from pathlib import Path
from typing import Literal

import typer

from advsweep.cli.output import echo_line, echo_rendered
from advsweep.errors import ConfigError, nearest
from advsweep.store import open_store
from advsweep.writing import write
from advsweep.yaml_files import YAML_SUFFIXES


def report(
    sweep: str | None = None,
    where: list[str] | None = None,
    rows: str | None = None,
    columns: str | None = None,
    sort: str | None = None,
    baseline: str | None = None,
    difference: float | None = None,
    at: str | None = None,
    outcomes: str | None = None,
    ended_early: str | None = None,
    assertions: list[str] | None = None,
    full: bool = False,
    store: str | None = None,
    output: Literal["table", "markdown", "latex", "csv", "json", "html"] = "table",
) -> None:
    """Each row is an estimator, averaged over its seeds; base models and guessing have rows of
    their own. Differences of the primary outcomes to the first row are tested seed by seed, and
    corrected together.

    Arguments:
        [SWEEP] (sweep): A sweep's name (default: every run).

    Options:
        --rows KEY,...: Group runs by these keys (default: all that vary).
        --columns NAME,...: Show these metrics: pass@8, pass@1[level=3], collapse/acr@end,
            pass@32@pass@1=0.45; a key gives one column for each of its values.
        --sort NAME: Sort by a column or a key; rank:NAME by the interval of the rank.
        --baseline ROW: Compare with this row: grpo, 'estimator=grpo group_size=8', or none.
        --difference D: Compute the seeds that would show this difference.
        --at WHERE: Compare at equal steps, rollouts, tokens, seconds, or pass@1=0.5.
        --outcomes NAME,...: Test these columns.
        --ended-early WHAT (ended_early): Runs that end early: keep, failed or a number.
        --assert EXPR (assertions): Exit with code 1 unless the data support this.
        --full: Print every column, difference and note.
        --format NAME (output): table, markdown, latex, csv, json, or html: a page with figures.

    Examples:
        advsweep report demo
        advsweep report demo --full
        advsweep report demo --baseline grpo --columns pass@1,pass@8
        advsweep report demo --format html > demo.html
        advsweep report demo --assert 'pass@1[fade] >= pass@1[grpo] - 0.02'
    """
    from advsweep.report.claims.assertions import ClaimVerdict, evaluate_assertion, parse_assertion
    from advsweep.report.claims.sentences import lay_out_short
    from advsweep.report.data.columns import parse_cutoff, parse_outcomes
    from advsweep.report.data.early_ends import KEEP, parse_ended_early
    from advsweep.report.data.runs import parse_where, split_list
    from advsweep.report.tables.build import build_report
    from advsweep.report.tables.render import render

    filters = [filter for text in where or () for filter in parse_where(text)]
    cutoff = None if at is None else parse_cutoff(at)
    names = None if columns is None else split_list(columns)
    asserted = [parse_assertion(text) for text in assertions or ()]
    declared = [] if outcomes is None else parse_outcomes(split_list(outcomes), "--outcomes")
    opened = open_store(store, create=False)
    build = functools.partial(
        build_report,
        opened,
        sweep,
        rows=None if rows is None else split_list(rows),
        where=filters,
        at=cutoff,
        baseline=baseline,
        outcomes=declared,
        declared_by="--outcomes",
        ended_early=parse_ended_early(ended_early or KEEP),
    )
    ranked = sort is not None and sort.startswith("rank:")
    # A report of thousands of runs makes many objects and no cycles: collecting takes a third.
    gc.disable()
    try:
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
        if output == "table" and not full and names is None:
            echo_rendered(write(lay_out_short(shown)))
        elif output == "html":
            from advsweep.report.html import render_page

            echo_rendered(render_page(shown, opened, where=filters))
        else:
            echo_rendered(render(shown, output))
    finally:
        gc.enable()
    for result in results:
        echo_line(result.text, err=True)
    if any(result.verdict is not ClaimVerdict.HOLDS for result in results):
        raise typer.Exit(1)


# audit


def audit(table: Path, output: Literal["table", "markdown", "json"] = "table") -> None:
    """TABLE.csv has a row for each number: name, benchmark and value, as printed, the size of the
    benchmark, and as far as they are known samples, k, seeds (runs whose mean it is), spread (the
    standard deviation over them), group (rows are compared within one) and bold. The benchmark
    of an average is `mean`. Exit code 1 if a number cannot be as it is printed.

    Arguments:
        TABLE.csv (table): The numbers, all in percent or all as shares.

    Options:
        --format (output): Choose the output format.

    Examples:
        advsweep audit table.csv
        advsweep audit table.csv --format markdown > audit.md
    """
    from advsweep.report.audit import audit as check
    from advsweep.report.audit import lay_out, read_cells

    found = check(read_cells(table))
    echo_rendered(write(found if output == "json" else lay_out(found), output))
    if found.findings:
        raise typer.Exit(1)


# claims


def claims(
    name: str,
    strict: bool = False,
    store: str | None = None,
    output: Literal["table", "markdown", "latex", "csv", "json"] = "table",
) -> None:
    """LIST is a YAML file of statements, or the name of an experiment that comes with one. Each
    claim holds, is contradicted, or cannot be told from the runs. Exit code 2 if a claim is not
    judged, as it names a sweep, row or metric that does not exist.

    Arguments:
        LIST (name): A YAML file of claims, or the name of an experiment that has one: demo.

    Options:
        --strict: Exit with code 1 unless every claim holds.
        --format (output): Choose the output format.

    Examples:
        advsweep claims demo
        advsweep claims mine.yaml --strict
    """
    from advsweep.report.claims.assertions import ClaimVerdict
    from advsweep.report.claims.lists import evaluate_claims, read_claim_list, render_claims

    listed = read_claim_list(find_claims(name))
    opened = open_store(store, create=False)
    results = evaluate_claims(opened, listed)
    echo_rendered(render_claims(results, output))
    if results.count(ClaimVerdict.NOT_JUDGED):
        raise typer.Exit(2)
    if strict and results.count(ClaimVerdict.HOLDS) < len(results.results):
        raise typer.Exit(1)


def find_claims(name: str) -> Path:
    """Return the file of a list of claims, given its path or the name of an experiment.

    Raises:
        ConfigError: no experiment of this name has claims; the message suggests the nearest one.
    """
    from advsweep.report.claims.lists import claim_lists

    if (path := Path(name)).suffix in YAML_SUFFIXES:
        return path
    known = claim_lists()
    if name not in known:
        raise ConfigError(
            f"claims: expected a .yaml file or an experiment with claims, got '{name}'; "
            f"{nearest(name, known)}"
        )
    return known[name]
