"""`advsweep list`: what there is to choose from."""

from __future__ import annotations

from typing import Annotated

import typer

from advsweep.cli import options
from advsweep.cli.catalogue import (
    OTHERS,
    PARTS,
    find_plugins,
    list_estimators,
    list_members,
    print_members,
)
from advsweep.cli.deferred_torch import defer_torch
from advsweep.cli.output import echo_line, print_listing, warn
from advsweep.config.groups import ConfigGroups
from advsweep.errors import UnknownNameError, nearest
from advsweep.estimators import ESTIMATORS
from advsweep.sweep.registry import config_groups
from advsweep.synonyms import VALUES, hint

EXAMPLES = (
    "advsweep list",
    "advsweep list estimators",
    "advsweep list tasks --config-dir conf",
    "advsweep list plugins --format json",
)


def list_(
    what: Annotated[
        str | None,
        typer.Argument(
            show_default=False,
            metavar="[WHAT]",
            help="estimators, objectives, methods (method=NAME: estimator, objective and rollout "
            "policy of a paper), tasks, experiments (sweep files, +experiment=NAME), "
            "metrics, figures, plugins, or another list (default: the lists there are).",
        ),
    ] = None,
    config_dirs: options.ConfigDirs = None,
    output_format: options.ListFormat = "table",
) -> None:
    """List estimators, tasks, methods, experiments, plug-ins, ...

    `advsweep describe NAME` has everything about one of them; csv and json have more columns
    than a table. A plug-in that is broken, or whose name advsweep or another package has, is
    listed with the reason; it does not affect other commands. A file of --config-dir that cannot be
    read is left out with a warning.
    """
    defer_torch()
    if what in ("plugin", "plugins"):  # the config groups would warn of what it lists
        _print_plugins(output_format)
        return
    with config_groups(config_dirs or ()) as groups:
        uses = _uses(groups)
        kinds = {f"{kind.removesuffix('s')}s": kind for kind in uses}  # by their plurals
        kind = what if what is None else kinds.get(what, what)
        if kind is None:
            rows = [{"list": plural, "used as": uses[of]} for plural, of in sorted(kinds.items())]
            print_listing(rows, output_format)
        elif kind not in uses:
            near = hint(f"{VALUES}.list", kind) or nearest(f"{kind}s", kinds, f"{VALUES}.list")
            raise UnknownNameError(f"list: there is no list '{what}'; {near}")
        elif kind == "estimator":
            _print_estimators(output_format)
        elif kind in OTHERS:
            print_listing(OTHERS[kind](), output_format)
        else:
            print_members(list_members(groups, kind, groups.members(kind)), output_format)


def _uses(groups: ConfigGroups) -> dict[str, str]:
    """Return what there are lists of, and how a member of each is used."""
    uses = {group: f"{group}=NAME" for group in ("estimator", "method", *groups.registries)}
    for key, registry in PARTS.items():
        uses[registry.kind] = f"{key}=NAME"
    return {
        **uses,
        "experiment": "+experiment=NAME",
        "importer": "advsweep import NAME",
        "metric": "advsweep report --columns NAME",
        "figure": "advsweep plot NAME",
        "document": "advsweep schema NAME, what a command prints with --format json",
        "plugin": "names of other packages, in the lists of their kinds",
    }


def _print_plugins(output_format: options.ListFormat) -> None:
    records = find_plugins()
    if not records:
        warn("no installed package has a plug-in; docs/plugins.md says how to write one")
    print_listing(records, output_format, hidden=("group", "target"))


def _print_estimators(output_format: options.ListFormat) -> None:
    print_listing(list_estimators(), output_format, hidden=("held", "released"))
    if output_format == "table":
        names = ", ".join(sorted(ESTIMATORS.without_definition()))
        echo_line(f"Named in papers but not defined there: {names}", err=True)
