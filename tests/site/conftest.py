"""The generated pages, made once."""

from __future__ import annotations

import pytest
import site_estimators
import site_objectives
import site_reference


@pytest.fixture(scope="session")
def reference() -> dict[str, str]:
    """The pages of the reference by path, without those of the estimators."""
    return site_reference.reference_pages()


@pytest.fixture(scope="session")
def estimator_pages() -> dict[str, str]:
    """The pages of the estimators by path, without figures."""
    return site_estimators.estimator_pages()


@pytest.fixture(scope="session")
def objective_pages() -> dict[str, str]:
    """The pages of the objectives by path, without figures."""
    return site_objectives.objective_pages()
