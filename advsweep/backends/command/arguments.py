"""What a command is started with: the placeholders of a template, filled in for a run.

A placeholder is a config key of the run, a parameter of the template, or a value that is known
when the command starts:

    {estimator.name} {seed} {steps} {optimizer.lr}   config keys
    {estimator}                                      a whole node, as JSON
    {parameters.model}                               a parameter that the template declares
    {directory} {python} {gpus}                      `RUNTIME`

`{{` and `}}` stand for braces. A value always stays within one argument.
"""

from __future__ import annotations

import json
import math
import os
import re
import string
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from advsweep.backends.base import NODE_KEYS, PARAMETERS
from advsweep.components import leaves, to_plain
from advsweep.errors import ConfigError, UnknownNameError, nearest
from advsweep.machine import RESERVED_VARIABLE, usable_cores

if TYPE_CHECKING:
    from advsweep.backends.base import Run
    from advsweep.backends.command.template import Template

# Names that are known when the command starts; docs/command.md says what they are.
RUNTIME = ("directory", "template_directory", "python", "run", "cpus", "gpus")

# The values of placeholders: a run's config with nodes as mappings, `parameters`, `RUNTIME`.
Values = Mapping[str, Any]

_PLAIN_TEXT = re.compile(r"[A-Za-z/._][A-Za-z0-9_/.@-]*")
_OTHER_VALUES = frozenset({"true", "false", "null", "none", "nan", "inf"})
# Variables that a command does not get: the store's URL may hold a password.
_PRIVATE = ("ADVSWEEP_STORE", "ADVSWEEP_COMMANDS", "ADVSWEEP_COMMAND", RESERVED_VARIABLE)


def names_in(text: str, where: str) -> list[str]:
    """Return the names of the placeholders of a text.

    Raises:
        ConfigError: braces do not match, or a placeholder has a conversion or a format.
    """
    return [name for _, name in _pieces(text, where) if name is not None]


def check_name(name: str, parameters: Mapping[str, Any], extra: Sequence[str], where: str) -> None:
    """Refuse a placeholder that cannot exist.

    Args:
        parameters: those that the template declares.
        extra: further names that are known in this place.

    Raises:
        UnknownNameError: the message offers the nearest.
    """
    head, _, rest = name.partition(".")
    names = [*RUNTIME, *extra, *PARAMETERS]
    names += [f"parameters.{key}" for key in parameters]
    is_key = head in NODE_KEYS and (rest or head not in ("backend", "evaluation"))
    if name not in names and not is_key:
        raise UnknownNameError(
            f"{where}: no placeholder is called '{{{name}}}'; "
            f"{nearest(name, [*names, 'estimator.name'])}; config keys of a run such as "
            f"{{optimizer.lr}} exist as well, and {{{{ stands for a brace"
        )


def _pieces(text: str, where: str) -> list[tuple[str, str | None]]:
    """Return the literal parts of a text, each with the name of the placeholder behind it."""
    try:
        parsed = list(string.Formatter().parse(text))
        if all(name is None or (name and not form and not conv) for _, name, form, conv in parsed):
            return [(literal, name) for literal, name, _, _ in parsed]
        reason = "a placeholder with a format"
    except ValueError as error:
        reason = str(error)
    raise ConfigError(
        f"{where}: expected placeholders such as {{seed}}, without a format and with {{{{ and "
        f"}}}} for braces, got {text[:80]!r} ({reason})"
    )


def fill(text: str, values: Values, where: str) -> str:
    """Return a text with its placeholders replaced.

    Raises:
        ConfigError: a placeholder has no value in this run, or one that cannot be an argument.
    """
    pieces = _pieces(text, where)
    filled = ""
    for literal, name in pieces:
        filled += literal
        if name is not None:
            filled += as_text(value_of(name, values, where))
    if "\0" in filled:
        raise ConfigError(f"{where}: expected values without a NUL character, in {text!r}")
    return filled


def value_of(name: str, values: Values, where: str) -> Any:
    """Return the value of a placeholder.

    Raises:
        ConfigError: the run has no such key.
    """
    value: Any = values
    for part in name.split("."):
        if not isinstance(value, Mapping) or part not in value:
            head, _, rest = name.partition(".")
            node = values.get(head)
            named = head
            parameters: list[str] = []
            if isinstance(node, Mapping):
                named = f"{head} '{node.get('name')}'"
                parameters = [key for key in node if key != "name"]
            raise ConfigError(
                f"{where}: {{{name}}} has no value, as {named} has no parameter '{rest}' "
                f"({nearest(rest, parameters)}); `each: {head}` passes those that there are"
            )
        value = value[part]
    return value


