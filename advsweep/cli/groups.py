"""The group of all commands: it imports a command when it is used, and prints plain help."""

from __future__ import annotations

import re
import shlex
from collections import deque
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.exceptions import TyperException

from advsweep import plugins, synonyms
from advsweep.cli.commands import BY_NAME, COMMANDS
from advsweep.cli.output import warn
from advsweep.errors import UnknownNameError, close_names
from advsweep.names import YAML_SUFFIXES
from advsweep.plugins import PluginPoint
from advsweep.printable import printable_line

_VALUE = "VALUE"  # where no value was typed


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
        """Parse the words.

        An unknown option that is another name of one of ours is taken as that; of others the
        message says what to type.
        """
        words = list(args)
        while True:
            try:
                return super().parse_args(ctx, list(words))
            except TyperException as error:
                option = _unknown_option(error)
                if option is None or ctx.resilient_parsing:
                    raise
                known = self._known_option(option, words)
                if known is None or synonyms.is_sentence(known):
                    self._explain_option(error, option, words, known)
                    raise
                warn(f"{option} is taken as {known}")
                words = _with_option(words, option, known.split())

    def _known_option(self, option: str, words: Sequence[str]) -> str | None:
        """Return what `synonyms.toml` says of an option; of all commands, what this one has."""
        value = _value_of(option, words)
        given = "" if value == _VALUE else value
        say = synonyms.find(f"{synonyms.OPTIONS}.{self.name}", option, given)
        if say is not None:
            return say
        say = synonyms.find(synonyms.OPTIONS, option, given)
        if say is None or synonyms.is_sentence(say):
            return say
        own = {name for parameter in self.params for name in parameter.opts}
        return say if say.split()[0] in own else None

    def _explain_option(
        self, error: Any, option: str, words: Sequence[str], sentence: str | None
    ) -> None:
        """Let the error of an unknown option say what to type."""
        hint = sentence
        if hint is None and any(p.name == "overrides" for p in self.params):
            hint = _hint_for_key(option, words)
        if hint is not None:
            error.message = f"{error.message.rstrip('.')}; {hint}"
            error.possibilities = None

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
            error.message = _plain_message(error) + _hint_for_value(error)
            raise

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the options before a command; say what is meant by an unknown one."""
        try:
            return super().parse_args(ctx, args)
        except TyperException as error:
            option = _unknown_option(error)
            hint = option and synonyms.hint(f"{synonyms.OPTIONS}.advsweep", option)
            if hint:
                error.message = f"{error.message.rstrip('.')}; {hint}"
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
        hint = None if ctx.resilient_parsing else _hint_for_command(name, args[1:])
        if hint is not None:
            ctx.fail(f"No such command '{name}'; {hint}")
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


def _unknown_option(error: TyperException) -> str | None:
    """Return the option that an error says not to exist; None for another error."""
    # typer's class for it is private; no other error has possibilities.
    option: str | None = getattr(error, "option_name", None)
    return option if hasattr(error, "possibilities") else None


def _hint_for_command(name: str, rest: Sequence[str]) -> str | None:
    """Return what to type in the place of a command that does not exist; None if nobody knows."""
    words = shlex.join(rest)
    command = synonyms.find(synonyms.COMMANDS, name, words)
    if command is None and not close_names(name, BY_NAME):
        listed = synonyms.most_alike(synonyms.COMMANDS, name)
        command = None if listed is None else synonyms.find(synonyms.COMMANDS, listed, words)
    if command is not None:
        return command if synonyms.is_sentence(command) else f"did you mean `advsweep {command}`?"
    is_file = name.endswith(YAML_SUFFIXES)
    if is_file or "=" in name:
        verb = "sweep" if is_file or "," in name else "run"
        return f"did you mean `advsweep {verb} {shlex.join([name, *rest])}`?"
    key = synonyms.find(synonyms.KEYS, name)
    if key is None or synonyms.is_sentence(key):
        return None
    return f"config keys follow a command: `advsweep run {_assignment(key, _VALUE)}`"


def _hint_for_key(option: str, words: Sequence[str]) -> str:
    """Return how a config key is written that was typed as an option: `--seed 3`."""
    key = synonyms.find(synonyms.KEYS, option)
    if key is None:
        key = option.lstrip("-").replace("-", "_")
        near = _near_key(key)
        if near is not None:
            return f"config keys are written without dashes, as steps=200; {near}"
    if synonyms.is_sentence(key):
        return key
    assignment = _assignment(key, _value_of(option, words))
    return f"config keys are written without dashes: {assignment}"


def _near_key(key: str) -> str | None:
    """Return what may be meant by a config key that does not exist; None if it does."""
    from advsweep.sweep.registry import config_groups

    with config_groups() as groups:
        return groups.near_key(key)


def _assignment(key: str, value: str) -> str:
    """Return a key with a value; a key that an entry gives with its value stays as it is."""
    return key if "=" in key else f"{key}={value}"


def _with_option(words: Sequence[str], option: str, known: Sequence[str]) -> list[str]:
    """Return the words of a command line with an option of ours in the place of another.

    Args:
        known: the words of our option. A last one that ends with `=`, as in `--where seed=`, is
            completed by the value that was typed.
    """
    *first, last = known
    changed: list[str] = []
    left = deque(words)
    while left:
        word = left.popleft()
        name, equals, value = word.partition("=")
        if name != option:
            changed.append(word)
            continue
        changed += first
        if last.endswith("="):
            typed = left.popleft() if left and not equals else value
            changed.append(f"{last}{typed}")
            continue
        changed.append(last)
        if equals:
            changed.append(value)
    return changed


def _value_of(option: str, words: Sequence[str]) -> str:
    """Return the value that was typed with an option, or VALUE without one."""
    for place, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name != option:
            continue
        if equals:
            return value
        following = words[place + 1 : place + 2]
        if following and not following[0].startswith("-"):
            return following[0]
        return _VALUE
    return _VALUE


def _plain_message(error: typer.BadParameter) -> str:
    """Return the message without the wording of pydantic, which typer validates options with."""
    message = error.message.removeprefix("Value error, ")
    cause: Any = error.__cause__
    if not message.startswith("Input should be ") or not isinstance(cause, ValueError):
        return message
    expected = message.removeprefix("Input should be ").split(", unable")[0]
    actual = cause.errors()[0]["input"]  # type: ignore[attr-defined]
    return f"expected {expected}, got {printable_line(repr(actual))}"


def _hint_for_value(error: typer.BadParameter) -> str:
    """Return what ends the message on a value that an option does not take."""
    typed = re.search(r"'(.*?)' is not one of ", error.message)
    options = getattr(error.param, "opts", ())
    if typed is None or not options:
        return ""
    hint = synonyms.hint(f"{synonyms.VALUES}.{max(options, key=len).lstrip('-')}", typed[1])
    return "" if hint is None else f" {hint}"


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
