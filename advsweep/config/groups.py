"""The config groups: YAML files and registered components, composed by Hydra.

Hydra takes 45 to 130 ms to compose a configuration. `ConfigGroups` therefore composes each choice
of group members once; `advsweep.config.compose` copies the result and sets values in the copies.
"""

from __future__ import annotations

import hashlib
import re
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

from advsweep.components import Plain, fields_of
from advsweep.config.hydra_private import hydra_for
from advsweep.errors import (
    MISTYPED,
    AdvsweepWarning,
    ConfigError,
    PluginError,
    UnknownNameError,
    close_names,
    first_of,
    nearest,
    reason_of,
)
from advsweep.named_code import parse_word
from advsweep.names import YAML_SUFFIXES
from advsweep.registry import Registry
from advsweep.synonyms import KEYS, VALUES, hint
from advsweep.yaml_files import (
    Document,
    check_yaml,
    read_document,
    read_yaml,
    yaml_error,
)

# Groups whose members set other groups; a composed config has no node for them.
PRESET_GROUPS = ("method", "experiment")

# The key whose value may be a mapping of names of components, each with its weight or its fields.
KEYED = "task.reward"

# The key by which a file of a group says what its member is. It is no part of a configuration.
DESCRIPTION = "description"


def conf_directory() -> Path:
    """Return the folder of our own config groups.

    It is `advsweep/conf` in an installed wheel and `conf` in a checkout.

    Raises:
        ConfigError: the installation lacks it.
    """
    package = Path(__file__).resolve().parents[1]
    for candidate in (package / "conf", package.parent / "conf"):
        if (candidate / "config.yaml").is_file():
            return candidate
    raise ConfigError(
        f"expected config groups in {package / 'conf'}, got none; install advsweep again"
    )


