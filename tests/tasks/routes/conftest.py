from __future__ import annotations

import pytest

from advsweep.tasks.routes import Routes


@pytest.fixture(scope="session")
def routes() -> Routes:
    return Routes()
