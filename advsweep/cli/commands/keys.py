"""`advsweep keys`: the keys of a config, with defaults and ranges."""

from __future__ import annotations

from typing import Annotated

import typer

from advsweep.backends.base import RunParameters
from advsweep.cli import options
from advsweep.cli.catalogue import OF_SWEEPS, PARTS, Records, group_rows, rows_of
from advsweep.cli.output import print_listing
from advsweep.errors import UnknownNameError, nearest
from advsweep.sweep.registry import config_groups

EXAMPLES = (
    "advsweep keys",
    "advsweep keys learning rate",
    "advsweep keys estimator=fade --format json",
)


def keys(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            show_default=False,
            metavar="[WORD]...",
            help="A group, such as optimizer, task.verifier or sweep.tune, for the keys of all "
            "its components; GROUP=NAME for those of one; else words that a key, its range "
            "or its meaning has (default: the keys of a run as it is without any setting).",
        ),
    ] = None,
    output_format: options.ListFormat = "table",
) -> None:
    """List or search the config keys: default, range, meaning.

    These are the keys that `run`, `sweep` and sweep files take: KEY=VALUE. A group itself is a
    key, too: estimator=fade chooses the component whose keys are estimator.*.
    """
    with config_groups() as groups:
        rows: Records = []
        names = [*groups.registries, *PARTS, *OF_SWEEPS]
        group, equals, name = words[0].partition("=") if words else ("", "", "")
        if not words:  # numbers, groups, and the fields of their components
            config = groups.compose({})
            rows += rows_of(RunParameters, config)
            for group, registry in groups.registries.items():
                name = config[group]["name"]
                others = f"one of {len(registry.names())}: advsweep list {group}"
                row = {"key": group, "of": name, "default": name, "type": "a name", "range": ""}
                rows.append({**row, "meaning": others})
                rows += rows_of(registry.get(name), config[group], group)
        elif len(words) == 1 and (equals or group in names):
            rows += group_rows(groups, group, name or None)
        else:
            sought = [word.lower() for word in words]
            every = [
                *rows_of(RunParameters, {}),
                *(r for n in names for r in group_rows(groups, n)),
            ]
            for row in every:
                text = f"{row['key']} {row['range']} {row['meaning']}".lower()
                if all(word in text for word in sought):
                    rows.append(row)
            if not rows:
                known = {row["key"].rpartition(".")[2] for row in every}
                hint = nearest(" ".join(sought), {*known, *names})
                raise UnknownNameError(f"no key has {' '.join(sought)}; {hint}")
            rows.sort(key=lambda row: not all(word in row["key"] for word in sought))
    print_listing(rows, output_format)
