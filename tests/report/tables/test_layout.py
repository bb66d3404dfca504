"""How many digits a number is written with."""

from __future__ import annotations

import math

import pytest

from advsweep.writing import show, show_interval, show_p


@pytest.mark.parametrize(
    ("mean", "half_width", "shown"),
    [
        (0.49133, 0.0442, ("0.491", "0.044")),
        (0.5, 0.621034, ("0.50", "0.62")),
        # 0.0996 is 0.10 with two digits, which are then 1 and 0.
        (0.49133, 0.0996, ("0.49", "0.10")),
        (76800.4, 123.4, ("76800", "123")),
        (3.123456e-4, 1.2345e-8, ("0.000312", "1.2e-08")),
        (0.75, 0.0, ("0.750", "0")),
        (0.75, math.nan, ("0.750", "")),
        (math.inf, math.nan, ("inf", "")),
    ],
)
def test_intervals_have_two_significant_digits(mean, half_width, shown):
    assert show_interval(mean, half_width) == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0.0, "0.000"), (0.5, "0.500"), (3e-5, "3e-05"), (76800.0, "76800"), (1.25e7, "1.25e+07")],
)
def test_numbers_without_an_interval(value, shown):
    assert show(value) == shown


def test_p_values():
    assert [show_p(p) for p in (0.0004, 0.0341, 1.0, math.nan)] == ["<0.001", "0.034", "1.000", ""]
