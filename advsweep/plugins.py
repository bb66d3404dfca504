"""Finds the entry points of other packages, and imports what they name.

`advsweep.registry` builds on it. Only the standard library is imported here.
"""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from advsweep.errors import PluginError

# Entry point groups of advsweep: the prefix and a kind in the plural.
GROUP_PREFIX = "advsweep."

# The group of commands: functions with typer's annotations.
COMMANDS = "advsweep.commands"

# The group of columns that are numbers of stored analyses, by the first word of their names.
COLUMNS = "advsweep.columns"

# The kinds that are no components, by group.
EXTENSIONS = {COMMANDS: "command", COLUMNS: "columns"}

# Folders of packages in our repository, by the commands and columns that need them.
_PACKAGES = {
    "weights": "contrib/weights",
    "hidden": "contrib/weights",
    "hidden-states": "contrib/weights",
}

# Names become parts of folder names, and a store from elsewhere is refused with any other.
NAME = re.compile(r"[a-z0-9_]{1,64}")
_TARGET = re.compile(r"\w+(\.\w+)*:\w+(\.\w+)*")


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

    def load(self, problem_of: Callable[[Any, PluginPoint], str] | None = None) -> Any:
        """Import what the entry point names.

        Args:
            problem_of: returns why what was imported does not fit, or an empty text; None: it may
                be anything.

        Raises:
            PluginError: it cannot be imported, or does not fit.
        """
        module, _, path = self.target.partition(":")
        try:
            if not _TARGET.fullmatch(self.target):
                raise PluginError(f"expected module:Class as the entry point, got '{self.target}'")
            loaded = functools.reduce(getattr, path.split("."), importlib.import_module(module))
            problem = "" if problem_of is None else problem_of(loaded, self)
            if problem:
                raise PluginError(problem)
        except (Exception, SystemExit) as error:  # Another package's code may raise anything.
            reason = f"{self.target} raised {type(error).__name__}: {error}"
            if isinstance(error, PluginError):
                reason = str(error)
            raise PluginError(
                f"'{self.name}' of {self.origin} cannot be loaded: {reason}; fix or uninstall it"
            ) from error
        return loaded


class Discovery(NamedTuple):
    """The entry points of all installed packages, sorted by group, name and package.

    Attributes:
        unreadable: packages, or their folders, whose entry points cannot be read, each with the
            reason.
    """

    points: tuple[PluginPoint, ...]
    unreadable: tuple[tuple[str, str], ...]


def discover() -> Discovery:
    """Find the entry points of advsweep's groups; imports no other package.

    Packages are read once for each `sys.path`.
    """
    return _discover(tuple(sys.path))


@functools.lru_cache(maxsize=4)
def _discover(path: tuple[str, ...]) -> Discovery:
    points: dict[str, list[PluginPoint]] = {}
    unreadable: dict[str, str] = {}
    for distribution in importlib.metadata.distributions(path=list(path)):
        package = str(distribution.locate_file(""))
        try:
            # Most packages have no entry points of ours: reading their metadata would take long.
            if f"[{GROUP_PREFIX}" not in (distribution.read_text("entry_points.txt") or ""):
                continue
            package = distribution.metadata["Name"] or package
            if package not in points:
                # The first on the path is the one that Python imports.
                first = importlib.metadata.distribution(package)
                points[package] = [
                    PluginPoint(p.group, p.name, p.value, first.name, first.version or "?")
                    for p in first.entry_points
                    if p.group.startswith(GROUP_PREFIX)
                ]
        except Exception as error:  # noqa: BLE001 - a damaged package must not end a command
            what = f"its entry points cannot be read: {type(error).__name__}: {error}"
            unreadable.setdefault(package, what)
    listed = [point for of_package in points.values() for point in of_package]
    listed.sort(key=lambda point: (point.group, point.name, point.package))
    return Discovery(tuple(listed), tuple(unreadable.items()))


def only_one(points: Sequence[PluginPoint]) -> PluginPoint:
    """Return the entry point of a name.

    Raises:
        PluginError: several packages offer it.
    """
    if len(points) > 1:
        packages = " and ".join(point.origin for point in points)
        raise PluginError(f"'{points[0].name}' is offered by {packages}; uninstall all but one")
    return points[0]


def load_extension(group: str, name: str) -> Any:
    """Import what another package offers in one of the `EXTENSIONS`; None if none does.

    Raises:
        PluginError: it cannot be imported, or several packages offer it.
    """
    points = [p for p in discover().points if p.group == group and p.name == name]
    return only_one(points).load() if points else None


def install_command(name: str) -> str:
    """Return how to install the package of a command or columns; empty if none is known."""
    folder = _PACKAGES.get(name)
    return f"install its package: pip install {folder} in a clone" if folder else ""