class ConfigGroups:
    """The groups of a configuration, their members, and what a choice of members composes to.

    It is a context manager, since Hydra keeps its state in globals.

    Args:
        registries: the components of each group, by group name. A member of a group is a YAML
            file, ours or the user's, or a registered component without a file.
        keys: the top-level keys that are not groups.
        config_dirs: folders with the user's own groups. They are searched before ours.
        parts: the components that stand below the groups, by dotted key.

    Raises:
        ConfigError: a config folder does not exist.
    """

    def __init__(
        self,
        registries: Mapping[str, Registry[Any]],
        keys: Collection[str],
        config_dirs: Sequence[Path] = (),
        parts: Mapping[str, Registry[Any]] = MappingProxyType({}),
    ) -> None:
        from yaml import YAMLError  # type: ignore[import-untyped]

        for directory in config_dirs:
            if not directory.is_dir():
                raise ConfigError(f"--config-dir: expected a folder, got '{directory}'")
        self.registries = registries
        self._keys = keys
        self._parts = parts
        self._config_dirs = [d.resolve() for d in config_dirs]
        for folder in self._config_dirs:
            for path in sorted(folder.rglob("*.yaml")):
                # Aliases may expand to more than memory holds; other faults matter once the file
                # is chosen.
                with suppress(OSError, YAMLError):
                    check_yaml(path)
        self._composed: dict[frozenset[tuple[str, str]], Plain] = {}
        self._sweep_files: dict[str, Path] = {}
        self._documents: dict[str, Document] = {}

    def __enter__(self) -> Self:
        from hydra.core.config_store import ConfigStore

        self._stack = ExitStack()
        groups = {*self.registries, *PRESET_GROUPS}
        self._lists = self._stack.enter_context(
            hydra_for(conf_directory(), self._config_dirs, groups)
        )
        # Hydra has a group `hydra` for its own settings, which advsweep does not use.
        self.names = {*self._lists.groups(), *groups} - {"hydra"}
        for group, registry in self.registries.items():
            # Components without a YAML file.
            for name in {*registry.names()} - {*self._files(group)}:
                ConfigStore.instance().store(name=name, node={"name": name}, group=group)
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()

    def members(self, group: str) -> list[str]:
        """List the members of a group, sorted, without aliases.

        Files in subfolders are named with their folder. Files whose names start with an
        underscore hold what others share, and are left out.
        """
        registered = self.registries[group].names() if group in self.registries else []
        return sorted({*self._files_below(group), *registered})

    def member(self, group: str, value: Any) -> str:
        """Return the name under which a member of a group is composed; resolves aliases.

        Raises:
            ConfigError: the value is not a name.
            UnknownNameError: the group has no such member; the message offers the nearest.
        """
        if value is None or isinstance(value, (list, dict, bool)):
            raise ConfigError(
                f"{group}: expected the name of one {group}, got {value!r}; "
                f"sweep over several with {group}=NAME,NAME"
            )
        name = str(value)
        if name in self._sweep_files and group == "experiment":
            return name
        if group == "experiment" and name.endswith(YAML_SUFFIXES):
            return self._add_file(Path(name))
        if group in self.registries and parse_word(name) is not None:
            return self._add_code(group, name)
        folder, _, stem = f"{group}/{name}".rpartition("/")
        if stem in self._files(folder):
            return name
        if group not in self.registries:
            near = nearest(name, self.members(group), f"{VALUES}.{group}")
            raise UnknownNameError(f"{group}: no {group} is called '{name}'; {near}")
        return self.registries[group].find(name, where=group, others=self.members(group))

    def _add_code(self, group: str, word: str) -> str:
        """Register the component that a word names by file or module; return it as a member.

        Raises:
            ConfigError: it cannot be loaded, or is no component of the group.
        """
        from hydra.core.config_store import ConfigStore

        name = self.registries[group].resolve(word)
        # A folder of its own: a file of the group may have the name.
        folder = f"file_{hashlib.sha256(word.encode()).hexdigest()[:12]}"
        ConfigStore.instance().store(
            name=name, node={"name": name}, group=f"{group}/{folder}", package=group
        )
        return f"{folder}/{name}"

    def value(self, key: str, value: Any) -> Any:
        """Return the value of a key, where a word that names code stands for its registered name.

        Raises:
            ConfigError: the code cannot be loaded, or is no component of the key's kind.
        """
        registry = self._parts.get(key.removesuffix(".name"))
        if registry is None:
            return value
        is_keyed = key == KEYED and isinstance(value, Mapping) and "name" not in value
        if is_keyed:
            return {registry.resolve(str(name)): entry for name, entry in value.items()}
        return with_registered_name(registry, value)

    def sweep_name(self, experiment: str) -> str:
        """Return the name of an experiment's sweep: its own, or that of the user's file."""
        path = self._sweep_files.get(experiment)
        return experiment if path is None else path.stem

    def _add_file(self, path: Path) -> str:
        """Read a sweep file that the user named by its path; return it as an experiment's name.

        Raises:
            ConfigError: it does not exist, is not YAML, or has no keys.
        """
        from hydra.core.config_store import ConfigStore

        try:
            document = read_document(path)
        except OSError as error:
            near = ""
            if isinstance(error, FileNotFoundError):
                near = _near_file(path, self.members("experiment"))
            raise ConfigError(f"{path}: expected a sweep file; {reason_of(error)}{near}") from error
        node = document.value
        if not isinstance(node, dict):
            line = document.lines.get((), 1)
            raise ConfigError(
                f"{path}, line {line}: expected keys such as `steps: 100` and `sweep:`, got "
                f"{kind_of(node)}"
            )
        for key, value in node.items():
            if not isinstance(key, str):
                raise ConfigError(
                    f"{path}: expected keys such as `steps: 100` and `sweep:`, got the key {key!r}"
                )
            self._check_form(key, value, f"{path}, line {document.lines[(key,)]}")
        # A folder of its own: the name may be that of one of our sweep files.
        folder = f"file_{hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:12]}"
        ConfigStore.instance().store(
            name="sweep_file", node=node, group=f"experiment/{folder}", package="_global_"
        )
        name = f"{folder}/sweep_file"
        self._sweep_files[name] = path
        self._documents[name] = document
        return name

    def _check_form(self, key: str, value: Any, where: str) -> None:
        """Refuse a value of a sweep file whose form its key cannot have.

        Raises:
            ConfigError: the description is no text, a group is neither a name nor a mapping,
                `sweep` is no mapping, or a number of a run is a list or a mapping.
        """
        group = key.removeprefix("override /")
        if key == DESCRIPTION and not isinstance(value, str):
            expected = "a text"
        elif key == "sweep" and not isinstance(value, Mapping):
            expected = "a mapping with keys such as `blocks` and `seeds`"
        elif group in self.registries and not isinstance(value, (str, Mapping)):
            expected = (
                f"the name of one {group}, or a mapping of its keys; sweep over several in "
                f"`sweep: {{blocks: [{{{group}: [NAME, NAME]}}]}}`"
            )
        elif key in self._keys and key != "sweep" and isinstance(value, (list, Mapping)):
            expected = f"one value; sweep over several in `sweep: {{common: {{{key}: [...]}}}}`"
        elif key == "defaults" and not isinstance(value, list):
            expected = "a list such as [override /method: dapo]"
        else:
            return
        raise ConfigError(f"{where}: {key}: expected {expected}, got {kind_of(value)}")

    def located(self, experiment: str | None, error: ConfigError) -> ConfigError:
        """Return an error on a sweep file with the file, and the line of the key it begins with."""
        document = None if experiment is None else self._documents.get(experiment)
        if document is None or experiment is None:
            return error
        key = str(error).partition(": ")[0]
        names = {key, "seeds"} if key == "seed" else {key}
        swept = {
            line
            for place, line in document.lines.items()
            if place and place[0] == "sweep" and place[-1] in names
        }
        if len(swept) == 1:
            return type(error)(f"{self._sweep_files[experiment]}, line {swept.pop()}: {error}")
        place = tuple(part for part in re.split(r"[.\[\]]+", key) if part)
        # A key may have dots itself, as `estimator.delta`.
        for length in range(len(place), 0, -1):
            line = _line_of(document, place[:length], place[length:])
            if line is not None:
                return type(error)(f"{self._sweep_files[experiment]}, line {line}: {error}")
        return error

    def check_key(self, key: str) -> None:
        """Refuse a key whose first part is neither a group nor a value of a run.

        Raises:
            ConfigError: the message offers the nearest keys.
        """
        head, *rest = key.split(".")
        near = self.near_key(key)
        if near is not None:
            raise UnknownNameError(f"{key}: no config group or key is called '{head}'; {near}")
        if rest and head in PRESET_GROUPS:
            raise ConfigError(
                f"{key}: {head} sets other groups and has no keys of its own; "
                f"set theirs, such as objective.clip_low"
            )
        if rest == ["name"]:
            said = hint(KEYS, key) if head == "model" else None
            near = "" if said is None else f"; {said}"
            raise ConfigError(f"{key}: expected another key; choose by {head}=NAME{near}")

    def near_key(self, key: str) -> str | None:
        """Return what may be meant by a key whose first part does not exist; None if it does."""
        head = key.partition(".")[0]
        if head in self.names or head in self._keys:
            return None
        said = hint(KEYS, key)
        if said is not None:
            return said
        inner = self._default_keys()
        known = {*self.names, *self._keys}
        if head in inner:
            return f"did you mean {' or '.join(inner[head])}?"
        if close_names(head, known, likeness=MISTYPED):
            return nearest(head, known, KEYS)
        owners = self._owners_of(head)
        if owners:
            some = first_of((f"`{group}={name} {group}.{head}`" for group, name in owners), 2)
            return f"other components have it: {some}"
        close = close_names(head, inner, likeness=MISTYPED)
        if close:
            return f"did you mean {' or '.join(inner[close[0]])}?"
        return nearest(head, known, KEYS)

    def _default_keys(self) -> dict[str, list[str]]:
        """Return the dotted keys of the components of a run without any setting, by last part."""
        keys: dict[str, list[str]] = {}
        for group, node in self.compose({}).items():
            if group in self.registries and isinstance(node, dict):
                for field in fields_of(self.registries[group].get(node["name"])):
                    keys.setdefault(field, []).append(f"{group}.{field}")
        return keys

    def _owners_of(self, key: str) -> list[tuple[str, str]]:
        """Return the components, by group and name, that have a key of this name."""
        return [
            (group, name)
            for group, registry in self.registries.items()
            for name in registry.names()
            if key in fields_of(registry.get(name))
        ]

    def compose(self, choices: Mapping[str, str]) -> Plain:
        """Compose the configuration of a choice of members. Other groups keep their defaults.

        The config is shared: copy it before changing it. Interpolations (`${...}`) and missing
        values (`???`) are resolved only after values have been set (`compose.patch`).

        Args:
            choices: names by group, as `member` returns them.

        Raises:
            ConfigError: a YAML file cannot be read, or does not fit the others.
        """
        key = frozenset(choices.items())
        if key not in self._composed:
            self._composed[key] = self._compose(choices)
        return self._composed[key]

    def member_values(self, group: str, name: str) -> Plain:
        """Return the fields that a member's own file sets; empty without a file.

        Raises:
            ConfigError: the file is not YAML.
        """
        node = self._content(group, name)
        self._drop_description(group, node)
        return node

    def summary(self, group: str, name: str) -> str:
        """Return the first line of a member's description; empty without one."""
        return self._description(group, name).partition("\n")[0]

    def description(self, group: str, name: str) -> str:
        """Return what a member's file says of it, as one line; empty if it says nothing."""
        return " ".join(self._description(group, name).split())

    def _description(self, group: str, name: str) -> str:
        content = self._content(group, name)
        text = content.get(DESCRIPTION)
        if isinstance(text, str):
            return text
        if text is not None and not self._is_field(group, content):
            path = self._member_file(group, name)
            warnings.warn(
                f"{path}: {DESCRIPTION}: expected a text, got {kind_of(text)}",
                AdvsweepWarning,
                stacklevel=2,
            )
        return ""

    def _content(self, group: str, name: str) -> Plain:
        """Return what a member's own file holds; empty without a file or keys."""
        path = self._member_file(group, name)
        content = None if path is None else read_yaml(path)
        return content if isinstance(content, dict) else {}

    def _member_file(self, group: str, name: str) -> Path | None:
        folders = [*self._config_dirs, conf_directory()]
        paths = (folder / group / f"{name}.yaml" for folder in folders)
        return next((path for path in paths if path.is_file()), None)

    def _files(self, folder: str) -> list[str]:
        return self._lists.members(folder)

    def _files_below(self, group: str) -> Iterator[str]:
        yield from (name for name in self._files(group) if not name.startswith("_"))
        for folder in self._lists.groups(group):
            yield from (f"{folder}/{name}" for name in self._files_below(f"{group}/{folder}"))

    def _compose(self, choices: Mapping[str, str]) -> Plain:
        from hydra import compose
        from hydra.core.override_parser.types import Quote, QuotedString
        from hydra.errors import HydraException
        from omegaconf import OmegaConf
        from omegaconf.errors import OmegaConfBaseException
        from yaml import YAMLError

        overrides = [
            f"{group}={QuotedString(name, Quote.single).with_quotes()}"
            for group, name in choices.items()
        ]
        try:
            config = OmegaConf.to_container(compose("config", overrides), resolve=False)
        except YAMLError as error:
            self._read_files(choices)
            raise yaml_error(error) from error
        # The last three are raised for values that Python cannot make.
        except (
            HydraException,
            OmegaConfBaseException,
            RecursionError,
            ValueError,
            OverflowError,
        ) as error:
            self._read_files(choices)
            chosen = " ".join(f"{g}={self._sweep_files.get(n, n)}" for g, n in choices.items())
            reason = first_line(error)
            for name, path in self._sweep_files.items():
                reason = reason.replace(f"experiment/{name}", str(path))
            raise ConfigError(f"cannot compose {chosen or 'the defaults'}: {reason}") from error
        assert isinstance(config, dict)
        for path in self._written_files(choices):
            read_yaml(path)  # Hydra takes the last of two equal keys, and 010 for 8.
        plain = {str(k): v for k, v in config.items()}
        plain.pop(DESCRIPTION, None)
        for group, registry in self.registries.items():
            self._drop_description(group, plain.get(group))
            if group in plain and registry.takes_code:
                plain[group] = with_registered_name(registry, plain[group])
        for key in self._parts:
            group, _, field = key.partition(".")
            node = plain.get(group)
            if isinstance(node, dict) and field in node:
                node[field] = self.value(key, node[field])
        if any(group in choices for group in PRESET_GROUPS):
            self._drop_foreign_fields(plain, choices)
        return plain

    def _read_files(self, choices: Mapping[str, str]) -> None:
        """Read the files of a choice that cannot be composed: a message of ours names the line."""
        for group, name in choices.items():
            path = self._member_file(group, name)
            if path is not None:
                read_yaml(path)

    def _written_files(self, choices: Mapping[str, str]) -> list[Path]:
        """Return the user's own files of a choice of members, and those that their lists name."""
        files: dict[Path, None] = {}
        pending = list(choices.items())
        while pending:
            group, name = pending.pop()
            candidates = [folder / group / f"{name}.yaml" for folder in self._config_dirs]
            path = next((path for path in candidates if path.is_file()), None)
            if path is None or path in files:
                continue
            files[path] = None
            pending += _listed_members(group, read_yaml(path))
        return list(files)

    def _drop_description(self, group: str, node: Any) -> None:
        """Take a member's description off its node, unless its component has such a field."""
        if isinstance(node, dict) and DESCRIPTION in node and not self._is_field(group, node):
            del node[DESCRIPTION]

    def _is_field(self, group: str, node: Plain) -> bool:
        """Whether the description in a node is a field of the component that the node names.

        No component of ours has one, so only those of other packages are imported to see it.
        """
        registry = self.registries.get(group)
        name = node.get("name")
        if registry is None or name not in registry.names() or name in registry.modules:
            return False
        try:
            return DESCRIPTION in fields_of(registry.get(name))
        except PluginError:  # It is raised where the component is built.
            return False

    def _drop_foreign_fields(self, config: Plain, choices: Mapping[str, str]) -> None:
        """Drop the fields that a preset sets for its own component where another one is chosen.

        `method=dapo objective=cross_entropy` cannot use DAPO's clip range. Fields that the chosen
        component has too keep the preset's values. Whatever the component's own YAML file sets
        stays too, and is checked later with the rest. So do keys that begin with an underscore,
        which no component has, such as `_target_`, by which Hydra calls functions.
        """
        for group, name in choices.items():
            if group in self.registries and isinstance(config.get(group), dict):
                node = self.compose({group: name})[group]
                fields = {*node, *fields_of(self.registries[group].get(node["name"]))}
                config[group] = {
                    k: v for k, v in config[group].items() if k in fields or str(k).startswith("_")
                }


