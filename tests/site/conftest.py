"""The generated pages, made once."""

from __future__ import annotations

import pytest
import site_reference


@pytest.fixture(scope="session")
def reference() -> dict[str, str]:
    """The pages of the reference by path, without those of the estimators."""
    return site_reference.reference_pages()
