"""`advsweep claims`: evaluate a list of claims against a store."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from advsweep.cli.shared import options
from advsweep.cli.shared.completion import complete_claims
from advsweep.cli.shared.output import echo_rendered

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
        str,
        typer.Argument(
            metavar="LIST",
            help="A YAML file of claims, the name of a shipped list (demo), or theory: the papers' "
            "theorems and masses, computed.",
            autocompletion=complete_claims,
        ),
    ],
    strict: Annotated[
        bool, typer.Option("--strict", help="Exit with code 1 unless every claim holds.")
    ] = False,
    store: options.Store = None,
    output: Annotated[
        ClaimsFormat, typer.Option("--format", help="Choose the output format.")
    ] = ClaimsFormat.TABLE,
) -> None:
    """Evaluate claims against the runs of a store: holds, contradicted, cannot tell, ...

    Exit code 2 if a claim is not judged, as it names a sweep, row or metric that does not exist.
    """
    if name == THEORY:
        _check_theory(output, strict)
        return
    from advsweep.report import ClaimVerdict, evaluate_claims, read_claim_list, render_claims
    from advsweep.store import open_store

    listed = read_claim_list(find_claims(name))
    results = evaluate_claims(open_store(store, create=False), listed)
    echo_rendered(render_claims(results, output.value))
    if results.count(ClaimVerdict.NOT_JUDGED):
        raise typer.Exit(2)
    if strict and results.count(ClaimVerdict.HOLDS) < len(results.results):
        raise typer.Exit(1)


def _check_theory(output: ClaimsFormat, strict: bool) -> None:
    """Computes the checks of the papers' theorems and prints them."""
    from advsweep.report import ClaimVerdict
    from advsweep.theory import check_theory, render_theory

    results = check_theory()
    echo_rendered(render_theory(results, output.value))
    if strict and any(result.verdict is not ClaimVerdict.HOLDS for result in results):
        raise typer.Exit(1)


def find_claims(name: str) -> Path:
    """Returns the file of a list of claims, given its path or the name of a shipped list.

    Raises:
        ConfigError: no shipped list has this name; the message suggests the nearest one.
    """
    from advsweep.errors import ConfigError, nearest
    from advsweep.report import claim_lists

    if (path := Path(name)).suffix in (".yaml", ".yml"):
        return path
    known = claim_lists()
    if name not in known:
        raise ConfigError(
            f"claims: expected a .yaml file or the name of a list, got '{name}'; "
            f"{nearest(name, [*known, THEORY])}"
        )
    return known[name]
