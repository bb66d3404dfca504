"""Help texts: commands in named groups, whole summaries, and examples that are not wrapped.

A command's help is its docstring. The first paragraph is its summary, which `advsweep --help`
shows as a whole. A last section `Examples:` is printed line by line after the options.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeVar

import typer
from typer.core import TyperCommand, TyperGroup

_Function = TypeVar("_Function", bound=Callable[..., Any])

PANELS = ("Train", "Watch", "Compare", "Inspect", "Manage")
"""The groups of commands in `advsweep --help`, in its order."""

_EXAMPLES = re.compile(r"\n\s*Examples:\n(?P<lines>.*)", re.DOTALL)


def split_examples(text: str | None) -> tuple[str | None, list[str]]:
    """Splits a docstring into the text before its section `Examples:` and the lines of that.

    >>> split_examples("Train one run.\\n\\nExamples:\\n    advsweep run")
    ('Train one run.', ['advsweep run'])
    """
    found = _EXAMPLES.search(text or "")
    if text is None or found is None:
        return text, []
    lines = [line.strip() for line in found["lines"].splitlines()]
    return text[: found.start()].rstrip(), [line for line in lines if line]


def summary(command: TyperCommand | TyperGroup) -> str:
    """Returns the first paragraph of a command's help, on one line."""
    return " ".join((command.help or "").split("\n\n")[0].split())


class Command(TyperCommand):
    """A command whose help ends with its examples."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        settings["help"], self.examples = split_examples(settings.get("help"))
        super().__init__(*arguments, **settings)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            # `--seed 3` where a config key is meant.
            option = getattr(error, "option_name", None)
            if option is not None and any(p.name == "overrides" for p in self.params):
                key = option.lstrip("-").replace("-", "_")
                message = getattr(error, "message", "")
                hint = f"config keys are written without dashes: {key}=VALUE"
                error.message = f"{message.rstrip('.')}; {hint}"  # type: ignore[attr-defined]
            raise

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Returns the arguments as their `metavar` has them: it has the brackets already."""
        given = {p.get_usage_pieces(ctx)[0]: p.metavar for p in self.params if _is_argument(p)}
        return [given.get(piece) or piece for piece in super().collect_usage_pieces(ctx)]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        arguments, options = [], []
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None and _is_argument(parameter):
                # Without Python's types; the usage shows what is required.
                text = record[1].removesuffix("[required]").rstrip()
                arguments.append((parameter.metavar or record[0], text))
            elif record is not None:
                options.append(record)
        for title, rows in (("Arguments", arguments), ("Options", options)):
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        _write_examples(formatter, self.examples)


def _is_argument(parameter: Any) -> bool:
    return bool(parameter.param_type_name == "argument")


class Group(TyperGroup):
    """A group that lists its commands with whole summaries, by the panels they are in."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        settings["help"], self.examples = split_examples(settings.get("help"))
        super().__init__(*arguments, **settings)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        rows: dict[str, list[tuple[str, str]]] = {panel: [] for panel in PANELS}
        names = self.list_commands(ctx)
        width = max(map(len, names), default=0)
        for name in names:
            command = self.get_command(ctx, name)
            if isinstance(command, TyperCommand | TyperGroup):
                panel = command.rich_help_panel or "Commands"
                # The same width in every panel: the summaries stand below each other.
                rows.setdefault(panel, []).append((name.ljust(width), summary(command)))
        for panel, commands in rows.items():
            if commands:
                with formatter.section(panel):
                    formatter.write_dl(commands)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        _write_examples(formatter, self.examples)


def _write_examples(formatter: Any, examples: list[str]) -> None:
    """Writes each example on a line of its own, which can be copied as it is."""
    if examples:
        with formatter.section("Examples"):
            formatter.write("".join(f"{' ' * formatter.current_indent}{e}\n" for e in examples))


class App(typer.Typer):
    """A typer application whose commands and groups have help texts of this module."""

    def __init__(self, **settings: Any) -> None:
        settings.setdefault("cls", Group)
        settings.setdefault("add_completion", False)
        super().__init__(
            **settings,
            rich_markup_mode=None,
            pretty_exceptions_enable=False,
            context_settings={"help_option_names": ["-h", "--help"]},
        )

    def command(self, name: str | None = None, **settings: Any) -> Callable[[_Function], _Function]:
        """As `typer.Typer.command`, with the class of this module."""
        return super().command(name, cls=Command, **settings)
