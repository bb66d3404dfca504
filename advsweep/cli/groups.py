"""The group of all commands: imported when they are used, with their help texts.

A command's help is its summary in `COMMANDS` and the docstring of its function, so that
`advsweep --help` and TAB import no command. Its sections `Arguments:` and `Options:` describe the
parameters, but for those that `options` describes, in this form; a last section `Examples:` is
printed line by line. `Annotated[str, complete]` completes a parameter.

    Arguments:
        RUN... (runs): Runs that the function takes as `runs`.

    Options:
        --limit, -n N >= 0 (most): What --limit does, an integer of at least 0 that the function
            takes as `most`.
        --store URL $ADVSWEEP_STORE: An option with an environment variable.
"""

from __future__ import annotations

import inspect
import re
from functools import partial
from importlib import import_module
from typing import Annotated, Any, NamedTuple, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup

from advsweep import plugins
from advsweep.cli import options
from advsweep.errors import UnknownNameError
from advsweep.plugins import PluginPoint
from advsweep.printable import printable_line


class Entry(NamedTuple):
    """A command: its function as `module:function`, and its summary in one line."""

    place: str
    summary: str


# Every command, in the order of `advsweep --help`; places are relative to `advsweep.cli`.
COMMANDS: dict[str, dict[str, Entry]] = {
    "Train": {
        "init": Entry("init:init", "Write a sweep file, a Makefile for CI and a README."),
        "run": Entry("train:run", "Train one run and print a summary."),
        "sweep": Entry("train:sweep", "Train every combination of values, or resume it."),
        "eval": Entry(
            "evaluation:evaluate", "Evaluate a model, or the weights of runs, on a task."
        ),
    },
    "Watch": {
        "ls": Entry("watch:ls", "List runs, newest first."),
        "status": Entry("watch:status", "Show how many runs are done, running or failed, and why."),
        "show": Entry("watch:show", "Show a run: config, environment, metrics and evaluations."),
        "logs": Entry("watch:logs", "Print the log of a run's process."),
        "stop": Entry("watch:stop", "Stop runs after each has written a checkpoint."),
        "retry": Entry("train:retry", "Restart runs that failed, were stopped or never started."),
    },
    "Compare": {
        "report": Entry("report:report", "Compare estimators in a table with 95 % intervals."),
        "plot": Entry("plot:plot", "Draw figures of runs with 95 % intervals over seeds."),
        "claims": Entry("report:claims", "Test claims against the runs of a store."),
        "replay": Entry("replay:replay", "Show what every estimator makes of recorded rollouts."),
        "audition": Entry(
            "audition:audition", "Show what a few updates by each estimator do to a model."
        ),
        "audit": Entry("report:audit", "Check a printed table: what cannot be, what is settled."),
        "samples": Entry(
            "watch:samples", "Show what a model wrote: prompts, answers and verdicts."
        ),
    },
    "Data": {
        "import": Entry("data:import_", "Turn logs of another trainer into runs of the store."),
        "export": Entry(
            "data:export", "Write weights or tables of runs, or send runs to a tracker."
        ),
        "merge": Entry("data:merge", "Copy the contents of another store into this one."),
        "rm": Entry("data:rm", "Delete runs with their records, checkpoints and folders."),
        "select": Entry(
            "evaluation:select", "Sort problems into levels by how often a model solves them."
        ),
    },
    "Inspect": {
        "list": Entry(
            "catalogue:list_", "List estimators, tasks, methods, experiments, plug-ins, ..."
        ),
        "describe": Entry(
            "describe:describe", "Describe an estimator, a task or another component."
        ),
        "keys": Entry("catalogue:keys", "List or search the config keys: default, range, meaning."),
        "doctor": Entry(
            "doctor:doctor", "Show what is installed, what is missing and how to get it."
        ),
    },
    "Advanced": {
        "worker": Entry("train:worker", "Train open runs of a store until none is left."),
        "db": Entry("data:db", "Upgrade the store's schema or print its version."),
        "schema": Entry("catalogue:schema", "Print a JSON schema of sweep files, for editors."),
    },
}

# Names that somebody may guess, with the commands that are meant.
GUESSES = {
    "estimators": "list estimators",
    "plan": "sweep --dry-run",
    "tasks": "list tasks",
    "watch": "status --watch",
}

_ENTRIES = {name: entry for entries in COMMANDS.values() for name, entry in entries.items()}

_EXAMPLES = re.compile(r"(^|\n)\s*Examples:\n(?P<lines>.*)", re.DOTALL)


_SECTION = re.compile(r"(^|\n)(?P<kind>Arguments|Options):\n(?P<entries>(    .*\n?)+)\n?")
_ENTRY = {
    "Arguments": re.compile(r"(?P<metavar>.+?) \((?P<parameter>\w+)\): (?P<help>.*)", re.DOTALL),
    "Options": re.compile(
        r"(?P<names>--[\w/-]+(, -\w)?)( (?P<metavar>(?!\()\S+))?( >= (?P<least>\d+))?"
        r"( \$(?P<variable>\w+))?( \((?P<parameter>\w+)\))?: (?P<help>.*)",
        re.DOTALL,
    ),
}