def with_registered_name(registry: Registry[Any], node: Any) -> Any:
    """Return a component's node with its registered name, where it names code.

    Call it with words of the present command line, and of files that it names, alone.

    Raises:
        ConfigError: the code cannot be loaded, or is no component of this kind.
    """
    if isinstance(node, str):
        return registry.resolve(node)
    if isinstance(node, Mapping) and isinstance(node.get("name"), str):
        return {**node, "name": registry.resolve(node["name"])}
    return node


def _listed_members(group: str, content: Any) -> Iterator[tuple[str, str]]:
    """Yield group and name of each entry of a file's `defaults`, where they can be told."""
    entries = content.get("defaults") if isinstance(content, dict) else None
    if not isinstance(entries, list):
        return
    for entry in entries:
        if isinstance(entry, str):
            folder, _, name = f"{group}/{entry}".rpartition("/")
            yield folder, name
        elif isinstance(entry, dict):
            for key, value in entry.items():  # such as `override /model@package: hf`
                _, _, group_and_package = str(key).rpartition("/")
                chosen_group, _, _ = group_and_package.partition("@")
                yield chosen_group, str(value)


def kind_of(value: Any) -> str:
    """Return what a value of a YAML file is, for a message: `a list`, `nothing`, `7`."""
    if value is None:
        return "nothing"
    if isinstance(value, Mapping):
        return "a mapping"
    return "a list" if isinstance(value, list) else repr(value)


