"""`advsweep schema`: the JSON schema of sweep files."""

from __future__ import annotations

from advsweep.cli import options
from advsweep.cli.output import print_json
from advsweep.sweep.json_schema import make_schema
from advsweep.sweep.registry import config_groups

EXAMPLES = (
    "advsweep schema > advsweep.schema.json",
    "advsweep schema > .vscode/advsweep.schema.json",
)


def schema(
    config_dirs: options.ConfigDirs = None,
) -> None:
    """Print a JSON schema of sweep files, for editors.

    An editor then completes keys, names and choices, shows what each means with its default and
    range, and marks what does not fit. The components of installed packages are in it. The first
    line of a sweep file names its schema:

        # yaml-language-server: $schema=advsweep.schema.json

    `advsweep init` writes both.
    """
    with config_groups(config_dirs or ()) as groups:
        print_json(make_schema(groups))
