"""A group whose commands are imported when they are used.

`advsweep ls` imports the module of `ls` alone. A list of commands, in a help page or for TAB,
imports their modules for the docstrings, but makes none of their options. Commands of other
packages are looked for where a command is not ours, and listed without being imported.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterator, Mapping, MutableMapping
from importlib import import_module
from typing import Any, ClassVar

import typer
from typer.core import TyperCommand, TyperGroup

from advsweep.cli.shared.help import App, Command, Group
from advsweep.errors import UnknownNameError
from advsweep.plugins import COMMANDS, PluginPoint, discover, install_command, load_extension

Built = TyperCommand | TyperGroup
Places = Mapping[str, Mapping[str, str]]
"""`MODULE:ATTRIBUTE` of commands, by panel and name: a command's function, or an `App`."""


class LazyCommands(MutableMapping[str, Any]):
    """Commands by name, imported and built when they are looked up.

    Args:
        places: where the commands are.
        built: further commands, which exist already.
    """

    def __init__(self, places: Places, built: Mapping[str, Any]) -> None:
        self._found = {
            name: (panel, place) for panel, named in places.items() for name, place in named.items()
        }
        self._built = dict(built)
        self._points: dict[str, PluginPoint] = {}

    def add_plugins(self) -> None:
        """Look for the commands that other packages add; those of our names stay ours."""
        for point in discover().points:
            name = point.name.replace("_", "-")
            if point.group == COMMANDS and name not in self:
                self._found[name] = ("Plug-ins", "")
                self._points[name] = point

    def __getitem__(self, name: str) -> Any:
        if name not in self._built:
            self._built[name] = self._build(name)
        return self._built[name]

    def __setitem__(self, name: str, command: Built) -> None:
        self._built[name] = command

    def __delitem__(self, name: str) -> None:
        self._found.pop(name, None)
        self._built.pop(name, None)

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys([*self._found, *self._built]))

    def __len__(self) -> int:
        return len(self._found.keys() | self._built)

    def outlines(self, begun: str = "") -> dict[str, Built]:
        """Returns commands with their summaries; those not built yet without their options.

        Args:
            begun: how their names begin.
        """
        names = [name for name in self if name.startswith(begun)]
        return {name: self._built.get(name) or self._outline(name) for name in names}

    def _outline(self, name: str) -> Command:
        panel, place = self._found[name]
        if point := self._points.get(name):
            return Command(name=name, help=f"See {point.origin}.", rich_help_panel=panel)
        found = _load(place)
        is_group = isinstance(found, typer.Typer)
        documented = found.registered_callback.callback if is_group else found
        return Command(name=name, help=inspect.getdoc(documented), rich_help_panel=panel)

    def _build(self, name: str) -> Built:
        panel, place = self._found[name]
        point = self._points.get(name)
        found = load_extension(COMMANDS, point.name) if point else _load(place)
        if not isinstance(found, typer.Typer):
            function, found = found, App()
            found.command()(function)
        command = typer.main.get_command(found)
        assert isinstance(command, Built)
        command.name, command.rich_help_panel = name, panel
        return command


def _load(place: str) -> Any:
    """Returns the function of a command, or the `App` of a group."""
    module, _, attribute = place.partition(":")
    return getattr(import_module(module), attribute)


class LazyGroup(Group):
    """A group of `LazyCommands`.

    Attributes:
        places: our commands.
        takes_plugins: whether other packages add commands.
    """

    places: ClassVar[Places]
    takes_plugins: ClassVar[bool] = False

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.commands = self._lazy = LazyCommands(self.places, self.commands)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in self.commands and self.takes_plugins:
            self._lazy.add_plugins()
            if cmd_name not in self.commands and (command := install_command(cmd_name)):
                raise UnknownNameError(f"{cmd_name}: no such command; {command}")
        return super().get_command(ctx, cmd_name)

    def make_context(
        self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any
    ) -> Any:
        """As of every group; where commands are completed, without reading this group's options.

        Typer imports pydantic to read options, which is a third of the time of a TAB.
        """
        if extra.get("resilient_parsing") and not any(arg.startswith("-") for arg in args):
            bare = copy.copy(self)
            bare.params, bare.add_help_option = [], False
            context = super(LazyGroup, bare).make_context(info_name, args, parent, **extra)
            context.command = self
            return context
        return super().make_context(info_name, args, parent, **extra)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        self._outlined().format_commands(ctx, formatter)

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:
        if incomplete.startswith("-"):
            return super().shell_complete(ctx, incomplete)
        outlined = self._outlined(incomplete)
        return outlined.shell_complete(typer.Context(outlined), incomplete)

    def _outlined(self, begun: str = "") -> Group:
        if self.takes_plugins:
            self._lazy.add_plugins()
        return Group(name=self.name, commands=self._lazy.outlines(begun))
