"""Composition of configurations: Hydra once per choice of groups, plain dictionaries after.

Composing costs tens of milliseconds, patching a dictionary some microseconds. So each
distinct choice of groups is composed once and kept, and values are patched onto copies.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from advsweep.components import Plain, to_plain
from advsweep.config.conf_files import conf_directory
from advsweep.errors import ConfigError, UnknownNameError, nearest
from advsweep.registry import Registry
from advsweep.yaml_files import check_yaml, read_yaml, yaml_error

if TYPE_CHECKING:
    from hydra.core.config_loader import ConfigLoader

PRESET_GROUPS = ("method", "experiment")
"""Groups that set others; they leave no node of their own."""


@dataclass(frozen=True)
class Delete:
    """In the place of a value: the key goes back to its default.

    Attributes:
        expected: with `~key=value`, what the key must hold for that; empty otherwise.
    """

    expected: tuple[Any, ...] = ()


@dataclass(frozen=True)
class Composed:
    """What a choice of groups comes to; shared, so never changed in place.

    Attributes:
        config: the plain configuration.
        late: true where it holds interpolations or missing values, which are looked at
            after the values are patched in.
    """

    config: Plain
    late: bool


class Composer:
    """Composes configurations while it is open; a context manager, as Hydra's state is global.

    Args:
        registries: the components of each group by the group's name. A member of a group is
            a YAML file, ours or the user's, or a registered component without one.
        keys: the keys at the top level that are no groups.
        config_dirs: folders of the user's own groups, searched before ours.

    Raises:
        ConfigError: a config folder does not exist.
    """

    def __init__(
        self,
        registries: Mapping[str, Registry[Any]],
        keys: Collection[str],
        config_dirs: Sequence[Path] = (),
    ) -> None:
        for directory in config_dirs:
            if not directory.is_dir():
                raise ConfigError(f"--config-dir: expected a folder, got '{directory}'")
        self._registries = registries
        self._keys = keys
        self._config_dirs = [d.resolve() for d in config_dirs]
        for directory in self._config_dirs:
            _check_files(directory)
        self._composed: dict[frozenset[tuple[str, str]], Composed] = {}

    def __enter__(self) -> Self:
        self._stack = ExitStack()
        self._loader = self._stack.enter_context(_hydra(self._config_dirs))
        groups = {*self._loader.list_groups(""), *self._registries, *PRESET_GROUPS}
        # `hydra` is a group of Hydra's own; nothing of it is used.
        self.groups = groups - {"hydra"}
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()

    def members(self, group: str) -> list[str]:
        """What can be chosen of a group, sorted; aliases left out.

        Files in folders of the group are named with their folder. Those whose names begin with
        an underscore are what others share.
        """
        registered = self._registries[group].names() if group in self._registries else []
        return sorted({*self._nested(group), *registered})

    def member(self, group: str, value: Any) -> str:
        """The name of a group's member as the composition knows it.

        Raises:
            UnknownNameError: the group has no such member; the message offers the nearest.
        """
        if value is None or isinstance(value, (list, dict, bool)):
            raise ConfigError(
                f"{group}: expected the name of one {group}, got {value!r}; "
                f"sweep over several with {group}=NAME,NAME"
            )
        name = str(value)
        folder, _, stem = f"{group}/{name}".rpartition("/")
        if stem in self._files(folder):
            return name
        if group not in self._registries:
            hint = nearest(name, self.members(group))
            raise UnknownNameError(f"{group}: no {group} is called '{name}'; {hint}")
        registry = self._registries[group]
        if reason := registry.unavailable().get(name):
            raise UnknownNameError(f"{group}: '{name}' cannot be built: {reason}")
        if name not in registry:
            hint = nearest(name, [*self.members(group), *registry.aliases()])
            raise UnknownNameError(f"{group}: no {registry.kind} is called '{name}'; {hint}")
        return registry.canonical(name)

    def check_key(self, key: str) -> None:
        """Refuses a key whose first part is neither a group nor a value of a run.

        Raises:
            ConfigError: the message offers the nearest keys.
        """
        head, *rest = key.split(".")
        if head not in self.groups and head not in self._keys:
            hint = nearest(head, {*self.groups, *self._keys})
            raise UnknownNameError(f"{key}: no config group or key is called '{head}'; {hint}")
        if rest and head in PRESET_GROUPS:
            raise ConfigError(
                f"{key}: {head} sets other groups and has no keys of its own; "
                f"set theirs, such as objective.clip_low"
            )
        if rest == ["name"]:
            raise ConfigError(f"{key}: expected another key; choose by {head}=NAME")

    def compose(self, choices: Mapping[str, str]) -> Composed:
        """The configuration for a choice of groups; the defaults' members for the others.

        Args:
            choices: members by group, as `member` gives them.

        Raises:
            ConfigError: a YAML file that cannot be read or does not fit the others.
        """
        key = frozenset(choices.items())
        if key not in self._composed:
            self._composed[key] = self._compose(choices)
        return self._composed[key]

    def patched(self, composed: Composed, values: Mapping[str, Any]) -> Plain:
        """A copy of a composed configuration with values set, or deleted, by dotted key.

        Raises:
            ConfigError: a key leads through a value that is no mapping, an interpolation
                cannot be resolved, or a value that must be given is not.
        """
        config = dict(composed.config)
        late = composed.late
        for key, value in values.items():
            late = late or _is_late(value)
            if isinstance(value, Delete):
                _delete(config, key, value)
            else:
                self._set(config, key, value)
        return _resolved(config) if late else config

    def _set(self, config: Plain, key: str, value: Any) -> None:
        *path, last = key.split(".")
        node = config
        for depth, part in enumerate(path):
            child = node.get(part)
            if depth == 1 and child is None:
                child = self._default(path[0], node, part)
            if isinstance(child, str) and depth > 0:
                child = {"name": child}
            if child is None:
                child = {}
            if not isinstance(child, Mapping):
                raise ConfigError(
                    f"{key}: expected {'.'.join(path[: depth + 1])} to be a mapping, got {child!r}"
                )
            node[part] = dict(child)
            node = node[part]
        node[last] = value

    def _default(self, group: str, node: Mapping[str, Any], field: str) -> Any:
        """The default of a component's field that the YAML leaves out."""
        registry = self._registries.get(group)
        if registry is None or str(node.get("name")) not in registry:
            return None
        for known in dataclasses.fields(registry.get(node["name"])):
            if known.name == field and known.default is not dataclasses.MISSING:
                return to_plain(known.default)
        return None

    def _nested(self, group: str) -> Iterator[str]:
        yield from (name for name in self._files(group) if not name.startswith("_"))
        for folder in self._loader.list_groups(group):
            yield from (f"{folder}/{name}" for name in self._nested(f"{group}/{folder}"))

    def _files(self, group: str) -> list[str]:
        return list(self._loader.get_group_options(group))

    def _compose(self, choices: Mapping[str, str]) -> Composed:
        from hydra import compose
        from hydra.core.override_parser.types import Quote, QuotedString
        from hydra.errors import HydraException
        from omegaconf import OmegaConf
        from omegaconf.errors import OmegaConfBaseException
        from yaml import MarkedYAMLError, YAMLError  # type: ignore[import-untyped]

        self._store_members(choices)
        overrides = [
            f"{group}={QuotedString(name, Quote.single).with_quotes()}"
            for group, name in choices.items()
        ]
        try:
            composed = compose("config", overrides)
            config = OmegaConf.to_container(composed, resolve=False)
        except MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            raise yaml_error(error, mark.name) from error
        except (
            *(HydraException, OmegaConfBaseException, YAMLError),
            *(RecursionError, ValueError, OverflowError),  # by values that Python cannot make
        ) as error:
            self._read_chosen(choices)
            chosen = " ".join(f"{g}={n}" for g, n in choices.items()) or "the defaults"
            raise ConfigError(f"cannot compose {chosen}: {_first_line(error)}") from error
        assert isinstance(config, dict)
        plain = {str(k): v for k, v in config.items()}
        if any(group in choices for group in PRESET_GROUPS):
            self._drop_foreign_fields(plain, choices)
        return Composed(plain, late=_is_late(plain))

    def _read_chosen(self, choices: Mapping[str, str]) -> None:
        """Refuses the user's own files that are no YAML, by a message that has their place."""
        for directory in self._config_dirs:
            for group, name in choices.items():
                if (path := directory / group / f"{name}.yaml").is_file():
                    read_yaml(path)

    def _drop_foreign_fields(self, config: Plain, choices: Mapping[str, str]) -> None:
        """Takes out what a preset sets of its own component where another one is chosen.

        `method=dapo objective=cross_entropy` has no use for the range of DAPO's clip. Fields
        that the chosen component has too stay as the preset has them, and what its own YAML
        file sets stays in any case, to be checked with the rest.
        """
        for group, name in choices.items():
            if group in self._registries and isinstance(config.get(group), dict):
                own = self.compose({group: name}).config[group]
                fields = dataclasses.fields(self._registries[group].get(own["name"]))
                known = {*own, *(field.name for field in fields)}
                config[group] = {k: v for k, v in config[group].items() if k in known}

    def _store_members(self, choices: Mapping[str, str]) -> None:
        """Gives Hydra a node for each chosen component that no YAML file describes."""
        from hydra.core.config_store import ConfigStore

        for group, name in choices.items():
            folder, _, stem = f"{group}/{name}".rpartition("/")
            if stem not in self._files(folder):
                ConfigStore.instance().store(name=stem, node={"name": name}, group=folder)


