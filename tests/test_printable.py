"""Text from elsewhere is shown without control characters, and means what it meant."""

from __future__ import annotations

import json
import sys
import unicodedata

import pytest

from advsweep.printable import (
    markdown_text,
    printable,
    printable_json,
    printable_line,
    spreadsheet_cell,
)

pytestmark = pytest.mark.security

CONTROLS = [
    chr(code)
    for code in range(sys.maxunicode + 1)
    if unicodedata.category(chr(code)) in ("Cc", "Cf", "Cs", "Zl", "Zp")
]
"""Every control, format and surrogate character, with the separators of lines and paragraphs."""


def test_every_control_character_is_escaped() -> None:
    assert len(CONTROLS) > 2_000
    for character in CONTROLS:
        shown = printable_line(f"a{character}b")
        assert shown.isprintable()
        assert shown.startswith("a\\")
    everything = "".join(CONTROLS)
    assert set(printable(everything)) & set(CONTROLS) == {"\n", "\t"}


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b]52;c;eA==\x07", r"\x1b]52;c;eA==\x07"),
        ("\x9b2J", r"\x9b2J"),
        ("a\rb", r"a\x0db"),
        ("\u202eexe\u2066", r"\u202eexe\u2066"),
        ("\U000e0041", r"\U000e0041"),
        ("\ud800", r"\ud800"),
        ("\ufffe\uffff", r"\ufffe\uffff"),
        ("two\n\tlines", "two\n\tlines"),
    ],
)
def test_escapes_look_as_python_writes_them(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_line_has_no_line_breaks() -> None:
    assert printable_line("a\nb\r\n\tc\u2028d\x85") == r"a\nb\r\n\tc\u2028d\x85"


@pytest.mark.parametrize(
    "text", ["grpo", "p̂ ± 0.1 – †", "日本語 ▁▃█", "a\u00a0b", "\\boxed{1}", "🙂"]
)
def test_other_text_stays(text: str) -> None:
    assert printable(text) == printable_line(text) == printable_json(text) == text


def test_json_keeps_its_values() -> None:
    # A high surrogate before a low one would be read as the pair that they are.
    texts = [c for c in CONTROLS if unicodedata.category(c) != "Cs"]
    value = {"p̂\x7f\u202e": ["".join(texts), "a\nb", "\ud800"]}
    document = printable_json(json.dumps(value, indent=2, ensure_ascii=False))
    assert json.loads(document) == value
    assert set(document) & set(CONTROLS) == {"\n"}
    assert "p̂" in document


@pytest.mark.parametrize("start", ["=", "+", "-", "@", "\t", "\r", "\n", "＝"])
def test_formula_is_a_text_in_a_spreadsheet(start: str) -> None:
    assert spreadsheet_cell(f"{start}1+cmd|' /C calc'!A0").startswith("'")


@pytest.mark.parametrize("value", [-0.5, -3, "-0.5", "+1e-3", "-inf", "", None, True, "a=1", "–"])
def test_numbers_and_plain_texts_are_no_formulas(value: object) -> None:
    assert spreadsheet_cell(value) is value


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("pass@8[a] < pass@8[b]", "pass@8[a] < pass@8[b]"),
        ("<script>", "&lt;script>"),
        ("<!--", "&lt;!--"),
        ("</a", "&lt;/a"),
        ("a<", "a&lt;"),
        ("&lt;b>", "&amp;lt;b>"),
    ],
)
def test_markdown_has_no_tags(text: str, shown: str) -> None:
    assert markdown_text(text) == shown


def test_controls_in_a_cell_are_escaped() -> None:
    assert spreadsheet_cell("\x1b[2J\u202e") == r"\x1b[2J\u202e"
