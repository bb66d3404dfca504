"""`advsweep list`: what there is to choose from."""

from __future__ import annotations

from typing import Annotated

import typer

from advsweep.cli import options
from advsweep.cli.catalogue import OTHERS, PARTS, find_plugins, list_members, print_members
from advsweep.cli.output import echo_line, print_listing, warn
from advsweep.errors import UnknownNameError, nearest
from advsweep.sweep.registry import config_groups

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
    listed with the reason; it does not affect other commands.
    """
    if what in ("plugin", "plugins"):  # the config groups would warn of what it lists
        if not (records := find_plugins()):
            warn("no installed package has a plug-in; docs/plugins.md says how to write one")
        print_listing(records, output_format, hidden=("group", "target"))
        return
    with config_groups(config_dirs or ()) as groups:
        lists = {group: f"{group}=NAME" for group in ("estimator", "method", *groups.registries)}
        lists |= {registry.kind: f"{key}=NAME" for key, registry in PARTS.items()}
        lists |= {"experiment": "+experiment=NAME", "importer": "advsweep import NAME"}
        lists |= {"metric": "advsweep report --columns NAME", "figure": "advsweep plot NAME"}
        lists["plugin"] = "names of other packages, in the lists of their kinds"
        plurals = {f"{group.removesuffix('s')}s": group for group in lists}
        group = plurals.get(what or "", what)
        if group is None:
            rows = [{"list": name, "used as": lists[of]} for name, of in sorted(plurals.items())]
            print_listing(rows, output_format)
        elif group not in lists:
            raise UnknownNameError(
                f"list: there is no list '{what}'; {nearest(f'{group}s', plurals)}"
            )
        elif group == "estimator":
            from advsweep.cli.estimators import list_records
            from advsweep.estimators import ESTIMATORS

            print_listing(list_records(), output_format, hidden=("held", "released"))
            if output_format == "table":
                names = ", ".join(sorted(ESTIMATORS.without_definition()))
                echo_line(f"Named in papers but not defined there: {names}", err=True)
        elif group in OTHERS:
            print_listing(OTHERS[group](), output_format)
        else:
            print_members(list_members(groups, group, groups.members(group)), output_format)
