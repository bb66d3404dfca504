"""The group of all commands: imported when they are used, with their help texts.

A command's help is its summary in `table.COMMANDS` and the docstring of its function, so that
`advsweep --help` and TAB import no command. Its sections `Arguments:` and `Options:` describe the
parameters that have no annotation of `options`, in this form; a last section `Examples:` is
printed line by line. `Annotated[str, complete]` completes a parameter.

    Arguments:
        RUN... (runs): Runs that the function takes as `runs`.

    Options:
        --limit, -n N >= 0 (most): What --limit does, an integer of at least 0 that the function
            takes as `most`.
"""

from __future__ import annotations

import inspect
import re
from importlib import import_module
from typing import Annotated, Any, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup

from advsweep import plugins
from advsweep.cli.table import COMMANDS
from advsweep.errors import UnknownNameError
from advsweep.plugins import PluginPoint

_EXAMPLES = re.compile(r"(^|\n)\s*Examples:\n(?P<lines>.*)", re.DOTALL)


_SECTION = re.compile(r"(^|\n)(?P<kind>Arguments|Options):\n(?P<entries>(    .*\n?)+)\n?")
_ENTRY = {
    "Arguments": re.compile(r"(?P<metavar>.+?) \((?P<parameter>\w+)\): (?P<help>.*)", re.DOTALL),
    "Options": re.compile(
        r"(?P<names>--[\w/-]+(, -\w)?)( (?P<metavar>(?!\()\S+))?( >= (?P<least>\d+))?"
        r"( \((?P<parameter>\w+)\))?: (?P<help>.*)",
        re.DOTALL,
    ),
}


def read_parameters(function: Any) -> str:
    """Annotate a function by the sections of its docstring on parameters; return the other text."""
    text = inspect.getdoc(function) or ""
    hints = get_type_hints(function, include_extras=True)
    while found := _SECTION.search(text):
        for words in re.split(r"\n    (?=\S)", f"\n{found['entries'].rstrip()}")[1:]:
            entry = _ENTRY[found["kind"]].fullmatch(" ".join(words.split()))
            assert entry, f"{function.__name__}: {words}"
            known: dict[str, Any] = {"metavar": entry["metavar"], "help": entry["help"]}
            name = entry["parameter"]
            if found["kind"] == "Options":
                names = entry["names"].split(", ")
                name = name or names[0].partition("/")[0][2:].replace("-", "_")
                known["min"] = int(entry["least"]) if entry["least"] else None
            if hasattr(hints[name], "__metadata__"):
                known["autocompletion"] = hints[name].__metadata__[0]
                if not callable(known["autocompletion"]):
                    continue  # read before
                hints[name] = hints[name].__origin__
            if found["kind"] == "Options":
                made = typer.Option(*names, **known)
            else:
                made = typer.Argument(show_default=False, **known)
            hints[name] = Annotated[hints[name], made]
        text = f"{text[: found.start()].rstrip()}\n\n{text[found.end() :]}".strip("\n")
    function.__annotations__ = hints
    return text


class Command(TyperCommand):
    """A command whose help ends with its examples."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        text = settings.get("help") or ""
        found = _EXAMPLES.search(text)
        settings["help"] = text[: found.start()].rstrip() if found else text
        lines = found["lines"].splitlines() if found else []
        self.examples = [line.strip() for line in lines if line.strip()]
        super().__init__(*arguments, **settings)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            option = getattr(error, "option_name", None)
            message = getattr(error, "message", "").rstrip(".")
            if option is not None and any(p.name == "overrides" for p in self.params):
                # `--seed 3` where a config key is meant.
                key = option.lstrip("-").replace("-", "_")
                hint = f"config keys are written without dashes: {key}=VALUE"
                error.message = f"{message}; {hint}"  # type: ignore[attr-defined]
            raise

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the arguments as their `metavar` has them, which includes the brackets."""
        given = {p.get_usage_pieces(ctx)[0]: p.metavar for p in self.params if _is_argument(p)}
        return [given.get(piece) or piece for piece in super().collect_usage_pieces(ctx)]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        arguments, options = [], []
        for parameter in self.get_params(ctx):
            name, text = parameter.get_help_record(ctx) or ("", "")
            if _is_argument(parameter):
                # Without Python's types; the usage shows what is required.
                text = text.removesuffix("[required]").rstrip()
                arguments.append((parameter.metavar or name, text))
            elif name:
                options.append((re.sub(r"<([^>]*)>", _metavar, name), text))
        for title, rows in (("Arguments", arguments), ("Options", options)):
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        _write_examples(formatter, self.examples)


