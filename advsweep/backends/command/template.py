"""Templates: how a command is started, what it logs, and what its checkpoints are.

A template is a YAML file of the user's, or one of ours (`templates/`):

    command: ["{python}", train.py, --estimator, "{estimator.name}", --seed, "{seed}",
              --steps, "{steps}", --output, "{directory}"]
    metrics: {kind: jsonl, file: "{directory}/metrics.jsonl"}

`docs/command.md` describes every key. Each part is a component, so that unknown keys and wrong
types are refused as everywhere. `arguments` fills the placeholders in.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from advsweep.backends.base import NODE_KEYS, PARAMETERS
from advsweep.backends.command.arguments import check_name, names_in, texts_of
from advsweep.backends.identity import hash_json
from advsweep.components import Component, option
from advsweep.errors import ConfigError, UnknownNameError, nearest, reason_of
from advsweep.logs import Reader, open_metric_log
from advsweep.logs.names import NameMap
from advsweep.printable import is_secret_setting, printable_line, redacted
from advsweep.yaml_files import read_yaml

# Keys that a template may state for a command that does not take them.
FIXABLE = ("estimator", *PARAMETERS)

# Keys of every run, which a command takes or a template states, and their placeholders.
NEEDED = {"estimator": "{estimator.name}", "seed": "{seed}", "steps": "{steps}"}

_FOLDER = Path(__file__).parent / "templates"
_NO_SECRETS = (
    "expected no secret, since the store, logs and the list of processes show what a command is "
    "given; export it before you start advsweep (export API_KEY=...): the command inherits the "
    "environment"
)
_SIGNALS = ("TERM", "INT", "HUP", "USR1", "USR2")


@dataclass(kw_only=True)
class Metrics(Component):
    """Where a command logs its metrics, and under which names."""

    name: ClassVar[str] = "metrics"

    kind: str = option("jsonl", help="format of the log, as `advsweep.logs.READERS` names it")
    file: str = option("{directory}/metrics.jsonl", help="the log")
    names: str = option("", help="table of names of a format, such as trl or verl; empty: none")
    rename: dict[str, Any] = option({}, help="names of the log, with ours")
    options: dict[str, Any] = option({}, help="options of the reader of this kind")
    every: int = option(1, ge=1, help="steps between two logged ones")
    first_step: int = option(1, ge=0, le=1, help="number that the log gives the first step")
    within: float = option(
        0.0,
        ge=0,
        help="seconds after which a run without a log fails; 0: when its command has ended",
        identity=False,
    )

    def open_log(self, path: Path) -> tuple[Reader, NameMap]:
        """Open the log, and return its table of names.

        Raises:
            ConfigError: there is no such kind of log or table, or a name is no text.
        """
        for theirs, ours in self.rename.items():
            if not isinstance(ours, str) or not ours or printable_line(ours) != ours:
                raise ConfigError(f"metrics.rename.{theirs}: expected a name, got {ours!r}")
        try:
            reader = open_metric_log(self.kind, path, **self.options)
        except ConfigError as error:
            raise type(error)(f"metrics: {error}") from error
        return reader, NameMap(self.names, self.rename)


@dataclass(kw_only=True)
class CheckpointFiles(Component):
    """What the checkpoints of a command are, and how it resumes from one."""

    name: ClassVar[str] = "checkpoints"

    glob: str = option("", help="pattern of their paths below {directory}")
    step: str = option("", help="regular expression on the path, with one group: the step")
    complete: str = option("", help="file in a checkpoint that is written last; empty: none")
    resume: tuple[Any, ...] | str = option((), help="arguments that resume from {checkpoint}")

    def __post_init__(self) -> None:
        super().__post_init__()
        try:
            groups = re.compile(self.step).groups
        except re.error:
            groups = 0
        if not self.glob or groups != 1:
            raise ConfigError(
                f"step: expected `glob`, and in `step` a regular expression with one group, got "
                f"{self.glob!r} and {self.step!r}"
            )


@dataclass(kw_only=True)
class EvaluationFile(Component):
    """Where the counts of evaluations come from: JSON lines of step, problem, n and correct."""

    name: ClassVar[str] = "evaluations"

    file: str = option("{directory}/evaluations.jsonl", help="JSON lines that the command writes")
    task: str = option("command", help="name of the task in reports")


@dataclass(kw_only=True)
class Stop(Component):
    """How a command is asked to end."""

    name: ClassVar[str] = "stop"

    signal: str = option("TERM", help="signal to its processes: TERM, INT, HUP, USR1 or USR2")
    grace: float = option(15.0, ge=0, le=3600, help="seconds until it is killed")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.signal.removeprefix("SIG") not in _SIGNALS:
            raise ConfigError(f"signal: expected one of {', '.join(_SIGNALS)}, got {self.signal!r}")

    @property
    def number(self) -> int:
        """The number of the signal."""
        return int(signal.Signals["SIG" + self.signal.removeprefix("SIG")])


@dataclass(kw_only=True)
class Template(Component):
    """A template, checked.

    Attributes:
        argv, resume_parts: the parts of the command, and of the arguments that resume it: texts,
            and mappings `{each: NODE, as: ...}`.
        used: dotted config keys that reach the command; a node alone means all its keys.
    """

    name: ClassVar[str] = "the template"

    command: tuple[Any, ...] | str = option(help="program and arguments, or one text")
    quoting: Literal["none", "hydra"] = option("none", help="hydra: quote for Hydra's KEY=VALUE")
    workdir: str = option("", help="working folder; empty: that of the advsweep command")
    sources: tuple[str, ...] = option(
        (), help="patterns of files that are part of the program, beside those that are found"
    )
    environment: dict[str, Any] = option({}, help="variables to set; null: to remove")
    parameters: dict[str, Any] = option({}, help="values of one's own, with their defaults")
    fixed: dict[str, Any] = option({}, help="config keys that the command does not take")
    metrics: dict[str, Any] = option({}, help="where the metrics are")
    checkpoints: dict[str, Any] | None = option(None, help="what a checkpoint is")
    evaluations: dict[str, Any] | None = option(None, help="where evaluations come from")
    stop: dict[str, Any] = option({}, help="how the command is asked to end")

    def __post_init__(self) -> None:
        super().__post_init__()
        self.log = Metrics.build(self.metrics, where="metrics")
        self.ending = Stop.build(self.stop, where="stop")
        self.saved = self.counted = None
        if self.checkpoints is not None:
            self.saved = CheckpointFiles.build(self.checkpoints, where="checkpoints")
        if self.evaluations is not None:
            self.counted = EvaluationFile.build(self.evaluations, where="evaluations")
        self.argv = _parts(self.command, "command")
        self.resume_parts = _parts(self.saved.resume if self.saved else (), "checkpoints.resume")
        self.used = self._used()
        self._check()

    def takes(self, key: str) -> bool:
        """Return whether a key, or a field of it, reaches the command."""
        return key in self.used or any(used.startswith(f"{key}.") for used in self.used)

    def reaches(self, key: str) -> bool:
        """Return whether a dotted config key reaches the command."""
        return key in self.used or key.partition(".")[0] in self.used

    def _used(self) -> frozenset[str]:
        """Return the config keys of all placeholders."""
        used: set[str] = set()
        for part, where in self._parts_with_placeholders():
            # Placeholders that are no config keys.
            extra = ["checkpoint", "step"] if where == "checkpoints.resume" else []
            texts = [str(part)]
            if isinstance(part, Mapping):
                used.add(part["each"])
                extra += ["key", "value"]
                texts = texts_of(part)
            for text in texts:
                for name in names_in(text, where):
                    check_name(name, self.parameters, extra, where)
                    if name not in extra:
                        used.add(name)
        return frozenset(used)

    def _parts_with_placeholders(self) -> Iterator[tuple[Any, str]]:
        """Yield each part that may hold placeholders, and the key of the template it is under."""
        for part in self.argv:
            yield part, "command"
        for part in self.resume_parts:
            yield part, "checkpoints.resume"
        for value in self.environment.values():
            if value is not None:
                yield value, "environment"
        yield self.workdir, "workdir"
        yield self.log.file, "metrics.file"
        if self.counted:
            yield self.counted.file, "evaluations.file"

    def _check(self) -> None:
        """Refuse values that do not fit each other."""
        if not self.argv or isinstance(self.argv[0], Mapping):
            raise ConfigError("command: expected a program and its arguments")
        refuse_secrets("parameters", self.parameters)
        refuse_secrets("environment", self.environment)
        self._check_no_secret_in_command()
        self._check_parameters()
        self._check_fixed()
        for key, placeholder in NEEDED.items():
            if not self.takes(key) and key not in self.fixed:
                raise ConfigError(
                    f"command: expected a placeholder {placeholder}, got none; pass it to the "
                    f"command, or say with `fixed: {{{key}: ...}}` what the command uses"
                )

    def _check_no_secret_in_command(self) -> None:
        for part in self.argv:
            if isinstance(part, str) and redacted(part) != part and "{" not in part:
                raise ConfigError(f"command: {redacted(part)}: {_NO_SECRETS}")

    def _check_parameters(self) -> None:
        """Refuse parameters that no placeholder uses."""
        for key in self.parameters:
            if not {f"parameters.{key}", "parameters"} & self.used:
                raise ConfigError(
                    f"parameters.{key}: expected a placeholder {{parameters.{key}}} that uses it, "
                    f"got none; add it or remove the parameter"
                )

    def _check_fixed(self) -> None:
        """Refuse stated keys that cannot be stated, or that a placeholder uses."""
        for key in self.fixed:
            if key not in FIXABLE:
                raise UnknownNameError(
                    f"fixed.{key}: no such key can be stated; {nearest(str(key), FIXABLE)}"
                )
            if self.takes(key):
                raise ConfigError(f"fixed.{key}: a placeholder uses this key; remove either")


def refuse_secrets(where: str, values: Mapping[str, Any]) -> None:
    """Refuse settings that are secrets by their names and have a value.

    Raises:
        ConfigError: there is one; the message does not show its value.
    """
    for key, value in values.items():
        if value not in (None, "") and is_secret_setting(str(key)):
            raise ConfigError(f"{where}.{key}: {_NO_SECRETS}")


def _parts(command: tuple[Any, ...] | str, where: str) -> list[Any]:
    if isinstance(command, str):
        # Split before values are filled in: each value stays within its argument.
        try:
            return list(shlex.split(command))
        except ValueError as error:
            raise ConfigError(f"{where}: expected matching quotes ({error})") from error
    for part in command:
        is_each = isinstance(part, Mapping) and part.keys() == {"each", "as"} and part["as"]
        if not (is_each and part["each"] in NODE_KEYS) and type(part) not in (str, int, float):
            raise ConfigError(
                f"{where}: expected texts and numbers, or {{each: estimator, as: TEXT}} with "
                f"{{key}} and {{value}} in the text, got {part!r}"
            )
    return [part if isinstance(part, Mapping) else str(part) for part in command]


def template_path(name: str) -> Path:
    """Return the file of a template: one of ours by its name, or the user's by its path.

    Raises:
        ConfigError: there is no such file.
    """
    ours = builtin_templates()
    if name in ours:
        return _FOLDER / f"{name}.yaml"
    path = Path(name).expanduser()
    if not path.is_file():
        raise ConfigError(
            f"backend.template: expected a file, or one of {', '.join(ours)}, got '{name}'"
        )
    return path.resolve()


def builtin_templates() -> list[str]:
    """List the names of our own templates."""
    return sorted(path.stem for path in _FOLDER.glob("*.yaml"))


def read_template(path: Path) -> dict[str, Any]:
    """Read a template's content.

    Raises:
        ConfigError: it is not YAML, or not a mapping.
    """
    try:
        content = read_yaml(path)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {reason_of(error)}") from error
    if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
        raise ConfigError(
            f"{path}: expected a mapping with `command`, got {type(content).__name__}"
        )
    return content


def build_template(content: Mapping[str, Any], where: str) -> Template:
    """Check the content of a template.

    Raises:
        ConfigError: the message starts with `where`.
    """
    if "command" not in content or "name" in content:
        raise ConfigError(f"{where}: expected `command`, the program and its arguments, no `name`")
    try:
        return Template.build(content)
    except ConfigError as error:
        raise type(error)(f"{where}: {error}") from error


# The user's consent to start the command of a template. Configs of runs lie in a store that others
# may have written, so a process starts the command of a stored config only if the present command
# line names the same template, or trusts the store. An environment variable carries that to the
# processes of runs: digests of templates, with the folder and the file that the command line gave.

# The environment variable: a JSON object of places by digest; "*" stands for any template.
COMMANDS = "ADVSWEEP_COMMANDS"

_ANY = "*"


def allow_template(content: Mapping[str, Any], template: str, folder: str) -> None:
    """Record that the command line named a template, for this process and its children.

    Args:
        template: the file.
        folder: the working folder of the command line.
    """
    _write({**_read(), hash_json(dict(content)): {"template": template, "folder": folder}})


def allow_stored_templates(folder: str = "") -> None:
    """Record that the user trusts the store to name commands.

    Args:
        folder: the working folder of the programs here; empty for the one that the store names.
    """
    _write({**_read(), _ANY: {"folder": folder} if folder else {}})


def allowed_places(content: Mapping[str, Any]) -> Mapping[str, str] | None:
    """Return the file and folder that the command line gave with a template.

    Returns:
        If only the store names them and is trusted, an empty mapping, or the folder that takes the
        place of the store's; None without consent.
    """
    # By content, so that a store cannot put another command behind the name of a file.
    allowed = _read()
    places = allowed.get(hash_json(dict(content)), allowed.get(_ANY))
    return None if places is None else dict(places)


def _read() -> dict[str, Any]:
    try:
        allowed = json.loads(os.environ.get(COMMANDS, "{}"))
    except ValueError:
        return {}
    return allowed if isinstance(allowed, dict) else {}


def _write(allowed: Mapping[str, Any]) -> None:
    os.environ[COMMANDS] = json.dumps(allowed, sort_keys=True)
