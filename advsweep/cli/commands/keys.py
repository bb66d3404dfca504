"""`advsweep keys`: the keys of a config, with defaults and ranges."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from advsweep.backends.base import RunParameters
from advsweep.cli import options
from advsweep.cli.catalogue import OF_SWEEPS, PARTS, Records, group_rows, rows_of
from advsweep.cli.deferred_torch import defer_torch
from advsweep.cli.output import echo_line, print_listing
from advsweep.config.groups import ConfigGroups
from advsweep.errors import UnknownNameError, nearest
from advsweep.sweep.registry import config_groups
from advsweep.synonyms import KEYS
from advsweep.writing import show_value

# Characters of a terminal that have room for a table.
_WIDTH = 140

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
    defer_torch()
    with config_groups() as groups:
        if not words:
            rows = _default_rows(groups)
        elif len(words) == 1 and ("=" in words[0] or words[0] in _group_names(groups)):
            group, _, name = words[0].partition("=")
            rows = group_rows(groups, group, name or None)
        else:
            rows = _search(groups, [word.lower() for word in words])
    columns = shutil.get_terminal_size().columns
    if output_format == "table" and sys.stdout.isatty() and columns < _WIDTH:
        _print_narrow(rows, columns)
        return
    print_listing(rows, output_format)


def _print_narrow(rows: Records, columns: int) -> None:
    """Print each key with its default on a line, and its meaning indented below."""
    of_several = len({row["of"] for row in rows}) > 1
    for row in rows:
        facts = [row["type"], row["range"]]
        if of_several:
            facts.insert(0, row["of"])
        head = f"{row['key']} = {show_value(row['default'])}"
        aside = "; ".join(filter(None, facts))
        for text, indent in ((f"{head}  ({aside})", "  "), (f"    {row['meaning']}", "    ")):
            # A terminal would break the lines within words.
            for line in textwrap.wrap(text, columns, subsequent_indent=indent):
                echo_line(line)


def _group_names(groups: ConfigGroups) -> list[str]:
    return [*groups.registries, *PARTS, *OF_SWEEPS]


def _default_rows(groups: ConfigGroups) -> Records:
    """Return the keys of a run as it is without any setting."""
    config = groups.compose({})
    rows = rows_of(RunParameters, config)
    for group, registry in groups.registries.items():
        name = config[group]["name"]
        group_row = {
            "key": group,
            "of": name,
            "default": name,
            "type": "a name",
            "range": "",
            "meaning": f"one of {len(registry.names())}: advsweep list {group}",
        }
        rows.append(group_row)
        rows += rows_of(registry.get(name), config[group], group)
    return rows


def _search(groups: ConfigGroups, words: Sequence[str]) -> Records:
    """Return the keys that have all words; those that have them in the key itself come first.

    Raises:
        UnknownNameError: no key has them.
    """
    rows = rows_of(RunParameters, {})
    for group in _group_names(groups):
        rows += group_rows(groups, group)
    matching = [row for row in rows if _has(row, words)]
    if not matching:
        names = {row["key"].rpartition(".")[2] for row in rows}
        names.update(_group_names(groups))
        sought = " ".join(words)
        raise UnknownNameError(f"no key has {sought}; {nearest(sought, names, KEYS)}")
    return sorted(matching, key=lambda row: not all(word in row["key"] for word in words))


def _has(row: Mapping[str, Any], words: Sequence[str]) -> bool:
    text = f"{row['key']} {row['range']} {row['meaning']}".lower()
    return all(word in text for word in words)
