"""The backend `command`: a training command of the user's trains each run."""

from __future__ import annotations

import functools
import os
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from advsweep.backends.base import BATCH_FIELDS, NODE_KEYS, PARAMETERS, Backend
from advsweep.backends.command.arguments import (
    Values,
    command_line,
    file_below,
    values_of,
    variables,
)
from advsweep.backends.command.program import source_of_program, working_folder
from advsweep.backends.command.records import FOLDER, CommandCheckpoints
from advsweep.backends.command.template import (
    Template,
    allow_template,
    allowed_places,
    build_template,
    read_template,
    refuse_secrets,
    template_path,
)
from advsweep.backends.command.training import CommandTraining
from advsweep.backends.identity import hash_json
from advsweep.backends.reporter import Reporter
from advsweep.components import SOURCE, Plain, option
from advsweep.errors import CheckpointError, ConfigError, UnknownNameError, nearest

if TYPE_CHECKING:
    from advsweep.backends.base import Run
    from advsweep.sources import SourceCode
    from advsweep.tasks.base import Sampler, Task

# Stands for the folder of a run where that is not known; nothing is in it.
_NO_FOLDER = Path("/advsweep-run")

_OWN_FIELDS = frozenset({"template", "folder", "content", "parameters"})
_EXPECTED = "a file, or trl_script, verl or torchrun"
_GIVE = "give backend.template=FILE"

# What stands for the keys of a run that no command gets. No config and no identity has them.
_UNUSED: Mapping[str, Any] = {
    "objective": "clipped",
    "rollout": "plain",
    "task": "countdown",
    "model": "table",
    "optimizer": "adamw",
    "generation": "sampling",
    "evaluation": "standard",
    "group_size": 1,
    "prompts_per_step": 1,
}


def _finds(program: str, folder: Path) -> bool:
    """Return whether a program is there, by its name or by its path from a folder."""
    place = folder / program if os.sep in program else program
    return shutil.which(place) is not None


