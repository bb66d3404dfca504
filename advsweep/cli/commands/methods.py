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
    from advsweep.config.compose import Composer
    from advsweep.config.conf_files import conf_directory, first_comment
    from advsweep.sweep.planning.builder import GROUPS, KEYS

    folders = config_dirs or []
    with Composer(GROUPS, KEYS, folders) as composer:
        composed = {m: composer.compose({"method": m}).config for m in composer.members("method")}
    show = dict if output is ListFormat.JSON else _as_overrides
    rows: list[dict[str, Any]] = [
        {
            "name": name,
            **{axis: show(config[axis]) for axis in AXES},
            "description": first_comment("method", name, [*folders, conf_directory()]),
        }
        for name, config in composed.items()
    ]
    print_listing(rows, output)


def _as_overrides(node: Mapping[str, Any]) -> str:
    """A component and what is set of it, such as `clipped ratio=sequence`."""
    fields = (f"{key}={value}" for key, value in node.items() if key != "name")
    return " ".join([node["name"], *fields])
