"""What a command is started with: its arguments, variables, folders and files."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from advsweep.backends.base import NODE_KEYS, PARAMETERS
from advsweep.backends.command.placeholders import Values, as_text, fill, names_in
from advsweep.backends.command.template import OUTPUT, Template
from advsweep.errors import ConfigError

if TYPE_CHECKING:
    from advsweep.backends.base import Run

_SHELL = ("/bin/sh", "-c")
_PLAIN_TEXT = re.compile(r"[A-Za-z/._][A-Za-z0-9_/.@-]*")
_OTHER_VALUES = frozenset({"true", "false", "null", "none", "nan", "inf"})
_PRIVATE = ("ADVSWEEP_STORE", "ADVSWEEP_COMMANDS", "ADVSWEEP_COMMAND")
"""Variables that a command does not get: the store's URL may hold a password."""


def values_of(run: Run, parameters: Mapping[str, Any], directory: Path, template: str) -> Values:
    """Return the values of all placeholders of a run.

    Args:
        directory: the folder that belongs to the command.
        template: the template's file.
    """
    config = {key: getattr(run, key).plain() for key in NODE_KEYS}
    config |= {key: getattr(run, key) for key in PARAMETERS}
    runtime = {
        "directory": str(directory),
        "template_directory": str(Path(template).parent) if template else "",
        "python": sys.executable,
        "run": run.identity[:12],
        "cpus": _cores(),
        "gpus": _devices(),
    }
    return Values(config, parameters, runtime)


def arguments(parts: Iterable[Any], values: Values, template: Template, where: str) -> list[str]:
    """Return the arguments of a command; every value stays within its argument.

    Raises:
        ConfigError: a placeholder has no value in this run.
    """
    found: list[str] = []
    for part in parts:
        if not isinstance(part, Mapping):
            found.append(_argument(part, values, template, where))
            continue
        texts = part["as"] if isinstance(part["as"], list) else [part["as"]]
        for key, value in values.fields(part["each"]).items():
            own = values.with_runtime(key=key, value=value)
            found += [_argument(str(text), own, template, where) for text in texts]
    return found


def _argument(text: str, values: Values, template: Template, where: str) -> str:
    if template.shell:
        return fill(text, _Quoted(values), where)
    if template.quoting == "none":
        return fill(text, values, where)
    key, sign, right = text.partition("=")
    names = names_in(right, where)
    filled = fill(right, values, where)
    # Numbers, lists and null stay what they are.
    is_whole = len(names) == 1 and right == f"{{{names[0]}}}"
    if names and not (is_whole and not isinstance(values.value(names[0], where), str)):
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
    quoted = quoted.replace("${", "\\${")
    return f"'{quoted}'"


def command_line(
    template: Template, values: Values, *, resume: bool = False, evaluate: bool = False
) -> list[str]:
    """Return program and arguments of the training, or of an evaluation.

    Raises:
        ConfigError: a placeholder has no value in this run.
    """
    if evaluate:
        found = arguments(template.evaluation_parts, values, template, "evaluations.command")
    else:
        found = arguments(template.argv, values, template, "command")
    if resume:
        found += arguments(template.resume_parts, values, template, "checkpoints.resume")
    return [*_SHELL, " ".join(found)] if template.shell else found


def variables(template: Template, values: Values) -> dict[str, str]:
    """Return the environment of a command: this process's, with the template's changes.

    Raises:
        ConfigError: a name or a value cannot be a variable.
    """
    found = {k: v for k, v in os.environ.items() if k not in _PRIVATE}
    found.setdefault("PYTHONUNBUFFERED", "1")
    for name, value in template.environment.items():
        if not name or "=" in name or "\0" in name:
            raise ConfigError(f"environment: expected the name of a variable, got {name!r}")
        if value is None:
            found.pop(name, None)
        else:
            found[name] = fill(as_text(value), values, f"environment.{name}")
    return found


def working_folder(template: Template, values: Values, file: str, folder: str) -> Path:
    """Return the working folder of a command.

    Args:
        file: the template's file; a relative folder is one beside it.
        folder: that of the advsweep command, the default.
    """
    if not template.workdir:
        return Path(folder or os.getcwd())
    own = Path(fill(template.workdir, values, "workdir")).expanduser()
    return own if own.is_absolute() else Path(file).parent / own


def file_below(text: str, values: Values, directory: Path, where: str) -> Path:
    """Return a file of a template, which lies below the command's folder.

    Raises:
        ConfigError: it lies elsewhere, where other runs would write to it too.
    """
    path = Path(os.path.normpath(directory / fill(text, values, where)))
    if not path.is_relative_to(directory):
        raise ConfigError(
            f"{where}: expected a path below {{directory}}, so that each run has its own, got "
            f"'{text}'"
        )
    return path


def metrics_file(template: Template, values: Values, directory: Path) -> Path:
    """Return the file that the metrics are read from."""
    if template.metric_options.file == OUTPUT:
        return directory.with_name("output-metrics.txt")
    return file_below(template.metric_options.file, values, directory, "metrics.file")


class _Quoted(Values):
    """Values as one word of a shell."""

    def __init__(self, values: Values) -> None:
        self._values = values

    def text(self, name: str, where: str) -> str:
        return shlex.quote(self._values.text(name, where))


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _devices() -> int:
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return len([name for name in visible.split(",") if name.strip()])
    return len(list(Path("/dev").glob("nvidia[0-9]*")))
