"""What every command and option has: a summary, help texts, examples that can be parsed."""

from __future__ import annotations

import inspect
import re
import shlex
from importlib import import_module
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from advsweep.cli.app import EXAMPLES, app
from advsweep.cli.commands import BY_NAME, COMMANDS

ROOT: Any = typer.main.get_command(app)
CONTEXT = typer.Context(ROOT, info_name="advsweep")
BUILT: dict[str, Any] = {name: ROOT.get_command(CONTEXT, name) for name in BY_NAME}
COLUMNS = 80


def shown(*words: str, columns: int = COLUMNS) -> str:
    environment = {"COLUMNS": str(columns), "TERMINAL_WIDTH": str(columns)}
    done = CliRunner().invoke(app, [*words, "--help"], prog_name="advsweep", env=environment)
    assert done.exit_code == 0
    return done.stdout


def examples_of(name: str) -> tuple[str, ...]:
    module = import_module(f"advsweep.cli.commands.{BY_NAME[name].module}")
    return module.EXAMPLES


# A new command is found by these; each failure says what to write.


@pytest.mark.parametrize("name", BY_NAME)
def test_summary_of_the_table_is_the_first_line_of_the_docstring(name):
    row = BY_NAME[name]
    function = inspect.unwrap(BUILT[name].callback)
    first = (inspect.getdoc(function) or "").partition("\n\n")[0]
    assert row.summary == first, (
        f"the summary of '{name}' in advsweep/cli/commands/__init__.py differs from the docstring "
        f'of {row.module}(); write there: "{name}": Command("{row.module}", "{first}"),'
    )
    assert re.fullmatch(r"[A-Z][^.]*\.+", first), f"{first}: write one sentence with a full stop"


@pytest.mark.parametrize("name", BY_NAME)
def test_every_parameter_has_a_help_text_and_a_metavar(name):
    for parameter in BUILT[name].params:
        where = f"{BY_NAME[name].module}({parameter.name}) in advsweep/cli/commands"
        assert parameter.help, (
            f"{where} has no help: annotate it with an alias of advsweep/cli/options.py, or "
            'Annotated[TYPE, typer.Option("--name", metavar="N", help="What it does.")]'
        )
        is_flag = getattr(parameter, "is_flag", False)
        assert is_flag or parameter.metavar, f'{where}: add metavar="...", a plain word for TYPE'
        assert not getattr(parameter, "secondary_opts", []), (
            f'{where} has an option --no-...: name the flag, typer.Option("--name", ...)'
        )


@pytest.mark.parametrize("name", BY_NAME)
def test_metavar_of_a_choice_lists_the_choices(name):
    """Or the help text does, where it says what each of them means."""
    for parameter in BUILT[name].params:
        choices = choices_of(parameter)
        listed = "|".join(choices)
        explained = all(choice in parameter.help for choice in choices)
        assert not choices or parameter.metavar == listed or explained, (
            f'{BY_NAME[name].module}({parameter.name}): write metavar="{listed}"'
        )


def choices_of(parameter: Any) -> list[str]:
    """The values of a parameter that is one of several words."""
    choices = parameter.type_descriptor.choices if parameter.type_descriptor.is_choice else ()
    return [str(getattr(choice, "value", choice)) for choice in choices or ()]


@pytest.mark.parametrize("name", BY_NAME)
def test_help_has_examples_and_fits_a_terminal(name):
    assert examples_of(name), f"write EXAMPLES in the module of '{name}'"
    narrow = shown(name, columns=60)
    for example in examples_of(name):
        assert f"advsweep {name}" in example
        assert f"  {example}\n" in narrow  # in one piece, however narrow the terminal
    text = shown(name)
    assert BY_NAME[name].summary in text
    longest = max(text.splitlines(), key=len)
    assert len(longest) <= COLUMNS, f"shorten: {longest}"
    assert not re.search(r"<(int|float|str|path|list)\b|list\[", text), text


def bad_values() -> list[Any]:
    """A value that no parameter of a kind takes, for every command that has one."""
    cases = []
    for name, command in BUILT.items():
        for parameter in command.params:
            if parameter.param_type_name != "option":
                continue
            lowest = getattr(parameter, "min", None)
            option = max(parameter.opts, key=len)
            if lowest is not None:
                cases.append(pytest.param(name, option, str(lowest - 1), id=f"{name} {option}"))
            elif choices_of(parameter):
                cases.append(pytest.param(name, option, "nonesuch", id=f"{name} {option}"))
    return cases