def _line_of(document: Document, place: tuple[str, ...], rest: tuple[str, ...]) -> int | None:
    """Return the line of a place in a document; None if it is not there.

    Args:
        rest: the parts of the key that follow, which may be one key with dots.
    """
    for length in range(len(rest), 0, -1):
        joined = (*place, ".".join(rest[:length]))
        if joined in document.lines:
            return document.lines[joined]
    return document.lines.get(place)


def is_unresolved(value: Any) -> bool:
    """Whether a plain value holds an interpolation or a missing value."""
    if isinstance(value, str):
        return "${" in value or value == "???"
    # Not `Mapping`, whose test takes longer: a plan asks for every value of 10,000 configs.
    if isinstance(value, dict):
        return any(map(is_unresolved, value.values()))
    return isinstance(value, (list, tuple)) and any(map(is_unresolved, value))


def first_line(error: Exception) -> str:
    """Return the first line of an error's message, or else its cause's message or class."""
    cause = error.__cause__ or error
    lines = [*str(error).splitlines(), *str(cause).splitlines()]
    return next((line.strip() for line in lines if line.strip()), type(cause).__name__)


def _near_file(path: Path, experiments: Collection[str]) -> str:
    """Return what ends the message on a missing sweep file: one of ours, or one beside it."""
    if path.stem in experiments:
        return f"; did you mean +experiment={path.stem}?"
    beside = [each.name for suffix in YAML_SUFFIXES for each in path.parent.glob(f"*{suffix}")]
    near = [str(path.with_name(name)) for name in close_names(path.name, beside)]
    return f"; did you mean {' or '.join(near)}?" if near else ""
