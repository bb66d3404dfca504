"""Rival laws of pass@k, fitted and ordered by AIC."""

from __future__ import annotations

import math

import numpy as np
import pytest

from advsweep.errors import FitError
from advsweep.report.data import columns
from advsweep.statistics.pass_laws import LAWS, compare_laws

K = 2.0 ** np.arange(8)

EXACT = {
    "shifted_power": np.exp(-1.5 * (K + 2) ** -0.4),
    "power": np.exp(-1.5 * K**-0.4),
    "exponential": 1 - 0.8 * np.exp(-0.05 * K),
}


@pytest.mark.parametrize("law", LAWS)
def test_a_law_fits_its_own_curve(law: str) -> None:
    fits = compare_laws(K, EXACT[law])
    assert fits[law].mse < 1e-8
    # The power law is the shifted one without a shift, so both fit its curve.
    others = {fit.mse for name, fit in fits.items() if name not in (law, "shifted_power")}
    assert min(others) > 10 * fits[law].mse


def test_parameters_are_those_of_the_formulas() -> None:
    expected = {
        "power": (1.5, 0.4),
        "exponential": (0.8, 0.05),
    }
    for law, parameters in expected.items():
        found = compare_laws(K, EXACT[law])[law].parameters
        assert found == pytest.approx(parameters, rel=1e-3)


def test_aicc_by_hand() -> None:
    """n ln(mse) + 2p + 2p(p+1)/(n-p-1) with n = 8 points and p = 3 with the spread."""
    rough = EXACT["exponential"] + 0.01 * np.array([1, -1, 1, -1, 1, -1, 0, 0])
    fit = compare_laws(K, rough)["exponential"]
    assert fit.aicc == pytest.approx(8 * math.log(fit.mse) + 6 + 24 / 4)


def test_a_curve_that_does_not_rise_is_refused() -> None:
    with pytest.raises(FitError, match="everything was solved"):
        compare_laws(K, np.ones_like(K))


def test_names() -> None:
    assert columns.LAWS == LAWS
