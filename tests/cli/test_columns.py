"""Tables of listing commands: whole in a pipe, fitted to a terminal."""

from __future__ import annotations

import sys

import pytest

from advsweep.cli.options import ListFormat
from advsweep.cli.output import READABLE, fit, lay_out, print_listing

WORDS = "a sentence of many short words "
TABLE = [
    ["name", "note", "text", "empty"],
    ["first-name-in-one-word", "few words", WORDS * 4, ""],
    ["b", "", "short", ""],
]


def test_columns_stand_below_each_other():
    assert lay_out([["a", "b"], ["p̂", "1"], ["long", ""]]) == ["a     b", "p̂     1", "long"]


@pytest.mark.parametrize(
    ("table", "width", "optional"),
    [
        (TABLE, 400, ["note"]),  # it fits
        (TABLE, 40, []),  # wrapped it would be unreadable
        ([["name"], ["x" * 90]], 40, []),  # the first column stays whole
    ],
)
def test_what_fits_or_cannot_is_not_changed(table, width, optional):
    assert fit(table, width, optional) == (table, [])


@pytest.mark.parametrize("width", [80, 100, 120])
def test_wide_cells_are_wrapped_and_lose_no_word(width):
    table, left_out = fit(TABLE, width)
    lines = lay_out(table)
    assert left_out == []
    assert max(map(len, lines)) <= width
    assert " ".join(row[2] for row in table).split() == ["text", *(WORDS * 4).split(), "short"]
    assert [row[0] for row in table if row[0]] == ["name", "first-name-in-one-word", "b"]
    assert table[2][:2] == ["", ""]


def test_optional_columns_go_in_their_order_until_the_rest_is_readable():
    table, left_out = fit(TABLE, 62, ["note", "empty", "unknown"])
    assert left_out == ["note"]
    assert table[0] == ["name", "text", "empty"]
    assert max(len(row[1]) for row in table) >= READABLE - len("sentence")
    assert fit(TABLE, 56, ["note", "empty"])[1] == ["note", "empty"]


@pytest.fixture
def terminal(monkeypatch, capsys):
    """A terminal of 60 columns; `COLUMNS` sets its width."""
    monkeypatch.setattr(type(sys.stdout), "isatty", lambda _: True)
    monkeypatch.setenv("COLUMNS", "60")
    return capsys


RECORDS = [{"name": "one", "kind": "k", "text": WORDS * 3, "more": WORDS * 2}]


def test_terminal_says_what_it_lacks(terminal):
    print_listing(RECORDS, ListFormat.TABLE, optional=["more", "kind"])
    printed = terminal.readouterr()
    assert printed.out.startswith("name  kind  text\none   k     a sentence of many")
    assert max(map(len, printed.out.splitlines())) <= 60
    assert printed.err == "Left out for lack of room: more (--format json shows them).\n"


@pytest.mark.parametrize("how", ListFormat)
def test_pipes_and_programs_get_all_columns(monkeypatch, capsys, how):
    monkeypatch.setenv("COLUMNS", "60")
    print_listing(RECORDS, how, optional=["more"])
    printed = capsys.readouterr()
    assert WORDS * 3 in printed.out
    assert WORDS * 2 in printed.out
    assert printed.err == ""


def test_wrapped_text_cannot_draw_a_line_of_its_own(terminal):
    print_listing([{"name": "n", "text": f"{WORDS}\x1b[2J\nFORGED {WORDS}"}], ListFormat.TABLE)
    text = terminal.readouterr().out
    assert "\x1b" not in text
    assert r"\x1b[2J\nFORGED" in text
    assert all(line.startswith(("name", "n  ", "   ")) for line in text.splitlines())
