"""Help texts: groups, whole summaries, and examples that can be copied."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from typing import Any

import pytest
import typer
from typer.core import TyperCommand, TyperGroup
from typer.testing import CliRunner

from advsweep.cli.app import app
from advsweep.cli.shared.help import PANELS, Command, Group, split_examples, summary

ROOT = typer.main.get_command(app)
MOST = 60


def walk(group: TyperGroup, prefix: str = "") -> Iterator[tuple[str, TyperCommand | TyperGroup]]:
    for name, command in group.commands.items():
        yield f"{prefix}{name}", command
        if isinstance(command, TyperGroup):
            yield from walk(command, f"{prefix}{name} ")


COMMANDS = dict(walk(ROOT))


def shown(*words: str, columns: int = 80) -> str:
    environment = {"COLUMNS": str(columns), "TERMINAL_WIDTH": str(columns)}
    done = CliRunner().invoke(app, [*words, "--help"], prog_name="advsweep", env=environment)
    assert done.exit_code == 0
    return done.stdout


@pytest.mark.parametrize("name", COMMANDS)
def test_summary_is_one_whole_sentence(name):
    text = summary(COMMANDS[name])
    assert 10 < len(text) <= MOST
    assert re.fullmatch(r"[A-Z][^.]*( %[^.]*)?\.", text), text
    assert "..." not in text


def test_commands_stand_in_their_panels_with_whole_summaries():
    text = shown()
    assert re.findall(r"^(\w+):$", text, re.MULTILINE) == ["Options", *PANELS, "Examples"]
    for name, command in ROOT.commands.items():
        assert command.rich_help_panel in PANELS, name
        panel = re.search(rf"^{command.rich_help_panel}:\n((?:  .*\n)+)", text, re.MULTILINE)
        assert re.search(rf"^  {name} +{re.escape(summary(command))}$", panel[1], re.MULTILINE)
    assert max(map(len, text.splitlines())) <= 80
    panels = text.partition(f"{PANELS[0]}:")[2].partition("Examples:")[0]
    columns = {
        len(line) - len(line[2:].split(None, 1)[1]) for line in re.findall(r"^  .*", panels, re.M)
    }
    assert len(columns) == 1  # the summaries of all panels stand below each other


def test_narrow_terminal_wraps_summaries_and_cuts_none():
    words = shown(columns=40).split()
    for command in ROOT.commands.values():
        sentence = summary(command).split()
        assert any(words[i : i + len(sentence)] == sentence for i in range(len(words)))


@pytest.mark.parametrize("name", COMMANDS)
def test_every_help_has_examples_of_its_command(name):
    command = COMMANDS[name]
    assert isinstance(command, Command | Group)
    assert command.examples
    text = shown(*name.split(), columns=60)
    for example in command.examples:
        assert f"advsweep {name}" in example
        assert f"  {example}\n" in text  # in one piece, however narrow the terminal


def steps(example: str) -> list[list[str]]:
    """Returns the words of each command of an example, without a redirection at its end."""
    return [shlex.split(step.split(" > ")[0]) for step in example.split(" && ")]


def parse(words: list[str]) -> tuple[str, dict[str, Any]]:
    """Parses a command as click does, and returns its name and parameters.

    Raises:
        click's `UsageError`: an option or an argument is unknown, missing or of a wrong type.
    """
    program, *words = words
    assert program == "advsweep"
    command, name, context = ROOT, "", None
    while isinstance(command, TyperGroup):
        context = command.make_context("advsweep", words, parent=context)
        words = [*context._protected_args, *context.args]
        if not words:
            return name.strip(), context.params  # a group that is a command itself
        assert words[0] in command.commands, f"advsweep{name} has no command '{words[0]}'"
        name, command = f"{name} {words[0]}", command.commands[words.pop(0)]
    return name.strip(), command.make_context(name, words, parent=context).params


PLANNING = ("run", "sweep", "plan")
EXAMPLES = {example for command in (ROOT, *COMMANDS.values()) for example in command.examples}


@pytest.mark.parametrize("example", sorted(EXAMPLES))
def test_examples_can_be_parsed(example):
    for words in steps(example):
        if words[0] == "advsweep":
            parse(words)


@pytest.fixture(scope="module")
def begun(tmp_path_factory):
    """A folder with the sweep.yaml of `advsweep init`, which some examples name."""
    folder = tmp_path_factory.mktemp("begun")
    assert CliRunner().invoke(app, ["init", str(folder)]).exit_code == 0
    return folder


@pytest.mark.parametrize(
    "example", sorted(e for e in EXAMPLES if any(s[1] in PLANNING for s in steps(e)))
)
def test_keys_of_examples_compose(example, begun, monkeypatch):
    """Nothing is trained: the runs of the example are composed, built and checked."""
    monkeypatch.chdir(begun)
    for _, *words in steps(example):
        if words[0] in PLANNING:
            dry = ["--dry-run"] if words[0] != "plan" and "--dry-run" not in words else []
            done = CliRunner().invoke(app, [*words, *dry], prog_name="advsweep")
            assert done.exit_code == 0, f"{example}: {done.exception or done.output}"


@pytest.mark.parametrize(
    ("name", "usage"),
    [
        ("run", "[OPTIONS] [KEY=VALUE]..."),
        ("report", "[OPTIONS] [SWEEP]"),
        ("rm", "[OPTIONS] RUN...|SWEEP"),
        ("merge", "[OPTIONS] OTHER"),
        ("init", "[OPTIONS] [FOLDER]"),
        ("estimators show", "[OPTIONS] NAME"),
    ],
)
def test_usage_has_arguments_without_python_types(name, usage):
    text = shown(*name.split())
    assert text.startswith(f"Usage: advsweep {name} {usage}\n")
    assert "list[" not in text
    assert "[required]" not in text
    assert "<str>" not in text.partition("Options:")[0]


def test_examples_are_split_from_the_text():
    text = "Do it.\n\nMore.\n\nExamples:\n    advsweep a\n    advsweep b --c 'd e'"
    assert split_examples(text) == ("Do it.\n\nMore.", ["advsweep a", "advsweep b --c 'd e'"])
    assert split_examples("Do it.") == ("Do it.", [])
    assert split_examples(None) == (None, [])


def test_option_in_place_of_a_config_key_is_explained():
    done = CliRunner().invoke(app, ["run", "--seed", "3"], prog_name="advsweep")
    assert done.exit_code == 2
    assert "config keys are written without dashes: seed=VALUE" in done.output
    long = CliRunner().invoke(app, ["sweep", "--group-size=3"], prog_name="advsweep")
    assert "without dashes: group_size=VALUE" in long.output
    other = CliRunner().invoke(app, ["ls", "--seed", "3"], prog_name="advsweep")
    assert other.exit_code == 2
    assert "dashes" not in other.output  # it takes no config keys


def test_sweep_without_values_trains_nothing(refused):
    refused(["sweep:", "estimator=grpo,fade", "advsweep run"], "sweep")
    refused(["sweep:", "estimator=grpo,fade", "advsweep run"], "sweep", "--jobs", "2")