def _check_files(directory: Path) -> None:
    """Refuses YAML files of a config folder that no memory holds once aliases are written out."""
    from yaml import YAMLError

    for path in sorted(directory.rglob("*.yaml")):
        try:
            check_yaml(path)
        except (OSError, YAMLError):
            continue  # an error where it is chosen


@contextmanager
def _hydra(config_dirs: Sequence[Path]) -> Iterator[ConfigLoader]:
    """Hydra's global state, made for our folders and put back as it was."""
    from hydra import initialize_config_dir
    from hydra.core.config_search_path import ConfigSearchPath
    from hydra.core.global_hydra import GlobalHydra
    from hydra.core.plugins import Plugins
    from hydra.plugins.search_path_plugin import SearchPathPlugin

    pending = [directory.as_uri() for directory in reversed(config_dirs)]

    class UserFolders(SearchPathPlugin):
        def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
            while pending:  # a plugin cannot be unregistered, so it serves its folders once
                search_path.prepend(provider="--config-dir", path=pending.pop(0))

    Plugins.instance().register(UserFolders)
    outer = GlobalHydra.instance().hydra
    GlobalHydra.instance().clear()
    try:
        with initialize_config_dir(str(conf_directory()), version_base="1.3"):
            yield GlobalHydra.instance().config_loader()
    finally:
        GlobalHydra.instance().hydra = outer


