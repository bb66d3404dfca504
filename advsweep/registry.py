"""Registries find the components of one kind by name, ours and those of other packages.

Only the standard library is imported here.
"""

from __future__ import annotations

import functools
import importlib
import itertools
import json
import re
import typing
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

from advsweep.components import CODE, Component
from advsweep.errors import (
    AdvsweepError,
    AdvsweepWarning,
    ConfigError,
    PluginError,
    UnknownNameError,
    nearest,
)
from advsweep.named_code import NamedCode, Wanted, Word, parse_word, read_word, stored_code
from advsweep.plugin_classes import class_problem
from advsweep.plugins import NAME, PluginPoint, discover, only_one
from advsweep.synonyms import VALUES, hint

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
        function: how a file calls a plain function of this kind, such as `advantages`; empty if
            components of this kind are classes alone.
        adapter: what makes a class of such a function, as `module:function`; it gets the function
            and its `NamedCode`.
        adapts: the form of further classes of which the adapter makes components, as
            `module:Class`, with what the form is in words.
        takes_code: whether a command line may name components by file or module.
        options_of_files: the class whose options such components have beside their own, as
            `module:Class`; empty if they have none.
    """

    kind: str
    modules: Mapping[str, str]
    aliases: Mapping[str, str] = field(default_factory=dict)
    caveats: Mapping[str, str] = field(default_factory=dict)
    unavailable: Mapping[str, str] = field(default_factory=dict)
    group: str | None = None
    base: str = "advsweep.components:Component"
    function: str = ""
    adapter: str = ""
    adapts: tuple[str, str] | None = None
    takes_code: bool = False
    options_of_files: str = ""
    _loaded: dict[str, type[C]] = field(default_factory=dict, init=False)
    # Of components that the command line named by file or module: what each name stands for.
    _named: dict[str, str] = field(default_factory=dict, init=False)
    _of_code: dict[str, type[C]] = field(default_factory=dict, init=False)

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
        return typing.cast("type[C]", _imported(self.base))

    def class_of_files(self) -> type[C] | None:
        """Import the class whose options components of files have; None if they have none."""
        if not self.options_of_files:
            return None
        return typing.cast("type[C]", _imported(self.options_of_files))

    def names(self) -> list[str]:
        """List every name that can be built, sorted, without aliases."""
        return sorted({*self.modules, *self._plugins, *self._named})

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
        if target not in self.names():
            reason = self.unavailable.get(name)
            section = f"{VALUES}.{self.kind.split()[0]}"
            if reason:
                said = hint(section, name)
                remedy = f"; {said}" if said else ""
                raise UnknownNameError(f"{where}: '{name}' cannot be built: {reason}{remedy}")
            near = nearest(name, {*self.names(), *self.aliases, *others}, section)
            raise UnknownNameError(f"{where}: no {self.kind} is called '{name}'; {near}")
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
        fields = {key: value for key, value in spec.items() if key != CODE}
        if CODE in spec:
            cls = self._load_stored(spec["name"], spec[CODE], where)
        else:
            cls = self.get(spec["name"], where=where)
        return cls.build({**fields, **values}, where=where)

    # Components that a command line names by file or module

    def resolve(self, text: str) -> str:
        """Return the name of what a word of the command line means; registers code that it names.

        Call it with words of the present command line, and of files that it names, alone: what it
        is given is run (`SECURITY.md`).

        Args:
            text: a name, or `FILE.py`, `FILE.py:Name` or `package.module:Name`.

        Raises:
            ConfigError: the code cannot be loaded, or is no component of this kind; the message
                begins with file and line.
        """
        word = parse_word(text)
        if word is None or text in self:
            return text
        if not self.takes_code:
            raise ConfigError(
                f"{self.kind}={text}: expected a name, as a {self.kind} cannot be named by its "
                f"file; make a plug-in of it (docs/plugins.md)"
            )
        found, code = read_word(word, self._wanted())
        name, label = self._free_name(word)
        self._named[name] = word.origin
        self._loaded[name] = self._class_of(found, name, replace(code, label=label))
        return name

    def _wanted(self) -> Wanted:
        """Return what a file of this kind is to hold."""
        base = self.base_class()
        expected = f"a class of {base.__module__.removesuffix('.base')}.{base.__name__}"
        bases: tuple[type, ...] = (base,)
        if self.adapts is not None:
            form, described = self.adapts
            bases = (base, _imported(form))
            expected = f"{described}, or {expected}"
        if self.function:
            expected = f"a function `{self.function}`, or {expected}"
        return Wanted(kind=self.kind, bases=bases, function=self.function, expected=expected)

    def _free_name(self, word: Word) -> tuple[str, str]:
        """Return the name under which code is registered, and its label.

        Both are other ones than those of registered components, and of other code.
        """
        label = word.label
        if self._is_registered(_plain_name(label)):
            label = f"{Path(word.place).name}:{word.object}".removesuffix(":")
        candidates = [label]
        if word.is_file:
            candidates.append(f"{Path(word.origin).parent.name}/{label}")
        numbered = (f"{label}_{number}" for number in itertools.count(2))
        for candidate in itertools.chain(candidates, numbered):
            name = _plain_name(candidate)
            is_free = self._named.get(name, word.origin) == word.origin
            if is_free and not self._is_registered(name):
                return name, candidate
        raise AssertionError("there are infinitely many names")

    def _is_registered(self, name: str) -> bool:
        return name in self.modules or name in self.aliases or name in self._plugins

    def _load_stored(self, name: str, node: Any, where: str) -> type[C]:
        """Return the class of the code in a config node; it may come from a store."""
        found, code = stored_code(node, where)
        return self._class_of(found, name, code)

    def _class_of(self, found: Any, name: str, code: NamedCode) -> type[C]:
        """Return the component's class of a class or function that was named, the same each time.

        Raises:
            ConfigError: it is no component of this kind.
        """
        key = json.dumps([name, code.plain()], sort_keys=True)
        if key not in self._of_code:
            self._of_code[key] = self._make_class(found, name, code)
        return self._of_code[key]

    def _make_class(self, found: Any, name: str, code: NamedCode) -> type[C]:
        base = self.base_class()
        if self._is_adapted(found):
            found = _imported(self.adapter)(found, code)
        elif not isinstance(found, type):
            raise ConfigError(
                f"{code.where}: expected {self._wanted().expected}, got the function {code.object}"
            )
        if not issubclass(found, base):
            raise ConfigError(
                f"{code.where}: expected {code.object} to be a subclass of {base.__module__}."
                f"{base.__qualname__} with @dataclass(kw_only=True), or {self._other_form}, got "
                "another class"
            )
        members = {"name": name, "named_code": code, "__doc__": found.__doc__}
        cls = type(found.__name__, (found,), {**members, "__module__": found.__module__})
        problem = class_problem(cls, code.object, name, base)
        if problem:
            raise ConfigError(f"{code.where}: {problem}")
        return typing.cast("type[C]", cls)

    def _is_adapted(self, found: Any) -> bool:
        """Whether the adapter makes a component of a class or a function."""
        if not isinstance(found, type):
            return bool(self.function)
        if self.adapts is None or issubclass(found, self.base_class()):
            return False
        form: type = _imported(self.adapts[0])
        return issubclass(found, form)

    @property
    def _other_form(self) -> str:
        """What the code of a component may be in place of a class of this kind, in words."""
        return f"a function `{self.function}`" if self.adapts is None else self.adapts[1]


def _imported(target: str) -> Any:
    """Import `module:name`."""
    module, _, name = target.partition(":")
    return getattr(importlib.import_module(module), name)


def _plain_name(text: str) -> str:
    """Return a text as a component's name: lower-case letters, digits and underscores."""
    return re.sub(r"[^a-z0-9]+", "_", text.lower()).strip("_")[:64] or "code"
