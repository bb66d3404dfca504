"""The group of all commands: help texts, examples that parse, limits, and names that are gone."""

from __future__ import annotations

import re
import shlex
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from advsweep.cli.app import app
from advsweep.cli.groups import COMMANDS, GUESSES, Command

ROOT: Any = typer.main.get_command(app)
CONTEXT = typer.Context(ROOT, info_name="advsweep")
NAMES = [name for entries in COMMANDS.values() for name in entries]
BUILT: dict[str, Any] = {name: ROOT.get_command(CONTEXT, name) for name in NAMES}
MOST = 60


def shown(*words: str, columns: int = 80) -> str:
    environment = {"COLUMNS": str(columns), "TERMINAL_WIDTH": str(columns)}
    done = CliRunner().invoke(app, [*words, "--help"], prog_name="advsweep", env=environment)
    assert done.exit_code == 0
    return done.stdout


def test_commands_stand_in_their_panels_with_whole_summaries():
    text = shown()
    assert re.findall(r"^(\w+):$", text, re.MULTILINE) == ["Options", *COMMANDS, "Examples"]
    for panel, entries in COMMANDS.items():
        section = re.search(rf"^{panel}:\n((?:  .*\n)+)", text, re.MULTILINE)
        assert section
        for name, entry in entries.items():
            assert re.search(rf"^  {name} +{re.escape(entry.summary)}$", section[1], re.MULTILINE)
            assert 10 < len(entry.summary) <= MOST
            assert re.fullmatch(r"[A-Z][^.]*\.+", entry.summary)
    assert max(map(len, text.splitlines())) <= 80
    words = shown(columns=40).split()  # a narrow terminal wraps summaries and cuts none
    for entry in (entry for entries in COMMANDS.values() for entry in entries.values()):
        sentence = entry.summary.split()
        assert any(words[i : i + len(sentence)] == sentence for i in range(len(words)))


@pytest.mark.parametrize("name", NAMES)
def test_help_has_summary_arguments_and_examples_of_its_command(name):
    command = BUILT[name]
    assert isinstance(command, Command)
    assert command.examples
    text = shown(name, columns=60)
    for example in command.examples:
        assert f"advsweep {name}" in example
        assert f"  {example}\n" in text  # in one piece, however narrow the terminal
    summary = next(entries[name].summary for entries in COMMANDS.values() if name in entries)
    assert summary in " ".join(text.split())
    assert not re.search(r"<(int|float|str|path|list)\b|list\[", text), text


EXAMPLES = sorted({e for command in (ROOT, *BUILT.values()) for e in command.examples})


@pytest.mark.parametrize("example", EXAMPLES)
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


def test_guessed_names_are_no_commands():
    assert not {*GUESSES} & {*NAMES}


def test_one_letter_has_one_meaning():
    meanings: dict[str, set[str]] = {}
    for command in BUILT.values():
        for parameter in command.params:
            for letter in (o for o in parameter.opts if re.fullmatch("-[a-zA-Z]", o)):
                meanings.setdefault(letter, set()).update(set(parameter.opts) - {letter})
    assert {k: v for k, v in meanings.items() if len(v) > 1} == {}


PLUGIN = '''
def hello(name: str = "you") -> None:
    """Greet somebody.

    Examples:
        advsweep say-hello --name Ada
    """
    print("hello", name)
'''


@pytest.mark.slow
def test_other_packages_add_commands(advsweep_with):
    points = {"say_hello": "greeting:hello", "ls": "greeting:hello", "bad": "nowhere_:bad"}
    command = advsweep_with({"advsweep.commands": points}, greeting=PLUGIN)
    assert command("say-hello", "--name", "Ada").stdout == "hello Ada\n"
    assert "Greet somebody.\n" in command("say-hello", "--help").stdout
    listed = command("--help").stdout
    assert re.search(r"^  say-hello +A command of the package package-of-others\.$", listed, re.M)
    done = command("bad")
    assert (done.returncode, done.stdout) == (2, "")
    assert "'bad' of package 'package-of-others' cannot be loaded" in done.stderr
    states = command("list", "plugins", "--format", "csv").stdout
    assert re.search(r"^command,say_hello,package-of-others,1\.0,usable,,", states, re.M)
    assert re.search(r"^command,bad,.*,unusable,", states, re.M)


def test_option_in_place_of_a_config_key_is_explained():
    done = CliRunner().invoke(app, ["run", "--seed", "3"], prog_name="advsweep")
    assert done.exit_code == 2
    assert "config keys are written without dashes: seed=VALUE" in done.output
    other = CliRunner().invoke(app, ["ls", "--seed", "3"], prog_name="advsweep")
    assert "dashes" not in other.output  # it takes no config keys
