"""`advsweep claims`: test a list of claims against the store."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from advsweep.cli import options
from advsweep.cli.output import echo_rendered
from advsweep.errors import ConfigError, nearest
from advsweep.names import YAML_SUFFIXES
from advsweep.store import open_store

EXAMPLES = (
    "advsweep claims demo",
    "advsweep claims mine.yaml --strict",
)


def claims(
    name: Annotated[
        str,
        typer.Argument(
            show_default=False,
            metavar="LIST",
            help="A YAML file of claims, or the name of an experiment that has one: demo.",
        ),
    ],
    strict: Annotated[
        bool,
        typer.Option(
            "--strict",
            help="Exit with code 1 unless every claim holds.",
        ),
    ] = False,
    store: options.Store = None,
    output_format: Annotated[
        Literal["table", "markdown", "latex", "csv", "json"],
        typer.Option(
            "--format",
            metavar="table|markdown|latex|csv|json",
            help="Choose the output format.",
        ),
    ] = "table",
) -> None:
    """Test claims against the runs of a store.

    LIST is a YAML file of statements, or the name of an experiment that comes with one. Each
    claim holds, is contradicted, or cannot be told from the runs. Exit code 2 if a claim is not
    judged, as it names a sweep, row or metric that does not exist.
    """
    from advsweep.report.claims.assertions import ClaimVerdict
    from advsweep.report.claims.lists import evaluate_claims, read_claim_list, render_claims

    listed = read_claim_list(find_claims(name))
    opened = open_store(store, create=False)
    results = evaluate_claims(opened, listed)
    echo_rendered(render_claims(results, output_format))
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
    lists = claim_lists()
    if name not in lists:
        raise ConfigError(
            f"claims: expected a .yaml file or an experiment with claims, got '{name}'; "
            f"{nearest(name, lists)}"
        )
    return lists[name]