def _read_sections(text: str) -> tuple[dict[str, Any], str]:
    """Return the parameters that a docstring describes, by name, and its other text.

    A parameter is a function that makes what typer annotates it with, given its completion.
    """
    parameters: dict[str, Any] = {}
    while found := _SECTION.search(text):
        for words in re.split(r"\n    (?=\S)", f"\n{found['entries'].rstrip()}")[1:]:
            entry = _ENTRY[found["kind"]].fullmatch(" ".join(words.split()))
            assert entry, words
            known: dict[str, Any] = {"metavar": entry["metavar"], "help": entry["help"]}
            if found["kind"] == "Options":
                names = entry["names"].split(", ")
                name = names[0].partition("/")[0][2:].replace("-", "_")
                known["min"] = int(entry["least"]) if entry["least"] else None
                known["envvar"] = entry["variable"]
                made = partial(typer.Option, *names, **known)
            else:
                made, name = partial(typer.Argument, show_default=False, **known), ""
            parameters[entry["parameter"] or name] = made
        text = f"{text[: found.start()].rstrip()}\n\n{text[found.end() :]}".strip("\n")
    return parameters, text


_SHARED = _read_sections(options.__doc__ or "")[0]


def read_parameters(function: Any) -> str:
    """Annotate a function by the sections of its docstring on parameters; return the other text."""
    hints = get_type_hints(function, include_extras=True)
    own, text = _read_sections(inspect.getdoc(function) or "")
    for name, hint in hints.items():
        make = own.get(name, _SHARED.get(name))
        complete = options.COMPLETIONS.get(name)
        if hasattr(hint, "__metadata__"):
            hint, complete = hint.__origin__, hint.__metadata__[0]
            if not callable(complete):
                continue  # annotated by typer's own means, or read before
        if make is not None:
            hints[name] = Annotated[hint, make(autocompletion=complete)]
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
        arguments, flags = [], []
        for parameter in self.get_params(ctx):
            name, text = parameter.get_help_record(ctx) or ("", "")
            if _is_argument(parameter):
                # Without Python's types; the usage shows what is required.
                text = text.removesuffix("[required]").rstrip()
                arguments.append((parameter.metavar or name, text))
            elif name:
                # A plain word for the name of a Python type; choices stay.
                kind = re.search(r"<([^>|]*)>", name)
                words = {"int": "N", "float": "NUMBER", "path": "PATH"}
                word = next((w for k, w in words.items() if kind and k in kind[1]), "TEXT")
                name = re.sub(r"<([^>|]*)>", word, name)
                flags.append((re.sub(r"<([^>]*)>", r"\1", name), text))
        for title, rows in (("Arguments", arguments), ("Options", flags)):
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Write each example on one line, so that it can be copied."""
        if self.examples:
            with formatter.section("Examples"):
                space = " " * formatter.current_indent
                formatter.write("".join(f"{space}{example}\n" for example in self.examples))


def _is_argument(parameter: Any) -> bool:
    return bool(parameter.param_type_name == "argument")


class Group(TyperGroup):
    """A group that imports a command when it is used."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        # The root's own help has examples, too.
        own = Command(name=None, help=settings.get("help"))
        settings["help"], self.examples = own.help, own.examples
        super().__init__(*arguments, **settings)

    def invoke(self, ctx: Any) -> Any:
        """Report a bad option value as expected and actual value."""
        try:
            return super().invoke(ctx)
        except typer.BadParameter as error:
            # Without the wording of pydantic, which typer validates options with.
            message = error.message.removeprefix("Value error, ")
            cause: Any = error.__cause__
            if message.startswith("Input should be ") and isinstance(cause, ValueError):
                expected = message.removeprefix("Input should be ").split(", unable")[0]
                got = printable_line(repr(cause.errors()[0]["input"]))  # type: ignore[attr-defined]
                message = f"expected {expected}, got {got}"
            error.message = message
            raise

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
            if name in GUESSES and not ctx.resilient_parsing:
                ctx.fail(f"No such command '{name}'; did you mean '{GUESSES[name]}'?")
            if remedy := plugins.install_command(name):
                raise UnknownNameError(f"{name}: no such command; {remedy}")
            return self._outline().resolve_command(ctx, args)  # suggests the nearest
        return super().resolve_command(ctx, args)

    def _outline(self) -> TyperGroup:
        """Return a group of commands with names and summaries alone."""
        commands: Any = {
            name: TyperCommand(name=name, help=text)
            for panel in self.summaries().values()
            for name, text in panel.items()
        }
        return TyperGroup(name=self.name, commands=commands)

    def summaries(self) -> dict[str, dict[str, str]]:
        """Return the one-line summaries of all commands, by panel and name."""
        found = {
            panel: {name: entry.summary for name, entry in entries.items()}
            for panel, entries in COMMANDS.items()
        }
        if others := {name: _plugin_summary(p) for name, p in _plugins().items()}:
            found["Plug-ins"] = others
        return found

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        panels = self.summaries()
        # The same width in every panel aligns all summaries.
        width = max(len(name) for named in panels.values() for name in named)
        for panel, named in panels.items():
            with formatter.section(panel):
                formatter.write_dl([(name.ljust(width), text) for name, text in named.items()])

    format_epilog = Command.format_epilog

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
