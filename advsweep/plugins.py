"""Finds the entry points of other packages, and says whether a class fits its kind.

`advsweep.registry` builds on it. Only the standard library is imported here.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import importlib.metadata
import re
import sys
import typing
from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar, NamedTuple

from advsweep.components import Component
from advsweep.errors import PluginError

GROUP_PREFIX = "advsweep."
"""Entry point groups of advsweep: the prefix and a kind in the plural."""

COMMANDS = "advsweep.commands"
"""The group of commands: functions with typer's annotations."""

COLUMNS = "advsweep.columns"
"""The group of columns that are numbers of stored analyses, by the first word of their names."""

EXTENSIONS = {COMMANDS: "command", COLUMNS: "columns"}
"""The kinds that are no components, by group."""

_PACKAGES = {
    "weights": "contrib/weights",
    "hidden": "contrib/weights",
    "hidden-states": "contrib/weights",
    "weight_analysis": "contrib/weights",
}
"""Folders of packages in our repository, by the commands, columns and keys that need them."""

# Names become parts of folder names, and a store from elsewhere is refused with any other.
_NAME = re.compile(r"[a-z0-9_]{1,64}")
_TARGET = re.compile(r"\w+(\.\w+)*:\w+(\.\w+)*")


class PluginState(Enum):
    """Whether a component of another package can be used.

    FOUND: it was not loaded. USABLE: it was loaded and fits. BROKEN: it fails to load or does
    not fit. SHADOWED: advsweep has the name. DUPLICATE: several packages have the name.
    UNKNOWN: advsweep has no such kind.
    """

    FOUND = "not loaded"
    USABLE = "usable"
    BROKEN = "broken"
    SHADOWED = "shadowed"
    DUPLICATE = "duplicate"
    UNKNOWN = "unknown kind"


@dataclass(frozen=True, kw_only=True)
class Plugin:
    """A component that another package offers.

    Attributes:
        kind: the kind in a user's words; empty if the group is unknown or cannot be read.
        target: where it is defined, as `module:Class`.
        reason: why it cannot be used; empty if it can.
    """

    kind: str
    name: str
    package: str
    version: str
    group: str
    target: str
    state: PluginState
    reason: str = ""


@dataclass(frozen=True)
class PluginPoint:
    """An entry point of a group of advsweep, with its package."""

    group: str
    name: str
    target: str
    package: str
    version: str

    @property
    def origin(self) -> str:
        return f"package '{self.package}'"

    def name_problem(self) -> str:
        """Return why the name cannot be used; empty if it can."""
        if _NAME.fullmatch(self.name):
            return ""
        return "expected a name of at most 64 lower-case letters, digits and underscores"

    def load(self, base: type[Component]) -> type[Component]:
        """Import the class.

        Raises:
            PluginError: it cannot be imported, or does not fit; the message is the reason.
        """
        loaded = self.load_object()
        if problem := class_problem(loaded, self.target, self.name, base):
            raise PluginError(problem)
        return typing.cast("type[Component]", loaded)

    def described(self, kind: str, *, load: bool) -> Plugin:
        """Return the entry point of an extension as a plug-in, imported if `load`."""
        state, reason = PluginState.FOUND, ""
        if load:
            state = PluginState.USABLE
            try:
                load_extension(self.group, self.name)
            except PluginError as error:
                state, reason = PluginState.BROKEN, str(error)
        return Plugin(
            kind=kind,
            name=self.name,
            package=self.package,
            version=self.version,
            group=self.group,
            target=self.target,
            state=state,
            reason=reason,
        )

    def load_object(self) -> Any:
        """Import what the entry point names, whatever it is.

        Raises:
            PluginError: it cannot be imported; the message is the reason.
        """
        if not _TARGET.fullmatch(self.target):
            raise PluginError(f"expected module:Class as the entry point, got '{self.target}'")
        module, _, path = self.target.partition(":")
        try:
            return functools.reduce(getattr, path.split("."), importlib.import_module(module))
        except (Exception, SystemExit) as error:  # Another package's code may raise anything.
            what = f"{self.target} raised {type(error).__name__}: {error}"
            raise PluginError(what) from error


class Unreadable(NamedTuple):
    """A package whose entry points cannot be read.

    Attributes:
        package: its name, or the folder that holds it.
    """

    package: str
    reason: str


class Discovery(NamedTuple):
    """The entry points of all installed packages, sorted by group, name and package."""

    points: tuple[PluginPoint, ...]
    unreadable: tuple[Unreadable, ...]


def discover() -> Discovery:
    """Find the entry points of advsweep's groups; imports no other package.

    Packages are read once for each `sys.path`.
    """
    return _discover(tuple(sys.path))


