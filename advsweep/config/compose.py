"""Turns the points of spaces into configs: checks keys and names, composes, sets values.

`PointComposer` gives the config of each point. Errors are gathered by `MessageCounts`, one line for
each message however many runs it concerns.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from typing import Any

from advsweep.components import Plain, default_of, fields_of
from advsweep.config.groups import (
    PRESET_GROUPS,
    ConfigGroups,
    first_line,
    is_unresolved,
)
from advsweep.config.space import Assignment, Delete
from advsweep.errors import ConfigError, counted

LISTED_MESSAGES = 5


def patch(groups: ConfigGroups, composed: Plain, values: Mapping[str, Any]) -> Plain:
    """Return a copy of a composed config with values set, or deleted, by dotted key.

    Raises:
        ConfigError: a key leads through a value that is not a mapping, an interpolation cannot
            be resolved, or a value that must be given is missing.
    """
    config = dict(composed)
    for key, value in values.items():
        _set(groups, config, key, value)
    if not is_unresolved(config):
        return config
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        container = OmegaConf.to_container(
            OmegaConf.create(config), resolve=True, throw_on_missing=True
        )
    except OmegaConfBaseException as error:
        where = f"{error.full_key}: " if error.full_key else ""
        raise ConfigError(f"{where}{first_line(error)}") from error
    assert isinstance(container, dict)
    return {str(k): v for k, v in container.items()}


def _set(groups: ConfigGroups, config: Plain, key: str, value: Any) -> None:
    """Set a value, or delete it for `Delete`, by dotted key."""
    *path, last = key.split(".")
    node = config
    for depth, part in enumerate(path):
        child = node.get(part)
        if isinstance(value, Delete) and not isinstance(child, Mapping):
            return
        if depth == 1 and child is None:
            child = _default_of_field(groups, group=path[0], node=node, name=part)
        if isinstance(child, str) and (depth > 0 or part in groups.registries):
            child = {"name": child}
        if child is None:
            child = {}
        if not isinstance(child, Mapping):
            raise ConfigError(
                f"{key}: expected {'.'.join(path[: depth + 1])} to be a mapping, got {child!r}"
            )
        # The composed config is shared, so every mapping on the way is copied before it changes.
        node[part] = dict(child)
        node = node[part]
    if isinstance(value, Delete):
        node.pop(last, None)
    else:
        node[last] = value


def _default_of_field(groups: ConfigGroups, *, group: str, node: Plain, name: str) -> Any:
    """Return the default of a component's field, which its node may leave out; None for none."""
    registry = groups.registries.get(group)
    if registry is None or str(node.get("name")) not in registry:
        return None
    field = fields_of(registry.get(node["name"])).get(name)
    return None if field is None else default_of(field)


def check_literal(value: Any, where: str) -> None:
    """Refuse interpolations in a value from a store: they could read environment variables.

    Args:
        where: what the value is, for the message.

    Raises:
        ConfigError: a text holds an interpolation.
    """
    # The text of a nested value has all of its keys and texts, none of them with another `${`.
    if "${" in repr(value):
        raise ConfigError(f"{where}: expected plain values from the store, got an interpolation")


