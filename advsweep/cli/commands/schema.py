"""`advsweep schema`: a JSON schema of sweep files, so that editors complete and check them."""

from __future__ import annotations

from typing import Annotated

import typer

from advsweep.cli.shared import options
from advsweep.cli.shared.completion import complete_schema


def schema(
    kind: Annotated[
        str,
        typer.Argument(
            metavar="[KIND]",
            help="sweep for sweep files and presets, run for a run's whole config, or a group, "
            "such as estimator, for files of --config-dir.",
            autocompletion=complete_schema,
        ),
    ] = "sweep",
    config_dirs: options.ConfigDir = None,
) -> None:
    """Print a JSON schema of sweep files, for editors.

    An editor then completes keys, names and choices, shows what each means with its default and
    range, and marks what does not fit. The components of installed packages are in it. The first
    line of a sweep file names its schema:

        # yaml-language-server: $schema=advsweep.schema.json

    `advsweep init` writes both.

    Examples:
        advsweep schema > advsweep.schema.json
        advsweep schema > .vscode/advsweep.schema.json
        advsweep schema estimator --config-dir conf
    """
    from advsweep.cli.shared.output import print_json
    from advsweep.sweep.json_schema import make_schema
    from advsweep.sweep.registry import config_groups

    with config_groups(config_dirs or ()) as groups:
        print_json(make_schema(groups, kind))
