"""Numbers as people write them."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from advsweep.tasks.verifiers.number_notation import plain_notation
from advsweep.tasks.verifiers.number_reader import (
    Quantity,
    agree,
    plain_number,
    read_quantity,
    spell,
    tokens,
)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("72", 72),
        ("1,234,567.5", Fraction(2469135, 2)),
        (r"\$1,200.50", Fraction(2401, 2)),
        (".5", Fraction(1, 2)),
        ("1E-2", Fraction(1, 100)),
        ("-3/4", Fraction(-3, 4)),
        (r"-\dfrac{3}{4}", Fraction(-3, 4)),
        (r"\frac34", Fraction(3, 4)),
        (r"2\frac{3}{4}", Fraction(11, 4)),
        ("2 3/4", Fraction(11, 4)),
        ("-2¾", Fraction(-11, 4)),
        ("2^{10}", 1024),
        (r"4.5 \times 10^{-2}", Fraction(45, 1000)),
        ("4.5·10⁻²", Fraction(45, 1000)),
        ("1{,}000", 1000),
        (r"1\,000\,000", 10**6),
        (r"\$12,\,500", 12500),
        ("12\u202f500", 12500),
        ("12 500", 12500),
        ("1,00,000", 10**5),
        ("１２", 12),
        ("−12", -12),
        ("- 12", -12),
        (r"72^\circ", 72),
        (r"72\ \mathrm{m\,s^{-1}}", 72),
        (r"72 \text{ square units}", 72),
        ("72 km/h", 72),
        (r"\text{Total} = 70 + 2 = 72", 72),
        (r"\frac{22}{7} \approx 3.14", Fraction(22, 7)),
        (r"72 \text{ (seventy-two)}", 72),
        ("**72**.", 72),
        ("2.000,50", Fraction(4001, 2)),
        ("٧٢", 72),
        ("72个", 72),
        ("72 яблока", 72),
        (r"72 \frac{\text{km}}{\text{h}}", 72),
        ("[72]", 72),
        ("9" * 1000, int("9" * 1000)),
    ],
)
def test_numbers_as_people_write_them(text: str, value: Fraction) -> None:
    quantity = read_quantity(text)
    assert quantity is not None
    assert quantity.value == value


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "seven",
        "1,23",
        "72个或73个",
        "72 или",
        "72π",
        r"72\frac{x}{2}",
        "1e9999",
        "9" * 1001,
        "9^{9999}",
        "1/0",
        "10-3",
        "x - 3",
        "3, 4",
        "3 or 4",
        "4 10/3",
        "3x",
        "3 x",
        r"3\pi",
        r"3\sqrt{2}",
        "3!",
        "x > 3",
        r"\pm 3",
        "3:4",
        "12:30",
        "3 = 4",
        r"42 \approx 43",
        "x = 3, y = 4",
        "at least 3",
        "not 3",
        "3 feet 4 inches",
        "x^2 - 9 = 0",
        "0,5",
    ],
)
def test_what_is_not_one_number_is_not_read(text: str) -> None:
    assert read_quantity(text) is None


def test_a_decimal_comma_is_read_where_it_is_expected() -> None:
    assert read_quantity("0,5", decimal_comma=True) == Quantity(Fraction(1, 2), decimals=1)


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("10-3", [10, 3]),
        ("from 2 to -3", [2, -3]),
        ("pages 3-4", [3, 4]),
        ("H2O, x_1, y^2 and 5 cm^2", [5]),
        ("1/2 of 3 1/2", [Fraction(1, 2), Fraction(7, 2)]),
        ("1,2,3", [None]),
    ],
)
def test_numbers_in_a_text(text: str, values: list[Fraction | None]) -> None:
    found = [token.quantity and token.quantity.value for token in tokens(plain_notation(text))]
    assert found == values


@pytest.mark.parametrize(
    ("gold", "answer", "equal"),
    [
        ("25", "25%", True),
        ("0.25", "25%", True),
        ("25%", "25", True),
        ("25%", "0.25%", False),
        ("0.25", "0.25%", False),
        ("3000000", "3 million", True),
        ("3", "3 million", True),
        ("1000001", "1000002", False),
        ("1000000", "1000000.4", False),
        ("1", "0.999999999", True),
        ("1/3", "0.333333", True),  # |1/3 - 0.333333| = 10^-6 / 3
        ("1/3", "0.33333", False),
        ("0.33", "1/3", True),
        ("0.34", "1/3", False),
        ("0.5", "1/3", False),
        ("3.14159", "3.141592", True),
        ("1234567.5", "1234567.6", False),
    ],
)
def test_numbers_agree_up_to_rounding(gold: str, answer: str, equal: bool) -> None:
    expected = read_quantity(gold)
    given_ = read_quantity(answer)
    assert expected is not None
    assert given_ is not None
    assert agree(expected, given_) is equal


@pytest.mark.parametrize(
    ("value", "text"), [("72", "72"), ("-7/2", "-3.5"), ("1/3", "1/3"), ("-100", "-100")]
)
def test_numbers_have_one_spelling(value: str, text: str) -> None:
    assert spell(Fraction(value)) == text


@given(st.fractions(max_denominator=1000))
def test_a_spelt_number_is_read_back(value: Fraction) -> None:
    quantity = read_quantity(spell(value))
    assert quantity is not None
    assert quantity.value == value


@given(st.integers(min_value=-(10**40), max_value=10**40))
def test_whole_numbers_are_exact(value: int) -> None:
    assert plain_number(str(value)) == value
    quantity = read_quantity(f"{value:,}")
    neighbour = read_quantity(str(value + 1))
    assert quantity is not None
    assert neighbour is not None
    assert quantity.value == value
    assert not agree(quantity, neighbour)


@settings(max_examples=30)
@given(st.text(max_size=60), st.text(max_size=60))
def test_any_text_is_read_or_refused(before: str, after: str) -> None:
    read_quantity(f"{before}7{after}")
    tokens(plain_notation(f"{before}7{after}"))
