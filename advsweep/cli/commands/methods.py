"""`advsweep methods`: the presets of whole methods."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from advsweep.cli.shared import options
from advsweep.cli.shared.options import ListFormat

AXES = ("estimator", "objective", "rollout")


def methods(
    config_dirs: options.ConfigDir = None, output: options.Listing = ListFormat.TABLE
) -> None:
    """List the presets of whole methods (method=NAME) by their three axes, with the source."""
    from advsweep.cli.shared.output import print_listing
    from advsweep.sweep.registry import config_groups

    with config_groups(config_dirs or ()) as groups:
        composed = {m: groups.compose({"method": m}).config for m in groups.members("method")}
    show = dict if output is ListFormat.JSON else _as_overrides
    rows: list[dict[str, Any]] = [
        {
            "name": name,
            **{axis: show(config[axis]) for axis in AXES},
            "description": groups.first_comment("method", name),
        }
        for name, config in composed.items()
    ]
    print_listing(rows, output)


def _as_overrides(node: Mapping[str, Any]) -> str:
    """A component and what is set of it, such as `clipped ratio=sequence`."""
    fields = (f"{key}={value}" for key, value in node.items() if key != "name")
    return " ".join([node["name"], *fields])
