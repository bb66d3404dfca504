"""Templates: how a command is started, what it logs, and what its checkpoints are.

A template is a YAML file of the user's, or one of ours (`templates/`):

    command: ["{python}", train.py, --estimator, "{estimator.name}", --seed, "{seed}",
              --steps, "{steps}", --output, "{directory}"]
    metrics: {kind: jsonl, file: "{directory}/metrics.jsonl"}

`docs/command.md` describes every key. Each part is a component, so that unknown keys and wrong
types are refused as everywhere. `arguments` fills the placeholders in.
"""

from __future__ import annotations

import re
import shlex
import signal
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from advsweep.backends.base import NODE_KEYS, PARAMETERS
from advsweep.backends.command.arguments import OUTPUT, check_name, names_in, texts_of
from advsweep.components import Component, option
from advsweep.errors import ConfigError, UnknownNameError, nearest
from advsweep.logs import Reader, open_metric_log
from advsweep.logs.names import NameMap
from advsweep.printable import printable_line
from advsweep.yaml_files import read_yaml

FIXABLE = ("estimator", *PARAMETERS)
"""Keys that a template may state for a command that does not take them."""

NEEDED = ("estimator", "seed", "steps")
"""Keys that a command takes, or a template states: every run has them."""

_FOLDER = Path(__file__).parent / "templates"
_SIGNALS = ("TERM", "INT", "HUP", "USR1", "USR2")


@dataclass(kw_only=True)
class Metrics(Component):
    """Where a command logs its metrics, and under which names."""

    name: ClassVar[str] = "metrics"

    kind: str = option("jsonl", help="format of the log, as `advsweep.logs.READERS` names it")
    file: str = option("{directory}/metrics.jsonl", help="the log; output: the command's output")
    names: str = option("", help="table of names of a format, such as trl or verl; empty: none")
    rename: dict[str, Any] = option({}, help="names of the log, with ours")
    options: dict[str, Any] = option({}, help="options of the reader of this kind")
    every: int = option(1, ge=1, help="steps between two logged ones")
    first_step: int = option(1, ge=0, le=1, help="number that the log gives the first step")

    def open_log(self, path: Path) -> Reader:
        """Open the log.

        Raises:
            ConfigError: there is no such kind of log, or it has no such option.
        """
        try:
            return open_metric_log(self.kind, path, **self.options)
        except ConfigError as error:
            raise type(error)(f"metrics: {error}") from error

    def name_map(self) -> NameMap:
        """Return the table of names.

        Raises:
            ConfigError: there is no such table, or a name is no text.
        """
        for theirs, ours in self.rename.items():
            if not isinstance(ours, str) or not ours or printable_line(ours) != ours:
                raise ConfigError(f"metrics.rename.{theirs}: expected a name, got {ours!r}")
        if self.names:
            return NameMap.load(self.names, self.rename)
        return NameMap({}, extra=self.rename)


@dataclass(kw_only=True)
class CheckpointFiles(Component):
    """What the checkpoints of a command are, and how it resumes from one."""

    name: ClassVar[str] = "checkpoints"

    glob: str = option(help="pattern of their paths below {directory}")
    step: str = option(help="regular expression on the path, with one group: the step")
    complete: str = option("", help="file in a checkpoint that is written last; empty: none")
    resume: tuple[Any, ...] | str = option((), help="arguments that resume from {checkpoint}")


@dataclass(kw_only=True)
class EvaluationFiles(Component):
    """Where the counts of evaluations come from: JSON lines of step, problem, n and correct."""

    name: ClassVar[str] = "evaluations"

    file: str = option("", help="JSON lines that the command writes; empty: none")
    command: tuple[Any, ...] | str = option(
        (), help="prints such lines for {checkpoint} and {step}"
    )
    task: str = option("command", help="name of the task in reports")
    seconds: float = option(3600.0, gt=0, help="time limit of the evaluation command")


