"""`advsweep claims`: evaluate claims against a store, the papers' theorems, or all their claims."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from advsweep.cli.shared import options
from advsweep.cli.shared.completion import complete_claims
from advsweep.cli.shared.output import echo_rendered, warn

if TYPE_CHECKING:
    from advsweep.report.papers.paper_claims import PartVerdict
    from advsweep.theory import TheoryResult

THEORY = "theory"
"""The name of the list whose claims are computed and need no store."""


class ClaimsFormat(Enum):
    """Output format of results."""

    TABLE = "table"
    MARKDOWN = "markdown"
    LATEX = "latex"
    CSV = "csv"
    JSON = "json"


def claims(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="LIST",
            help="A YAML file of claims, the name of a shipped list (demo), or theory: the papers' "
            "theorems and masses, computed.",
            autocompletion=complete_claims,
        ),
    ] = None,
    papers: Annotated[
        bool,
        typer.Option(
            "--papers",
            help="Show all claims of the five papers: each with its verdict, its scale and what "
            "judged it. Where the store has no runs, verdicts are those of the committed studies.",
        ),
    ] = False,
    strict: Annotated[
        bool, typer.Option("--strict", help="Exit with code 1 unless every claim holds.")
    ] = False,
    record: Annotated[
        Path | None,
        typer.Option(
            "--record",
            metavar="FILE",
            help="Write the verdicts into a CSV file, in place of earlier ones on these claims; "
            "show those of the file on claims whose runs the store lacks.",
        ),
    ] = None,
    spread: options.Spread = options.SpreadOption.POOLED,
    store: options.Store = None,
    output: Annotated[
        ClaimsFormat, typer.Option("--format", help="Choose the output format.")
    ] = ClaimsFormat.TABLE,
) -> None:
    """Test claims against the runs of a store.

    LIST is a YAML file of statements, or the name of a list that comes with advsweep. Each claim
    holds, is contradicted, or cannot be told from the runs. Exit code 2 if a claim is not judged,
    as it names a sweep, row or metric that does not exist.

    Examples:
        advsweep claims theory
        advsweep claims fade
        advsweep claims mine.yaml --strict
    """
    _check_combination(name, papers, strict, record)
    if papers:
        _show_papers(store, output)
        return
    assert name is not None
    if name == THEORY:
        _check_theory(output, strict)
        return
    from advsweep.report import (
        ClaimVerdict,
        SpreadKind,
        evaluate_claims,
        read_claim_list,
        render_claims,
    )
    from advsweep.report.papers.recorded_verdicts import (
        read_recorded,
        record_verdicts,
        with_recorded,
    )
    from advsweep.store import open_store

    path = find_claims(name)
    listed = read_claim_list(path)
    opened = open_store(store, create=False)
    results = evaluate_claims(opened, listed, SpreadKind(spread.value))
    if record is not None:
        count = record_verdicts(opened, path.stem, results, record)
        warn(f"{count} of {len(results.results)} verdicts recorded in {record}")
        results = with_recorded(results, path.stem, read_recorded(record))
    echo_rendered(render_claims(results, output.value))
    if results.count(ClaimVerdict.NOT_JUDGED):
        raise typer.Exit(2)
    if strict and results.count(ClaimVerdict.HOLDS) < len(results.results):
        raise typer.Exit(1)


def _check_combination(name: str | None, papers: bool, strict: bool, record: Path | None) -> None:
    """Refuses options that do not go together.

    Raises:
        ConfigError: neither or both of LIST and --papers, or options that need a list of claims.
    """
    from advsweep.errors import ConfigError

    if (name is None) is not papers:
        got = "neither" if name is None else "both"
        raise ConfigError(f"claims: expected LIST or --papers, got {got}")
    if papers and strict:
        raise ConfigError("claims: --strict needs a LIST; expected --papers alone")
    if record is not None and (papers or name == THEORY):
        raise ConfigError("claims: --record needs a LIST of claims about runs")


def _check_theory(output: ClaimsFormat, strict: bool) -> None:
    """Computes the checks of the papers' theorems and prints them."""
    from advsweep.report import ClaimVerdict
    from advsweep.theory import check_theory, render_theory

    results = check_theory()
    echo_rendered(render_theory(results, output.value))
    if strict and any(result.verdict is not ClaimVerdict.HOLDS for result in results):
        raise typer.Exit(1)


def _show_papers(store: str | None, output: ClaimsFormat) -> None:
    """Judges and prints all claims of the papers; a store is optional unless it was given."""
    from advsweep.errors import NoStoreError
    from advsweep.report.papers.paper_claims import judge_papers, read_paper_claims
    from advsweep.report.papers.recorded_verdicts import read_recorded
    from advsweep.report.papers.render_paper_claims import render_paper_claims
    from advsweep.store import open_store
    from advsweep.theory import check_theory

    try:
        opened = open_store(store, create=False)
    except NoStoreError:
        if store is not None:
            raise
        opened = None
    theory = [_part(result) for result in check_theory()]
    verdicts = judge_papers(read_paper_claims(), theory, opened, read_recorded())
    echo_rendered(render_paper_claims(verdicts, output.value))


def _part(result: TheoryResult) -> PartVerdict:
    """Returns a check's verdict as that of a claim."""
    from advsweep.report.papers.paper_claims import PartVerdict
    from advsweep.theory import describe

    return PartVerdict(
        id=result.check.id,
        verdict=result.verdict,
        n=result.comparisons,
        setting="exact",
        reason=describe(result),
    )


def find_claims(name: str) -> Path:
    """Returns the file of a list of claims, given its path or the name of a shipped list.

    Raises:
        ConfigError: no shipped list has this name; the message suggests the nearest one.
    """
    from advsweep.errors import ConfigError, nearest
    from advsweep.report import claim_lists
    from advsweep.yaml_files import YAML_SUFFIXES

    if (path := Path(name)).suffix in YAML_SUFFIXES:
        return path
    known = claim_lists()
    if name not in known:
        raise ConfigError(
            f"claims: expected a .yaml file or the name of a list, got '{name}'; "
            f"{nearest(name, [*known, THEORY])}"
        )
    return known[name]
