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
    assertions: list[str] | None = None,
    full: bool = False,
    store: str | None = None,
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
        --sort NAME: Sort by a column, best first, or by a key; rank:NAME sorts by the interval of
            each row's rank in a column, and shows it.
        --baseline ROW: Compare rows with this row: grpo, or 'estimator=grpo group_size=8';
            none for no comparison (default: the first row).
        --difference D: Compute the seeds needed to detect this difference (default: the
            observed one).
        --at WHERE: Compare at equal steps, rollouts, tokens or seconds (the most that all
            runs have, or rollouts=50000), or at an equal value of a metric (pass@1=0.5).
        --assert EXPR (assertions): Exit with code 1 unless the data support this:
            'pass@1[fade] >= pass@1[grpo] - 0.02'; may be repeated.
        --full: Print every column, difference and note.
        --format (output): Choose the output format; html has figures and every run.

    Examples:
        advsweep report demo
        advsweep report demo --full
        advsweep report demo --baseline grpo --columns pass@1,pass@8
        advsweep report demo --format html > demo.html
        advsweep report demo --assert 'pass@1[fade] >= pass@1[grpo] - 0.02'
    """
    from advsweep.report.claims.assertions import ClaimVerdict, evaluate_assertion, parse_assertion
    from advsweep.report.claims.sentences import lay_out_short
    from advsweep.report.data.columns import parse_cutoff
    from advsweep.report.data.runs import parse_where, split_list
    from advsweep.report.tables.build import build_report
    from advsweep.report.tables.render import render

    filters = [filter for text in where or () for filter in parse_where(text)]
    cutoff = None if at is None else parse_cutoff(at)
    names = None if columns is None else split_list(columns)
    asserted = [parse_assertion(text) for text in assertions or ()]
    opened = open_store(store, create=False)
    build = functools.partial(
        build_report,
        opened,
        sweep,
        rows=None if rows is None else split_list(rows),
        where=filters,
        at=cutoff,
        baseline=baseline,
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