@pytest.mark.parametrize(("name", "option", "value"), bad_values())
def test_a_bad_value_is_one_line_and_exit_code_2(name, option, value, called):
    arguments = [p for p in BUILT[name].params if p.param_type_name == "argument" and p.required]
    code, out, err = called(name, *("x" for _ in arguments), option, value)
    assert (code, out) == (2, ""), f"{name} {option}: declare the bound or the choices in its type"
    assert err.startswith("advsweep: ")
    assert err.count("\n") == 1
    assert option in err
    assert value in err


def test_an_option_has_one_letter_and_a_letter_one_meaning():
    meanings: dict[str, set[str]] = {}
    for command in BUILT.values():
        for parameter in command.params:
            for letter in (o for o in parameter.opts if re.fullmatch("-[a-zA-Z]", o)):
                meanings.setdefault(letter, set()).update(set(parameter.opts) - {letter})
    assert {k: v for k, v in meanings.items() if len(v) > 1} == {}


PARSED = sorted({*EXAMPLES, *(example for name in BY_NAME for example in examples_of(name))})


@pytest.mark.parametrize("example", PARSED)
def test_examples_can_be_parsed(example):
    for step in example.split(" && "):
        words = shlex.split(step.split(" > ")[0])
        if words[0] == "cd":
            continue
        assert words[0] == "advsweep"
        command = BUILT[words[1]]
        params = command.make_context(words[1], words[2:], parent=CONTEXT).params
        if words[1] in ("run", "sweep"):
            assert all("=" in w or w.endswith(".yaml") for w in params["overrides"] or ())


# The help of the program


def test_commands_stand_in_their_panels_with_whole_summaries():
    text = shown()
    assert re.findall(r"^(\w+):$", text, re.MULTILINE) == ["Options", *COMMANDS, "Examples"]
    for panel, commands in COMMANDS.items():
        section = re.search(rf"^{panel}:\n((?:  .*\n)+)", text, re.MULTILINE)
        assert section
        for name, row in commands.items():
            line = rf"^  {name} +{re.escape(row.summary)}$"
            assert re.search(line, section[1], re.MULTILINE), f"shorten the summary of '{name}'"
    assert max(map(len, text.splitlines())) <= COLUMNS
    words = shown(columns=40).split()  # a narrow terminal wraps summaries and cuts none
    for row in BY_NAME.values():
        sentence = row.summary.split()
        assert any(words[i : i + len(sentence)] == sentence for i in range(len(words)))


def test_option_in_place_of_a_config_key_is_explained():
    done = CliRunner().invoke(app, ["run", "--seed", "3"], prog_name="advsweep")
    assert done.exit_code == 2
    assert "config keys are written without dashes: seed=3" in done.output
    other = CliRunner().invoke(app, ["ls", "--seed", "3"], prog_name="advsweep")
    assert "dashes" not in other.output  # it takes no config keys


# Commands of other packages

PLUGIN = '''
from typing import Annotated

import typer

from advsweep.cli import options


def hello(
    name: Annotated[str, typer.Option("--name", metavar="NAME", help="Whom to greet.")] = "you",
    times: Annotated[int, typer.Option("--times", metavar="N", min=1, help="How often.")] = 1,
    store: options.Store = None,
) -> None:
    """Greet somebody.

    \\b
    Examples:
      advsweep say-hello --name Ada
    """
    for _ in range(times):
        print("hello", name, store)


def bare(word: str) -> None:
    print(word)
'''


@pytest.mark.slow
def test_other_packages_add_commands(advsweep_with):
    points = {
        "say_hello": "greeting:hello",
        "bare": "greeting:bare",
        "ls": "greeting:hello",
        "bad": "nowhere_:bad",
    }
    command = advsweep_with({"advsweep.commands": points}, greeting=PLUGIN)
    said = command("say-hello", "--name", "Ada", "--store", "a.db").stdout
    assert said == "hello Ada a.db\n"
    text = command("say-hello", "--help").stdout
    assert "Greet somebody.\n" in text
    assert "  Examples:\n    advsweep say-hello --name Ada\n" in text
    assert re.search(r"^  --store URL +The store: a path", text, re.M)
    wrong = command("say-hello", "--times", "0")
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert wrong.stderr.count("\n") == 1
    assert "--times" in wrong.stderr
    assert "A command of the package package-of-others." in command("bare", "--help").stdout
    listed = command("--help").stdout
    assert re.search(r"^  say-hello +A command of the package package-of-others\.$", listed, re.M)
    done = command("bad")
    assert (done.returncode, done.stdout) == (2, "")
    assert "'bad' of package 'package-of-others' cannot be loaded" in done.stderr
    states = command("list", "plugins", "--format", "csv").stdout
    assert re.search(r"^command,say_hello,package-of-others,1\.0,usable,,", states, re.M)
    assert re.search(r"^command,bad,.*,unusable,", states, re.M)
