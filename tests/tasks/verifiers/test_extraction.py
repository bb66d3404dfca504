"""Reading boxes and numbers out of what models write."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from advsweep.tasks.verifiers.answers import last_boxed, number, plain_number, spell


@pytest.mark.parametrize(
    ("text", "boxed"),
    [
        (r"\boxed{7}", "7"),
        (r"first \boxed{1}, then \boxed{ \frac{1}{2} }.", r"\frac{1}{2}"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"\boxed{\left\{ x \right.}", r"\left\{ x \right."),
        (r"\boxed {3}", "3"),
        (r"$\boxed 5$", "5"),
        (r"\boxed{1} but \boxed{2 is cut of", None),
        (r"\boxed{}", None),
        (r"\boxed", None),
        ("7", None),
        ("", None),
    ],
)
def test_the_last_box_counts(text: str, boxed: str | None) -> None:
    assert last_boxed(text) == boxed


@given(st.text(st.sampled_from("\\boxed{} 1a"), max_size=40))
def test_any_text_can_be_searched_for_a_box(text: str) -> None:
    boxed = last_boxed(text)
    assert boxed is None or boxed in text


def test_a_long_text_of_open_braces_is_read_in_linear_time() -> None:
    assert last_boxed("\\boxed{" * 200_000) is None


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("72", 72),
        ("-3", -3),
        ("1,234", 1234),
        ("1,234,567.5", Fraction(2469135, 2)),
        ("0.50", Fraction(1, 2)),
        ("1,23", None),
        ("1234,567", None),
        ("+5", None),
        ("1e5", None),
        ("5.", None),
        ("٣", None),
        ("9" * 61, None),
        ("", None),
    ],
)
def test_plain_numbers(text: str, value: object) -> None:
    assert plain_number(text) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("$5", 5),
        (r"\$1,200.50", Fraction(2401, 2)),
        ("25%", 25),
        (r"25\%", 25),
        (".5", Fraction(1, 2)),
        ("+7.", 7),
        ("2.5e3", 2500),
        ("1E-2", Fraction(1, 100)),
        ("3/4", Fraction(3, 4)),
        ("-3/4", Fraction(-3, 4)),
        ("1/0", None),
        ("e5", None),
        ("-", None),
        ("x", None),
        ("1e9999", None),
    ],
)
def test_numbers_as_people_write_them(text: str, value: object) -> None:
    assert number(text) == value


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("72", "72"),
        ("-7/2", "-3.5"),
        ("1/3", "1/3"),
        ("1/8", "0.125"),
        ("-100", "-100"),
        ("0", "0"),
    ],
)
def test_numbers_have_one_spelling(value: str, text: str) -> None:
    assert spell(Fraction(value)) == text


@given(st.fractions(max_denominator=1000))
def test_a_spelt_number_is_read_back(value: Fraction) -> None:
    assert number(spell(value)) == value
