"""`advsweep claims`: evaluate a list of claims against a store."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from advsweep.cli import options
from advsweep.cli.completion import complete_claims
from advsweep.cli.output import echo_rendered
from advsweep.errors import ConfigError, nearest
from advsweep.store import open_store
from advsweep.yaml_files import YAML_SUFFIXES


def claims(
    name: Annotated[str, complete_claims],
    strict: bool = False,
    store: options.Store = None,
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
    from advsweep.report import (
        ClaimVerdict,
        evaluate_claims,
        read_claim_list,
        render_claims,
    )

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
    from advsweep.report import claim_lists

    if (path := Path(name)).suffix in YAML_SUFFIXES:
        return path
    known = claim_lists()
    if name not in known:
        raise ConfigError(
            f"claims: expected a .yaml file or an experiment with claims, got '{name}'; "
            f"{nearest(name, known)}"
        )
    return known[name]
