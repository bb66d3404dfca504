"""The group of all commands: it imports a command when it is used, and prints plain help."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from advsweep import plugins
from advsweep.cli.commands import BY_NAME, COMMANDS, GUESSES
from advsweep.errors import UnknownNameError
from advsweep.plugins import PluginPoint
from advsweep.printable import printable_line


def make_app(**settings: Any) -> typer.Typer:
    """Return a typer application with plain help and `-h`."""
    return typer.Typer(
        **settings,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )


def write_examples(examples: str | None, formatter: Any) -> None:
    """Write each line on one line of the terminal, so that it can be copied."""
    if not examples:
        return
    with formatter.section("Examples"):
        indent = " " * formatter.current_indent
        for example in examples.splitlines():
            formatter.write(f"{indent}{example}\n")


class PlainCommand(TyperCommand):
    """A command whose help shows arguments by their metavar and ends with examples, its epilog."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the words; say how config keys are written if an option is meant as one."""
        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            option = getattr(error, "option_name", None)
            if option is not None and any(p.name == "overrides" for p in self.params):
                # `--seed 3` where a config key is meant.
                message = getattr(error, "message", "").rstrip(".")
                key = option.lstrip("-").replace("-", "_")
                hint = f"config keys are written without dashes: {key}=VALUE"
                error.message = f"{message}; {hint}"  # type: ignore[attr-defined]
            raise

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the words of the usage line; typer would put a metavar into brackets again."""
        arguments = [argument.metavar or argument.name for argument in self._arguments(ctx)]
        return [self.options_metavar or "", *arguments]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write arguments and options; typer would add the Python type of each argument."""
        arguments = []
        for argument in self._arguments(ctx):
            _, text = argument.get_help_record(ctx)
            # The brackets of a metavar say what is required.
            arguments.append(
                (argument.metavar or argument.name, text.removesuffix("[required]").rstrip())
            )
        options = [
            parameter.get_help_record(ctx)
            for parameter in self.get_params(ctx)
            if parameter.param_type_name == "option"
        ]
        for title, rows in (("Arguments", arguments), ("Options", options)):
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)

    def _arguments(self, ctx: Any) -> list[Any]:
        return [p for p in self.get_params(ctx) if p.param_type_name == "argument"]

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        write_examples(self.epilog, formatter)


class LazyGroup(TyperGroup):
    """The group of our commands and those of other packages."""

    def invoke(self, ctx: Any) -> Any:
        """Report a bad option value as expected and actual value."""
        try:
            return super().invoke(ctx)
        except typer.BadParameter as error:
            error.message = _plain_message(error)
            raise

    def list_commands(self, ctx: Any) -> list[str]:
        return [*BY_NAME, *_plugins()]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in self.commands:
            command = _load_command(cmd_name)
            if command is None:
                return None
            self.commands[cmd_name] = command
        return self.commands[cmd_name]

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name = args[0]
        if self.get_command(ctx, name) is not None:
            return super().resolve_command(ctx, args)
        if name in GUESSES and not ctx.resilient_parsing:
            ctx.fail(f"No such command '{name}'; did you mean '{GUESSES[name]}'?")
        if remedy := plugins.install_command(name):
            raise UnknownNameError(f"{name}: no such command; {remedy}")
        return _outline(self.name).resolve_command(ctx, args)  # suggests the nearest

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        panels = _summaries()
        # The same width in every panel aligns all summaries.
        width = max(len(name) for panel in panels.values() for name in panel)
        for title, panel in panels.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(width), text) for name, text in panel.items()])

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        write_examples(self.epilog, formatter)

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:
        if incomplete.startswith("-"):
            return super().shell_complete(ctx, incomplete)
        outline = _outline(self.name)
        return outline.shell_complete(typer.Context(outline), incomplete)


def _load_command(name: str) -> Any:
    """Import a command of ours or of another package; None if there is none of this name.

    Raises:
        PluginError: the package's function cannot be imported.
    """
    row = BY_NAME.get(name)
    examples = None
    text = None  # the docstring
    if row is not None:
        module = import_module(f"advsweep.cli.commands.{row.module}")
        function = getattr(module, row.module)
        examples = "\n".join(module.EXAMPLES)
    else:
        point = _plugins().get(name)
        if point is None:
            return None
        function = plugins.load_extension(plugins.COMMANDS, point.name)
        if not function.__doc__:
            text = _plugin_summary(point)
    app = make_app(add_completion=False)
    app.command(name, cls=PlainCommand, help=text, epilog=examples)(function)
    return typer.main.get_command(app)


def _plain_message(error: typer.BadParameter) -> str:
    """Return the message without the wording of pydantic, which typer validates options with."""
    message = error.message.removeprefix("Value error, ")
    cause: Any = error.__cause__
    if not message.startswith("Input should be ") or not isinstance(cause, ValueError):
        return message
    expected = message.removeprefix("Input should be ").split(", unable")[0]
    actual = cause.errors()[0]["input"]  # type: ignore[attr-defined]
    return f"expected {expected}, got {printable_line(repr(actual))}"


def _outline(name: str | None) -> TyperGroup:
    """Return a group of commands that have names and summaries and nothing else."""
    commands: Any = {
        command: TyperCommand(name=command, help=summary)
        for panel in _summaries().values()
        for command, summary in panel.items()
    }
    return TyperGroup(name=name, commands=commands)


def _summaries() -> dict[str, dict[str, str]]:
    """Return the one-line summaries of all commands, by panel and name."""
    summaries = {
        title: {name: command.summary for name, command in panel.items()}
        for title, panel in COMMANDS.items()
    }
    others = {name: _plugin_summary(point) for name, point in _plugins().items()}
    if others:
        summaries["Plug-ins"] = others
    return summaries


def _plugins() -> dict[str, PluginPoint]:
    """Return the commands of other packages; our names cannot be taken."""
    points = (point for point in plugins.discover().points if point.group == plugins.COMMANDS)
    by_name = {point.name.replace("_", "-"): point for point in points}
    return {name: point for name, point in by_name.items() if name not in BY_NAME}


def _plugin_summary(point: PluginPoint) -> str:
    return f"A command of the package {point.package}."
