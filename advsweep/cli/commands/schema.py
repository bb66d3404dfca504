"""`advsweep schema`: the JSON schema of sweep files, or of what a command prints."""

from __future__ import annotations

from typing import Annotated

import typer

from advsweep.cli import options
from advsweep.cli.json_documents import find_document
from advsweep.cli.output import print_json
from advsweep.sweep.json_schema import make_schema
from advsweep.sweep.registry import config_groups

EXAMPLES = (
    "advsweep schema > advsweep.schema.json",
    "advsweep schema report",
)


def schema(
    document: Annotated[
        str | None,
        typer.Argument(
            show_default=False,
            metavar="[DOCUMENT]",
            help="What a command prints with --format json, such as report or ls-sweeps; `advsweep "
            "list documents` has them all (default: sweep files).",
        ),
    ] = None,
    config_dirs: options.ConfigDirs = None,
) -> None:
    """Print a JSON schema of sweep files, or of a document.

    With the schema of sweep files an editor completes keys, names and choices, shows what each
    means with its default and range, and marks what does not fit. The components of installed
    packages are in it. The first line of a sweep file names its schema:

        # yaml-language-server: $schema=advsweep.schema.json

    `advsweep init` writes both.
    """
    if document is not None:
        print_json(find_document(document).schema())
        return
    with config_groups(config_dirs or ()) as groups:
        print_json(make_schema(groups))