@functools.lru_cache(maxsize=4)
def _discover(path: tuple[str, ...]) -> Discovery:
    points: dict[str, list[PluginPoint]] = {}
    unreadable: dict[str, Unreadable] = {}
    for distribution in importlib.metadata.distributions(path=list(path)):
        package = str(distribution.locate_file(""))
        try:
            # Most packages have no entry points of ours: reading their metadata would take long.
            if f"[{GROUP_PREFIX}" not in (distribution.read_text("entry_points.txt") or ""):
                continue
            package = distribution.metadata["Name"] or package
            if package not in points:
                # The first on the path is the one that Python imports.
                points[package] = _points_of(importlib.metadata.distribution(package))
        except Exception as error:  # noqa: BLE001 - a damaged package must not end a command
            what = f"its entry points cannot be read: {type(error).__name__}: {error}"
            unreadable.setdefault(package, Unreadable(package, what))
    found = (point for each in points.values() for point in each)
    order = sorted(found, key=lambda point: (point.group, point.name, point.package))
    return Discovery(tuple(order), tuple(unreadable.values()))


def _points_of(distribution: importlib.metadata.Distribution) -> list[PluginPoint]:
    return [
        PluginPoint(
            point.group, point.name, point.value, distribution.name, distribution.version or "?"
        )
        for point in distribution.entry_points
        if point.group.startswith(GROUP_PREFIX)
    ]


def load_extension(group: str, name: str) -> Any:
    """Import what another package offers in one of the `EXTENSIONS`; None if none does.

    Raises:
        PluginError: it cannot be imported, or several packages offer it.
    """
    points = [p for p in discover().points if p.group == group and p.name == name]
    if not points:
        return None
    if len(points) > 1:
        packages = " and ".join(point.origin for point in points)
        raise PluginError(f"'{name}' is offered by {packages}; uninstall all but one")
    try:
        return points[0].load_object()
    except PluginError as error:
        raise PluginError(
            f"'{name}' of {points[0].origin} cannot be loaded: {error}; fix or uninstall it"
        ) from error


def install_command(name: str) -> str:
    """Return how to install the package of a command, columns or a key; empty if none is known."""
    folder = _PACKAGES.get(name)
    return f"install its package: pip install {folder} in a clone" if folder else ""


def class_problem(loaded: Any, target: str, name: str, base: type[Component]) -> str:
    """Return why an object cannot be registered under a name; empty if it can."""
    if not (isinstance(loaded, type) and issubclass(loaded, Component)):
        return f"expected {target} to be a component's class"
    called = getattr(loaded, "name", None)
    if called != name:
        return f"expected {target}.name to be '{name}', got {called!r}"
    if not issubclass(loaded, base):
        return f"expected {target} to be a subclass of {base.__module__}.{base.__qualname__}"
    if methods := _abstract_methods(loaded):
        return f"expected {target} to define {', '.join(methods)}"
    if attributes := _missing_attributes(loaded):
        return f"expected {target} to set the class attributes {', '.join(attributes)}"
    if fields := _undeclared_fields(loaded):
        return (
            f"expected @dataclass(kw_only=True) on {target}, without which its options "
            f"{', '.join(fields)} cannot be set"
        )
    return ""


def _abstract_methods(cls: type) -> list[str]:
    # Not all base classes are ABCs, which would refuse only instances.
    names = (name for name in dir(cls) if not name.startswith("__"))
    return [n for n in names if getattr(getattr(cls, n, None), "__isabstractmethod__", False)]


def _missing_attributes(cls: type) -> list[str]:
    """List the class attributes that a base declares and nobody sets."""
    declared = {name for parent in cls.__mro__ for name in _annotations(parent, class_level=True)}
    return sorted(name for name in declared if not hasattr(cls, name))


def _undeclared_fields(cls: type) -> list[str]:
    known = {field.name for field in dataclasses.fields(cls)}
    own = (name for parent in cls.__mro__ for name in _annotations(parent, class_level=False))
    return sorted(name for name in set(own) - known if not name.startswith("_"))


def _annotations(cls: type, *, class_level: bool) -> list[str]:
    """List the annotated attributes of one class, those of the class or those of instances."""
    if not issubclass(cls, Component):
        return []
    return [
        name
        for name, hint in vars(cls).get("__annotations__", {}).items()
        if _is_class_level(hint) is class_level
    ]


def _is_class_level(hint: Any) -> bool:
    if isinstance(hint, str):
        return hint.removeprefix("typing.").startswith("ClassVar")
    return hint is ClassVar or typing.get_origin(hint) is ClassVar
