"""Templates: how a command is started, what it logs, and what its checkpoints are.

A template is a YAML file of the user's, or one of ours (`templates/`):

    command: ["{python}", train.py, --estimator, "{estimator.name}", --seed, "{seed}",
              --steps, "{steps}", --output, "{directory}"]
    metrics: {kind: jsonl, file: "{directory}/metrics.jsonl"}

`docs/command.md` describes every key. Each part is a component, so that unknown keys and wrong
types are refused as everywhere.
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
from advsweep.backends.command.placeholders import PARAMETERS_KEY, check_name, names_in
from advsweep.components import Component, option
from advsweep.errors import ConfigError, UnknownNameError, nearest
from advsweep.yaml_files import read_yaml

OUTPUT = "output"
"""What `metrics.file` says where metrics are lines of the command's own output."""

FIXABLE = ("estimator", *PARAMETERS)
"""Keys that a template may state for a command that does not take them."""

NEEDED = ("estimator", "seed", "steps")
"""Keys that a command takes, or a template states: every run has them."""

_FOLDER = Path(__file__).parent / "templates"
_EACH = frozenset({"each", "as"})


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
        known = ("TERM", "INT", "HUP", "USR1", "USR2")
        if self.signal.removeprefix("SIG") not in known:
            raise ConfigError(f"signal: expected one of {', '.join(known)}, got {self.signal!r}")

    @property
    def number(self) -> int:
        """The number of the signal."""
        return int(signal.Signals["SIG" + self.signal.removeprefix("SIG")])


