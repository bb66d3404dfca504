"""Each test has ideas of its own: files of one name in several folders get several names."""

from __future__ import annotations

import pytest

from advsweep.estimators import ESTIMATORS


@pytest.fixture(autouse=True)
def forgotten_names(monkeypatch):
    monkeypatch.setattr(ESTIMATORS, "_named", {})
