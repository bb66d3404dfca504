"""Registries find the components of one kind by name, ours and those of other packages.

Only the standard library is imported here.
"""

from __future__ import annotations

import functools
import importlib
import typing
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from advsweep.components import Component
from advsweep.errors import (
    AdvsweepError,
    AdvsweepWarning,
    ConfigError,
    PluginError,
    UnknownNameError,
    nearest,
)
from advsweep.plugin_classes import class_problem
from advsweep.plugins import NAME, PluginPoint, discover, only_one

C = TypeVar("C", bound=Component)


@dataclass(eq=False)
class Registry(Generic[C]):
    """The components of one kind by name, each loaded when it is first used.

    Attributes:
        kind: the kind in a user's words, such as `estimator`.
        modules: our modules by name, so that listing names imports nothing.
        aliases: other names, with the names that they stand for.
        caveats: aliases that are guesses, with the reason for a warning.
        unavailable: names known to lack a definition, with the reason. Another package may
            define them.
        group: the entry point group through which other packages add components. If a name is
            ours already, ours is used, with a warning. None: other packages add none.
        base: the class of which other packages' components are subclasses, as `module:Class`.
    """

    kind: str
    modules: Mapping[str, str]
    aliases: Mapping[str, str] = field(default_factory=dict)
    caveats: Mapping[str, str] = field(default_factory=dict)
    unavailable: Mapping[str, str] = field(default_factory=dict)
    group: str | None = None
    base: str = "advsweep.components:Component"
    _loaded: dict[str, type[C]] = field(default_factory=dict, init=False)

    @functools.cached_property
    def _plugins(self) -> dict[str, list[PluginPoint]]:
        plugins: dict[str, list[PluginPoint]] = {}
        for point in discover().points:
            if point.group != self.group:
                continue
            reason = self._name_problem(point)
            if reason:
                message = f"the {self.kind} '{point.name}' of {point.origin} is not used: {reason}"
                warnings.warn(message, AdvsweepWarning, stacklevel=3)
            else:
                plugins.setdefault(point.name, []).append(point)
        return plugins

    def _name_problem(self, point: PluginPoint) -> str:
        if point.name in self.modules or point.name in self.aliases:
            return "advsweep has one of that name"
        if not NAME.fullmatch(point.name):
            return "expected a name of at most 64 lower-case letters, digits and underscores"
        return ""

    def problem(self, point: PluginPoint) -> str:
        """Import an entry point of the group; return why it cannot be used, or an empty text."""
        reason = self._name_problem(point)
        if reason:
            return reason
        try:
            self._load_plugin(point.name, self.kind)
        except PluginError as error:
            return str(error)
        return ""

    def base_class(self) -> type[C]:
        """Import the class of which other packages' components are subclasses."""
        module, _, name = self.base.partition(":")
        return typing.cast("type[C]", getattr(importlib.import_module(module), name))

    def names(self) -> list[str]:
        """List every name that can be built, sorted, without aliases."""
        return sorted({*self.modules, *self._plugins})

    def aliases_of(self, name: str) -> list[str]:
        """Return the other names of a component, sorted."""
        return sorted(alias for alias, target in self.aliases.items() if target == name)

    def without_definition(self) -> dict[str, str]:
        """Return the names that are known to lack a definition, with the reason."""
        return {n: why for n, why in self.unavailable.items() if n not in self._plugins}

    def __contains__(self, name: str) -> bool:
        return self.aliases.get(name, name) in self.names()

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())

    def classes(self) -> list[type[C]]:
        """List every class in the order of names; warns of plugins that cannot be loaded."""
        classes = []
        for name in self:
            try:
                classes.append(self.get(name))
            except PluginError as error:
                warnings.warn(str(error), AdvsweepWarning, stacklevel=2)
        return classes

    def find(self, name: str, *, where: str = "", others: Iterable[str] = ()) -> str:
        """Return the name that an alias stands for, or the name; warns if the alias is a guess.

        Args:
            others: further names for the hint of the error.

        Raises:
            UnknownNameError: the name is not registered, or is known to lack a definition.
        """
        where = where or self.kind
        target = self.aliases.get(name, name)
        if target not in self.modules and target not in self._plugins:
            reason = self.unavailable.get(name)
            if reason:
                raise UnknownNameError(f"{where}: '{name}' cannot be built: {reason}")
            hint = nearest(name, {*self.names(), *self.aliases, *others})
            raise UnknownNameError(f"{where}: no {self.kind} is called '{name}'; {hint}")
        if name in self.caveats:
            message = f"{self.kind} '{name}' is taken for '{target}': {self.caveats[name]}"
            warnings.warn(message, AdvsweepWarning, stacklevel=3)
        return target

    def get(self, name: str, *, where: str = "") -> type[C]:
        """Return the class that is registered under a name or an alias.

        Raises:
            UnknownNameError: as `find`.
            PluginError: the name belongs to another package, which fails to load, or several
                packages define it.
        """
        if name not in self._loaded:
            name = self.find(name, where=where)
        if name not in self._loaded:
            load = self._load_own if name in self.modules else self._load_plugin
            self._loaded[name] = load(name, where or self.kind)
        return self._loaded[name]

    def _load_own(self, name: str, where: str) -> type[C]:
        module_name = self.modules[name]
        try:
            module = importlib.import_module(module_name)
        except AdvsweepError:
            raise
        except Exception as error:  # A module under development may raise anything.
            raise PluginError(
                f"{where}: '{name}' cannot be loaded: {module_name} raised {type(error).__name__}: "
                f"{error}; fix it"
            ) from error
        for candidate in vars(module).values():
            if isinstance(candidate, type) and issubclass(candidate, Component):
                # A module may import components of other kinds that share the name.
                own = candidate.__module__.startswith(module.__name__)
                if own and candidate.__dict__.get("name") == name:
                    return typing.cast("type[C]", candidate)
        raise AssertionError(f"{module_name} registers no {self.kind} '{name}'")

    def _load_plugin(self, name: str, where: str) -> type[C]:
        try:
            return typing.cast("type[C]", only_one(self._plugins[name]).load(self._class_problem))
        except PluginError as error:
            raise PluginError(f"{where}: {error}") from error

    def _class_problem(self, loaded: Any, point: PluginPoint) -> str:
        return class_problem(loaded, point.target, point.name, self.base_class())

    def build(self, spec: str | Mapping[str, Any], *, where: str = "", **values: Any) -> C:
        """Build a component from a name, or from a mapping with a `name`.

        Raises:
            ConfigError: the name, a key, a type or a value does not fit.
        """
        where = where or self.kind
        if isinstance(spec, str):
            spec = {"name": spec}
        if not isinstance(spec, Mapping) or not isinstance(spec.get("name"), str):
            raise ConfigError(f"{where}: expected a name or a mapping with a name, got {spec!r}")
        return self.get(spec["name"], where=where).build({**spec, **values}, where=where)