def _metavar(found: re.Match[str]) -> str:
    """Return a plain word for the name of a Python type."""
    if "|" in found[1]:
        return found[1]  # the choices
    words = {"int": "N", "float": "NUMBER", "path": "PATH"}
    return next((word for kind, word in words.items() if kind in found[1]), "TEXT")


def _is_argument(parameter: Any) -> bool:
    return bool(parameter.param_type_name == "argument")


def _write_examples(formatter: Any, examples: list[str]) -> None:
    """Write each example on one line, so that it can be copied."""
    if examples:
        with formatter.section("Examples"):
            formatter.write("".join(f"{' ' * formatter.current_indent}{e}\n" for e in examples))


_ENTRIES = {name: entry for entries in COMMANDS.values() for name, entry in entries.items()}


class Group(TyperGroup):
    """A group that imports a command when it is used."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        # The root's own help has examples, too.
        own = Command(name=None, help=settings.get("help"))
        settings["help"], self.examples = own.help, own.examples
        super().__init__(*arguments, **settings)

    def list_commands(self, ctx: Any) -> list[str]:
        return [*_ENTRIES, *_plugins()]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in self.commands:
            entry = _ENTRIES.get(cmd_name)
            if entry is not None:
                module, _, attribute = entry.place.partition(":")
                function = getattr(import_module(f"advsweep.cli.{module}"), attribute)
                text = f"{entry.summary}\n\n{read_parameters(function)}"
            elif (point := _plugins().get(cmd_name)) is not None:
                function = plugins.load_extension(plugins.COMMANDS, point.name)
                text = read_parameters(function) or _plugin_summary(point)
            else:
                return None
            made = App()
            made.command(cls=Command, help=text.rstrip())(function)
            command = typer.main.get_command(made)
            command.name = cmd_name
            self.commands[cmd_name] = command
        return self.commands[cmd_name]

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name = args[0]
        if self.get_command(ctx, name) is None:
            if remedy := plugins.install_command(name):
                raise UnknownNameError(f"{name}: no such command; {remedy}")
            return self._outline().resolve_command(ctx, args)  # suggests the nearest
        return super().resolve_command(ctx, args)

    def _outline(self) -> TyperGroup:
        """Return a group of commands with names and summaries alone."""
        named = {name: text for each in self.summaries().values() for name, text in each.items()}
        commands: Any = {name: TyperCommand(name=name, help=text) for name, text in named.items()}
        return TyperGroup(name=self.name, commands=commands)

    def summaries(self) -> dict[str, dict[str, str]]:
        """Return the one-line summaries of all commands, by panel and name."""
        found = {
            panel: {name: entry.summary for name, entry in entries.items()}
            for panel, entries in COMMANDS.items()
        }
        others = {name: _plugin_summary(p) for name, p in _plugins().items()}
        return {**found, **({"Plug-ins": others} if others else {})}

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        panels = self.summaries()
        # The same width in every panel aligns all summaries.
        width = max(len(name) for named in panels.values() for name in named)
        for panel, named in panels.items():
            with formatter.section(panel):
                formatter.write_dl([(name.ljust(width), text) for name, text in named.items()])

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        _write_examples(formatter, self.examples)

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:
        if incomplete.startswith("-"):
            return super().shell_complete(ctx, incomplete)
        outline = self._outline()
        return outline.shell_complete(typer.Context(outline), incomplete)


def _plugins() -> dict[str, PluginPoint]:
    """Return the commands of other packages; our names cannot be taken."""
    points = (point for point in plugins.discover().points if point.group == plugins.COMMANDS)
    named = {point.name.replace("_", "-"): point for point in points}
    return {name: point for name, point in named.items() if name not in _ENTRIES}


def _plugin_summary(point: PluginPoint) -> str:
    return f"A command of the package {point.package}."


class App(typer.Typer):
    """A typer application with plain help and `-h`."""

    def __init__(self, **settings: Any) -> None:
        settings.setdefault("add_completion", False)
        super().__init__(
            **settings,
            rich_markup_mode=None,
            pretty_exceptions_enable=False,
            context_settings={"help_option_names": ["-h", "--help"]},
        )
