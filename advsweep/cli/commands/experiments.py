"""`advsweep experiments`: sweep files, the papers' and one's own."""

from __future__ import annotations

from typing import Any

from advsweep.cli.shared import options
from advsweep.cli.shared.options import ListFormat


def experiments(
    config_dirs: options.ConfigDir = None, output: options.Listing = ListFormat.TABLE
) -> None:
    """List the sweep files (+experiment=NAME) with their task and model, and what they are."""
    from advsweep.cli.shared.output import print_listing
    from advsweep.sweep.registry import config_groups

    with config_groups(config_dirs or ()) as groups:
        names = groups.members("experiment")
        composed = {name: groups.compose({"experiment": name}).config for name in names}
    rows: list[dict[str, Any]] = [
        {
            "name": name,
            "task": config["task"].get("title") or config["task"]["name"],
            "model": config["model"].get("path") or config["model"]["name"],
            "description": groups.first_comment("experiment", name),
        }
        for name, config in composed.items()
    ]
    print_listing(rows, output)