def _delete(config: Plain, key: str, delete: Delete) -> None:
    *path, last = key.split(".")
    node = config
    for part in path:
        child = node.get(part)
        if not isinstance(child, Mapping):
            return
        node[part] = dict(child)
        node = node[part]
    if delete.expected and node.get(last) != delete.expected[0]:
        raise ConfigError(
            f"~{key}: expected it to be {delete.expected[0]!r}, got {node.get(last)!r}"
        )
    node.pop(last, None)


def check_literal(value: Any, where: str) -> None:
    """Refuses texts of a store that would be resolved: they may name environment variables.

    Args:
        where: what the value is, for the message.

    Raises:
        ConfigError: a text holds an interpolation.
    """
    if isinstance(value, str) and "${" in value:
        raise ConfigError(
            f"{where}: expected plain values from the store, got an interpolation, {value[:60]!r}"
        )
    inner: Iterable[Any] = ()
    if isinstance(value, Mapping):
        inner = [*value.keys(), *value.values()]
    elif isinstance(value, (list, tuple)):
        inner = value
    for each in inner:
        check_literal(each, where)


def _is_late(value: Any) -> bool:
    if isinstance(value, str):
        return "${" in value or value == "???"
    if isinstance(value, Mapping):
        return any(map(_is_late, value.values()))
    return isinstance(value, (list, tuple)) and any(map(_is_late, value))


def _resolved(config: Plain) -> Plain:
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        container = OmegaConf.to_container(
            OmegaConf.create(config), resolve=True, throw_on_missing=True
        )
    except OmegaConfBaseException as error:
        where = f"{error.full_key}: " if error.full_key else ""
        raise ConfigError(f"{where}{_first_line(error)}") from error
    assert isinstance(container, dict)
    return {str(k): v for k, v in container.items()}


def _first_line(error: Exception) -> str:
    cause = error.__cause__ or error
    lines = [*str(error).splitlines(), *str(cause).splitlines()]
    return next((line.strip() for line in lines if line.strip()), type(cause).__name__)