@dataclass(kw_only=True)
class Template(Component):
    """A template, checked.

    Attributes:
        argv: the parts of the command; the first is the program.
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
        self.metric_options = Metrics.build(self.metrics, where="metrics")
        self.memory_options = OutOfMemory.build(self.out_of_memory, where="out_of_memory")
        self.stop_options = Stop.build(self.stop, where="stop")
        self.checkpoint_options = _part(CheckpointFiles, self.checkpoints, "checkpoints")
        self.evaluation_options = _part(EvaluationFiles, self.evaluations, "evaluations")
        self.argv = self._parts(self.command, "command")
        self._check_patterns()
        self.used = self._used()
        self._check_fixed()

    def reaches(self, key: str) -> bool:
        """Return whether a dotted config key reaches the command."""
        head = key.partition(".")[0]
        return key in self.used or head in self.used

    @property
    def resume_parts(self) -> list[Any]:
        """The parts of the arguments that resume the command."""
        if self.checkpoint_options is None:
            return []
        return self._parts(self.checkpoint_options.resume, "checkpoints.resume")

    @property
    def evaluation_parts(self) -> list[Any]:
        """The parts of the evaluation command."""
        if self.evaluation_options is None:
            return []
        return self._parts(self.evaluation_options.command, "evaluations.command")

    def _parts(self, command: tuple[Any, ...] | str, where: str) -> list[Any]:
        """Return a command as parts: texts, and mappings `{each: NODE, as: ...}`."""
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
                _check_each(part, where)
            elif isinstance(part, (list, bool)) or part is None:
                raise ConfigError(f"{where}: expected texts and numbers, got {part!r}")
        return [part if isinstance(part, Mapping) else str(part) for part in command]

    def _texts(self) -> Iterator[tuple[str, str, Sequence[str]]]:
        """Yield each text that may hold placeholders, its place, and further names there."""
        resuming, evaluating = ("checkpoint", "step"), ("checkpoint", "step")
        places: list[tuple[str, list[Any], Sequence[str]]] = [
            ("command", self.argv, ()),
            ("checkpoints.resume", self.resume_parts, resuming),
            ("evaluations.command", self.evaluation_parts, evaluating),
            ("environment", [v for v in self.environment.values() if v is not None], ()),
            ("workdir", [self.workdir], ()),
            ("metrics.file", [self.metric_options.file], ()),
        ]
        if self.evaluation_options is not None:
            places.append(("evaluations.file", [self.evaluation_options.file], ()))
        for where, parts, extra in places:
            for part in parts:
                if isinstance(part, Mapping):
                    for text in _texts_of(part):
                        yield text, where, (*extra, "key", "value")
                else:
                    yield str(part), where, extra

    def _used(self) -> frozenset[str]:
        used: set[str] = set()
        for text, where, extra in self._texts():
            for name in names_in(text, where):
                check_name(name, self.parameters, extra, where)
                if name not in extra:
                    used.add(name)
        for part in [*self.argv, *self.resume_parts, *self.evaluation_parts]:
            if isinstance(part, Mapping):
                used.add(part["each"])
        for key in self.parameters:
            if not {f"{PARAMETERS_KEY}.{key}", PARAMETERS_KEY} & used:
                raise ConfigError(
                    f"parameters.{key}: expected a placeholder {{parameters.{key}}} that uses it, "
                    f"got none; add it or remove the parameter"
                )
        return frozenset(used)

    def _check_fixed(self) -> None:
        for key in self.fixed:
            if key not in FIXABLE:
                raise UnknownNameError(
                    f"fixed.{key}: no such key can be stated; {nearest(str(key), FIXABLE)}"
                )
            if self.reaches(key) or any(u.startswith(f"{key}.") for u in self.used):
                raise ConfigError(
                    f"fixed.{key}: expected a key that the command does not take, got one that a "
                    f"placeholder uses; remove either"
                )
        for key in NEEDED:
            taken = any(u == key or u.startswith(f"{key}.") for u in self.used)
            if not taken and key not in self.fixed:
                word = "{estimator.name}" if key == "estimator" else f"{{{key}}}"
                raise ConfigError(
                    f"command: expected a placeholder {word}, got none; pass it to the command, "
                    f"or say with `fixed: {{{key}: ...}}` what the command uses"
                )

    def _check_patterns(self) -> None:
        if not self.argv:
            raise ConfigError("command: expected a program and its arguments, got nothing")
        if isinstance(self.argv[0], Mapping):
            raise ConfigError("command: expected a program first, got `each`")
        options = self.checkpoint_options
        if options is not None and _pattern(options.step, "checkpoints.step").groups != 1:
            raise ConfigError(
                f"checkpoints.step: expected one group, the step, got {options.step!r}"
            )
        if self.progress:
            groups = _pattern(self.progress, "progress").groupindex
            if not {"done", "total"} <= groups.keys():
                raise ConfigError(
                    "progress: expected the groups (?P<done>...) and (?P<total>...), got "
                    f"{self.progress!r}"
                )
        if self.quoting not in ("none", "hydra") or (self.shell and self.quoting != "none"):
            raise ConfigError(
                f"quoting: expected none, or hydra without shell, got {self.quoting!r}"
            )
        if self.metric_options.file == OUTPUT and self.metric_options.kind != "pattern":
            raise ConfigError(
                f"metrics.kind: expected pattern, as the file is the command's output, got "
                f"{self.metric_options.kind!r}"
            )
        if self.evaluation_options is not None:
            chosen = [bool(self.evaluation_options.file), bool(self.evaluation_options.command)]
            if sum(chosen) != 1:
                raise ConfigError("evaluations: expected either a file or a command")
            if self.evaluation_options.command and self.checkpoint_options is None:
                raise ConfigError("evaluations.command: expected checkpoints to evaluate, got none")
        for place, codes in (
            ("success", self.success),
            ("out_of_memory.exit_codes", self.memory_options.exit_codes),
        ):
            if any(isinstance(code, bool) or not isinstance(code, int) for code in codes):
                raise ConfigError(f"{place}: expected whole numbers, got {codes}")


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


def _part(kind: type[Any], node: Mapping[str, Any] | None, where: str) -> Any:
    if node is None:
        return None
    if kind is CheckpointFiles:
        for key in ("glob", "step"):
            if key not in node:
                raise ConfigError(f"{where}: expected `{key}`, got none")
    return kind.build(node, where=where)


def _check_each(part: Mapping[str, Any], where: str) -> None:
    if part.keys() != _EACH or part["each"] not in NODE_KEYS or not _texts_of(part):
        raise ConfigError(
            f"{where}: expected {{each: estimator, as: TEXT}} with {{key}} and {{value}} in the "
            f"text, or a list of texts, got {dict(part)!r}"
        )


def _texts_of(part: Mapping[str, Any]) -> list[str]:
    texts = part["as"] if isinstance(part["as"], list) else [part["as"]]
    return [str(text) for text in texts]


def _pattern(text: str, where: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        raise ConfigError(
            f"{where}: expected a regular expression, got {text!r}: {error}"
        ) from error