class PointComposer:
    """Composes the configs of the points of a sweep.

    Args:
        points: all points.
        optional: keys that are left out for components that lack them, as long as another
            chosen component has them. Any other key that a component lacks is an error.

    Attributes:
        partial_keys: sentences about the optional keys that were left out for some components.
    """

    def __init__(
        self, groups: ConfigGroups, points: Iterable[Assignment], optional: Collection[str] = ()
    ) -> None:
        self._groups = groups
        # A key or a name is looked up once, a wrong one too: to say what it may mean takes .3 s.
        self._checked: dict[tuple[str, str], str | ConfigError] = {}
        self._lacking: dict[str, set[str]] = {}
        self._overridden = frozenset(optional)
        self.partial_keys: list[str] = []
        self._find_partial_keys(points, optional)

    def _find_partial_keys(
        self, points: Iterable[Assignment], optional_keys: Collection[str]
    ) -> None:
        """Find the optional keys that some of the chosen components have and others lack."""
        groups = self._groups
        optional = [key for key in optional_keys if key.partition(".")[0] in groups.registries]
        if not optional:
            return
        chosen: dict[str, set[str]] = {key.partition(".")[0]: set() for key in optional}
        # Whether a key is optional depends on the components of all points, so they come first.
        for point in points:
            with suppress(ConfigError):  # `config` raises it, with the number of runs
                config = groups.compose(self._split(point)[0])
                for group, names in chosen.items():
                    names.add(config[group]["name"])
        for key in optional:
            group, *path = key.split(".")
            if not path:
                continue
            registry = groups.registries[group]
            classes = {name: registry.get(name, where=group) for name in sorted(chosen[group])}
            having = [name for name, cls in classes.items() if path[0] in fields_of(cls)]
            lacking = [name for name in classes if name not in having]
            if not having or not lacking:
                continue
            self._lacking[key] = set(lacking)
            have = "has" if len(lacking) == 1 else "have"
            text = (
                f"{group}.{path[0]}: set for {', '.join(having)} alone, as "
                f"{', '.join(lacking)} {have} no such parameter"
            )
            if text not in self.partial_keys:
                self.partial_keys.append(text)

    def config(self, point: Assignment) -> tuple[Plain, Mapping[str, Any]]:
        """Compose the config of a point.

        Returns:
            The config, and the values that were set in it by dotted key.

        Raises:
            ConfigError: a key or a name does not exist, or as `ConfigGroups.compose` and `patch`.
        """
        choices, values = self._split(point)
        composed = self._groups.compose(choices)
        for key, lacking in self._lacking.items():
            if composed[key.partition(".")[0]]["name"] in lacking:
                values.pop(key, None)
        return patch(self._groups, composed, values), values

    def located(self, point: Assignment, error: ConfigError) -> ConfigError:
        """Return an error on a point with the line of its sweep file that gives the value.

        An override gives a value in place of the file's: its error stays as it is.
        """
        if str(error).partition(": ")[0] in self._overridden:
            return error
        return self._groups.located(point.get("experiment"), error)

    def _split(self, assignment: Assignment) -> tuple[dict[str, str], dict[str, Any]]:
        """Divide an assignment into the members that are chosen and the values to set."""
        choices: dict[str, str] = {}
        values: dict[str, Any] = {}
        for key, value in assignment.items():
            # A sweep may have 100,000 runs, so a key or a name is looked up once.
            is_group = key in self._groups.names
            entry = (key, repr(value) if is_group else "")
            if entry not in self._checked:
                try:
                    self._checked[entry] = self._check(key, value, is_group)
                except ConfigError as error:
                    self._checked[entry] = error
            member = self._checked[entry]
            if isinstance(member, ConfigError):
                raise member
            if not is_group:
                values[key] = self._groups.value(key, value)
            elif member:
                choices[key] = member
        return choices, values

    def _check(self, key: str, value: Any, is_group: bool) -> str:
        """Return the member of a group that a value stands for; empty for no preset or a value."""
        if not is_group:
            self._groups.check_key(key)
            return ""
        if value is not None and not isinstance(value, Delete):
            return self._groups.member(key, value)
        if key in PRESET_GROUPS:
            return ""
        members = ", ".join(self._groups.members(key))
        raise ConfigError(f"{key}: expected one of {members}, as every run has one")


class MessageCounts:
    """Messages with the number of runs that each concerns.

    Args:
        runs: the number of all runs.
    """

    def __init__(self, runs: int) -> None:
        self._runs = runs
        self._counts: Counter[str] = Counter()

    def add(self, *messages: str) -> None:
        self._counts.update(messages)

    def lines(self, kind: str) -> list[str]:
        """Return the first messages, each with its number of runs unless it concerns all.

        Args:
            kind: what the messages are, such as `warnings`.
        """
        lines = []
        for message, count in list(self._counts.items())[:LISTED_MESSAGES]:
            some = f" ({counted(count, 'run')})" if count < self._runs else ""
            lines.append(f"{message}{some}")
        more = len(self._counts) - LISTED_MESSAGES
        if more > 0:
            lines.append(f"... and {more} {kind} more")
        return lines

    def check(self) -> None:
        """Raise the messages, if there are any, as one error.

        Raises:
            ConfigError: there are messages.
        """
        if not self._counts:
            return
        lines = self.lines("errors")
        text = "; ".join(lines)
        if len(lines) > 1:
            text = f"{self._counts.total()} of {self._runs} runs cannot be built: {text}"
        raise ConfigError(text)
