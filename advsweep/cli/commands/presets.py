"""`advsweep methods` and `advsweep experiments`: list methods and sweep files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from advsweep.cli.shared import options
from advsweep.cli.shared.options import ListFormat

AXES = ("estimator", "objective", "rollout")


def methods(
    config_dirs: options.ConfigDir = None, output: options.Listing = ListFormat.TABLE
) -> None:
    """List the presets of methods (method=NAME).

    A method is an estimator with the objective and the rollout policy of its paper. Prints the
    three, and the source.

    Examples:
        advsweep methods
    """
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
    print_listing(rows, output, optional=("objective", "rollout", "estimator"))


def _as_overrides(node: Mapping[str, Any]) -> str:
    """Formats a component with its fields, such as `clipped ratio=sequence`."""
    fields = (f"{key}={value}" for key, value in node.items() if key != "name")
    return " ".join([node["name"], *fields])


def experiments(
    config_dirs: options.ConfigDir = None, output: options.Listing = ListFormat.TABLE
) -> None:
    """List the sweep files (+experiment=NAME).

    Prints the task, the model and a description of each sweep file that comes with advsweep or lies
    in DIR/experiment of --config-dir.

    Examples:
        advsweep experiments
        advsweep experiments --config-dir conf
    """
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
    print_listing(rows, output, optional=("model", "task"))