@dataclass(kw_only=True)
class Command(Backend):
    """Trains each run with a command, by a template; see docs/command.md.

    A run consists of the config keys that reach the command: the others are neither stored nor
    part of its identity, and setting one is refused. The content of the template is part of the
    identity, and its place is not.
    """

    name: ClassVar[str] = "command"
    external: ClassVar[bool] = True
    # Of turns nobody knows what a program hands over: the plug-ins of TRL and verl refuse by name.
    provides: ClassVar[frozenset[str]] = BATCH_FIELDS | {
        "turn_of_token",
        "turn_rewards",
        "turn_states",
    }
    optimizers: ClassVar[frozenset[str]] = frozenset({"adamw", "sgd"})

    template: str = option(
        "", identity=False, help="the template: a file, or trl_script, verl or torchrun"
    )
    folder: str = option("", identity=False, help="working folder of advsweep; it is filled in")
    content: dict[str, Any] = option({}, help="what the template says; it is read from the file")
    parameters: dict[str, Any] = option({}, help="parameters that the template declares")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.content:
            refuse_secrets("parameters", self.parameters)
            declared = self.spec.parameters
            for key in self.parameters:
                if key not in declared:
                    raise UnknownNameError(
                        f"parameters.{key}: the template has no such parameter; "
                        f"{nearest(key, declared)}"
                    )
            self.parameters = {**declared, **self.parameters}

    @functools.cached_property
    def spec(self) -> Template:
        """The template, checked.

        Raises:
            ConfigError: it is missing, or does not fit.
        """
        if not self.content:
            raise ConfigError(f"template: expected {_EXPECTED}, got nothing; {_GIVE}")
        template = build_template(self.content, self.template or "template")
        template.log.open_log(Path("metrics"))
        return template

    @classmethod
    def load_node(cls, node: Plain) -> Plain:
        """Read the template that the command line names, and record that it may be started."""
        name = node.get("template")
        if node.get("content") or not isinstance(name, str) or not name:
            got = "its content" if node.get("content") else repr(name)
            raise ConfigError(f"backend.template: expected {_EXPECTED}, got {got}; {_GIVE}")
        path = template_path(name)
        content = read_template(path)
        build_template(content, str(path))
        allow_template(content, str(path), os.getcwd())
        return {**node, "template": str(path), "folder": os.getcwd(), "content": content}

    def check_consent(self) -> None:
        if allowed_places(self.content) is None:
            raise ConfigError(
                f"backend: the store names the command of this run, from the template "
                f"'{self.template}', and a store does not choose what is started; start its sweep "
                f"again with backend=command backend.template=FILE, or pass --trust-store"
            )

    def check_machine(self) -> None:
        folder = Path(self.places()["folder"])
        if not folder.is_dir():
            raise ConfigError(
                f"its command starts in {folder}, and this machine has no such folder; start the "
                "worker where the program is, or name its folder with --folder DIR"
            )
        program = self.spec.argv[0]
        if isinstance(program, str) and "{" not in program and not _finds(program, folder):
            raise ConfigError(
                f"its command starts the program '{program}', and this machine has none; install "
                f"it, or name the folder where it is with --folder DIR (now {folder})"
            )

    def places(self) -> dict[str, str]:
        """The template's file and the working folder: the command line's before the store's."""
        places = {"template": self.template, "folder": self.folder}
        places |= allowed_places(self.content) or {}
        template = Path(self.template)
        if places["folder"] != self.folder and template.is_relative_to(self.folder):
            # It lies in the folder, and so in the one that takes its place.
            places["template"] = str(places["folder"] / template.relative_to(self.folder))
        return places

    def values(self, run: Run, directory: Path) -> Values:
        """Return the values of all placeholders; `directory` belongs to the command."""
        template = self.places()["template"]
        return values_of(run, self.parameters, directory, template, identity=run.identity)

    def program(self, run: Run) -> SourceCode | None:
        # Without consent no file is read that a store names.
        if allowed_places(self.content) is None:
            return None
        places = self.places()
        values = values_of(run, self.parameters, _NO_FOLDER, places["template"], identity="")
        return source_of_program(self.spec, values, places)

    def program_folder(self, run: Run) -> Path | None:
        return working_folder(self.spec, self.values(run, _NO_FOLDER), self.places())

    def training_config(self, config: Mapping[str, Any]) -> Plain:
        """Return the part of a config that reaches the command, and what the template states."""
        spec = self.spec
        fixed = {key: value for key, value in self._fixed.items() if key in config}
        kept: Plain = {}
        for key, node in {**config, **fixed}.items():
            if key == "backend" or key in fixed or key in spec.used:
                kept[key] = node
            elif isinstance(node, Mapping):
                fields = {k: v for k, v in node.items() if self._reaches(f"{key}.{k}")}
                if fields or spec.takes(key):
                    named = {k: v for k, v in node.items() if k in ("name", "revision", SOURCE)}
                    kept[key] = {**named, **fields}
            elif isinstance(node, str) and spec.takes(key):
                kept[key] = node
        return kept

    @property
    def _fixed(self) -> Plain:
        """What the template states, with nodes as mappings."""
        return {
            key: {"name": value} if key in NODE_KEYS and isinstance(value, str) else value
            for key, value in self.spec.fixed.items()
        }

    def with_defaults(self, config: Mapping[str, Any]) -> Plain:
        """Return a config with every node: what reaches the command, and stand-ins."""
        return {**_UNUSED, **self._fixed, **self.training_config(config)}

    def _reaches(self, key: str) -> bool:
        """Return whether a key reaches the command, or the way in which its counts are read."""
        return self.spec.reaches(key) or (key == "evaluation.k" and self.spec.counted is not None)

    def check_given(self, keys: Iterable[str]) -> None:
        spec = self.spec
        for key in keys:
            head, _, rest = key.partition(".")
            used = head not in (*NODE_KEYS, *PARAMETERS, "method") or self._reaches(key)
            used = used or (not rest and spec.takes(head))
            if head == "backend":
                used = not rest or rest.partition(".")[0] in _OWN_FIELDS or spec.reaches(key)
            if used and head not in spec.fixed:
                continue
            reason = "that no placeholder of the template uses"
            if head in spec.fixed:
                reason = f"that the template fixes at {spec.fixed[head]!r}"
            heads = (*NODE_KEYS, *PARAMETERS)
            takes = [name for name in sorted(spec.used) if name.partition(".")[0] in heads]
            takes += sorted(f"backend.parameters.{name}" for name in spec.parameters)
            raise ConfigError(
                f"{key}: expected a key that reaches the command, got one {reason}; the "
                f"template '{Path(self.template).name}' takes {', '.join(takes)}"
            )

    def check(self, run: Run) -> None:
        """Refuse a run whose template has a placeholder that the run cannot fill."""
        if any(used.startswith("optimizer.match") for used in self.spec.used):
            raise ConfigError(
                "template: expected no placeholder of optimizer.match, as advsweep matches "
                "learning rates only in its own backends"
            )
        later = {"checkpoint": "/checkpoint", "step": 1}
        values = {**self.values(run, Path("/run")), **later}
        command_line(self.spec, values, resume=True)
        variables(self.spec, values)
        file_below(self.spec.log.file, values, "metrics.file")
        if self.spec.counted:
            file_below(self.spec.counted.file, values, "evaluations.file")

    def train(self, run: Run, directory: Path, reporter: Reporter) -> None:
        self.check_consent()
        # A command may run in another working folder than this process.
        directory = directory.absolute()
        values = self.values(run, directory / FOLDER)
        CommandTraining(run.steps, self.spec, values, self.places(), directory, reporter).run()

    def discard_checkpoints(self, directory: Path, after_step: int) -> int:
        checkpoints = CommandCheckpoints(None, directory, 0)
        kept = {step for step in checkpoints.noted if step <= after_step}
        late = len(checkpoints.noted) - len(kept)
        if late:
            checkpoints.note(kept)
        return late

    def sampler(self, run: Run, directory: Path, step: int, task: Task | None = None) -> Sampler:
        raise ConfigError(
            "backend: advsweep cannot sample from the weights of a command; its template says "
            "where evaluations come from (`evaluations`)"
        )

    def base_key(self, run: Run) -> str:
        # Nothing says which base model a command starts from.
        return hash_json({"backend": self.name, "run": run.identity})

    def export(self, run: Run, directory: Path, step: int, target: Path) -> None:
        raise CheckpointError(
            f"backend: '{self.name}' keeps the checkpoints of its command as they are, in "
            f"{directory / FOLDER}; use those"
        )
