"""Tables of listing commands: whole in a pipe, fitted to a terminal."""

from __future__ import annotations

import sys

import pytest

from advsweep.cli.output import print_listing
from advsweep.writing import fit_widths, wrap_cell

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


@pytest.mark.parametrize(
    ("widths", "room", "fitted"),
    [
        ([4, 9, 6], 19, [4, 9, 6]),
        ([4, 9, 6], 15, [4, 5, 6]),
        ([40, 9, 6], 45, [40, 2, 3]),
        ([40, 9, 6], 10, [40, 1, 1]),
        ([40], 10, [40]),
    ],
)
def test_the_widest_columns_but_the_first_are_narrowed(widths, room, fitted):
    assert fit_widths(widths, room) == fitted


@pytest.mark.parametrize(
    ("text", "width", "lines"),
    [
        ("", 5, [""]),
        ("a  b", 9, ["a  b"]),
        ("one two three", 7, ["one two", "three"]),
        ("a unbreakable b", 4, ["a", "unbr", "eaka", "ble", "b"]),
        ("數數 數數", 4, ["數數", "數數"]),
        ("數數", 3, ["數", "數"]),
        ("數", 1, ["數"]),
    ],
)
def test_cells_break_at_spaces_and_long_words_anywhere(text, width, lines):
    assert wrap_cell(text, width) == lines


@pytest.mark.parametrize("columns", [60, 80])
def test_a_listing_on_a_terminal_fits_it(terminal, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    print_listing(RECORDS * 3, "table")
    lines = terminal.readouterr().out.splitlines()
    assert max(map(len, lines)) <= columns
    assert sum(line.startswith("one") for line in lines) == 3
