"""Checks overrides as they were typed: shells and haste repeat keys, and Hydra takes the last."""

from __future__ import annotations

from advsweep.cli.output import warn
from advsweep.errors import ConfigError
from advsweep.yaml_files import YAML_SUFFIXES


def check_overrides(overrides: list[str] | None) -> list[str]:
    """Returns the overrides; warns of a key that is given twice, of which the last one counts.

    Raises:
        ConfigError: a key is given twice in a row, as a shell does that expands `seed={0,1}`.
    """
    given = overrides or []
    places: dict[str, int] = {}
    for place, text in enumerate(given):
        key, equals, value = text.lstrip("+").partition("=")
        if (not equals and not text.endswith(YAML_SUFFIXES)) or text.startswith("~"):
            continue
        if not equals:
            key, value = "experiment", text
        before = places.get(key)
        if before == place - 1 and given[before] != text:
            first = given[before].partition("=")[2] or given[before]
            sign = "+" if key == "experiment" else ""
            raise ConfigError(
                f"{text}: expected each key once, got {key} twice, of which only the last would "
                f"count; sweep over both with {sign}{key}={first},{value} (a shell takes braces "
                "apart)"
            )
        if before is not None and given[before] != text:
            warn(f"{key} is given twice, {given[before]} and {text}; the last one counts")
        places[key] = place
    return given
