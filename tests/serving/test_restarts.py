"""Restarts by a click: processes of `advsweep retry`, and what the page says of them."""

from __future__ import annotations

import time

import pytest

from advsweep.serving.restarts import Restarts
from advsweep.store import Status

# Each starts a process.
pytestmark = [pytest.mark.slow, pytest.mark.security]


def test_a_restart_obeys_no_executor_of_the_store_and_says_why(training):
    run = training.add()
    training.store.sweeps.add("demo", {"settings": {"executor": {"name": "slurm"}}})
    restarts = Restarts(training.store.url, ["--retries", "0"])
    assert restarts.start([run]) == f"Started a retry of 1 run ({run})."
    assert restarts.describe() == [f"retry of 1 run ({run}): in progress"]
    assert restarts.unfinished() == [run]
    while restarts.unfinished():
        time.sleep(0.1)
    [line] = restarts.describe()
    assert line.startswith(f"retry of 1 run ({run}): advsweep: executor: the store has 'slurm'")
    assert training.store.runs.find(str(run)).status is Status.PENDING
