"""Objectives for other trainers, by the names that the command line knows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from advsweep.config.groups import DESCRIPTION, conf_directory
from advsweep.objectives import OBJECTIVES
from advsweep.objectives.base import Objective
from advsweep.yaml_files import read_yaml


def lacks_length(objective: Objective) -> bool:
    """Return whether the loss divides by the length of the longest completion, which is not set."""
    return objective.for_completions(1) != objective


def build_objective(spec: Objective | Mapping[str, Any] | str, where: str = "") -> Objective:
    """Return an objective, built from its name or a mapping with a `name` if it is one of these.

    The name may be that of a file in `conf/objective`, such as gspo, whose fields the mapping's
    replace.

    Raises:
        ConfigError: the name, a key or a value does not fit.
    """
    if isinstance(spec, Objective):
        return spec
    node = {"name": spec} if isinstance(spec, str) else dict(spec)
    for path in (conf_directory() / OBJECTIVES.kind).glob("*.yaml"):
        if path.stem == node.get("name"):
            preset = read_yaml(path)
            del preset[DESCRIPTION]
            changes = {key: value for key, value in node.items() if key != "name"}
            node = {**preset, **changes}
            break
    return OBJECTIVES.build(node, where=where)
