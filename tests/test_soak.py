"""The soak test on a small scale: that it runs, and finds nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
def test_a_few_runs_survive_the_soak_test() -> None:
    # The first blow of this seed falls when a run is but a tenth of a second old.
    few = ["--backend=fake", "--runs=2", "--commands=0", "--seed=31"]
    script = Path(__file__).with_name("soak.py")
    done = subprocess.run(
        [sys.executable, script, *few], check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    told = done.stdout.splitlines()
    assert told[0].startswith("undisturbed: 2 runs done in ")
    assert told[1].startswith("disturbed: 2 runs done in ")
    assert not told[2].startswith("  0 kills of runs")
    assert told[4] == "  points and table as undisturbed: yes, yes"
