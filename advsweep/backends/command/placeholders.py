"""Placeholders such as `{estimator.name}` in the texts of a template.

A placeholder is a config key of the run, a parameter of the template, or a value that is known
when the command starts:

    {estimator.name} {seed} {steps} {optimizer.lr}   config keys
    {estimator}                                      a whole node, as JSON
    {parameters.model}                               a parameter that the template declares
    {directory} {python} {gpus}                      `RUNTIME`, known at the start

`{{` and `}}` stand for braces.
"""

from __future__ import annotations

import json
import math
import string
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from advsweep.backends.base import NODE_KEYS, PARAMETERS
from advsweep.components import to_plain
from advsweep.errors import ConfigError, UnknownNameError, nearest

RUNTIME = {
    "directory": "folder of the run, to which the command writes",
    "template_directory": "folder of the template",
    "python": "the Python interpreter of advsweep",
    "run": "the first 12 digits of the run's identity",
    "cpus": "cores that the run may use",
    "gpus": "GPUs that the run is given",
}
"""Placeholders that are known when the command starts, with their meaning."""

PARAMETERS_KEY = "parameters"

_FORMATTER = string.Formatter()


def names_in(text: str, where: str) -> list[str]:
    """Return the names of the placeholders of a text.

    Raises:
        ConfigError: braces do not match, or a placeholder has a conversion or a format.
    """
    return [name for _, name in _parts(text, where) if name is not None]


def check_name(name: str, parameters: Mapping[str, Any], extra: Sequence[str], where: str) -> None:
    """Refuse a placeholder that cannot exist.

    Args:
        parameters: those that the template declares.
        extra: further names that are known in this place.

    Raises:
        UnknownNameError: the message offers the nearest.
    """
    head, _, rest = name.partition(".")
    if name in RUNTIME or name in extra or name in PARAMETERS:
        return
    if head == PARAMETERS_KEY and rest in parameters:
        return
    if head in NODE_KEYS and head != "evaluation" and (rest or head != "backend"):
        return
    if head == "evaluation" and rest:
        return
    known = [*RUNTIME, *extra, *PARAMETERS, "estimator.name"]
    known += [f"{PARAMETERS_KEY}.{key}" for key in parameters]
    hint = nearest(name, known)
    raise UnknownNameError(
        f"{where}: no placeholder is called '{{{name}}}'; {hint}; config keys of a run such as "
        f"{{optimizer.lr}} exist as well, and {{{{ stands for a brace"
    )


def fill(text: str, values: Values, where: str) -> str:
    """Return a text with its placeholders replaced.

    Raises:
        ConfigError: a placeholder has no value in this run.
    """
    parts = [
        literal + ("" if name is None else values.text(name, where))
        for literal, name in _parts(text, where)
    ]
    return "".join(parts)


class Values:
    """The values of placeholders in one run.

    Args:
        config: the run's config, nodes as mappings.
        parameters: those of the template.
        runtime: further values by name.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        parameters: Mapping[str, Any],
        runtime: Mapping[str, Any],
    ) -> None:
        self._config = config
        self._parameters = parameters
        self._runtime = runtime

    def text(self, name: str, where: str) -> str:
        """Return the value of a placeholder as text.

        Raises:
            ConfigError: the run has no such key, or the text cannot be an argument.
        """
        text = as_text(self.value(name, where))
        if "\0" in text:
            raise ConfigError(f"{where}: expected {{{name}}} without a NUL character")
        return text

    def fields(self, node: str) -> dict[str, Any]:
        """Return the fields of a node without its name; those of inner nodes by dotted key."""
        own = {k: v for k, v in self._config.get(node, {}).items() if k != "name"}
        return dict(_flat(own))

    def with_runtime(self, **values: Any) -> Values:
        """Return values with further names."""
        return Values(self._config, self._parameters, {**self._runtime, **values})

    def value(self, name: str, where: str) -> Any:
        """Return the value of a placeholder.

        Raises:
            ConfigError: the run has no such key.
        """
        if name in self._runtime:
            return self._runtime[name]
        head, _, rest = name.partition(".")
        if head == PARAMETERS_KEY and rest in self._parameters:
            return self._parameters[rest]
        value: Any = self._config
        for part in name.split("."):
            if not isinstance(value, Mapping) or part not in value:
                raise ConfigError(_lacking(name, self._config, where))
            value = value[part]
        return value


def _flat(node: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in node.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{path}{key}.")
        else:
            yield f"{path}{key}", value


def _lacking(name: str, config: Mapping[str, Any], where: str) -> str:
    head, _, rest = name.partition(".")
    node = config.get(head)
    if not rest or not isinstance(node, Mapping):
        return f"{where}: expected a value of {name}, which this run lacks"
    own = nearest(rest, [key for key in node if key != "name"])
    return (
        f"{where}: {{{name}}} has no value, as {head} '{node.get('name')}' has no parameter "
        f"'{rest}' ({own}); `each: {head}` passes the parameters that there are"
    )


def as_text(value: Any) -> str:
    """Return a config value as an argument: texts as they are, other values as in JSON.

    >>> [as_text(value) for value in (1e-6, True, None, "a b", [1, 2], float("inf"))]
    ['1e-06', 'true', 'null', 'a b', '[1, 2]', 'inf']
    """
    value = to_plain(value)
    if isinstance(value, str):
        return value
    if isinstance(value, float) and math.isnan(value):
        return "nan"
    return json.dumps(value)


def _parts(text: str, where: str) -> Iterator[tuple[str, str | None]]:
    try:
        parts = list(_FORMATTER.parse(text))
    except ValueError as error:
        raise ConfigError(
            f"{where}: expected placeholders such as {{seed}}, with {{{{ and }}}} for braces, got "
            f"{text[:80]!r} ({error})"
        ) from error
    for literal, name, form, conversion in parts:
        if name is not None and (form or conversion or not name):
            raise ConfigError(
                f"{where}: expected placeholders such as {{seed}}, without a format, got "
                f"{text[:80]!r}; write {{{{ and }}}} for braces"
            )
        yield literal, name
