"""Masses by exact enumeration, against tables and closed forms.

Those of the estimators not listed here stand beside `expected_masses` itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from advsweep.diagnostics import expected_masses
from advsweep.estimators import build_estimator

RATES = (0.1, 0.3, 0.5, 0.8)


def expected(spec: Any, p: float, group_size: int = 8) -> tuple[float, float]:
    return tuple(expected_masses(build_estimator(spec), p, group_size))


# Exact at any group size; p is in (0, 1).
CLOSED_FORMS: list[tuple[Any, Callable[[float, float, int], tuple[float, float]]]] = [
    ("min_baseline", lambda p, q, G: (p - p**G, 0)),
    ("relu", lambda p, q, G: (p * q * (1 - 1 / G), 0)),
    ("gpg", lambda p, q, G: (p * q * (1 - 1 / G),) * 2),
]


@pytest.mark.parametrize(("spec", "form"), CLOSED_FORMS)
@pytest.mark.parametrize("group_size", [2, 5, 8, 16])
@pytest.mark.parametrize("p", [0.07, 0.3, 0.5, 0.95])
def test_closed_forms(spec: Any, form: Any, group_size: int, p: float) -> None:
    assert expected(spec, p, group_size) == pytest.approx(form(p, 1 - p, group_size), abs=1e-12)
