"""Commands are imported when they are used, and listed without being built."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest
import typer
from typer.testing import CliRunner

from advsweep.cli.app import app
from advsweep.cli.shared.help import App
from advsweep.cli.shared.lazy import LazyCommands, LazyGroup
from advsweep.cli.shared.output import echo


def greet(name: str = "you") -> None:
    """Greet somebody.

    Examples:
        x greet
    """
    echo(f"hello {name}")


inner = App()


@inner.callback()
def root() -> None:
    """Do more."""


@inner.command()
def deep() -> None:
    """Do it deeply."""
    echo("deep")


@pytest.fixture
def lazy(monkeypatch: pytest.MonkeyPatch) -> typer.Typer:
    module = ModuleType("lazy_example")
    module.greet, module.inner = greet, inner
    monkeypatch.setitem(sys.modules, "lazy_example", module)

    class Places(LazyGroup):
        places = {  # noqa: RUF012
            "Train": {"greet": "lazy_example:greet", "more": "lazy_example:inner"},
            "Watch": {"absent": "lazy_absent:absent"},
        }

    made = App(cls=Places)
    made.callback()(root)
    return made


def test_a_command_runs_without_importing_the_others(lazy):
    assert CliRunner().invoke(lazy, ["greet", "--name", "Ada"]).output == "hello Ada\n"
    assert CliRunner().invoke(lazy, ["more", "deep"]).output == "deep\n"
    assert isinstance(CliRunner().invoke(lazy, ["absent"]).exception, ModuleNotFoundError)


def test_unknown_command_names_the_nearest(lazy):
    done = CliRunner().invoke(lazy, ["gret"])
    assert done.exit_code == 2
    assert "'greet'" in done.output


def test_added_commands_come_after_the_lazy_ones(lazy):
    lazy.command("later")(greet)
    commands = typer.main.get_command(lazy).commands
    assert [*commands] == ["greet", "more", "absent", "later"]
    assert len(commands) == 4
    assert commands["greet"] is commands["greet"]
    assert commands["greet"].rich_help_panel == "Train"
    assert [*commands.outlines("gr")] == ["greet"]  # loads no other module
    del commands["absent"]
    assert [*commands.outlines()] == ["greet", "more", "later"]
    commands["greet"] = commands["later"]
    assert commands["greet"] is commands["later"]
    assert [*commands] == ["greet", "more", "later"]
    with pytest.raises(KeyError):
        commands["nothing"]


def test_outlines_have_the_help_of_the_commands():
    commands = typer.main.get_command(app).commands
    assert isinstance(commands, LazyCommands)
    for name, outline in commands.outlines().items():
        built = commands[name]
        assert outline is not built
        assert (outline.name, outline.help) == (name, built.help)
        assert outline.rich_help_panel == built.rich_help_panel