def as_text(value: Any) -> str:
    """Return a config value as an argument: texts as they are, other values as in JSON.

    >>> [as_text(value) for value in (1e-6, True, None, "a b", [1, 2], float("inf"))]
    ['1e-06', 'true', 'null', 'a b', '[1, 2]', 'inf']
    """
    value = to_plain(value)
    if isinstance(value, str):
        return value
    return "nan" if isinstance(value, float) and math.isnan(value) else json.dumps(value)


def values_of(
    run: Run, parameters: Mapping[str, Any], directory: Path, file: str, *, identity: str
) -> Values:
    """Return the values of all placeholders of a run.

    Args:
        directory: the folder that belongs to the command.
        file: the template's file.
        identity: that of the run; empty while it is computed.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        gpus = len(list(Path("/dev").glob("nvidia[0-9]*")))
    else:
        gpus = len([name for name in visible.split(",") if name.strip()])
    return {
        **{key: getattr(run, key).plain() for key in NODE_KEYS},
        **{key: getattr(run, key) for key in PARAMETERS},
        "parameters": parameters,
        "directory": str(directory),
        "template_directory": str(Path(file).parent) if file else "",
        "python": sys.executable,
        "run": identity[:12],
        "cpus": len(usable_cores()),
        "gpus": gpus,
    }


def command_line(template: Template, values: Values, *, resume: bool = False) -> list[str]:
    """Return program and arguments of a command; every value stays within its argument.

    Args:
        resume: add the arguments that resume from `values["checkpoint"]`.

    Raises:
        ConfigError: a placeholder has no value in this run.
    """
    arguments: list[str] = []
    for part in template.argv:
        arguments += _arguments(part, values, template.quoting, "command")
    if resume:
        for part in template.resume_parts:
            arguments += _arguments(part, values, template.quoting, "checkpoints.resume")
    return arguments


def _arguments(part: Any, values: Values, quoting: str, where: str) -> list[str]:
    """Return the arguments of a part of a command: a text, or `{each: NODE, as: ...}`."""
    if not isinstance(part, Mapping):
        return [_argument(part, values, quoting, where)]
    arguments: list[str] = []
    node = {key: value for key, value in values[part["each"]].items() if key != "name"}
    for key, value in leaves(node):
        of_leaf = {**values, "key": key, "value": value}
        arguments += [_argument(text, of_leaf, quoting, where) for text in texts_of(part)]
    return arguments


def texts_of(part: Mapping[str, Any]) -> list[str]:
    """Return the texts of `{each: NODE, as: ...}`, a part of a command."""
    texts = part["as"] if isinstance(part["as"], list) else [part["as"]]
    return [str(text) for text in texts]


def _argument(text: str, values: Values, quoting: str, where: str) -> str:
    if quoting == "none":
        return fill(text, values, where)
    key, sign, right = text.partition("=")
    names = names_in(right, where)
    filled = fill(right, values, where)
    # Numbers, lists and null stay what they are.
    is_whole = len(names) == 1 and right == f"{{{names[0]}}}"
    if names and (not is_whole or isinstance(value_of(names[0], values, where), str)):
        filled = hydra_text(filled)
    return f"{fill(key, values, where)}{sign}{filled}"


def hydra_text(text: str) -> str:
    """Return a text as a value of an override of Hydra, which reads it as this text.

    >>> [hydra_text(text) for text in ("a/b-c", "~/x", "it's", "1", "true")]
    ['a/b-c', "'~/x'", "'it\\\\'s'", "'1'", "'true'"]
    """
    if _PLAIN_TEXT.fullmatch(text) and text.lower() not in _OTHER_VALUES:
        return text
    # Backslashes count as such except before a quote, or at the end.
    quoted = re.sub(r"(\\*)('|$)", lambda m: m[1] * 2 + ("\\'" if m[2] else ""), text)
    return "'" + quoted.replace("${", "\\${") + "'"


def variables(template: Template, values: Values) -> dict[str, str]:
    """Return the environment of a command: this process's, with the template's changes.

    Raises:
        ConfigError: a name or a value cannot be a variable.
    """
    environment = {k: v for k, v in os.environ.items() if k not in _PRIVATE}
    environment.setdefault("PYTHONUNBUFFERED", "1")
    for name, value in template.environment.items():
        if not name or "=" in name or "\0" in name:
            raise ConfigError(f"environment: expected the name of a variable, got {name!r}")
        environment.pop(name, None)
        if value is not None:
            environment[name] = fill(as_text(value), values, f"environment.{name}")
    return environment


def file_below(text: str, values: Values, where: str) -> Path:
    """Return a file of a template, which lies below the command's folder.

    Raises:
        ConfigError: it lies elsewhere, where other runs would write to it too.
    """
    directory = Path(values["directory"])
    path = Path(os.path.normpath(directory / fill(text, values, where)))
    if not path.is_relative_to(directory):
        raise ConfigError(
            f"{where}: expected a path below {{directory}}, so that each run has its own, got "
            f"'{text}'"
        )
    return path