@dataclass(kw_only=True)
class OutOfMemory(Component):
    """What means that a command ran out of memory, if it fails."""

    name: ClassVar[str] = "out_of_memory"

    exit_codes: tuple[Any, ...] = option((), help="exit codes that mean it")
    lines: tuple[Any, ...] = option(
        ("out of memory", "OutOfMemoryError", "CUBLAS_STATUS_ALLOC_FAILED"),
        help="texts that mean it in the last 1,000 lines of the output",
    )


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
        argv, resume_parts, evaluation_parts: the parts of the command, of the arguments that
            resume it, and of the evaluation command: texts, and mappings `{each: NODE, as: ...}`.
        used: dotted config keys that reach the command; a node alone means all its keys.
    """

    name: ClassVar[str] = "the template"

    command: tuple[Any, ...] | str = option(help="program and arguments, or one text")
    shell: bool = option(False, help="give the text to /bin/sh, with quoted values")
    quoting: str = option("none", help="hydra: quote values for overrides KEY=VALUE of Hydra")
    workdir: str = option("", help="working folder; empty: that of the advsweep command")
    environment: dict[str, Any] = option({}, help="variables to set; null: to remove")
    parameters: dict[str, Any] = option({}, help="values of one's own, with their defaults")
    fixed: dict[str, Any] = option({}, help="config keys that the command does not take")
    metrics: dict[str, Any] = option({}, help="where the metrics are")
    checkpoints: dict[str, Any] | None = option(None, help="what a checkpoint is")
    evaluations: dict[str, Any] | None = option(None, help="where evaluations come from")
    progress: str = option("", help="regular expression on lines, with groups done and total")
    out_of_memory: dict[str, Any] = option({}, help="what means that memory ran out")
    stop: dict[str, Any] = option({}, help="how the command is asked to end")
    success: tuple[Any, ...] = option((0,), help="exit codes of a complete training")
    silence: float = option(0.0, ge=0, help="seconds without output or a step to end it; 0: none")

    def __post_init__(self) -> None:
        super().__post_init__()
        self.log = Metrics.build(self.metrics, where="metrics")
        self.memory = OutOfMemory.build(self.out_of_memory, where="out_of_memory")
        self.ending = Stop.build(self.stop, where="stop")
        self.saved: CheckpointFiles | None = None
        self.counted: EvaluationFiles | None = None
        if self.checkpoints is not None:
            for key in ("glob", "step"):
                if key not in self.checkpoints:
                    raise ConfigError(f"checkpoints: expected `{key}`, got none")
            self.saved = CheckpointFiles.build(self.checkpoints, where="checkpoints")
        if self.evaluations is not None:
            self.counted = EvaluationFiles.build(self.evaluations, where="evaluations")
        self.argv = self._parts(self.command, "command")
        resume = self.saved.resume if self.saved else ()
        self.resume_parts = self._parts(resume, "checkpoints.resume")
        evaluate = self.counted.command if self.counted else ()
        self.evaluation_parts = self._parts(evaluate, "evaluations.command")
        self._check_parts()
        self.used = self._used()
        self._check_fixed()

    def takes(self, key: str) -> bool:
        """Return whether a key, or a field of it, reaches the command."""
        return key in self.used or any(used.startswith(f"{key}.") for used in self.used)

    def reaches(self, key: str) -> bool:
        """Return whether a dotted config key reaches the command."""
        return key in self.used or key.partition(".")[0] in self.used

    def _parts(self, command: tuple[Any, ...] | str, where: str) -> list[Any]:
        if self.shell:
            if not isinstance(command, str) and command:
                raise ConfigError(f"{where}: expected one text, as shell is true, got a list")
            return [command] if command else []
        if isinstance(command, str):
            try:
                return list(shlex.split(command))
            except ValueError as error:
                raise ConfigError(f"{where}: expected matching quotes ({error})") from error
        for part in command:
            if isinstance(part, Mapping):
                if part.keys() != {"each", "as"} or part["each"] not in NODE_KEYS or not part["as"]:
                    raise ConfigError(
                        f"{where}: expected {{each: estimator, as: TEXT}} with {{key}} and "
                        f"{{value}} in the text, or a list of texts, got {dict(part)!r}"
                    )
            elif isinstance(part, (list, bool)) or part is None:
                raise ConfigError(f"{where}: expected texts and numbers, got {part!r}")
        return [part if isinstance(part, Mapping) else str(part) for part in command]

    def _check_parts(self) -> None:
        """Refuse values that do not fit each other."""
        output = self.log.file == OUTPUT
        groups = _groups(self.progress, "progress")
        whole = [*self.success, *self.memory.exit_codes]
        refusals = [
            (not self.argv, "command: expected a program and its arguments, got nothing"),
            (
                bool(self.argv) and isinstance(self.argv[0], Mapping),
                "command: expected a program first, got `each`",
            ),
            (
                self.saved is not None and len(_groups(self.saved.step, "checkpoints.step")) != 1,
                "checkpoints.step: expected one group, the step",
            ),
            (
                bool(self.progress) and not {"done", "total"} <= set(groups),
                "progress: expected the groups (?P<done>...) and (?P<total>...)",
            ),
            (
                self.quoting not in ("none", "hydra") or (self.shell and self.quoting != "none"),
                f"quoting: expected none, or hydra without shell, got {self.quoting!r}",
            ),
            (
                output and self.log.kind != "pattern",
                f"metrics.kind: expected pattern, as the file is the command's output, got "
                f"{self.log.kind!r}",
            ),
            (
                self.counted is not None and bool(self.counted.file) == bool(self.counted.command),
                "evaluations: expected either a file or a command",
            ),
            (
                bool(self.evaluation_parts) and self.saved is None,
                "evaluations.command: expected checkpoints to evaluate, got none",
            ),
            (
                any(isinstance(code, bool) or not isinstance(code, int) for code in whole),
                f"success: expected whole numbers as exit codes, here and in out_of_memory, got "
                f"{whole}",
            ),
        ]
        for refused, message in refusals:
            if refused:
                raise ConfigError(message)

    def _used(self) -> frozenset[str]:
        used: set[str] = set()
        for part, where, extra in self._places():
            names = extra
            texts = [str(part)]
            if isinstance(part, Mapping):
                used.add(part["each"])
                names, texts = (*extra, "key", "value"), texts_of(part)
            for name in (n for text in texts for n in names_in(text, where)):
                check_name(name, self.parameters, names, where)
                used |= {name} - set(names)
        for key in self.parameters:
            if not {f"parameters.{key}", "parameters"} & used:
                raise ConfigError(
                    f"parameters.{key}: expected a placeholder {{parameters.{key}}} that uses it, "
                    f"got none; add it or remove the parameter"
                )
        return frozenset(used)

    def _places(self) -> Iterator[tuple[Any, str, Sequence[str]]]:
        """Yield each part that may hold placeholders, its place, and further names there."""
        of_checkpoint = ("checkpoint", "step")
        places: list[tuple[Sequence[Any], str, Sequence[str]]] = [
            (self.argv, "command", ()),
            (self.resume_parts, "checkpoints.resume", of_checkpoint),
            (self.evaluation_parts, "evaluations.command", of_checkpoint),
            ([v for v in self.environment.values() if v is not None], "environment", ()),
            ([self.workdir], "workdir", ()),
            ([self.log.file], "metrics.file", ()),
            ([self.counted.file] if self.counted else [], "evaluations.file", ()),
        ]
        return ((part, where, extra) for parts, where, extra in places for part in parts)

    def _check_fixed(self) -> None:
        for key in self.fixed:
            if key not in FIXABLE:
                raise UnknownNameError(
                    f"fixed.{key}: no such key can be stated; {nearest(str(key), FIXABLE)}"
                )
            if self.takes(key):
                raise ConfigError(
                    f"fixed.{key}: expected a key that the command does not take, got one that a "
                    f"placeholder uses; remove either"
                )
        for key in NEEDED:
            if not self.takes(key) and key not in self.fixed:
                word = "{estimator.name}" if key == "estimator" else f"{{{key}}}"
                raise ConfigError(
                    f"command: expected a placeholder {word}, got none; pass it to the command, "
                    f"or say with `fixed: {{{key}: ...}}` what the command uses"
                )


def _groups(text: str, where: str) -> Sequence[Any]:
    """Return the groups of a regular expression: their names, or None without one."""
    try:
        pattern = re.compile(text)
    except re.error as error:
        raise ConfigError(
            f"{where}: expected a regular expression, got {text!r}: {error}"
        ) from error
    return [*pattern.groupindex, *[None] * (pattern.groups - len(pattern.groupindex))]


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
            f"backend.template: expected a file, or one of {', '.join(ours)}, got '{name}'; "
            f"{nearest(name, ours)}"
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
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
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
    if "command" not in content:
        raise ConfigError(f"{where}: expected `command`, the program and its arguments, got none")
    if "name" in content:
        raise UnknownNameError(f"{where}: name: a template has no key 'name'; remove it")
    try:
        return Template.build(content)
    except ConfigError as error:
        raise type(error)(f"{where}: {error}") from error
