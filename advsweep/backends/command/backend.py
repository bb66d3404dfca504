"""The backend `command`: a training command of the user's trains each run."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from advsweep.backends.base import (
    BATCH_FIELDS,
    NODE_KEYS,
    PARAMETERS,
    Backend,
    Reporter,
    hash_json,
)
from advsweep.backends.command import consent
from advsweep.backends.command.checkpoints import FOLDER, CommandCheckpoints
from advsweep.backends.command.metric_feed import make_log, make_names
from advsweep.backends.command.template import (
    Template,
    build_template,
    read_template,
    template_path,
)
from advsweep.backends.command.training import CommandTraining, Setup, check_arguments
from advsweep.components import Plain, option
from advsweep.errors import CheckpointError, ConfigError, UnknownNameError, nearest

if TYPE_CHECKING:
    from advsweep.backends.base import Run
    from advsweep.tasks.base import Sampler, Task

_OWN_FIELDS = frozenset({"template", "folder", "content", "parameters"})

_UNUSED: Mapping[str, str] = {
    "objective": "clipped",
    "rollout": "plain",
    "task": "countdown",
    "model": "table",
    "optimizer": "adamw",
    "generation": "sampling",
    "evaluation": "standard",
}
"""What stands for the nodes of a run that no command gets. No config and no identity has them."""

_UNUSED_NUMBERS = {"group_size": 1, "prompts_per_step": 1}


@dataclass(kw_only=True)
class Command(Backend):
    """Trains each run with a command, by a template; see docs/command.md.

    A run consists of the config keys that reach the command: the others are neither stored nor
    part of its identity, and setting one is refused. The content of the template is part of the
    identity, and its place is not.
    """

    name: ClassVar[str] = "command"
    external: ClassVar[bool] = True
    provides: ClassVar[frozenset[str]] = BATCH_FIELDS
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
            declared = self.spec.parameters
            for key, value in self.parameters.items():
                if key not in declared:
                    raise UnknownNameError(
                        f"parameters.{key}: the template has no such parameter; "
                        f"{nearest(key, declared)}"
                    )
                if isinstance(value, (dict, list)) != isinstance(declared[key], (dict, list)):
                    raise ConfigError(
                        f"parameters.{key}: expected a value such as {declared[key]!r}, got "
                        f"{value!r}"
                    )
            self.parameters = {**declared, **self.parameters}

    @functools.cached_property
    def spec(self) -> Template:
        """The template, checked.

        Raises:
            ConfigError: it is missing, or does not fit.
        """
        if not self.content:
            raise ConfigError(
                "template: expected a file, or trl_script, verl or torchrun, got nothing; give "
                "backend.template=FILE"
            )
        template = build_template(self.content, self.template or "template")
        make_names(template.metric_options)
        make_log(template.metric_options, Path("metrics"))
        return template

    @classmethod
    def load_node(cls, node: Mapping[str, Any]) -> Plain:
        """Read the template that the command line names, and record that it may be started."""
        if node.get("content"):
            raise ConfigError("backend.content: expected backend.template=FILE, got its content")
        name = node.get("template")
        if not isinstance(name, str) or not name:
            raise ConfigError(
                f"backend.template: expected a file, or trl_script, verl or torchrun, got {name!r}"
            )
        path = template_path(name)
        content = read_template(path)
        build_template(content, str(path))
        consent.allow_template(content, str(path), os.getcwd())
        return {**node, "template": str(path), "folder": os.getcwd(), "content": content}

    def check_consent(self) -> None:
        if consent.allowed_places(self.content) is None:
            raise ConfigError(
                f"backend: the store names the command of this run, from the template "
                f"'{self.template}', and a store does not choose what is started; start its sweep "
                f"again with backend=command backend.template=FILE, or pass --trust-store"
            )

    @property
    def _setup(self) -> Setup:
        """The template and its places, those of the command line before those of the store."""
        places = {"template": self.template, "folder": self.folder}
        places |= consent.allowed_places(self.content) or {}
        return Setup(self.spec, self.parameters, places["template"], places["folder"])

    def reached(self, config: Mapping[str, Any]) -> Plain:
        """Return the part of a config that reaches the command, and what the template states."""
        spec = self.spec
        fixed = {key: value for key, value in self._fixed.items() if key in config}
        kept: Plain = {}
        for key, node in {**config, **fixed}.items():
            if key == "backend" or key in fixed or key in spec.used:
                kept[key] = node
            elif isinstance(node, Mapping):
                fields = {k: v for k, v in node.items() if self._reaches(f"{key}.{k}")}
                if fields or any(used.startswith(f"{key}.") for used in spec.used):
                    own = {k: v for k, v in node.items() if k in ("name", "revision")}
                    kept[key] = {**own, **fields}
            elif isinstance(node, str) and any(u.startswith(f"{key}.") for u in spec.used):
                kept[key] = node
        return kept

    @property
    def _fixed(self) -> Plain:
        """What the template states, with nodes as mappings."""
        return {
            key: {"name": value} if key in NODE_KEYS and isinstance(value, str) else value
            for key, value in self.spec.fixed.items()
        }

    def completed(self, config: Mapping[str, Any]) -> Plain:
        """Return a config with every node: what reaches the command, and stand-ins."""
        return {**_UNUSED, **_UNUSED_NUMBERS, **self._fixed, **self.reached(config)}

    def check_given(self, keys: Iterable[str]) -> None:
        for key in keys:
            if reason := self._unused(key):
                raise ConfigError(
                    f"{key}: expected a key that reaches the command, got one {reason}; the "
                    f"template '{Path(self.template).name}' takes {', '.join(self._takes())}"
                )

    def _reaches(self, key: str) -> bool:
        """Return whether a key reaches the command, or the way in which its counts are read."""
        counted = key == "evaluation.k" and self.spec.evaluation_options is not None
        return counted or self.spec.reaches(key)

    def _unused(self, key: str) -> str:
        """Say why a key that was set reaches nothing; empty if it does."""
        head, _, rest = key.partition(".")
        spec = self.spec
        if head == "backend":
            if not rest or rest.partition(".")[0] in _OWN_FIELDS:
                return ""
            return "" if spec.reaches(key) else "that no placeholder of the template uses"
        if head in spec.fixed:
            return f"that the template fixes at {spec.fixed[head]!r}"
        if head == "method":
            return "that sets several groups; give estimator=NAME and what else the template takes"
        if head not in NODE_KEYS and head not in PARAMETERS:
            return ""
        if not rest and any(used.startswith(f"{head}.") for used in spec.used):
            return ""
        return "" if self._reaches(key) else "that no placeholder of the template uses"

    def _takes(self) -> Iterator[str]:
        keys = {used for used in self.spec.used if used.partition(".")[0] in NODE_KEYS}
        keys |= {used for used in self.spec.used if used in PARAMETERS}
        yield from sorted(keys)
        yield from sorted(f"backend.parameters.{key}" for key in self.spec.parameters)

    def check(self, run: Run) -> None:
        """Refuse a run whose template has a placeholder that the run cannot fill."""
        if any(used.startswith("optimizer.match") for used in self.spec.used):
            raise ConfigError(
                "template: expected no placeholder of optimizer.match, as advsweep matches "
                "learning rates only in its own backends"
            )
        check_arguments(run, self._setup)

    def train(self, run: Run, directory: Path, reporter: Reporter) -> None:
        self.check_consent()
        CommandTraining(run, self._setup, directory, reporter).run()

    def discard_checkpoints(self, directory: Path, after_step: int) -> int:
        checkpoints = CommandCheckpoints(None, directory, 0)
        late = len([step for step in checkpoints.noted if step > after_step])
        checkpoints.forget_after(after_step)
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
