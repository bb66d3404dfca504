from __future__ import annotations

import pytest

from advsweep.tasks.countdown import Countdown


@pytest.fixture(scope="session")
def countdown() -> Countdown:
    return Countdown()
