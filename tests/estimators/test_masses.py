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


# The table at G = 8, to four decimals: m_S and m_F at p = 0.1, 0.3, 0.5 and 0.8.
TABLE: list[tuple[Any, list[float], list[float]]] = [
    ("skew_r", [0.0303, 0.0832, 0.1038, 0.0595], [0.0303, 0.0832, 0.1038, 0.0595]),
    (
        {"name": "easy_power", "alpha": 2},
        [0.0158, 0.0643, 0.1094, 0.1015],
        [0.0158, 0.0643, 0.1094, 0.1015],
    ),
    (
        {"name": "passk_mix", "k": 4},
        [0.1825, 0.3008, 0.2528, 0.0887],
        [0.1825, 0.3008, 0.2528, 0.0887],
    ),
    ("quantile", [0.0997, 0.2622, 0.2500, 0.0267], [0.0002, 0.0202, 0.1133, 0.1704]),
    ("hard_focused", [0.2582, 0.3864, 0.3450, 0.1980], [0.2582, 0.3864, 0.3450, 0.1980]),
    ("easy_focused", [0.1168, 0.2584, 0.3450, 0.3614], [0.1168, 0.2584, 0.3450, 0.3614]),
    ("binary_contrastive", [0.1000, 0.3000, 0.5000, 0.8000], [0.1000, 0.2999, 0.4961, 0.6322]),
]


# Its rows in the sum convention: 8 times the masses per rollout.
SUMS: list[tuple[Any, list[float], list[float]]] = [
    ("passk_loo", [0.3826, 0.1977, 0.0312, 0.0001], [0, 0, 0, 0]),
    ("softmax", [0.1020, 0.2017, 0.2065, 0.1081], [0.1020, 0.2017, 0.2065, 0.1081]),
    ("log_mean_exp", [0.1265, 0.2444, 0.2454, 0.1257], [0.1146, 0.2249, 0.2289, 0.1190]),
]


@pytest.mark.parametrize(
    ("spec", "success", "failure", "factor"),
    [*((*row, 1) for row in TABLE), *((*row, 8) for row in SUMS)],
)
def test_the_table(spec: Any, success: list[float], failure: list[float], factor: int) -> None:
    found = [expected(spec, p) for p in RATES]
    assert [m_success * factor for m_success, _ in found] == pytest.approx(success, abs=5.1e-5)
    assert [m_failure * factor for _, m_failure in found] == pytest.approx(failure, abs=5.1e-5)


# Exact at any group size; p is in (0, 1).
CLOSED_FORMS: list[tuple[Any, Callable[[float, float, int], tuple[float, float]]]] = [
    ("min_baseline", lambda p, q, G: (p - p**G, 0)),
    ("relu", lambda p, q, G: (p * q * (1 - 1 / G), 0)),
    ("gpg", lambda p, q, G: (p * q * (1 - 1 / G),) * 2),
    ("passk_loo", lambda p, q, G: (p * q ** (G - 1), 0)),
    (
        {"name": "asym_re", "delta": 0.03},
        lambda p, q, G: (p * q * (1 - 1 / G) - 0.03 * p, p * q * (1 - 1 / G) + 0.03 * q),
    ),
    ("psr", lambda p, q, G: (p, 0)),
    ("nsr", lambda p, q, G: (0, q)),
    ({"name": "w_reinforce", "lam": 0.3}, lambda p, q, G: (0.3 * p, q)),
    ("binary_contrastive", lambda p, q, G: (p, p - p**G)),
]


@pytest.mark.parametrize(("spec", "form"), CLOSED_FORMS)
@pytest.mark.parametrize("group_size", [2, 5, 8, 16])
@pytest.mark.parametrize("p", [0.07, 0.3, 0.5, 0.95])
def test_closed_forms(spec: Any, form: Any, group_size: int, p: float) -> None:
    assert expected(spec, p, group_size) == pytest.approx(form(p, 1 - p, group_size), abs=1e-12)
