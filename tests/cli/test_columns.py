"""Tables of listing commands: whole in a pipe, fitted to a terminal."""

from __future__ import annotations

import sys

import pytest

from advsweep.cli.output import print_listing

WORDS = "a sentence of many short words "


@pytest.fixture
def terminal(monkeypatch, capsys):
    """A terminal of 60 columns; `COLUMNS` sets its width."""
    monkeypatch.setattr(type(sys.stdout), "isatty", lambda _: True)
    monkeypatch.setenv("COLUMNS", "60")
    return capsys


RECORDS = [{"name": "one", "kind": "k", "text": WORDS * 3, "more": WORDS * 2}]


def test_a_terminal_gets_wrapped_columns_without_those_for_programs(terminal):
    print_listing(RECORDS, "table", hidden=["more"])
    lines = terminal.readouterr().out.splitlines()
    assert lines[0].split() == ["name", "kind", "text"]
    assert max(map(len, lines)) <= 60
    assert (
        " ".join(line[len("name  kind  ") :].strip() for line in lines[1:]) == (WORDS * 3).strip()
    )


@pytest.mark.parametrize("how", ["table", "csv", "json"])
def test_pipes_get_whole_lines_and_programs_all_columns(monkeypatch, capsys, how):
    monkeypatch.setenv("COLUMNS", "60")
    print_listing(RECORDS, how, hidden=["more"])
    printed = capsys.readouterr()
    assert (WORDS * 3).strip() in printed.out
    assert ("more" in printed.out) == (how != "table")
    assert printed.err == ""


def test_wrapped_text_cannot_draw_a_line_of_its_own(terminal):
    print_listing([{"name": "n", "text": f"{WORDS}\x1b[2J\nFORGED {WORDS}"}], "table")
    text = terminal.readouterr().out
    assert "\x1b" not in text
    assert r"\x1b[2J\nFORGED" in text
    assert all(line.startswith(("name", "n  ", "   ")) for line in text.splitlines())
